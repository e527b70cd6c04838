"""A KIP-848 member: its heartbeats, its poll actions, and its reaction to every response."""

from __future__ import annotations

import math
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as E

from headrace._machines.backoff import Backoff
from headrace._machines.group.actions import AssignPartitions, Lose, MemberIdentity, Revoke, Subscription
from headrace._machines.group.heartbeat_timer import HeartbeatTimer
from headrace.errors import KafkaError, UnsupportedVersionError
from headrace.types import TopicPartition
from support.harness.consumer_protocol_member import (
    AGAIN,
    INTERVAL,
    NAMES,
    PAUSE,
    T0,
    T1,
    T2,
    U0,
    ConsumerProtocolDriver,
    T,
    U,
    changes,
    listed,
    some,
)

# -- heartbeat fields ------------------------------------------------------------------------------------------------


def test_the_first_kip_848_heartbeat_has_all_fields_and_no_partitions() -> None:
    driver = ConsumerProtocolDriver(rack="r", remote_assignor="range")
    assert driver.sent() == [], "no heartbeat before the first poll"
    assert driver.poll() == []
    assert dict(driver.request().fields) == {
        "group_id": "g",
        "member_id": "me",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": "r",
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": ("t", "u"),
        "subscribed_topic_regex": None,
        "server_assignor": "range",
        "topic_partitions": [],
    }


def test_later_kip_848_heartbeats_have_only_changed_fields() -> None:
    driver = ConsumerProtocolDriver(instance_id="i")
    driver.joined({T: (0,)})
    request = driver.request(INTERVAL)
    assert (request.fields["member_id"], request.fields["member_epoch"], request.fields["instance_id"]) == (
        "me",
        2,
        "i",
    )
    assert changes(request) == dict.fromkeys(changes(request)), "no changes"
    driver.answer(request, 2)
    driver.member.subscribe(Subscription(frozenset({"t"})))
    request = driver.request()
    assert request.fields["subscribed_topic_names"] == ("t",)
    assert request.fields["topic_partitions"] is None


def test_changes_during_a_heartbeat_are_sent_with_the_next() -> None:
    driver = ConsumerProtocolDriver()
    driver.joined()
    request = driver.request(INTERVAL)
    driver.member.subscribe(Subscription(frozenset({"t"})))
    assert driver.sent(INTERVAL) == [], "one at a time"
    driver.answer(request, 2)
    assert driver.request().fields["subscribed_topic_names"] == ("t",)


@pytest.mark.parametrize("code", [0, E.coordinator_load_in_progress, E.not_coordinator], ids=["no answer", "14", "16"])
def test_after_an_error_a_kip_848_heartbeat_has_all_fields_again(code: int) -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0, 1)})
    request = driver.request(INTERVAL)
    if code:
        driver.answer(request, code=code)
    else:
        driver.fail(request)
    request = driver.request(PAUSE)
    assert request.fields["member_epoch"] == 2
    assert request.fields["rebalance_timeout"] == 60_000
    assert request.fields["subscribed_topic_names"] == ("t", "u")
    assert request.fields["topic_partitions"] == listed(t=(0, 1))


def test_the_heartbeat_interval_is_not_taken_from_an_error_response() -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,)})
    for _ in range(5):  # heartbeats come sooner after a change
        driver.answer(driver.request(INTERVAL), 2)
    driver.answer(driver.request(INTERVAL), code=E.coordinator_load_in_progress)
    driver.answer(driver.request(PAUSE), 2)
    assert driver.member.next_tick() == pytest.approx(driver.now + INTERVAL)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({}, [0.25, *[0.5] * 12, 5.0]),
        ({T: (0,)}, [*[0.5] * 12, 5.0, 5.0]),  # the first heartbeat reported the new partitions
    ],
)
def test_a_new_kip_848_member_asks_ten_times_per_interval_until_all_others_must_have_revoked(
    target: dict[Any, tuple[int, ...]], expected: list[float]
) -> None:
    driver = ConsumerProtocolDriver()
    driver.joined(target)
    assert pauses(driver, len(expected)) == expected


def test_new_kip_848_members_that_start_together_do_not_ask_together() -> None:
    timers = [HeartbeatTimer(INTERVAL, Backoff(100, 1000), lambda dice=dice: dice) for dice in (0.0, 0.5, 1.0)]  # type: ignore[misc]
    for timer in timers:
        timer.accepted(INTERVAL, 10.0)
    assert [timer.next for timer in timers] == [10.125, 10.25, 10.375]
    for timer in timers:
        for _ in range(40):
            answered_at = timer.next
            timer.accepted(INTERVAL, answered_at)
        assert timer.next == pytest.approx(answered_at + INTERVAL), "those that are not new have a fixed interval"


