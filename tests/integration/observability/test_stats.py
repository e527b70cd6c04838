"""on_stats: the metrics of every kind of client, at an interval."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace._measures import MEASURES
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered_topic
from support.harness.consumers import KINDS
from support.harness.producers import PRODUCER_KINDS
from support.harness.share_consumers import SHARE_KINDS, share_group
from support.harness.waiting import wait_for

SOON = 30.0
INTERVAL = {"statistics.interval.ms": 50}


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("stats", 2), 2, 10)


class Stats:
    """A function for on_stats, which waits for statistics."""

    def __init__(self) -> None:
        self.seen: queue.Queue[dict[str, Any]] = queue.Queue()
        self.threads: set[str] = set()

    def __call__(self, found: dict[str, Any]) -> None:
        self.threads.add(threading.current_thread().name)
        self.seen.put(found)

    def until(self, is_enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while not is_enough(found := self.seen.get(timeout=SOON)):
            pass
        return found


def counters(stats: dict[str, Any]) -> dict[str, float]:
    """What collectors take for counters."""
    found = {each.name: list(each.read(stats)) for each in MEASURES[stats["role"]] if each.kind == "counter"}
    return {name: figure for name, values in found.items() for _, figure in values}


def assert_nothing_decreases(before: dict[str, float], after: dict[str, float]) -> None:
    assert {name: (figure, after.get(name)) for name, figure in before.items() if figure > after.get(name, -1)} == {}


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headrace-callbacks"]


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_consumer_reports_its_statistics_until_it_is_closed(kind: str, servers: str, topic: str) -> None:
    stats, group = Stats(), unique("g")
    settings = {**INTERVAL, "auto.offset.reset": "earliest", "heartbeat.interval.ms": 100, "client.id": "billing-1"}
    consumer = KINDS[kind](settings, bootstrap_servers=servers, group_id=group, on_stats=stats)
    try:
        assert threads() == [], "a client is created without threads"
        consumer.subscribe([topic])
        wait_for(
            "all records", lambda: consumer.poll(0.05) is not None and consumer.metrics()["records_returned"] == 20
        )
        found = stats.until(lambda each: each["records_returned"] == 20 and each["heartbeats"] > 0)
        assert (found["role"], found["client_id"], found["group_id"]) == ("consumer", "billing-1", group)
        assert (found["rebalances"], found["partitions_lost"], found["heartbeat_failures"]) == (1, 0, 0)
        assert {name: each["lag"] for name, each in found["partitions"].items()} == {f"{topic}-0": 0, f"{topic}-1": 0}
        assert found.keys() == consumer.metrics().keys()
        assert stats.threads == {"headrace-callbacks"}
        before = counters(consumer.metrics())
        assert min(before[name] for name in ("fetches", "fetched", "records", "rebalances", "heartbeats")) > 0
        consumer.unsubscribe()
        assert_nothing_decreases(before, counters(stats.until(lambda each: each["group"] is None)))
        consumer.subscribe([topic])
        consumer.poll(0.0)
        again = stats.until(lambda each: each["group"] is not None and each["polls"] > found["polls"])
        assert_nothing_decreases(before, counters(again))
    finally:
        consumer.close()
    wait_for("the end of the thread", lambda: not threads())


@pytest.mark.parametrize("kind", list(SHARE_KINDS))
def test_a_share_consumer_reports_its_locks(kind: str, servers: str, topic: str) -> None:
    stats, group = Stats(), share_group(servers)
    consumer = SHARE_KINDS[kind](
        INTERVAL, bootstrap_servers=servers, group_id=group, on_stats=stats, max_poll_records=5
    )
    try:
        consumer.subscribe([topic])
        wait_for("records", lambda: len(consumer.poll(0.05)))
        found = stats.until(lambda each: each["in_hand"] > 0)
        assert (found["role"], found["group_id"], found["in_hand"]) == ("share consumer", group, 5)
        assert found["buffered_bytes"] > 0 if found["buffered_records"] else found["buffered_bytes"] == 0
        assert found["rebalances"] >= 1
        assert found["acquisition_lock_timeout"] > 0
        consumer.commit()
        wait_for("records", lambda: len(consumer.poll(0.05)))
        for _ in consumer:  # the rest of its poll is returned again
            before = counters(consumer.metrics())
            break
        assert min(before[name] for name in ("fetches", "fetched", "records", "acknowledged_records")) > 0
        consumer.commit()
        assert_nothing_decreases(before, counters(consumer.metrics()))
        consumer.unsubscribe()
        assert_nothing_decreases(before, counters(consumer.metrics()))
    finally:
        consumer.close()


@pytest.mark.parametrize("kind", list(PRODUCER_KINDS))
def test_a_producer_reports_its_deliveries(kind: str, servers: str, topic: str) -> None:
    stats = Stats()
    producer = PRODUCER_KINDS[kind](INTERVAL, bootstrap_servers=servers, on_stats=stats)
    try:
        for number in range(10):
            producer.send(topic, b"%d" % number)
        producer.flush()
        found = stats.until(lambda each: each["records_delivered"] == 10)
        assert (found["role"], found["client_id"], found["records_failed"]) == ("producer", "headrace", 0)
    finally:
        producer.close()
    wait_for("the end of the thread", lambda: not threads())


def test_a_dropped_consumer_ends_its_statistics(servers: str, topic: str) -> None:
    stats = Stats()
    consumer = KINDS["sync"](INTERVAL, bootstrap_servers=servers, on_stats=stats)
    consumer.assign([(topic, 0)])
    consumer.poll(1.0)
    stats.until(lambda each: True)
    with pytest.warns(ResourceWarning, match="unclosed Consumer"):
        del consumer
    wait_for("the end of the thread", lambda: not threads())


def test_statistics_that_block_or_raise_disturb_nobody(servers: str, topic: str) -> None:
    may_go, began = threading.Event(), threading.Event()

    def block(found: dict[str, Any]) -> None:
        began.set()
        may_go.wait(SOON)
        raise ValueError("nonsense")

    consumer = KINDS["sync"](
        INTERVAL, bootstrap_servers=servers, group_id=unique("g"), on_stats=block, auto_offset_reset="earliest"
    )
    consumer.subscribe([topic])
    consumer.poll(0.0)
    assert began.wait(SOON)
    wait_for("records", lambda: len(consumer.poll(0.05)))
    consumer.close()
    may_go.set()
    wait_for("the end of the thread", lambda: not threads())
