"""Measures how fresh the records of a consumer are after a crash that left a backlog (KIP-333).

    python -m benchmarks.freshness --write docs/freshness.png

Records are written at a steady rate. Consumers, one for each client, read them in their groups and are killed. The
backlog is written; then the consumers are restarted one after the other, and their freshness is measured: the current
time minus the timestamp of the newest record that was returned so far.

To save time, the backlog is written as fast as possible, with the timestamps that it would have at the steady rate.
Before the crash, timestamps are therefore set back by the duration of the simulated outage.

`--write` writes the picture, a page of the same name with the results, and the runs of the picture
(`freshness_picture.py`).
"""

from __future__ import annotations

import argparse
import bisect
import dataclasses
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.cli.demo_consumer import ConsumerProcess, now
from headrace.local import LocalBroker

from . import freshness_picture, machine
from .datasets import create_topic
from .freshness_readers import command

CLIENTS = {
    "headrace": "headrace",
    "headrace-lanes": "headrace, enable.parallel.rebalance",
    "confluent": "confluent-kafka",
    "confluent-tuned": "confluent-kafka, tuned",
    "java": "Java",
}
COMPARED = ("headrace", "headrace-lanes")
BACKLOGS = (1_000_000, 5_000_000)
PARTITIONS = 6
VALUE_BYTES = 100
RATE = 1000  # records/s
REPEAT = 15  # runs of the clients that are compared: on a busy machine, single runs differ by a factor of two
_BEFORE, _AFTER = 4.0, 3.0  # seconds to run before the crash, and after the backlog is done
_TOO_LATE = 60.0