def test_each_change_keeps_a_new_kip_848_member_asking_for_another_interval() -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,)})
    pauses(driver, 10)
    driver.answer(driver.request(0.5), 2, {T: (0, 1)})
    driver.poll()
    driver.answer(driver.request(), 2)
    assert pauses(driver, 13) == [*[0.5] * 12, 5.0]


def test_after_a_change_an_older_kip_848_member_doubles_its_pauses() -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,)})
    pauses(driver, 13)
    driver.answer(driver.request(INTERVAL), 2, {T: (0, 1)})
    driver.poll()
    driver.answer(driver.request(), 2)
    assert pauses(driver, 6) == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def pauses(driver: ConsumerProtocolDriver, count: int) -> list[float]:
    """Between heartbeats that change nothing."""
    found = []
    for _ in range(count):
        found.append(round(driver.member.next_tick() - driver.now, 3))
        driver.answer(driver.request(found[-1]), 2)
    return found


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [(-(2**31) / 1000, INTERVAL), (-0.001, INTERVAL), (0, INTERVAL), (0.001, 0.05), (0.2, 0.2), (7.0, 7.0)],
)
def test_an_invalid_heartbeat_interval_is_replaced_or_raised(wanted: float, kept: float) -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,)})

    def pause() -> float:
        driver.poll()
        before, driver.now = driver.now, driver.member.next_tick()
        return driver.now - before

    for _ in range(40):
        pause()
        driver.answer(driver.request(), 2, interval=wanted)
    assert pause() == pytest.approx(kept)
    driver.answer(driver.request(), 2, {T: (0,)}, interval=wanted)
    assert pause() == pytest.approx(min(0.25, kept)), "sooner after a change"


# -- patterns --------------------------------------------------------------------------------------------------------


def test_a_subscription_pattern_is_removed_by_an_empty_one() -> None:
    driver = ConsumerProtocolDriver(pattern="t.*")
    driver.poll()
    request = driver.request()
    assert request.fields["subscribed_topic_regex"] == "t.*"
    driver.answer(request, 1, {})
    driver.member.subscribe(Subscription(frozenset({"t"})))
    request = driver.request()
    assert request.fields["subscribed_topic_regex"] == ""
    driver.answer(request, 1)
    driver.fail(driver.request(INTERVAL))
    assert driver.request(PAUSE).fields["subscribed_topic_regex"] is None, "the broker has removed it"


def test_a_pattern_is_removed_again_after_a_heartbeat_without_a_response() -> None:
    driver = ConsumerProtocolDriver(pattern="t.*")
    driver.poll()
    driver.answer(driver.request(), 1, {})
    driver.member.subscribe(Subscription(frozenset({"t"})))
    driver.fail(driver.request())
    assert driver.request(PAUSE).fields["subscribed_topic_regex"] == ""


def test_a_static_member_does_not_inherit_the_pattern_of_its_predecessor() -> None:
    driver = ConsumerProtocolDriver(instance_id="i")
    driver.poll()
    request = driver.request()
    assert request.fields["subscribed_topic_regex"] == ""
    driver.answer(request, 5, {})
    assert driver.request(INTERVAL).fields["subscribed_topic_regex"] is None


# -- reconciliation --------------------------------------------------------------------------------------------------


def test_partitions_taken_by_a_poll_are_reported_at_once() -> None:
    driver = ConsumerProtocolDriver()
    driver.poll()
    driver.answer(driver.request(), 3, {T: (0, 1), U: (0,)})
    assert driver.member.identity == MemberIdentity(3, "me", None)
    assert driver.member.owned == some()
    assert driver.poll() == [AssignPartitions(some(T0, T1, U0), some(T0, T1, U0))]
    assert driver.request().fields["topic_partitions"] == listed(t=(0, 1), u=(0,))


def test_revoked_partitions_are_reported_before_new_ones_are_taken() -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0, 1)})
    driver.answer(driver.request(INTERVAL), 2, {T: (0,)})
    assert driver.poll() == [Revoke(some(T1))]
    request = driver.request()
    assert (request.fields["member_epoch"], request.fields["topic_partitions"]) == (2, listed(t=(0,)))
    driver.answer(request, 3, {T: (0, 2)})
    assert driver.poll() == [AssignPartitions(some(T0, T2), some(T2))]
    assert driver.request().fields["topic_partitions"] == listed(t=(0, 2))


