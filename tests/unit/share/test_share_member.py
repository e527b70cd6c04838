"""A member of a share group: what its heartbeats say, and what every answer means."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as E

from headrace._machines.backoff import Backoff
from headrace._machines.group.actions import Send
from headrace._machines.share.member import ShareMember, ShareState
from headrace._protocol.messages import SHARE_GROUP_HEARTBEAT
from headrace.errors import KafkaError, NetworkError, UnsupportedVersionError
from support.brokers.kio_entities import build
from support.harness.share_broker_model import TOPIC, tip

PAUSE = 0.1


class ShareMemberDriver:
    """A member and the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.member = ShareMember("g", "me", Backoff(100, 1000), lambda: 0.5, rack="r", max_poll_interval=60.0)
        self.member.subscribe(frozenset({"u", "t"}))

    def request(self, seconds: float = 0.0) -> Send:
        self.now += seconds
        (action,) = self.member.tick(self.now)
        assert action.api is SHARE_GROUP_HEARTBEAT
        return action

    def answer(self, action: Send, assigned: list[int] | None = None, code: int = 0, epoch: int = 2) -> bool:
        from kio.index import load_response_schema

        fields: dict[str, Any] = {
            "throttle_time": 0,
            "error_code": code,
            "member_epoch": epoch,
            "heartbeat_interval": 0 if code else 5000,
        }
        if assigned is not None:
            fields["assignment"] = {"topic_partitions": [{"topic_id": TOPIC, "partitions": assigned}]}
        body = build(load_response_schema(SHARE_GROUP_HEARTBEAT.key, 1), fields)
        return self.member.answered(action, body, self.now)

    def joined(self, assigned: list[int]) -> None:
        self.answer(self.request(), assigned)


def test_the_first_share_heartbeat_has_all_fields_and_later_ones_only_changes() -> None:
    seat = ShareMemberDriver()
    first = seat.request()
    assert first.fields == {
        "group_id": "g",
        "member_id": "me",
        "member_epoch": 0,
        "rack_id": "r",
        "subscribed_topic_names": ("t", "u"),
    }
    assert seat.member.tick(seat.now) == [], "one at a time"
    assert seat.answer(first, [])
    second = seat.request(seat.member.next_tick() - seat.now)
    assert (second.fields["member_epoch"], second.fields["subscribed_topic_names"]) == (2, None)
    assert seat.answer(second, [0, 1])
    assert seat.member.assignment == {tip(0), tip(1)}
    seat.member.subscribe(frozenset({"t"}))
    third = seat.request()
    assert (third.fields["rack_id"], third.fields["subscribed_topic_names"]) == (None, ("t",))


def test_a_new_share_member_sends_its_first_heartbeats_sooner() -> None:
    seat = ShareMemberDriver()
    seat.joined([])
    pauses = []
    for _ in range(7):
        before = seat.now
        request = seat.request(seat.member.next_tick() - seat.now)
        pauses.append(seat.now - before)
        assert not seat.answer(request)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


@pytest.mark.parametrize("code", [E.fenced_member_epoch, E.unknown_member_id])
def test_a_fenced_share_member_rejoins_with_the_same_id(code: E) -> None:
    seat = ShareMemberDriver()
    seat.joined([0])
    assert seat.answer(seat.request(1.0), code=code)
    assert (seat.member.state, seat.member.assignment) == (ShareState.JOINING, frozenset())
    again = seat.request()
    assert (again.fields["member_epoch"], again.fields["member_id"]) == (0, "me")


@pytest.mark.parametrize(
    ("code", "pause"),
    [(E.not_coordinator, 0.0), (E.coordinator_not_available, 0.0), (E.coordinator_load_in_progress, PAUSE)],
)
def test_a_moved_coordinator_costs_a_share_member_nothing(code: E, pause: float) -> None:
    seat = ShareMemberDriver()
    seat.joined([0])
    seat.answer(seat.request(1.0), code=code)
    assert (seat.member.state, seat.member.assignment) == (ShareState.MEMBER, {tip(0)})
    assert seat.member.next_tick() == pytest.approx(seat.now + pause)
    assert seat.request(pause).fields["subscribed_topic_names"] == ("t", "u"), "everything, after an error"


