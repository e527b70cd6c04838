"""KIP-983 in a picture: what a member reads while it gives partitions up, one of them with slow work in flight.

    python -m benchmarks.revoking --write docs/revoking.svg

A member reads twelve partitions, which are written to at a steady rate. A second member joins, and six of them are
asked back. Work on one of those takes seconds to end. Once the member waits for it in its listener
(revoke.mode=immediate), which is the only way that other clients have; once it delays the revoke of that partition, and
of no other, and polls on. What is counted is what it reads of the six partitions that it keeps.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from headrace import Consumer, LocalBroker, RebalanceListener, TopicPartition

from .datasets import create_topic

PARTITIONS = 12
RATE = 12_000  # records/s written
BEFORE, WORK, AFTER = 3.0, 3.0, 2.0  # seconds
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


def measure(servers: str, deferred: bool) -> Run:
    topic = f"revoking-{'deferred' if deferred else 'blocking'}"
    create_topic(topic, PARTITIONS, servers)
    writer, listener = _Writer(servers, topic), _Blocking()
    settings = {
        "bootstrap_servers": servers,
        "group_id": topic,
        "partition_assignment_strategy": "cooperative-sticky",
        "heartbeat_interval_ms": 100,
        "auto_offset_reset": "earliest",
        "revoke_mode": "deferred" if deferred else "immediate",
    }
    first, second = Consumer(settings), Consumer(settings)
    reads: list[tuple[float, TopicPartition, int]] = []
    joined = requested = completed = 0.0
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
            if not joined and now > began + BEFORE + 4:  # what was written before the group stood is read by then
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


def _poll(consumer: Consumer, over: threading.Event) -> None:
    while not over.is_set():
        consumer.poll(0.05)


# -- the picture -----------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 720, 180, 60, 40, 60
_INK, _LINE, _SHADE = "#444", "#1f6feb", "#f3d9a4"


def picture(runs: Sequence[Run]) -> str:
    """Both as SVG, one above the other, on the same scales."""
    low = -BEFORE
    high = max(run.completed for run in runs) + AFTER
    # What was not read while the listener waited comes at once afterwards: the peak would flatten everything else.
    top = 2 * max(run.before for run in runs)
    height = len(runs) * (_HEIGHT + _GAP) + _TOP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + _LEFT + 20}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, run in enumerate(runs):
        base = _TOP + index * (_HEIGHT + _GAP) + _HEIGHT

        def x(at: float) -> float:
            return _LEFT + (at - low) / (high - low) * _WIDTH

        def y(rate: float, base: float = base) -> float:
            return base - min(rate, top) / top * _HEIGHT

        points = " ".join(f"{x(at):.1f},{y(rate):.1f}" for at, rate in run.series if low <= at <= high)
        wide = x(run.completed) - x(run.requested)
        parts += [
            f'<rect x="{x(run.requested):.1f}" y="{base - _HEIGHT}" width="{wide:.1f}" height="{_HEIGHT}" '
            f'fill="{_SHADE}"/>',
            f'<line x1="{_LEFT}" y1="{base}" x2="{_LEFT + _WIDTH}" y2="{base}" stroke="{_INK}"/>',
            f'<polyline points="{points}" fill="none" stroke="{_LINE}" stroke-width="1.5"/>',
            f'<text x="{_LEFT}" y="{base - _HEIGHT - 8}" font-weight="bold">{run.name}: {run.during / run.before:.0%} '
            f"of the rate before, while partitions are given up (shaded)</text>",
            *(
                f'<text x="{_LEFT - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate / 1000:.0f} k</text>'
                for rate in (0.0, run.before, top)
            ),
            *(
                f'<text x="{x(at):.1f}" y="{base + 16}" text-anchor="middle">{at} s</text>'
                for at in range(int(low), int(high) + 1)
            ),
        ]
    parts.append(
        f'<text x="{_LEFT}" y="{height - 6}">records/s of the partitions that the member keeps, over seconds since a '
        f"second member joined</text></svg>"
    )
    return "\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.revoking", description=__doc__.split("\n")[0])
    parser.add_argument("--write", metavar="FILE", type=Path, help="write the picture")
    options = parser.parse_args(arguments)
    with LocalBroker(properties={"group.initial.rebalance.delay.ms": 0}) as broker:
        runs = [measure(broker.bootstrap_servers, deferred) for deferred in (True, False)]
    for run in runs:
        print(
            f"{run.name}: {run.before:,.0f} records/s before, {run.during:,.0f} during "
            f"({run.during / run.before:.0%}), {run.completed - run.requested:.1f} s"
        )
    if options.write:
        options.write.write_text(picture(runs))
    else:
        print(json.dumps([dataclasses.asdict(run) for run in runs])[:200])
    return 0


if __name__ == "__main__":
    sys.exit(main())
