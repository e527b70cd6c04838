"""A member of a classic group: what it sends, what a poll has to do, what every answer means."""

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
    seat = ClassicMemberDriver()
    assert seat.sent() == []
    assert seat.member.next_tick() == math.inf


def test_the_first_join_has_all_strategies_and_no_member_id() -> None:
    seat = ClassicMemberDriver("sticky,range")
    assert seat.poll() == []
    request = seat.request(JOIN_GROUP)
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
    assert (request.parks, request.timeout) == (True, 25.0), "longer than the coordinator may keep it"


def test_a_required_member_id_is_used_at_once_and_kept() -> None:
    seat = ClassicMemberDriver()
    seat.poll()
    seat.answer(seat.request(JOIN_GROUP), error_code=E.member_id_required, member_id="m")
    request = seat.request(JOIN_GROUP)
    assert request.fields["member_id"] == "m"
    seat.fail(request)
    assert seat.sent() == []
    assert seat.request(JOIN_GROUP, PAUSE).fields["member_id"] == "m"


def test_a_member_id_granted_after_expiry_is_left_again() -> None:
    seat = ClassicMemberDriver()
    seat.poll()
    request = seat.request(JOIN_GROUP)
    assert seat.sent(20.0) == [], "expired: there is no id to leave with yet"
    seat.answer(request, error_code=E.member_id_required, member_id="ghost")
    leave_request = seat.request(LEAVE_GROUP)
    assert [each["member_id"] for each in leave_request.fields["members"]] == ["ghost"]


def test_a_follower_syncs_without_assignments_and_takes_its_own() -> None:
    seat = ClassicMemberDriver()
    sync = seat.syncing()
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
    seat.answer(sync, assignment=write_assignment([T0, U0]))
    assert seat.member.state is ClassicState.TAKING
    assert seat.member.owned == frozenset()
    assert seat.poll() == [AssignPartitions(frozenset({T0, U0}), frozenset({T0, U0}))]
    assert seat.member.owned == {T0, U0}
    assert seat.member.identity == MemberIdentity(1, "m", None)


def test_a_leader_computes_and_sends_the_assignments() -> None:
    seat = ClassicMemberDriver()
    (assign,) = leads(seat)
    assert isinstance(assign, ComputeAssignment)
    assert assign.strategy == "range"
    assert assign.members == {
        "m": GroupMember(TOPICS),
        "n": GroupMember(frozenset({"t", "v"}), instance_id="i"),
    }
    assert seat.member.group_topics == {"t", "u", "v"}
    seat.member.assigned(assign, {"m": b"1", "n": b"2"}, {"t": 2})
    sync = seat.request(SYNC_GROUP)
    assert sync.fields["assignments"] == [
        {"member_id": "m", "assignment": b"1"},
        {"member_id": "n", "assignment": b"2"},
    ]


def test_a_returning_static_leader_watches_topics_without_assigning() -> None:
    seat = ClassicMemberDriver(instance_id="i")
    (sync,) = leads(seat, generation=7, skip_assignment=True)
    assert (sync.api, sync.fields["assignments"]) == (SYNC_GROUP, [])
    seat.answer(sync, assignment=write_assignment([T0]))
    seat.poll()
    seat.member.update_partition_counts({"t": 1})
    assert seat.poll() == []
    seat.member.update_partition_counts({"t": 2})
    assert seat.poll() == [Revoke(frozenset({T0}))]
    assert seat.request(JOIN_GROUP).fields["reason"] == "the topics have changed"


def test_a_join_without_a_leader_is_synced() -> None:
    seat = ClassicMemberDriver()
    seat.joined(seat.joining(), 9, leader="")
    assert seat.request(SYNC_GROUP).fields["generation_id"] == 9