def test_a_share_heartbeat_is_retried_after_a_broken_connection() -> None:
    seat = ShareMemberDriver()
    seat.joined([0])
    seat.member.failed(seat.request(1.0), NetworkError("it broke"), seat.now)
    assert seat.member.next_tick() == pytest.approx(seat.now + PAUSE)
    assert seat.member.assignment == {tip(0)}


def test_denied_topics_of_a_share_member_are_an_error_at_the_second_rejection() -> None:
    seat = ShareMemberDriver()
    seat.joined([0])
    seat.answer(seat.request(1.0), code=E.topic_authorization_failed)
    assert seat.member.pending_error is None, "metadata may say which ones"
    seat.answer(seat.request(1.0), code=E.topic_authorization_failed)
    assert isinstance(seat.member.pending_error, KafkaError)
    assert (seat.member.failure, seat.member.state) == (None, ShareState.MEMBER)


@pytest.mark.parametrize("code", [E.group_id_not_found, E.group_max_size_reached])
def test_fatal_errors_end_a_share_membership(code: E) -> None:
    seat = ShareMemberDriver()
    seat.answer(seat.request(), code=code)
    assert isinstance(seat.member.failure, KafkaError)
    assert (seat.member.state, seat.member.next_tick()) == (ShareState.OUT, math.inf)
    seat.member.subscribe(frozenset({"t"}))
    assert seat.member.failure is None
    assert seat.request().fields["member_epoch"] == 0


def test_a_cluster_without_share_groups_ends_the_membership() -> None:
    seat = ShareMemberDriver()
    seat.answer(seat.request(), code=E.unsupported_version)
    with pytest.raises(UnsupportedVersionError, match=r"share\.version is 0"):
        raise seat.member.failure or AssertionError
    older = ShareMemberDriver()
    older.member.failed(older.request(), UnsupportedVersionError("the broker does not know it"), older.now)
    with pytest.raises(UnsupportedVersionError, match="the broker does not know it"):
        raise older.member.failure or AssertionError


def test_a_share_member_past_max_poll_interval_leaves_until_the_next_poll() -> None:
    seat = ShareMemberDriver()
    seat.member.poll_begins()
    seat.joined([0])
    seat.member.poll_ends(seat.now)
    assert seat.member.next_tick() <= seat.now + 60
    while seat.now < 100 + 60 - 5:
        seat.answer(seat.request(5.0))
    leave_request = seat.request(5.0)
    assert leave_request.fields["member_epoch"] == -1
    assert (seat.member.state, seat.member.assignment) == (ShareState.AWAY, frozenset())
    assert not seat.answer(leave_request)
    assert seat.member.next_tick() == math.inf
    seat.member.poll_begins()
    assert seat.request().fields["member_epoch"] == 0


def test_a_share_member_leaves_with_a_last_heartbeat() -> None:
    seat = ShareMemberDriver()
    assert ShareMember("g", "me", Backoff(1, 1), lambda: 0.0).leave() is None
    seat.joined([0])
    leave_request = seat.member.leave()
    assert leave_request is not None
    assert leave_request.fields == {"group_id": "g", "member_id": "me", "member_epoch": -1}
    assert (seat.member.state, seat.member.topics) == (ShareState.OUT, frozenset())


def test_a_share_heartbeat_response_after_leaving_is_dropped() -> None:
    seat = ShareMemberDriver()
    old = seat.request()
    seat.member.leave()
    assert not seat.member.answered(old, SimpleNamespace(error_code=0), seat.now)
    assert seat.member.state is ShareState.OUT
