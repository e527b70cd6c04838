"""KIP-983, measured: what a member reads while it gives partitions up, one of them with slow work in flight.

A member reads twelve partitions, which are written to at a steady rate. A second member joins, and six of them are
asked back. Work on one of those takes seconds to end. Once the member waits for it in its listener
(revoke.mode=immediate), which is the only way that other clients have; once it delays the revoke of that partition, and
of no other, and polls on. What is counted is what it reads of the six partitions that it keeps.
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace import Consumer, RebalanceListener, TopicPartition
from headrace.aio.admin import AsyncAdmin

Watch = Callable[[float, str, int], None]
"""Called after each poll: seconds since the start, what is going on, records of the poll that belong to what is kept or
not known yet."""

PARTITIONS = 12
RATE = 12_000  # records/s written
BEFORE, WORK, AFTER = 3.0, 3.0, 2.0  # seconds
_SETTLE = 4.0  # until what was written before the group stood is read
BIN = 0.1
_DEADLINE = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Records/s of the kept partitions: by time since the second member joined, and in the mean before the revoke was
    requested and until it was completed."""

    name: str
    series: Sequence[tuple[float, float]]
    requested: float
    completed: float

    @property
    def before(self) -> float:
        return statistics.fmean(
            rate for at, rate in self.series if self.requested - BEFORE + 0.5 <= at < self.requested
        )

    @property
    def during(self) -> float:
        return statistics.fmean(
            rate for at, rate in self.series if self.requested + BIN <= at and at + BIN < self.completed
        )


class _Blocking(RebalanceListener):
    """Waits for the work where it is told of the revoke."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        if not self.began:
            self.began = time.monotonic()
            time.sleep(WORK)
            self.ended = time.monotonic()


class _Writer(threading.Thread):
    """Writes to all partitions in turn, at RATE, for as long as a run takes."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
        self._topic = topic
        self.over = threading.Event()

    def run(self) -> None:
        last, owed, written = time.monotonic(), 0.0, 0
        while not self.over.wait(0.005):
            now = time.monotonic()
            # What a pause has left undone is not made up for: a burst would be read as speed.
            owed, last = min(owed + (now - last) * RATE, 0.05 * RATE), now
            due = written + int(owed)
            owed -= int(owed)
            for number in range(written, due):
                try:
                    self._producer.produce(self._topic, b"x" * 100, partition=number % PARTITIONS)
                except BufferError:  # a busy machine: the rest follows
                    due = number
                    break
            written = due
            self._producer.poll(0)
        self._producer.flush(5)


def measure(servers: str, deferred: bool, watch: Watch | None = None) -> Run:
    """Raises TimeoutError if the rebalance does not come to its end."""
    topic = f"revoking-{'deferred' if deferred else 'blocking'}-{time.time_ns()}"
    asyncio.run(_create(servers, topic))
    writer, listener = _Writer(servers, topic), _Blocking()
    settings: dict[str, Any] = {
        "bootstrap_servers": servers,
        "group_id": topic,
        "partition_assignment_strategy": "cooperative-sticky",
        "heartbeat_interval_ms": 100,
        "auto_offset_reset": "earliest",
        "revoke_mode": "deferred" if deferred else "immediate",
    }
    first, second = Consumer(settings), Consumer(settings)
    reads: list[tuple[float, TopicPartition, int]] = []
    stands = joined = requested = completed = 0.0
    slow: TopicPartition | None = None
    writer.start()
    try:
        first.subscribe([topic], listener=None if deferred else listener)
        second.subscribe([topic])
        other = threading.Thread(target=_poll, args=(second, writer.over), daemon=True)
        began = time.monotonic()
        while not completed or time.monotonic() < completed + AFTER:
            records = first.poll(0.05)
            now = time.monotonic()
            if now > began + _DEADLINE:
                raise TimeoutError("the rebalance did not come to its end")
            reads += ((now, tp, len(records[tp])) for tp in records.partitions)
            if watch is not None:
                watch(now - began, _doing(joined, requested, completed), len(records))
            if not stands and len(first.assignment()) == PARTITIONS:
                stands = now
            # Not before: two that join at once share out the partitions, and none is given up.
            if stands and not joined and now > stands + _SETTLE + BEFORE:
                joined = now
                other.start()
            if deferred and not completed:
                if records.to_be_revoked and slow is None:
                    slow, requested = min(records.to_be_revoked), now
                if slow is not None and slow not in first.assignment():
                    completed = now
                elif slow is not None and now < requested + WORK:
                    first.delay_revoke([slow])
            elif not deferred and listener.ended:
                requested, completed = listener.began, listener.ended
        kept = first.assignment()
    finally:
        writer.over.set()
        first.close()
        writer.join(10)
        if joined:
            other.join(10)
        second.close()
    end = completed + AFTER
    bins = [0] * (int((end - began) / BIN) + 1)
    for at, tp, count in reads:
        if tp in kept and at < end:
            bins[int((at - began) / BIN)] += count
    series = [(began + index * BIN - joined, count / BIN) for index, count in enumerate(bins)]
    name = "delayed revoke (KIP-983)" if deferred else "blocking listener"
    return Run(name, series, requested - joined, completed - joined)


async def _create(servers: str, topic: str) -> None:
    async with AsyncAdmin(bootstrap_servers=servers) as admin:
        await admin.create_topic(topic, PARTITIONS, 1)


def _doing(joined: float, requested: float, completed: float) -> str:
    if completed:
        return "six partitions are the other member's now"
    if requested:
        return "partitions are given up, work on one of them is still under way"
    return "a second member joins" if joined else "one member reads twelve partitions"


def _poll(consumer: Consumer, over: threading.Event) -> None:
    while not over.is_set():
        consumer.poll(0.05)
