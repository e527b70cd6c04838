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

from .. import Consumer, RebalanceListener, TopicPartition
from .._aio.admin import AsyncAdmin

Watch = Callable[[str, float], None]
"""Called ten times a second: what is going on, and how many records a second were read lately of the partitions that
the member keeps."""

PARTITIONS = 12
KEPT = 6  # of them, when there are two members
RATE = 12_000  # records/s written
BEFORE, WORK, AFTER = 3.0, 3.0, 2.0  # seconds
_SETTLE = 4.0  # until what was written before the group stood is read
BIN = 0.1
_DEADLINE = 30.0
_LATELY = 0.5
_LOOK_EVERY = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
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


class _Story:
    """What has happened so far, and what was read when. The member's thread writes it, that of a watcher reads it: a
    member that waits in its listener shows nothing by itself."""

    def __init__(self) -> None:
        self.joined = self.requested = self.completed = 0.0
        self.given_up: frozenset[TopicPartition] = frozenset()
        self.reads: list[tuple[float, TopicPartition, int]] = []

    def doing(self) -> str:
        if self.completed:
            return "six partitions are the other member's now"
        if self.requested:
            return "six partitions are given up, work on one of them is still under way"
        return "a second member joins" if self.joined else "one member reads twelve partitions"

    def rate(self, now: float) -> float:
        """Of the partitions that are kept. Which ones is not known before others are asked back: until then, of any
        six, since all are written to alike. The rate of all twelve would seem to drop by half when six are given
        up."""
        total = 0
        for at, tp, count in reversed(self.reads):
            if at < now - _LATELY:
                break
            total += 0 if tp in self.given_up else count
        return total / _LATELY * (1.0 if self.given_up else KEPT / PARTITIONS)


class _Blocking(RebalanceListener):
    """Waits for the work where it is told of the revoke."""

    def __init__(self, story: _Story) -> None:
        self._story = story

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        if not self._story.requested:
            self._story.given_up = partitions
            self._story.requested = time.monotonic()
            time.sleep(WORK)
            self._story.completed = time.monotonic()


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


def measure(servers: str, deferred: bool, watch: Watch | None = None) -> Measurement:
    """Raises TimeoutError if the rebalance does not come to its end."""
    topic = f"revoking-{'deferred' if deferred else 'blocking'}-{time.time_ns()}"
    asyncio.run(_create(servers, topic))
    writer, story = _Writer(servers, topic), _Story()
    settings: dict[str, Any] = {
        "bootstrap_servers": servers,
        "group_id": topic,
        "partition_assignment_strategy": "cooperative-sticky",
        "heartbeat_interval_ms": 100,
        "auto_offset_reset": "earliest",
        "revoke_mode": "deferred" if deferred else "immediate",
    }
    first, second = Consumer(settings), Consumer(settings)
    other = threading.Thread(target=_poll, args=(second, writer.over), daemon=True)
    watching = threading.Thread(target=_watch, args=(watch, story, writer.over), daemon=True)
    stands = 0.0
    slow: TopicPartition | None = None
    writer.start()
    if watch is not None:
        watching.start()
    try:
        first.subscribe([topic], listener=None if deferred else _Blocking(story))
        second.subscribe([topic])
        began = time.monotonic()
        while not story.completed or time.monotonic() < story.completed + AFTER:
            records = first.poll(0.05)
            now = time.monotonic()
            if now > began + _DEADLINE:
                raise TimeoutError("the rebalance did not come to its end")
            story.reads += [(now, tp, len(records[tp])) for tp in records.partitions]
            if not stands and len(first.assignment()) == PARTITIONS:
                stands = now
            # Not before: two that join at once share out the partitions, and none is given up.
            if stands and not story.joined and now > stands + _SETTLE + BEFORE:
                story.joined = now
                other.start()
            if deferred and not story.completed:
                if records.to_be_revoked and slow is None:
                    slow = min(records.to_be_revoked)
                    story.given_up, story.requested = frozenset(records.to_be_revoked), now
                if slow is not None and slow not in first.assignment():
                    story.completed = now
                elif slow is not None and now < story.requested + WORK:
                    first.delay_revoke([slow])
        kept = first.assignment()
    finally:
        writer.over.set()
        first.close()
        for thread in (writer, watching, other):
            if thread.ident is not None:
                thread.join(10)
        second.close()
    end = story.completed + AFTER
    bins = [0] * (int((end - began) / BIN) + 1)
    for at, tp, count in story.reads:
        if tp in kept and at < end:
            bins[int((at - began) / BIN)] += count
    series = [(began + index * BIN - story.joined, count / BIN) for index, count in enumerate(bins)]
    name = "delayed revoke (KIP-983)" if deferred else "blocking listener"
    return Measurement(name, series, story.requested - story.joined, story.completed - story.joined)


def _watch(watch: Watch, story: _Story, over: threading.Event) -> None:
    while not over.wait(_LOOK_EVERY):
        watch(story.doing(), story.rate(time.monotonic()))


async def _create(servers: str, topic: str) -> None:
    async with AsyncAdmin(bootstrap_servers=servers) as admin:
        await admin.create_topic(topic, PARTITIONS, 1)


def _poll(consumer: Consumer, over: threading.Event) -> None:
    while not over.is_set():
        consumer.poll(0.05)
