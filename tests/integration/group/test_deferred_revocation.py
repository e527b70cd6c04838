"""KIP-983 with a broker: revokes that are delayed for unfinished work, and revokes that are delayed too long."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace import TopicPartition
from headrace.errors import CommitFailedError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, numbered_topic, write
from support.harness.consumers import AnyConsumer, MakeConsumer, poll_until
from support.harness.groups import WAYS, RecordingListener, fully_assigned, member, poll_all, polling, stable
from support.harness.retries import patiently
from support.harness.waiting import Rounds

PARTITIONS = 4


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("deferred", PARTITIONS), PARTITIONS, 200)


def asked_back(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any], *, static: bool = False, **settings: Any
) -> tuple[AnyConsumer, AnyConsumer, RecordingListener]:
    """A member that owns all partitions and whose last poll has reported revokes, and a second member."""
    group, listener = unique("g"), RecordingListener()
    settings = {**way, **settings, "enable_auto_commit": False}
    names = [{"group_instance_id": name} if static else {} for name in ("first", "second")]
    settings = {"max_poll_records": 4} | settings
    first = member(make, servers, group, [topic], listener=listener, **settings, **names[0])
    poll_all([first], stable([first], PARTITIONS))
    del listener.events[:]
    first.pause(first.assignment())  # keep records unread, however long it takes
    second = member(make, servers, group, [topic], **settings, **names[1])
    deadline = time.monotonic() + 60
    while not first.to_be_revoked_partitions():
        assert time.monotonic() < deadline
        second.poll(0.02)
        first.poll(0.02)
    first.resume(first.paused())
    return first, second, listener


def test_a_revoke_is_requested_in_one_poll_and_completed_in_the_next(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    first, second, listener = asked_back(make, servers, topic, way)
    asked = first.to_be_revoked_partitions()
    assert asked
    assert asked <= first.assignment(), "a pending revoke stays assigned"
    assert listener.kinds() == [], "the listener is called on completion"
    first.commit({tp: first.position(tp) for tp in asked})
    records = first.poll(0.0)
    assert listener.changes() == [("revoked", frozenset(asked))]
    assert not asked & first.assignment()
    assert not set(records.partitions) & asked
    poll_all([first, second], fully_assigned([first, second], PARTITIONS))


def test_the_poll_that_reports_a_revoke_returns_no_records(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    """So that all that was returned before can be finished and committed before the next poll completes the revoke."""
    group = unique("g")
    first = member(make, servers, group, [topic], **way, max_poll_records=1, enable_auto_commit=False)
    poll_all([first], stable([first], PARTITIONS))
    second = member(make, servers, group, [topic], **way, enable_auto_commit=False)
    for _ in Rounds("a poll that reports a revoke", 0):
        buffered = first.metrics()["buffered_records"]
        records = first.poll(1.0)
        if records.to_be_revoked:
            break
        assert len(records) == 1, "the topic is longer than the rebalance takes"
        second.poll(0.02)
    assert not records
    assert buffered, "there were records to return"


def test_delayed_revokes_wait_while_other_partitions_keep_being_consumed(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    first, second, listener = asked_back(make, servers, topic, way)
    asked = first.to_be_revoked_partitions()
    position = {tp: first.position(tp) for tp in asked}
    others, rounds = 0, 0
    deadline = time.monotonic() + 60
    while rounds < 10 or (asked < first.assignment() and not others):
        assert time.monotonic() < deadline, "the other partitions must keep being consumed"
        rounds += 1
        assert first.delay_revoke(asked)
        assert first.to_be_revoked_partitions() == set()
        records = first.poll(0.1)
        others += len(records)
        assert not set(records.partitions) & asked
        assert records.to_be_revoked == asked == first.to_be_revoked_partitions()
        assert records.lost == set() == first.lost_partitions()
        second.poll(0.0)
        assert not asked & second.assignment()
    assert listener.kinds() == []
    assert {tp: first.position(tp) for tp in asked} == position
    assert bool(others) == (way is not WAYS["eager"]), "an eager rebalance revokes everything"
    first.commit()  # includes these partitions
    poll_all([first, second], fully_assigned([first, second], PARTITIONS))
    assert listener.changes()[0] == ("revoked", frozenset(asked))
    taken = asked & second.assignment()
    assert taken
    for tp in taken:
        assert second.committed([tp])[tp].offset == position[tp]


def test_a_revoke_delayed_past_max_poll_interval_loses_the_partitions(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    """The member reports the loss before the coordinator, which waits a little longer, removes it."""

    def scenario(scale: float) -> None:
        first, second, listener = asked_back(make, servers, topic, way, max_poll_interval_ms=round(2000 * scale))
        asked, member_id = first.to_be_revoked_partitions(), first.group_metadata().member_id
        deadline = time.monotonic() + 60
        while first.delay_revoke(asked):
            records = first.poll(0.05)
            second.poll(0.0)
            assert time.monotonic() < deadline
        assert records.lost >= asked
        assert first.lost_partitions() >= asked
        assert ("lost", frozenset(asked)) in listener.events
        assert "delayed beyond max.poll.interval.ms" in refusal(first, {min(asked): 1})
        poll_all([first, second], fully_assigned([first, second], PARTITIONS))
        assert first.lost_partitions() == set()
        assert first.group_metadata().member_id == member_id, "it stays a member"
        if way is not WAYS["eager"]:
            assert asked <= second.assignment()
            assert "revoked" not in listener.kinds()
            first.seek(min(first.assignment()), 0)
            assert len(poll_until(first, 4)), "the other partitions are still consumed"

    patiently(scenario)


def refusal(consumer: AnyConsumer, offsets: dict[TopicPartition, int]) -> str:
    """The error of a failing commit."""
    try:
        consumer.commit(offsets)
    except CommitFailedError as error:
        return str(error)
    raise AssertionError("the commit succeeded")


def test_revokes_of_static_members_can_be_delayed(
    make_sync: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    first, second, listener = asked_back(make_sync, servers, topic, way, static=True)
    asked = first.to_be_revoked_partitions()
    for _ in range(3):
        assert first.delay_revoke(asked)
        assert first.poll(0.05).to_be_revoked == asked
        second.poll(0.0)
        assert not asked & second.assignment()
    poll_all([first, second], fully_assigned([first, second], PARTITIONS))
    assert listener.changes()[0] == ("revoked", frozenset(asked))
    assert "lost" not in listener.kinds()


def test_a_delayed_revoke_is_cancelled_by_a_rebalance_that_returns_the_partitions(
    make: MakeConsumer, servers: str, topic: str
) -> None:
    """Not with KIP-848, where the coordinator waits for a requested revoke before it reassigns the partition."""
    first, second, listener = asked_back(make, servers, topic, WAYS["cooperative"])
    asked = first.to_be_revoked_partitions()
    assert first.delay_revoke(asked)
    second.close()
    deadline = time.monotonic() + 60
    while first.poll(0.05).to_be_revoked:
        assert first.delay_revoke(asked)
        assert time.monotonic() < deadline
    assert first.assignment() == {TopicPartition(topic, number) for number in range(PARTITIONS)}
    assert listener.kinds() == []
    seen: set[TopicPartition] = set()
    while not asked <= seen:
        seen |= set(first.poll(0.5).partitions)
        assert time.monotonic() < deadline


def test_with_revoke_mode_immediate_no_revoke_is_deferred(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    group, listener = unique("g"), RecordingListener()
    settings = {**way, "revoke_mode": "immediate"}
    first = member(make, servers, group, [topic], listener=listener, **settings)
    poll_all([first], stable([first], PARTITIONS))
    second = member(make, servers, group, [topic], **settings)
    deadline = time.monotonic() + 60
    while not fully_assigned([first, second], PARTITIONS)():
        second.poll(0.02)
        records = first.poll(0.02)
        assert records.to_be_revoked == first.to_be_revoked_partitions() == set()
        assert time.monotonic() < deadline
    assert "revoked" in listener.kinds()


@pytest.mark.parametrize("ending", ["unsubscribe", "close"])
def test_unsubscribe_and_close_do_not_wait_for_a_delayed_revoke(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any], ending: str
) -> None:
    first, second, listener = asked_back(make, servers, topic, way)
    asked = first.to_be_revoked_partitions()
    first.delay_revoke(asked)
    getattr(first, ending)()
    assert listener.kinds() == ["revoked"]
    if ending == "unsubscribe":
        assert first.to_be_revoked_partitions() == first.lost_partitions() == set()
        assert not first.delay_revoke(asked), "they are not assigned any more"
    poll_all([second], fully_assigned([second], PARTITIONS))


def test_without_a_group_nothing_is_to_be_revoked(make: MakeConsumer, servers: str, topic: str) -> None:
    consumer = make(bootstrap_servers=servers, auto_offset_reset="earliest")
    consumer.assign([(topic, 0)])
    records = consumer.poll(60)
    assert len(records)
    assert records.to_be_revoked == records.lost == consumer.to_be_revoked_partitions() == set()
    assert not consumer.delay_revoke([(topic, 0)])


def test_a_poll_with_a_long_timeout_returns_when_partitions_are_asked_back(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    group = unique("g")
    first = member(make, servers, group, [topic], **way)
    poll_all([first], stable([first], PARTITIONS))
    first.pause(first.assignment())  # so that nothing else ends the poll
    second = member(make, servers, group, [topic], **way)
    with polling(second):
        began = time.monotonic()
        records = first.poll(300.0)
        assert time.monotonic() - began < 60
        assert records.to_be_revoked
        assert records.to_be_revoked == first.to_be_revoked_partitions()
        assert len(records) == 0


def test_the_poll_that_reports_a_revoke_request_returns_no_records(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    """Processing them would use up the time for which the group waits."""
    group = unique("g")
    first = member(make, servers, group, [topic], max_poll_records=1, **way)
    poll_all([first], stable([first], PARTITIONS))
    second = member(make, servers, group, [topic], max_poll_records=1, **way)
    deadline = time.monotonic() + 60
    while not (records := first.poll(0.02)).to_be_revoked:
        assert time.monotonic() < deadline
        second.poll(0.02)
        first.seek_to_beginning()  # so that there are always records to read
    assert len(records) == 0


@pytest.mark.parametrize("part", [0.4, 0.7])
def test_a_loop_that_delays_no_revoke_has_all_of_max_poll_interval(
    make_sync: MakeConsumer, servers: str, topic: str, way: dict[str, Any], part: float
) -> None:
    """KIP-62 with KIP-983. A fenced member would lose its partitions, and its commit would fail."""

    def scenario(second: float) -> None:
        group, listener, interval = unique("g"), RecordingListener(), 3 * second
        settings = {**way, "max_poll_interval_ms": round(1000 * interval), "max_poll_records": 1}
        if way.get("group_protocol") != "consumer":
            settings["session_timeout_ms"] = round(1000 * min(interval, 6))
        first = member(make_sync, servers, group, [topic], listener=listener, enable_auto_commit=False, **settings)
        poll_all([first], stable([first], PARTITIONS))
        assert poll_until(first, 1)
        second_member = member(make_sync, servers, group, [topic], **settings)
        with polling(second_member):
            deadline = time.monotonic() + 60
            while not second_member.assignment() or len(first.assignment()) == PARTITIONS:
                assert time.monotonic() < deadline
                if first.poll(0.05):
                    time.sleep(part * interval)  # simulated work
                    first.commit()
        assert "lost" not in listener.kinds()

    patiently(scenario)


@pytest.mark.parametrize("kind", ["cooperative", "consumer"])
def test_polls_stay_full_while_revokes_are_delayed(make: MakeConsumer, admin: Admin, servers: str, kind: str) -> None:
    """Each poll returns max.poll.records. (`test_revoking_throughput.py` measures the time.)"""
    topic = admin.create("deferred-speed", PARTITIONS)
    for partition in range(PARTITIONS):
        write(servers, topic, numbered(5_000, partition))
    first, _, listener = asked_back(make, servers, topic, WAYS[kind], max_poll_records=50)
    asked = first.to_be_revoked_partitions()
    kept = first.assignment() - asked
    first.delay_revoke(asked)
    deadline = time.monotonic() + 60
    while len(first.poll(0.1)) < 50:  # until the buffer is filled
        assert time.monotonic() < deadline
        first.delay_revoke(asked)
    for _ in range(50):
        first.delay_revoke(asked)
        records = first.poll(5.0)
        assert len(records) == 50
        assert set(records.partitions) <= kept
    assert listener.kinds() == []