Say = Callable[[str], None]
Offsets = Mapping[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The restart of a client. Times are seconds since its assignment; `series` is its freshness over time."""

    client: str
    backlog: int
    behind: int
    first_live: float
    done: float
    series: Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class Results:
    runs: Sequence[Run]
    before: Mapping[tuple[int, str], float]
    """The median freshness before the crash in seconds, by backlog and client."""
    load: float

    def of(self, backlog: int, client: str) -> list[Run]:
        return [run for run in self.runs if (run.backlog, run.client) == (backlog, client)]

    def median(self, backlog: int, client: str, figure: Callable[[Run], float]) -> float:
        return statistics.median(map(figure, self.of(backlog, client)))

    def ratio(self, backlog: int) -> float:
        """The time for the backlog with two lanes, relative to one lane."""
        plain, lanes = (self.median(backlog, client, lambda run: run.done) for client in COMPARED)
        return lanes / plain


class Writer:
    """Writes to all partitions in turn, and counts its records that are older than a time."""

    def __init__(self, servers: str, topic: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "acks": "all"})
        self._topic = topic
        self._times: list[int] = []  # of all records, ascending
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def older_than(self, milliseconds: float) -> int:
        return bisect.bisect_left(self._times, milliseconds)

    def _write(self, timestamp: int) -> None:
        number = len(self._times)
        self._times.append(timestamp)
        while True:
            try:
                self._producer.produce(
                    self._topic, b"%0*d" % (VALUE_BYTES, number), partition=number % PARTITIONS, timestamp=timestamp
                )
                return
            except BufferError:
                self._producer.poll(0.05)

    def write_backlog(self, records: int, end: float) -> None:
        for number in range(records):
            self._write(int(end) - (records - number) * 1000 // RATE)
            if number % 1000 == 0:
                self._producer.poll(0)
        self._flush()

    def begin(self, set_back: float = 0.0) -> None:
        """Start to write at the steady rate, with timestamps that are set back by some milliseconds."""
        self._over.clear()
        self._thread = threading.Thread(target=self._run, args=(set_back,), daemon=True)
        self._thread.start()

    def _run(self, set_back: float) -> None:
        begun, written = time.monotonic(), 0
        while not self._over.wait(0.001):
            due = int((time.monotonic() - begun) * RATE)
            for _ in range(due - written):
                self._write(int(now() - set_back))
            written = due
            self._producer.poll(0)
        self._flush()

    def _flush(self) -> None:
        left = self._producer.flush(_TOO_LATE)
        assert left == 0, f"{left} records were not written in {_TOO_LATE:.0f} s"

    def end(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()


def measure(servers: str, backlogs: Sequence[int], repeat: int, say: Say) -> Results:
    runs: list[Run] = []
    before: dict[tuple[int, str], float] = {}
    loads = [machine.load()]
    for backlog in backlogs:
        topic = f"freshness-{backlog}"
        create_topic(topic, PARTITIONS, servers)
        writer = Writer(servers, topic)
        outage = backlog * 1000 / RATE
        for client, freshness in _first_lives(servers, topic, writer, outage).items():
            before[backlog, client] = freshness
        committed = {client: _committed(servers, topic, _group(topic, client)) for client in CLIENTS}
        writer.write_backlog(backlog, now())
        say(f"a backlog of {backlog:,} records is written")
        writer.begin()
        try:
            for number in range(1, repeat + 1):
                # Alternate the order: the later client has a larger backlog.
                for client in CLIENTS if number == 1 else COMPARED[:: 1 if number % 2 else -1]:
                    group = _group(topic, client) if number == 1 else f"{_group(topic, client)}-{number}"
                    if number > 1:
                        _commit(servers, topic, group, committed[client])
                    after = _AFTER if number == 1 else 0.0  # only the first run is drawn
                    runs.append(_return(client, backlog, servers, topic, group, writer, committed[client], after))
                    say(_shown(runs[-1]))
                    loads.append(machine.load())
        finally:
            writer.end()
    return Results(runs, before, statistics.fmean(loads))


def _group(topic: str, client: str) -> str:
    return f"{topic}-{client}"


def _first_lives(servers: str, topic: str, writer: Writer, outage: float) -> dict[str, float]:
    """Run all clients at the same time, and kill them."""
    writer.begin(set_back=outage)
    readers = {client: ConsumerProcess(command(client, servers, topic, _group(topic, client))) for client in CLIENTS}
    try:
        for reader in readers.values():
            reader.wait(lambda reader=reader: bool(reader.samples), _TOO_LATE)  # type: ignore[misc]
        time.sleep(_BEFORE)
    finally:
        for reader in readers.values():
            reader.kill()
        writer.end()
    return {
        client: statistics.median((at - outage - newest) / 1000 for at, newest, _ in reader.samples)
        for client, reader in readers.items()
    }


def _return(
    client: str,
    backlog: int,
    servers: str,
    topic: str,
    group: str,
    writer: Writer,
    committed: Offsets,
    after: float,
) -> Run:
    reader = ConsumerProcess(command(client, servers, topic, group))
    try:
        reader.wait(lambda: bool(reader.assigned_at), _TOO_LATE)
        behind = writer.older_than(reader.assigned_at) - sum(committed.values())
        reader.wait(lambda: bool(reader.samples) and reader.samples[-1][2] >= behind, _TOO_LATE + backlog / 20_000)
        time.sleep(after)
    finally:
        reader.kill()
    back = reader.assigned_at
    first_live = next(at for at, newest, _ in reader.samples if newest >= back)
    done = next(at for at, _, old in reader.samples if old >= behind)
    series = [((at - back) / 1000, max(at - newest, 1.0) / 1000) for at, newest, _ in reader.samples]
    return Run(client, backlog, behind, (first_live - back) / 1000, (done - back) / 1000, series)


def _shown(run: Run) -> str:
    return (
        f"{CLIENTS[run.client]}: {run.behind:,} records behind, the first live record after {run.first_live:.3f} s, "
        f"the backlog done after {run.done:.2f} s"
    )


def _committed(servers: str, topic: str, group: str) -> Offsets:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], timeout=_TOO_LATE)
    finally:
        consumer.close()
    assert all(each.offset >= 0 for each in found), f"{group} has not committed: {found}"
    return {each.partition: each.offset for each in found}


def _commit(servers: str, topic: str, group: str, offsets: Offsets) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        consumer.commit(
            offsets=[TopicPartition(topic, number, offset) for number, offset in offsets.items()], asynchronous=False
        )
    finally:
        consumer.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.freshness", description=__doc__.split("\n")[0])
    parser.add_argument("--write", metavar="FILE.png", type=Path, help="write the picture, and a page beside it")
    parser.add_argument("--backlog", metavar="RECORDS", type=int, nargs="+", default=BACKLOGS)
    parser.add_argument(
        "--repeat", type=int, default=REPEAT, help="the number of runs of headrace with and without lanes"
    )
    options = parser.parse_args(arguments)
    with LocalBroker(properties={"group.initial.rebalance.delay.ms": 0}) as broker:
        results = measure(broker.bootstrap_servers, options.backlog, options.repeat, _say)
    from .freshness_report import page  # imported late: it imports this module

    print(page(results))
    if options.write:
        recorded = _recorded(results)
        freshness_picture.write(recorded)
        freshness_picture.draw(recorded, options.write)
        options.write.with_suffix(".md").write_text(page(results, options.write.name))
    return 0


def _recorded(results: Results) -> freshness_picture.Recorded:
    """The first runs of the clients that are compared, with the largest backlog."""
    backlog = max(run.backlog for run in results.runs)
    first = {client: results.of(backlog, client)[0] for client in COMPARED}
    runs = {
        client: freshness_picture.RecordedRun(run.first_live, [(0.0, backlog / RATE), *run.series])
        for client, run in first.items()
    }
    return freshness_picture.Recorded(machine.facts()["Date"], "measured", backlog, runs)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
