"""A classic member: its requests, its poll actions, and its reaction to every response."""

from __future__ import annotations

import math

import pytest
from kio.schema.errors import ErrorCode as E

from headrace._machines.group.actions import (
    AssignPartitions,
    ComputeAssignment,
    Lose,
    MemberIdentity,
    Revoke,
    Subscription,
)
from headrace._machines.group.assignors import GroupMember, RangeAssignor
from headrace._machines.group.classic import ClassicState
from headrace._machines.group.leader import compute_assignment
from headrace._protocol.group_data import MemberSubscription, read_assignment, write_assignment, write_subscription
from headrace._protocol.messages import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP, Api
from headrace.errors import KafkaError, ProtocolError, StateError
from simulation.classic_member import PAUSE, T0, TOPICS, U0, ClassicMemberDriver, leads, subscription_in

# -- joining ---------------------------------------------------------------------------------------------------------


def test_a_classic_member_sends_nothing_before_a_poll() -> None:
    driver = ClassicMemberDriver()
    assert driver.sent() == []
    assert driver.member.next_tick() == math.inf


def test_the_first_join_has_all_strategies_and_no_member_id() -> None:
    driver = ClassicMemberDriver("sticky,range")
    assert driver.poll() == []
    request = driver.request(JOIN_GROUP)
    protocols = request.fields["protocols"]
    assert dict(request.fields) == {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 20_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": protocols,
        "reason": "the subscription has changed",
    }
    assert [each["name"] for each in protocols] == ["sticky", "range"]
    assert subscription_in(request) == MemberSubscription(TOPICS, frozenset(), -1)
    assert (request.parks, request.timeout) == (True, 25.0), "longer than the coordinator may hold the request"


def test_a_required_member_id_is_used_at_once_and_kept() -> None:
    driver = ClassicMemberDriver()
    driver.poll()
    driver.answer(driver.request(JOIN_GROUP), error_code=E.member_id_required, member_id="m")
    request = driver.request(JOIN_GROUP)
    assert request.fields["member_id"] == "m"
    driver.fail(request)
    assert driver.sent() == []
    assert driver.request(JOIN_GROUP, PAUSE).fields["member_id"] == "m"


def test_a_member_id_granted_after_expiry_is_left_again() -> None:
    driver = ClassicMemberDriver()
    driver.poll()
    request = driver.request(JOIN_GROUP)
    assert driver.sent(20.0) == [], "expired: there is no id to leave with yet"
    driver.answer(request, error_code=E.member_id_required, member_id="ghost")
    leave_request = driver.request(LEAVE_GROUP)
    assert [each["member_id"] for each in leave_request.fields["members"]] == ["ghost"]


def test_a_follower_syncs_without_assignments_and_takes_its_own() -> None:
    driver = ClassicMemberDriver()
    sync = driver.syncing()
    assert dict(sync.fields) == {
        "group_id": "g",
        "generation_id": 1,
        "member_id": "m",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
    }
    assert sync.parks
    driver.answer(sync, assignment=write_assignment([T0, U0]))
    assert driver.member.state is ClassicState.TAKING
    assert driver.member.owned == frozenset()
    assert driver.poll() == [AssignPartitions(frozenset({T0, U0}), frozenset({T0, U0}))]
    assert driver.member.owned == {T0, U0}
    assert driver.member.identity == MemberIdentity(1, "m", None)


def test_a_leader_computes_and_sends_the_assignments() -> None:
    driver = ClassicMemberDriver()
    (assign,) = leads(driver)
    assert isinstance(assign, ComputeAssignment)
    assert assign.strategy == "range"
    assert assign.members == {
        "m": GroupMember(TOPICS),
        "n": GroupMember(frozenset({"t", "v"}), instance_id="i"),
    }
    assert driver.member.group_topics == {"t", "u", "v"}
    driver.member.assigned(assign, {"m": b"1", "n": b"2"}, {"t": 2})
    sync = driver.request(SYNC_GROUP)
    assert sync.fields["assignments"] == [
        {"member_id": "m", "assignment": b"1"},
        {"member_id": "n", "assignment": b"2"},
    ]