def test_an_assignor_that_raises_sets_a_pending_error_and_rejoins() -> None:
    seat = ClassicMemberDriver()
    (assign,) = leads(seat)
    seat.fail(assign, StateError("bad assignor"))
    assert str(seat.member.pending_error) == "bad assignor"
    assert seat.request(JOIN_GROUP, PAUSE).fields["member_id"] == "m"


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\0\x01\xff\xff", b"\xff\xff", b"\0\0\x7f\xff\xff\xff"])
def test_a_leader_assigns_nothing_to_an_unparseable_subscription(
    metadata: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Any client may join under the name of a strategy, and the coordinator does not look at what it says."""
    seat = ClassicMemberDriver()
    self = {"member_id": "m", "group_instance_id": None, "metadata": write_subscription(MemberSubscription(TOPICS))}
    stranger = {"member_id": "evil\nCRITICAL all is lost \x1b[31m", "group_instance_id": None, "metadata": metadata}
    seat.joined(seat.joining(), leader="m", members=[self, stranger])
    (assign,) = seat.sent()
    assert seat.member.failure is None
    assert seat.member.group_topics == TOPICS
    assert assign.members[stranger["member_id"]] == GroupMember(frozenset())
    shares = compute_assignment(RangeAssignor(), assign.members, {"t": 1, "u": 1})
    assert {member: read_assignment(share)[0] for member, share in shares.items()} == {
        "m": {T0, U0},
        stranger["member_id"]: frozenset(),
    }
    (warning,) = caplog.messages
    assert warning.startswith("group g: cannot parse the subscription of member evil CRITICAL all is lost  [31m")


def test_an_unknown_strategy_ends_the_membership_with_a_leave_request() -> None:
    seat = ClassicMemberDriver()
    seat.joined(seat.joining(), protocol_name="unheard-of\n" * 1000)
    assert isinstance(seat.member.failure, ProtocolError)
    assert "unknown assignor 'unheard-of unheard-of" in str(seat.member.failure)
    assert len(str(seat.member.failure)) < 200
    assert seat.request(LEAVE_GROUP).fields["members"][0]["member_id"] == "m"


def test_empty_bytes_are_an_assignment_without_partitions() -> None:
    seat = ClassicMemberDriver()
    seat.answer(seat.syncing(), assignment=b"")
    assert seat.poll() == [AssignPartitions(frozenset(), frozenset())]
    assert seat.member.state is ClassicState.STABLE


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
    seat = ClassicMemberDriver()
    seat.answer(seat.joining(), error_code=code)
    assert seat.sent(PAUSE / 2) == []
    assert seat.request(JOIN_GROUP, PAUSE / 2).fields["member_id"] == "m"


@pytest.mark.parametrize(("code", "member_id"), [(E.unknown_member_id, ""), (E.illegal_generation, "m")])
def test_a_join_with_an_unknown_member_id_is_retried_without_it(code: E, member_id: str) -> None:
    seat = ClassicMemberDriver()
    seat.answer(seat.joining(), error_code=code)
    assert seat.request(JOIN_GROUP, PAUSE).fields["member_id"] == member_id


@pytest.mark.parametrize(("code", "member_id"), [(E.unknown_member_id, ""), (E.illegal_generation, "m")])
def test_a_sync_with_an_unknown_member_id_rejoins_without_it(code: E, member_id: str) -> None:
    seat = ClassicMemberDriver()
    seat.answer(seat.syncing(), error_code=code)
    request = seat.request(JOIN_GROUP, PAUSE)
    assert request.fields["member_id"] == member_id
    assert subscription_in(request).generation == -1


def test_a_sync_during_the_next_rebalance_rejoins_at_once() -> None:
    seat = ClassicMemberDriver()
    seat.answer(seat.syncing(), error_code=E.rebalance_in_progress)
    assert subscription_in(seat.request(JOIN_GROUP)).generation == 1


@pytest.mark.parametrize("code", AGAIN[:3])
def test_a_sync_without_a_coordinator_rejoins_after_a_backoff(code: E) -> None:
    seat = ClassicMemberDriver()
    seat.answer(seat.syncing(), error_code=code)
    assert seat.sent() == []
    seat.request(JOIN_GROUP, PAUSE)


@pytest.mark.parametrize("code", FATAL)
@pytest.mark.parametrize("api", [JOIN_GROUP, SYNC_GROUP, HEARTBEAT])
def test_fatal_errors_end_a_classic_membership(api: Api, code: E) -> None:
    seat = ClassicMemberDriver("cooperative-sticky")
    if api is JOIN_GROUP:
        seat.answer(seat.joining(), error_code=code)
    elif api is SYNC_GROUP:
        seat.answer(seat.syncing(), error_code=code)
    else:
        seat.stable(T0)
        seat.refused_heartbeat(code)
    assert isinstance(seat.member.failure, KafkaError)
    assert seat.member.failure.code == code
    assert seat.member.state is ClassicState.OUT
    assert seat.sent(1e6) == []
    assert seat.member.next_tick() == math.inf
    assert seat.poll() == ([Lose(frozenset({T0}))] if api is HEARTBEAT else [])
    seat.member.subscribe(Subscription(frozenset({"t"})))
    assert seat.member.failure is None
    seat.poll()
    assert seat.request(JOIN_GROUP).fields["member_id"] == ""


@pytest.mark.parametrize("api", [JOIN_GROUP, SYNC_GROUP])
def test_a_join_or_sync_without_a_response_rejoins_after_a_backoff(api: Api) -> None:
    seat = ClassicMemberDriver()
    seat.fail(seat.joining() if api is JOIN_GROUP else seat.syncing())
    assert seat.sent() == []
    assert seat.request(JOIN_GROUP, PAUSE).fields["member_id"] == "m"


def test_backoffs_of_a_classic_member_grow_until_a_success() -> None:
    seat = ClassicMemberDriver()
    request = seat.joining()
    for pause in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        seat.fail(request)
        assert seat.member.next_tick() == pytest.approx(seat.now + pause)
        (request,) = seat.sent(pause + 1e-9)
    seat.joined(request)
    seat.fail(seat.request(SYNC_GROUP))
    assert seat.member.next_tick() == pytest.approx(seat.now + 0.1)
