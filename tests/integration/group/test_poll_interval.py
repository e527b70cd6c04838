"""KIP-62: heartbeats continue while the user works, and a member that does not poll for too long leaves its group."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import pytest

from headrace import Producer, TopicPartition
from headrace.errors import CommitFailedError, TransactionAbortableError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered_topic
from support.harness.consumers import AnyConsumer, MakeConsumer
from support.harness.groups import (
    WAYS,
    RecordingListener,
    fully_assigned,
    member,
    poll_all,
    polling,
    stable,
    with_session,
)
from support.harness.retries import patiently
from support.harness.waiting import wait_for

PARTITIONS = 4


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("interval", PARTITIONS), PARTITIONS, 10)


def work(seconds: float) -> None:
    """Spend time in user code instead of polling."""
    time.sleep(seconds)  # simulated work, longer or shorter than max.poll.interval.ms


def refusal(consumer: AnyConsumer) -> str:
    """The error of a failing commit."""
    try:
        consumer.commit()
    except CommitFailedError as error:
        return str(error)
    raise AssertionError("the commit succeeded")


def test_work_longer_than_the_session_timeout_keeps_the_partitions(
    make_sync: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    def scenario(second: float) -> None:
        group, listener = unique("g"), RecordingListener()
        settings = with_session(servers, group, way, second)
        slow = member(make_sync, servers, group, [topic], listener=listener, **settings)
        other = member(make_sync, servers, group, [topic], **settings)
        poll_all([slow, other], stable([slow, other], PARTITIONS))
        before, mine = slow.group_metadata(), slow.assignment()
        del listener.events[:]
        with polling(other):
            work(2 * second)
            slow.commit()
            slow.poll(0.1)
        assert slow.group_metadata() == before
        assert slow.assignment() == mine
        assert listener.events == []

    patiently(scenario)


def test_a_member_that_misses_max_poll_interval_leaves_the_group(
    make_sync: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    def scenario(second: float) -> None:
        group, listener = unique("g"), RecordingListener()
        settings = with_session(servers, group, way, second)
        interval = round(1000 * second)
        stuck = member(make_sync, servers, group, [topic], listener=listener, max_poll_interval_ms=interval, **settings)
        other = member(make_sync, servers, group, [topic], **settings)
        poll_all([stuck, other], stable([stuck, other], PARTITIONS))
        mine = stuck.assignment()
        del listener.events[:]
        with polling(other):
            # The rebalance comes a second after the last poll, while the member is still in user code. If it kept
            # sending heartbeats, it would stay; if it only stopped them, it would stay for another session timeout.
            wait_for("all partitions", lambda: len(other.assignment()) == PARTITIONS, 1.9 * second)
            assert re.search(rf"max\.poll\.interval\.ms={interval}.*max\.poll\.records", refusal(stuck))
            assert listener.events == [], "listeners run only in poll()"
            stuck.poll(0.0)
            assert listener.events[0] == ("lost", frozenset(mine))
            is_stable = stable([stuck, other], PARTITIONS)
            wait_for("its share", lambda: stuck.poll(0.05) is not None and is_stable())
            stuck.commit()

    patiently(scenario)


def test_the_transaction_of_a_member_that_missed_max_poll_interval_fails(
    make_sync: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    """The offsets would otherwise replace those of the partitions' next owner, and its outputs would be repeated."""

    def scenario(second: float) -> None:
        group = unique("g")
        settings = with_session(servers, group, way, second)
        stuck = member(make_sync, servers, group, [topic], max_poll_interval_ms=round(1000 * second), **settings)
        poll_all([stuck], fully_assigned([stuck], PARTITIONS))
        before = stuck.group_metadata()
        other = member(make_sync, servers, group, [topic], **settings)
        with polling(other), Producer(bootstrap_servers=servers, transactional_id=unique("t")) as producer:
            wait_for("all partitions", lambda: len(other.assignment()) == PARTITIONS, 10 * second)
            assert stuck.group_metadata().member_id == before.member_id
            producer.begin()
            with pytest.raises(TransactionAbortableError):
                producer.send_offsets({(topic, 0): 1}, stuck.group_metadata())
            producer.abort()

    patiently(scenario)