def test_an_empty_assignment_revokes_and_a_missing_one_does_not() -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,)})
    driver.answer(driver.request(INTERVAL), 3)
    assert driver.poll() == []
    driver.answer(driver.request(INTERVAL), 3, {})
    assert driver.poll() == [Revoke(some(T0))]


def test_partitions_of_an_unknown_topic_id_are_taken_once_it_is_known() -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,), AGAIN: (0,)})
    assert driver.member.owned == some(T0)
    assert driver.member.unresolved == {AGAIN}
    assert driver.poll() == []
    driver.member.update_topic_names({**NAMES, AGAIN: "v"})
    assert driver.member.unresolved == frozenset()
    assert driver.poll() == [AssignPartitions(some(T0, TopicPartition("v", 0)), some(TopicPartition("v", 0)))]


def test_a_recreated_topic_is_revoked_and_taken_anew() -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,), U: (0,)})
    driver.member.update_topic_names({AGAIN: "t", U: "u"})
    driver.answer(driver.request(INTERVAL), 3, {AGAIN: (0,), U: (0,)})
    assert driver.poll() == [Revoke(some(T0)), AssignPartitions(some(T0, U0), some(T0))]
    assert driver.request().fields["topic_partitions"] == [
        {"topic_id": U, "partitions": (0,)},
        {"topic_id": AGAIN, "partitions": (0,)},
    ]


# -- events while a listener runs ------------------------------------------------------------------------------------


def taking(driver: ConsumerProtocolDriver, assigned: Any) -> AssignPartitions:
    driver.poll()
    driver.answer(driver.request(), 2, assigned)
    driver.member.poll_begins()
    take = driver.member.poll_action()
    assert isinstance(take, AssignPartitions)
    return take


def test_partitions_that_are_being_taken_are_reported_as_owned() -> None:
    """A new target may exclude one meanwhile. If the list omitted it, the coordinator would consider it released."""
    driver = ConsumerProtocolDriver()
    take = taking(driver, {T: (0, 1)})
    request = driver.request()
    assert request.fields["topic_partitions"] == listed(t=(0, 1))
    driver.answer(request, 2, {T: (0,)})
    driver.fail(driver.request(INTERVAL))
    assert driver.request(PAUSE).fields["topic_partitions"] == listed(t=(0, 1))
    driver.member.done(take)
    assert driver.member.poll_action() == Revoke(some(T1))


@pytest.mark.parametrize("code", [E.fenced_member_epoch, E.unknown_member_id])
def test_a_member_fenced_during_its_first_assignment_loses_it_before_rejoining(code: E) -> None:
    driver = ConsumerProtocolDriver()
    take = taking(driver, {T: (0,)})
    driver.answer(driver.request(), code=code)
    assert driver.sent(INTERVAL) == [], "the loss must be reported before the rejoin"
    driver.member.done(take)
    assert driver.member.poll_action() == Lose(some(T0))
    driver.member.done(Lose(some(T0)))
    assert driver.member.poll_action() is None
    request = driver.request()
    assert (request.fields["member_epoch"], request.fields["topic_partitions"]) == (0, [])


def test_a_member_fenced_during_a_revoke_loses_the_other_partitions() -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0, 1)})
    driver.answer(driver.request(INTERVAL), 2, {T: (0,)})
    driver.member.poll_begins()
    revoke = driver.member.poll_action()
    assert revoke == Revoke(some(T1))
    driver.answer(driver.request(INTERVAL), code=E.unknown_member_id)
    driver.member.done(revoke)
    assert driver.poll() == [Lose(some(T0))]
    driver.answer(driver.request(), 5, {T: (2,)})
    assert driver.poll() == [AssignPartitions(some(T2), some(T2))]
    assert driver.poll() == []


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [E.fenced_member_epoch, E.unknown_member_id])
def test_a_fenced_member_loses_its_partitions_and_rejoins(code: E) -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,)})
    driver.answer(driver.request(INTERVAL), code=code)
    assert driver.member.identity == MemberIdentity()
    assert driver.sent(INTERVAL) == []
    assert driver.poll() == [Lose(some(T0))]
    request = driver.request()
    assert (request.fields["member_id"], request.fields["member_epoch"]) == ("me", 0)
    assert (request.fields["topic_partitions"], request.fields["rebalance_timeout"]) == ([], 60_000)


