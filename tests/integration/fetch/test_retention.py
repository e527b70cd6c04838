"""Retention that overtakes a consumer: the skipped offsets are reported."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from headrace import AsyncConsumer, Consumer, RebalanceListener, TopicPartition
from headrace.errors import StateError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.consumers import MakeConsumer, assigned, poll_until


@pytest.fixture
def tp(admin: Admin, servers: str) -> TopicPartition:
    """A log with the offsets 0 to 99."""
    topic = admin.create("retention")
    write(servers, topic, numbered(100))
    return TopicPartition(topic, 0)


class Losses(RebalanceListener):
    """Records the reported ranges and the calling threads."""

    def __init__(self) -> None:
        self.ranges: list[tuple[TopicPartition, int, int]] = []
        self.threads: set[str] = set()
        self.consumer: Any = None

    def on_lost_range(self, partition: TopicPartition, start: int, end: int) -> None:
        self.ranges.append((partition, start, end))
        self.threads.add(threading.current_thread().name)
        if isinstance(self.consumer, Consumer):
            with pytest.raises(StateError, match="listener cannot call poll"):
                self.consumer.poll(0.0)


def skips(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]


def test_skipped_offsets_are_reported_to_the_listener_logs_and_metrics(
    make: MakeConsumer, admin: Admin, servers: str, tp: TopicPartition, way: dict[str, Any], caplog: Any
) -> None:
    group, losses = unique("g"), Losses()
    with Consumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False) as consumer:
        consumer.commit({tp: 10})
    admin.delete_records(tp.topic, 90)
    caplog.set_level(logging.WARNING, "headrace")
    consumer = make(bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", **way)
    losses.consumer = consumer
    consumer.subscribe([tp.topic], listener=losses)
    assert poll_until(consumer, 10)[0].offset == 90
    deadline = time.monotonic() + 30
    while not losses.ranges:
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    assert losses.ranges == [(tp, 10, 90)]
    assert losses.threads == {threading.current_thread().name}, "the listener runs on the thread of poll()"
    (line,) = skips(caplog)
    assert f"{tp}: offset 10 is no longer in the log, whose first offset is 90" in line
    assert "resuming at 90 (auto.offset.reset=earliest), 80 offsets skipped" in line
    metrics = consumer.metrics()
    assert (metrics["offsets_skipped"], metrics["partitions"][str(tp)]["skipped"]) == (80, 80)


def test_skipped_offsets_are_reported_to_a_coroutine_listener(admin: Admin, servers: str, tp: TopicPartition) -> None:
    heard: list[tuple[int, int]] = []

    class Awaited(RebalanceListener):
        async def on_lost_range(self, partition: TopicPartition, start: int, end: int) -> None:
            assert await consumer.position(partition) == 90
            heard.append((start, end))

    async def read() -> None:
        async with consumer:
            consumer.subscribe([tp.topic], listener=Awaited())
            async for record in consumer:
                assert record.offset == 90
                break
            await consumer.poll(0.1)

    group = unique("g")
    with Consumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False) as other:
        other.commit({tp: 10})
    admin.delete_records(tp.topic, 90)
    consumer = AsyncConsumer(bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest")
    asyncio.run(asyncio.wait_for(read(), 60))
    assert heard == [(10, 90)]


@pytest.mark.parametrize(("policy", "end", "skipped"), [("earliest", 90, 80), ("latest", 100, 90)])
def test_a_consumer_without_a_group_warns_of_skipped_offsets(
    make: MakeConsumer, admin: Admin, servers: str, tp: TopicPartition, policy: str, end: int, skipped: int, caplog: Any
) -> None:
    admin.delete_records(tp.topic, 90)
    caplog.set_level(logging.WARNING, "headrace")
    consumer = assigned(make, servers, tp.topic, auto_offset_reset=policy)
    consumer.seek(tp, 10)
    deadline = time.monotonic() + 60
    while consumer.position(tp) < end:
        assert time.monotonic() < deadline
        consumer.poll(0.1, max_records=1)
    (line,) = skips(caplog)
    assert "whose first offset is 90" in line
    assert f"resuming at {end} (auto.offset.reset={policy}), {skipped} offsets skipped" in line
    assert consumer.metrics()["offsets_skipped"] == skipped


def test_a_position_beyond_the_end_is_reset_with_a_warning(
    make_sync: MakeConsumer, servers: str, tp: TopicPartition, caplog: Any
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    consumer = assigned(make_sync, servers, tp.topic)
    consumer.seek(tp, 5000)
    assert poll_until(consumer, 1)[0].offset == 0
    (line,) = skips(caplog)
    assert "offset 5000 is not in the log" in line
    assert "0 offsets skipped" in line
    assert consumer.metrics()["offsets_skipped"] == 0


def test_a_first_start_logs_its_offset_without_a_warning(
    make_sync: MakeConsumer, servers: str, tp: TopicPartition, caplog: Any
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    consumer = assigned(make_sync, servers, tp.topic)
    poll_until(consumer, 100)
    assert skips(caplog) == []
    assert f"{tp} starts at offset 0 (earliest)" in caplog.text