def test_a_poll_longer_than_max_poll_interval_keeps_the_membership(
    make_sync: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    def scenario(second: float) -> None:
        group, listener = unique("g"), RecordingListener()
        consumer = member(
            make_sync, servers, group, [topic], listener=listener, max_poll_interval_ms=round(1000 * second),
            auto_offset_reset="latest", **with_session(servers, group, way, second),
        )  # fmt: skip
        poll_all([consumer], fully_assigned([consumer], PARTITIONS))
        assert len(consumer.poll(1.5 * second)) == 0
        assert len(consumer.poll(0.1)) == 0
        assert listener.kinds() == ["assigned"]

    patiently(scenario)


def test_a_rebalance_waits_for_the_longest_max_poll_interval_of_its_members(
    make_sync: MakeConsumer, servers: str, topic: str
) -> None:
    """The group waits for a slow member as long as the longest max.poll.interval.ms of its members."""

    def scenario(second: float) -> None:
        group, listener = unique("g"), RecordingListener()
        way = with_session(servers, group, WAYS["eager"], second)
        hasty = {**way, "max_poll_interval_ms": round(1000 * second)}
        slow = member(make_sync, servers, group, [topic], listener=listener, max_poll_interval_ms=60_000, **way)
        quick = member(make_sync, servers, group, [topic], **hasty)
        poll_all([slow, quick], stable([slow, quick], PARTITIONS))
        before = slow.group_metadata()
        newcomer = member(make_sync, servers, group, [topic], **hasty)
        with polling(quick, newcomer):
            work(2 * second)  # longer than the others' rebalance timeout and every session timeout
            assert newcomer.assignment() == set(), "the rebalance waits"
            all_have_some = fully_assigned([slow, quick, newcomer], PARTITIONS)
            wait_for("their shares", lambda: slow.poll(0.05) is not None and all_have_some())
        after = slow.group_metadata()
        assert after.member_id == before.member_id, "it was never removed"
        assert "lost" not in listener.kinds()

    patiently(scenario)


def test_a_member_that_is_too_slow_to_rejoin_is_removed(make_sync: MakeConsumer, servers: str, topic: str) -> None:
    """The coordinator removes it before its own deadline, which is later by the session timeout."""

    def scenario(second: float) -> None:
        group, listener = unique("g"), RecordingListener()
        way = with_session(servers, group, {**WAYS["eager"], "max_poll_interval_ms": round(500 * second)}, 5 * second)
        slow = member(make_sync, servers, group, [topic], listener=listener, **way)
        poll_all([slow], stable([slow], PARTITIONS))
        newcomer = member(make_sync, servers, group, [topic], **way)
        with polling(newcomer):
            # Its session has not expired.
            wait_for("all partitions", lambda: len(newcomer.assignment()) == PARTITIONS, 4 * second)
            assert re.search(r"UNKNOWN_MEMBER_ID.*raise max\.poll\.interval\.ms", refusal(slow))
            slow.poll(0.0)
            assert listener.kinds()[-1] == "lost"
            both_have_some = fully_assigned([slow, newcomer], PARTITIONS)
            wait_for("their shares", lambda: slow.poll(0.05) is not None and both_have_some())

    patiently(scenario)


class Hanging(RecordingListener):
    """A listener whose first call blocks until `may_go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_called, self.may_go = threading.Event(), threading.Event()

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        super().on_partitions_assigned(partitions)
        if not self.is_called.is_set():
            self.is_called.set()
            assert self.may_go.wait(60)


def test_a_listener_that_hangs_past_max_poll_interval_loses_the_partitions(
    make_sync: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    """The listener runs inside poll(), but it is user code and counts as time without a poll."""

    def scenario(second: float) -> None:
        group, listener = unique("g"), Hanging()
        settings = with_session(servers, group, way, second)
        interval = {"max_poll_interval_ms": round(1000 * second)}
        stuck = member(make_sync, servers, group, [topic], listener=listener, **settings, **interval)
        other = member(make_sync, servers, group, [topic], **settings)
        with polling(stuck):
            assert listener.is_called.wait(60)
            wait_for("all partitions", lambda: other.poll(0.05) is not None and len(other.assignment()) == PARTITIONS)
            listener.may_go.set()
            poll_all([other], fully_assigned([stuck, other], PARTITIONS))
        assert listener.kinds()[:2] == ["assigned", "lost"], "the loss is reported when the listener returns"

    patiently(scenario)
