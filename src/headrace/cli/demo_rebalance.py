"""The demo of KIP-983: measures what a member reads while partitions are revoked, one of them with slow work in flight.

A member reads twelve partitions, which are written at a steady rate. A second member joins, and six partitions are
revoked. The work on one of them takes seconds. In the first run, the member waits for it in its listener
(revoke.mode=immediate), which is the only way in other clients. In the second run, it delays the revoke of that
partition only, and continues to poll. The result is the rate of the six partitions that it keeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .. import Consumer, Producer, RebalanceListener, TopicPartition
from .._aio.admin import AsyncAdmin
from ..errors import HeadraceError

Watch = Callable[[str, float], None]
"""Called ten times per second with the current step, and the current rate (records/s) of the partitions that the member
keeps."""

PARTITIONS = 12
KEPT = 6  # the partitions of the first member after the second one has joined
RATE = 12_000  # records/s written
BEFORE, WORK, AFTER = 3.0, 3.0, 2.0  # seconds
_SETTLE = 4.0  # until the records that were written before the assignment are read
BIN = 0.1
_DEADLINE = 30.0
_LATELY = 0.5
_LOOK_EVERY = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """Records/s of the kept partitions: over the time since the second member joined; and the means before the revoke
    was requested (`before`) and until it was completed (`during`)."""

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


class _Progress:
    """The steps and reads so far. The member's thread writes them, and a watcher thread reads them, because a member
    that waits in its listener cannot report anything."""

    def __init__(self) -> None:
        self.joined = self.requested = self.completed = 0.0
        self.revoked: frozenset[TopicPartition] = frozenset()
        self.reads: list[tuple[float, TopicPartition, int]] = []

    def doing(self) -> str:
        if self.completed:
            return "six partitions have moved to the second member"
        if self.requested:
            return "six partitions are revoked, one of them still has work in flight"
        return "a second member joins" if self.joined else "one member reads twelve partitions"

    def rate(self, now: float) -> float:
        """The rate of the partitions that the member keeps. Before the revoke they are unknown: half of the rate of all
        twelve is used, since all are written at the same rate. The rate of all twelve would seem to drop by half at
        the revoke."""
        total = 0
        for at, tp, count in reversed(self.reads):
            if at < now - _LATELY:
                break
            total += 0 if tp in self.revoked else count
        return total / _LATELY * (1.0 if self.revoked else KEPT / PARTITIONS)


class _Blocking(RebalanceListener):
    """Waits for the work in the callback for the revoke."""

    def __init__(self, progress: _Progress) -> None:
        self._progress = progress

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        if not self._progress.requested:
            self._progress.revoked = partitions
            self._progress.requested = time.monotonic()
            time.sleep(WORK)
            self._progress.completed = time.monotonic()


class _SteadyWriter(threading.Thread):
    """Writes to all partitions in turn, at RATE, during a run."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(bootstrap_servers=servers)
        self._topic = topic
        self.over = threading.Event()

    def run(self) -> None:
        # If the brokers are gone, the measurement fails and says so.
        with contextlib.suppress(HeadraceError):
            self._write()
        with contextlib.suppress(HeadraceError):
            self._producer.close(timeout=5)

    def _write(self) -> None:
        last, owed, written = time.monotonic(), 0.0, 0
        while not self.over.wait(0.005):
            now = time.monotonic()
            # Do not catch up after a pause: the burst would distort the measured rate.
            owed, last = min(owed + (now - last) * RATE, 0.05 * RATE), now
            due = written + int(owed)
            owed -= int(owed)
            for number in range(written, due):
                self._producer.send(self._topic, b"x" * 100, partition=number % PARTITIONS)
            written = due


def measure(servers: str, deferred: bool, watch: Watch | None = None) -> Measurement:
    """Run the demo once. Raises TimeoutError if the rebalance takes too long."""
    topic = f"revoking-{'deferred' if deferred else 'blocking'}-{time.time_ns()}"
    asyncio.run(_create(servers, topic))
    writer, progress = _SteadyWriter(servers, topic), _Progress()
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
    watching = threading.Thread(target=_watch, args=(watch, progress, writer.over), daemon=True)
    assigned_at = 0.0
    slow: TopicPartition | None = None
    writer.start()
    if watch is not None:
        watching.start()
    try:
        first.subscribe([topic], listener=None if deferred else _Blocking(progress))
        second.subscribe([topic])
        began = time.monotonic()
        while not progress.completed or time.monotonic() < progress.completed + AFTER:
            records = first.poll(0.05)
            now = time.monotonic()
            if now > began + _DEADLINE:
                raise TimeoutError(f"the rebalance was not completed within {_DEADLINE:.0f} s")
            progress.reads += [(now, tp, len(records[tp])) for tp in records.partitions]
            if not assigned_at and len(first.assignment()) == PARTITIONS:
                assigned_at = now
            # Not earlier: if both members join at the same time, no partition is revoked.
            if assigned_at and not progress.joined and now > assigned_at + _SETTLE + BEFORE:
                progress.joined = now
                other.start()
            if deferred and not progress.completed:
                if records.to_be_revoked and slow is None:
                    slow = min(records.to_be_revoked)
                    progress.revoked, progress.requested = frozenset(records.to_be_revoked), now
                if slow is not None and slow not in first.assignment():
                    progress.completed = now
                elif slow is not None and now < progress.requested + WORK:
                    first.delay_revoke([slow])
        kept = first.assignment()
    finally:
        writer.over.set()
        first.close()
        for thread in (writer, watching, other):
            if thread.ident is not None:
                thread.join(10)
        second.close()
    end = progress.completed + AFTER
    bins = [0] * (int((end - began) / BIN) + 1)
    for at, tp, count in progress.reads:
        if tp in kept and at < end:
            bins[int((at - began) / BIN)] += count
    series = [(began + index * BIN - progress.joined, count / BIN) for index, count in enumerate(bins)]
    name = "delayed revoke (KIP-983)" if deferred else "blocking listener"
    return Measurement(name, series, progress.requested - progress.joined, progress.completed - progress.joined)


def _watch(watch: Watch, progress: _Progress, over: threading.Event) -> None:
    while not over.wait(_LOOK_EVERY):
        watch(progress.doing(), progress.rate(time.monotonic()))


async def _create(servers: str, topic: str) -> None:
    async with AsyncAdmin(bootstrap_servers=servers) as admin:
        await admin.create_topic(topic, PARTITIONS, 1)


def _poll(consumer: Consumer, over: threading.Event) -> None:
    while not over.is_set():
        consumer.poll(0.05)
