"""A share group member: its heartbeats, and its reaction to every response."""

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
    """A member with a virtual clock."""

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
    driver = ShareMemberDriver()
    first = driver.request()
    assert first.fields == {
        "group_id": "g",
        "member_id": "me",
        "member_epoch": 0,
        "rack_id": "r",
        "subscribed_topic_names": ("t", "u"),
    }
    assert driver.member.tick(driver.now) == [], "one at a time"
    assert driver.answer(first, [])
    second = driver.request(driver.member.next_tick() - driver.now)
    assert (second.fields["member_epoch"], second.fields["subscribed_topic_names"]) == (2, None)
    assert driver.answer(second, [0, 1])
    assert driver.member.assignment == {tip(0), tip(1)}
    driver.member.subscribe(frozenset({"t"}))
    third = driver.request()
    assert (third.fields["rack_id"], third.fields["subscribed_topic_names"]) == (None, ("t",))


def test_a_new_share_member_sends_its_first_heartbeats_sooner() -> None:
    driver = ShareMemberDriver()
    driver.joined([])
    pauses = []
    for _ in range(14):
        before = driver.now
        request = driver.request(driver.member.next_tick() - driver.now)
        pauses.append(driver.now - before)
        assert not driver.answer(request)
    assert pauses == [0.25, *[0.5] * 12, 5.0]


@pytest.mark.parametrize("code", [E.fenced_member_epoch, E.unknown_member_id])
def test_a_fenced_share_member_rejoins_with_the_same_id(code: E) -> None:
    driver = ShareMemberDriver()
    driver.joined([0])
    assert driver.answer(driver.request(1.0), code=code)
    assert (driver.member.state, driver.member.assignment) == (ShareState.JOINING, frozenset())
    again = driver.request()
    assert (again.fields["member_epoch"], again.fields["member_id"]) == (0, "me")


@pytest.mark.parametrize(
    ("code", "pause"),
    [(E.not_coordinator, 0.0), (E.coordinator_not_available, 0.0), (E.coordinator_load_in_progress, PAUSE)],
)
def test_a_moved_coordinator_costs_a_share_member_nothing(code: E, pause: float) -> None:
    driver = ShareMemberDriver()
    driver.joined([0])
    driver.answer(driver.request(1.0), code=code)
    assert (driver.member.state, driver.member.assignment) == (ShareState.MEMBER, {tip(0)})
    assert driver.member.next_tick() == pytest.approx(driver.now + pause)
    assert driver.request(pause).fields["subscribed_topic_names"] == ("t", "u"), "all fields after an error"


def test_a_share_heartbeat_is_retried_after_a_broken_connection() -> None:
    driver = ShareMemberDriver()
    driver.joined([0])
    driver.member.failed(driver.request(1.0), NetworkError("it broke"), driver.now)
    assert driver.member.next_tick() == pytest.approx(driver.now + PAUSE)
    assert driver.member.assignment == {tip(0)}


def test_denied_topics_of_a_share_member_are_an_error_at_the_second_rejection() -> None:
    driver = ShareMemberDriver()
    driver.joined([0])
    driver.answer(driver.request(1.0), code=E.topic_authorization_failed)
    assert driver.member.pending_error is None, "metadata may name the topics"
    driver.answer(driver.request(1.0), code=E.topic_authorization_failed)
    assert isinstance(driver.member.pending_error, KafkaError)
    assert (driver.member.failure, driver.member.state) == (None, ShareState.MEMBER)


@pytest.mark.parametrize("code", [E.group_id_not_found, E.group_max_size_reached])
def test_fatal_errors_end_a_share_membership(code: E) -> None:
    driver = ShareMemberDriver()
    driver.answer(driver.request(), code=code)
    assert isinstance(driver.member.failure, KafkaError)
    assert (driver.member.state, driver.member.next_tick()) == (ShareState.OUT, math.inf)
    driver.member.subscribe(frozenset({"t"}))
    assert driver.member.failure is None
    assert driver.request().fields["member_epoch"] == 0


def test_a_cluster_without_share_groups_ends_the_membership() -> None:
    driver = ShareMemberDriver()
    driver.answer(driver.request(), code=E.unsupported_version)
    with pytest.raises(UnsupportedVersionError, match=r"share\.version is 0"):
        raise driver.member.failure or AssertionError
    older = ShareMemberDriver()
    older.member.failed(older.request(), UnsupportedVersionError("the broker does not know it"), older.now)
    with pytest.raises(UnsupportedVersionError, match="the broker does not know it"):
        raise older.member.failure or AssertionError


def test_a_share_member_past_max_poll_interval_leaves_until_the_next_poll() -> None:
    driver = ShareMemberDriver()
    driver.member.poll_begins()
    driver.joined([0])
    driver.member.poll_ends(driver.now)
    assert driver.member.next_tick() <= driver.now + 60
    while driver.now < 100 + 60 - 5:
        driver.answer(driver.request(5.0))
    leave_request = driver.request(5.0)
    assert leave_request.fields["member_epoch"] == -1
    assert (driver.member.state, driver.member.assignment) == (ShareState.AWAY, frozenset())
    assert not driver.answer(leave_request)
    assert driver.member.next_tick() == math.inf
    driver.member.poll_begins()
    assert driver.request().fields["member_epoch"] == 0


def test_a_share_member_leaves_with_a_last_heartbeat() -> None:
    driver = ShareMemberDriver()
    assert ShareMember("g", "me", Backoff(1, 1), lambda: 0.0).leave() is None
    driver.joined([0])
    leave_request = driver.member.leave()
    assert leave_request is not None
    assert leave_request.fields == {"group_id": "g", "member_id": "me", "member_epoch": -1}
    assert (driver.member.state, driver.member.topics) == (ShareState.OUT, frozenset())


def test_a_share_heartbeat_response_after_leaving_is_dropped() -> None:
    driver = ShareMemberDriver()
    old = driver.request()
    driver.member.leave()
    assert not driver.member.answered(old, SimpleNamespace(error_code=0), driver.now)
    assert driver.member.state is ShareState.OUT