def test_a_returning_static_leader_watches_topics_without_assigning() -> None:
    driver = ClassicMemberDriver(instance_id="i")
    (sync,) = leads(driver, generation=7, skip_assignment=True)
    assert (sync.api, sync.fields["assignments"]) == (SYNC_GROUP, [])
    driver.answer(sync, assignment=write_assignment([T0]))
    driver.poll()
    driver.member.update_partition_counts({"t": 1})
    assert driver.poll() == []
    driver.member.update_partition_counts({"t": 2})
    assert driver.poll() == [Revoke(frozenset({T0}))]
    assert driver.request(JOIN_GROUP).fields["reason"] == "the topics have changed"


def test_a_join_without_a_leader_is_synced() -> None:
    driver = ClassicMemberDriver()
    driver.joined(driver.joining(), 9, leader="")
    assert driver.request(SYNC_GROUP).fields["generation_id"] == 9


def test_an_assignor_that_raises_sets_a_pending_error_and_rejoins() -> None:
    driver = ClassicMemberDriver()
    (assign,) = leads(driver)
    driver.fail(assign, StateError("bad assignor"))
    assert str(driver.member.pending_error) == "bad assignor"
    assert driver.request(JOIN_GROUP, PAUSE).fields["member_id"] == "m"


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\0\x01\xff\xff", b"\xff\xff", b"\0\0\x7f\xff\xff\xff"])
def test_a_leader_assigns_nothing_to_an_unparseable_subscription(
    metadata: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Any client can join with the name of an assignor; the coordinator does not parse its subscription."""
    driver = ClassicMemberDriver()
    self = {"member_id": "m", "group_instance_id": None, "metadata": write_subscription(MemberSubscription(TOPICS))}
    stranger = {"member_id": "evil\nCRITICAL all is lost \x1b[31m", "group_instance_id": None, "metadata": metadata}
    driver.joined(driver.joining(), leader="m", members=[self, stranger])
    (assign,) = driver.sent()
    assert driver.member.failure is None
    assert driver.member.group_topics == TOPICS
    assert assign.members[stranger["member_id"]] == GroupMember(frozenset())
    shares = compute_assignment(RangeAssignor(), assign.members, {"t": 1, "u": 1})
    assert {member: read_assignment(share)[0] for member, share in shares.items()} == {
        "m": {T0, U0},
        stranger["member_id"]: frozenset(),
    }
    (warning,) = caplog.messages
    assert warning.startswith("group g: cannot parse the subscription of member evil CRITICAL all is lost  [31m")


def test_an_unknown_strategy_ends_the_membership_with_a_leave_request() -> None:
    driver = ClassicMemberDriver()
    driver.joined(driver.joining(), protocol_name="unheard-of\n" * 1000)
    assert isinstance(driver.member.failure, ProtocolError)
    assert "unknown assignor 'unheard-of unheard-of" in str(driver.member.failure)
    assert len(str(driver.member.failure)) < 200
    assert driver.request(LEAVE_GROUP).fields["members"][0]["member_id"] == "m"


def test_empty_bytes_are_an_assignment_without_partitions() -> None:
    driver = ClassicMemberDriver()
    driver.answer(driver.syncing(), assignment=b"")
    assert driver.poll() == [AssignPartitions(frozenset(), frozenset())]
    assert driver.member.state is ClassicState.STABLE


# -- errors ----------------------------------------------------------------------------------------------------------

AGAIN = [E.coordinator_load_in_progress, E.coordinator_not_available, E.not_coordinator, E.rebalance_in_progress]
FATAL = [
    E.inconsistent_group_protocol,
    E.invalid_session_timeout,
    E.invalid_group_id,
    E.group_max_size_reached,
    E.fenced_instance_id,
    E.unknown_server_error,
]


@pytest.mark.parametrize("code", AGAIN)
def test_a_rejected_join_is_retried_after_a_backoff(code: E) -> None:
    driver = ClassicMemberDriver()
    driver.answer(driver.joining(), error_code=code)
    assert driver.sent(PAUSE / 2) == []
    assert driver.request(JOIN_GROUP, PAUSE / 2).fields["member_id"] == "m"


@pytest.mark.parametrize(("code", "member_id"), [(E.unknown_member_id, ""), (E.illegal_generation, "m")])
def test_a_join_with_an_unknown_member_id_is_retried_without_it(code: E, member_id: str) -> None:
    driver = ClassicMemberDriver()
    driver.answer(driver.joining(), error_code=code)
    assert driver.request(JOIN_GROUP, PAUSE).fields["member_id"] == member_id


@pytest.mark.parametrize(("code", "member_id"), [(E.unknown_member_id, ""), (E.illegal_generation, "m")])
def test_a_sync_with_an_unknown_member_id_rejoins_without_it(code: E, member_id: str) -> None:
    driver = ClassicMemberDriver()
    driver.answer(driver.syncing(), error_code=code)
    request = driver.request(JOIN_GROUP, PAUSE)
    assert request.fields["member_id"] == member_id
    assert subscription_in(request).generation == -1


def test_a_sync_during_the_next_rebalance_rejoins_at_once() -> None:
    driver = ClassicMemberDriver()
    driver.answer(driver.syncing(), error_code=E.rebalance_in_progress)
    assert subscription_in(driver.request(JOIN_GROUP)).generation == 1


@pytest.mark.parametrize("code", AGAIN[:3])
def test_a_sync_without_a_coordinator_rejoins_after_a_backoff(code: E) -> None:
    driver = ClassicMemberDriver()
    driver.answer(driver.syncing(), error_code=code)
    assert driver.sent() == []
    driver.request(JOIN_GROUP, PAUSE)


@pytest.mark.parametrize("code", FATAL)
@pytest.mark.parametrize("api", [JOIN_GROUP, SYNC_GROUP, HEARTBEAT])
def test_fatal_errors_end_a_classic_membership(api: Api, code: E) -> None:
    driver = ClassicMemberDriver("cooperative-sticky")
    if api is JOIN_GROUP:
        driver.answer(driver.joining(), error_code=code)
    elif api is SYNC_GROUP:
        driver.answer(driver.syncing(), error_code=code)
    else:
        driver.stable(T0)
        driver.refused_heartbeat(code)
    assert isinstance(driver.member.failure, KafkaError)
    assert driver.member.failure.code == code
    assert driver.member.state is ClassicState.OUT
    assert driver.sent(1e6) == []
    assert driver.member.next_tick() == math.inf
    assert driver.poll() == ([Lose(frozenset({T0}))] if api is HEARTBEAT else [])
    driver.member.subscribe(Subscription(frozenset({"t"})))
    assert driver.member.failure is None
    driver.poll()
    assert driver.request(JOIN_GROUP).fields["member_id"] == ""


@pytest.mark.parametrize("api", [JOIN_GROUP, SYNC_GROUP])
def test_a_join_or_sync_without_a_response_rejoins_after_a_backoff(api: Api) -> None:
    driver = ClassicMemberDriver()
    driver.fail(driver.joining() if api is JOIN_GROUP else driver.syncing())
    assert driver.sent() == []
    assert driver.request(JOIN_GROUP, PAUSE).fields["member_id"] == "m"


def test_backoffs_of_a_classic_member_grow_until_a_success() -> None:
    driver = ClassicMemberDriver()
    request = driver.joining()
    for pause in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        driver.fail(request)
        assert driver.member.next_tick() == pytest.approx(driver.now + pause)
        (request,) = driver.sent(pause + 1e-9)
    driver.joined(request)
    driver.fail(driver.request(SYNC_GROUP))
    assert driver.member.next_tick() == pytest.approx(driver.now + 0.1)
