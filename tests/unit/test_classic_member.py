"""A member of a classic group: what it sends, what a poll has to do, what every answer means."""

from __future__ import annotations

import math

import pytest
from kio.schema.errors import ErrorCode as E

from headrace.errors import KafkaError, ProtocolError, StateError
from headrace.machines.assignors import GroupMember, RangeAssignor
from headrace.machines.classic_member import State
from headrace.machines.leading import share_out
from headrace.machines.membership import Assign, Identity, Lose, Revoke, Subscription, Take
from headrace.protocol.group_data import MemberSubscription, read_assignment, write_assignment, write_subscription
from headrace.protocol.messages import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP, Api
from simulation.seat import PAUSE, T0, TOPICS, U0, Seat, leads, subscription_in

# -- joining ---------------------------------------------------------------------------------------------------------


def test_nothing_is_sent_before_a_poll() -> None:
    seat = Seat()
    assert seat.sent() == []
    assert seat.member.next_tick() == math.inf


def test_the_first_join() -> None:
    seat = Seat("sticky,range")
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


def test_the_member_id_that_is_required_is_used_at_once_and_kept() -> None:
    seat = Seat()
    seat.poll()
    seat.answer(seat.request(JOIN_GROUP), error_code=E.member_id_required, member_id="m")
    request = seat.request(JOIN_GROUP)
    assert request.fields["member_id"] == "m"
    seat.fail(request)
    assert seat.sent() == []
    assert seat.request(JOIN_GROUP, PAUSE).fields["member_id"] == "m"


def test_an_id_that_nobody_waits_for_any_more_is_given_back() -> None:
    seat = Seat()
    seat.poll()
    request = seat.request(JOIN_GROUP)
    assert seat.sent(20.0) == [], "expired: there is no id to leave with yet"
    seat.answer(request, error_code=E.member_id_required, member_id="ghost")
    farewell = seat.request(LEAVE_GROUP)
    assert [each["member_id"] for each in farewell.fields["members"]] == ["ghost"]


def test_a_follower() -> None:
    seat = Seat()
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
    assert seat.member.state is State.TAKING
    assert seat.member.owned == frozenset()
    assert seat.poll() == [Take(frozenset({T0, U0}), frozenset({T0, U0}))]
    assert seat.member.owned == {T0, U0}
    assert seat.member.identity == Identity(1, "m", None)


def test_a_leader_shares_out() -> None:
    seat = Seat()
    (assign,) = leads(seat)
    assert isinstance(assign, Assign)
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


def test_a_returning_static_leader_does_not_share_out_but_watches() -> None:
    seat = Seat(instance_id="i")
    (sync,) = leads(seat, generation=7, skip_assignment=True)
    assert (sync.api, sync.fields["assignments"]) == (SYNC_GROUP, [])
    seat.answer(sync, assignment=write_assignment([T0]))
    seat.poll()
    seat.member.topics_changed({"t": 1})
    assert seat.poll() == []
    seat.member.topics_changed({"t": 2})
    assert seat.poll() == [Revoke(frozenset({T0}))]
    assert seat.request(JOIN_GROUP).fields["reason"] == "the topics have changed"


def test_a_leader_of_nobody_as_classic_members_of_a_kip_848_group_are() -> None:
    seat = Seat()
    seat.joined(seat.joining(), 9, leader="")
    assert seat.request(SYNC_GROUP).fields["generation_id"] == 9