def test_a_fenced_member_without_partitions_rejoins_at_once_then_backs_off() -> None:
    driver = ConsumerProtocolDriver()
    driver.joined()
    driver.answer(driver.request(INTERVAL), code=E.fenced_member_epoch)
    request = driver.request()
    assert request.fields["member_epoch"] == 0
    driver.answer(request, code=E.unknown_member_id)
    assert driver.sent() == []
    assert driver.request(0.2)


@pytest.mark.parametrize("code", [E.not_coordinator, E.coordinator_not_available])
def test_a_moved_coordinator_is_retried_at_once_and_then_after_backoffs(code: E) -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,)})
    driver.answer(driver.request(INTERVAL), code=code)
    driver.answer(driver.request(), code=code)
    assert driver.sent() == []
    request = driver.request(0.2)
    assert request.fields["member_epoch"] == 2
    assert driver.poll() == []
    assert driver.member.owned == some(T0)


@pytest.mark.parametrize(
    "code",
    [
        E.fenced_instance_id,
        E.unsupported_assignor,
        E.invalid_request,
        E.group_max_size_reached,
        E.invalid_regular_expression,
        E.group_id_not_found,
        E.unknown_server_error,
    ],
)
def test_fatal_errors_end_a_membership_of_the_consumer_protocol(code: E) -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,)})
    driver.answer(driver.request(INTERVAL), code=code)
    assert isinstance(driver.member.failure, KafkaError)
    assert driver.member.failure.code == code
    assert driver.sent(1e6) == []
    assert driver.member.next_tick() == math.inf
    assert driver.poll() == [Lose(some(T0))]
    driver.member.subscribe(Subscription(frozenset({"t"})))
    assert driver.member.failure is None
    driver.poll()
    assert driver.request().fields["member_epoch"] == 0


def test_a_cluster_without_the_consumer_protocol_ends_the_membership() -> None:
    driver = ConsumerProtocolDriver()
    driver.poll()
    driver.answer(driver.request(), code=E.unsupported_version)
    assert isinstance(driver.member.failure, UnsupportedVersionError)
    assert "group.protocol=classic" in str(driver.member.failure)


def test_a_denied_topic_sets_a_pending_error_and_keeps_the_member() -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,)})
    driver.answer(driver.request(INTERVAL), code=E.topic_authorization_failed)
    assert (driver.member.pending_error, driver.member.failure) == (None, None), "metadata may name the topic"
    assert driver.sent(0.49) == []
    request = driver.request(0.01)
    assert request.fields["member_epoch"] == 2
    driver.answer(request, code=E.topic_authorization_failed)
    assert isinstance(driver.member.pending_error, KafkaError)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("assigned", "code", "is_look_needed"),
    [(None, 0, False), ({T: (1,)}, 0, True), ({}, 0, True), (None, E.coordinator_load_in_progress, True)],
)
def test_polls_look_after_a_heartbeat_that_brings_something(
    assigned: Any, code: int, is_look_needed: bool, is_late: bool
) -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,)})
    request = driver.request(INTERVAL)
    if is_late:
        driver.fail(request)
    assert driver.answer(request, 2, assigned, code) is is_look_needed


def test_polls_look_when_a_member_has_joined_without_an_assignment() -> None:
    driver = ConsumerProtocolDriver()
    driver.poll()
    assert driver.answer(driver.request(), 2)


def test_a_response_to_an_older_heartbeat_is_ignored() -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,)})
    old = driver.request(INTERVAL)
    driver.fail(old)
    driver.answer(old, 9, {T: (5,)})
    assert driver.member.identity == MemberIdentity(2, "me", None)


@pytest.mark.parametrize(
    ("code", "poll_actions"),
    [(E.unknown_member_id, [Lose(some(T0))]), (E.stale_member_epoch, []), (E.not_coordinator, [])],
)
def test_a_commit_rejected_for_an_unknown_member_loses_the_partitions(code: E, poll_actions: list[Lose]) -> None:
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,)})
    driver.member.commit_refused(code, MemberIdentity(1, "me", None))
    assert driver.poll() == [], "it was rejected for another epoch"
    driver.member.commit_refused(code, driver.member.identity)
    assert driver.poll() == poll_actions