def test_an_assignor_that_raises_is_complained_of_and_tried_again() -> None:
    seat = Seat()
    (assign,) = leads(seat)
    seat.fail(assign, StateError("bad assignor"))
    assert str(seat.member.complaint) == "bad assignor"
    assert seat.request(JOIN_GROUP, PAUSE).fields["member_id"] == "m"


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\0\x01\xff\xff", b"\xff\xff", b"\0\0\x7f\xff\xff\xff"])
def test_a_member_whose_subscription_cannot_be_read_gets_nothing_and_the_group_goes_on(
    metadata: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Any client may join under the name of a strategy, and the coordinator does not look at what it says."""
    seat = Seat()
    self = {"member_id": "m", "group_instance_id": None, "metadata": write_subscription(MemberSubscription(TOPICS))}
    stranger = {"member_id": "evil\nCRITICAL all is lost \x1b[31m", "group_instance_id": None, "metadata": metadata}
    seat.joined(seat.joining(), leader="m", members=[self, stranger])
    (assign,) = seat.sent()
    assert seat.member.failure is None
    assert seat.member.group_topics == TOPICS
    assert assign.members[stranger["member_id"]] == GroupMember(frozenset())
    shares = share_out(RangeAssignor(), assign.members, {"t": 1, "u": 1})
    assert {member: read_assignment(share)[0] for member, share in shares.items()} == {
        "m": {T0, U0},
        stranger["member_id"]: frozenset(),
    }
    (warning,) = caplog.messages
    assert warning.startswith("group g: the subscription of member evil CRITICAL all is lost  [31m cannot be read")


def test_a_strategy_that_was_not_offered_ends_the_membership_with_a_farewell() -> None:
    seat = Seat()
    seat.joined(seat.joining(), protocol_name="unheard-of\n" * 1000)
    assert isinstance(seat.member.failure, ProtocolError)
    assert "unknown strategy 'unheard-of unheard-of" in str(seat.member.failure)
    assert len(str(seat.member.failure)) < 200
    assert seat.request(LEAVE_GROUP).fields["members"][0]["member_id"] == "m"


def test_no_bytes_are_an_assignment_of_nothing() -> None:
    seat = Seat()
    seat.answer(seat.syncing(), assignment=b"")
    assert seat.poll() == [Take(frozenset(), frozenset())]
    assert seat.member.state is State.STABLE


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
def test_join_is_tried_again_after_a_pause(code: E) -> None:
    seat = Seat()
    seat.answer(seat.joining(), error_code=code)
    assert seat.sent(PAUSE / 2) == []
    assert seat.request(JOIN_GROUP, PAUSE / 2).fields["member_id"] == "m"


@pytest.mark.parametrize(("code", "member_id"), [(E.unknown_member_id, ""), (E.illegal_generation, "m")])
def test_join_of_somebody_unknown(code: E, member_id: str) -> None:
    seat = Seat()
    seat.answer(seat.joining(), error_code=code)
    assert seat.request(JOIN_GROUP, PAUSE).fields["member_id"] == member_id


@pytest.mark.parametrize(("code", "member_id"), [(E.unknown_member_id, ""), (E.illegal_generation, "m")])
def test_sync_of_somebody_unknown(code: E, member_id: str) -> None:
    seat = Seat()
    seat.answer(seat.syncing(), error_code=code)
    request = seat.request(JOIN_GROUP, PAUSE)
    assert request.fields["member_id"] == member_id
    assert subscription_in(request).generation == -1


def test_sync_while_the_next_rebalance_has_begun_joins_at_once() -> None:
    seat = Seat()
    seat.answer(seat.syncing(), error_code=E.rebalance_in_progress)
    assert subscription_in(seat.request(JOIN_GROUP)).generation == 1


@pytest.mark.parametrize("code", AGAIN[:3])
def test_sync_that_finds_no_coordinator_joins_after_a_pause(code: E) -> None:
    seat = Seat()
    seat.answer(seat.syncing(), error_code=code)
    assert seat.sent() == []
    seat.request(JOIN_GROUP, PAUSE)


@pytest.mark.parametrize("code", FATAL)
@pytest.mark.parametrize("api", [JOIN_GROUP, SYNC_GROUP, HEARTBEAT])
def test_what_ends_the_membership(api: Api, code: E) -> None:
    seat = Seat("cooperative-sticky")
    if api is JOIN_GROUP:
        seat.answer(seat.joining(), error_code=code)
    elif api is SYNC_GROUP:
        seat.answer(seat.syncing(), error_code=code)
    else:
        seat.stable(T0)
        seat.refused_heartbeat(code)
    assert isinstance(seat.member.failure, KafkaError)
    assert seat.member.failure.code == code
    assert seat.member.state is State.OUT
    assert seat.sent(1e6) == []
    assert seat.member.next_tick() == math.inf
    assert seat.poll() == ([Lose(frozenset({T0}))] if api is HEARTBEAT else [])
    seat.member.subscribe(Subscription(frozenset({"t"})))
    assert seat.member.failure is None
    seat.poll()
    assert seat.request(JOIN_GROUP).fields["member_id"] == ""


@pytest.mark.parametrize("api", [JOIN_GROUP, SYNC_GROUP])
def test_no_answer(api: Api) -> None:
    seat = Seat()
    seat.fail(seat.joining() if api is JOIN_GROUP else seat.syncing())
    assert seat.sent() == []
    assert seat.request(JOIN_GROUP, PAUSE).fields["member_id"] == "m"


def test_pauses_grow_and_a_success_ends_that() -> None:
    seat = Seat()
    request = seat.joining()
    for pause in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        seat.fail(request)
        assert seat.member.next_tick() == pytest.approx(seat.now + pause)
        (request,) = seat.sent(pause + 1e-9)
    seat.joined(request)
    seat.fail(seat.request(SYNC_GROUP))
    assert seat.member.next_tick() == pytest.approx(seat.now + 0.1)
