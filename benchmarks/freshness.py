"""KIP-333 in a picture: how fresh a consumer's records are after a crash that has left it with a backlog.

    python -m benchmarks.freshness --write docs/freshness.png

Records are written at a steady rate. Members of groups, one for each client, read them and are killed. The backlog is
written; then each is started again, one after the other, and freshness is watched: now minus the timestamp of the
newest record that was handed out so far.

Nobody waits for hours: the backlog is written as fast as that goes, with the timestamps that it would have at the
steady rate. For as long as that outage would have taken, the clock of the first lives is set back.

With `--write` the figures go beside the picture, into a page of the same name.
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

from . import machine
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
REPEAT = 15  # of those that are compared: a busy machine makes single runs differ by a factor of two
_BEFORE, _AFTER = 4.0, 3.0  # seconds of the first life, and of the second one when its backlog is done
_TOO_LATE = 60.0

Say = Callable[[str], None]
Offsets = Mapping[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One client's return. Times are seconds since it was back in the group; `series` is freshness over them."""

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
    """Freshness before the crash, seconds in the median, by backlog and client."""
    load: float

    def of(self, backlog: int, client: str) -> list[Run]:
        return [run for run in self.runs if (run.backlog, run.client) == (backlog, client)]

    def median(self, backlog: int, client: str, figure: Callable[[Run], float]) -> float:
        return statistics.median(map(figure, self.of(backlog, client)))

    def ratio(self, backlog: int) -> float:
        """How much longer the backlog takes with two lanes."""
        plain, lanes = (self.median(backlog, client, lambda run: run.done) for client in COMPARED)
        return lanes / plain


class Writer:
    """Writes to all partitions in turn. Knows how many of its records are older than a time."""

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
        """The steady rate, by a clock that is set back by some milliseconds."""
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
        say(f"{backlog:,} records of backlog are written")
        writer.begin()
        try:
            for number in range(1, repeat + 1):
                # In turns, so that neither is always the later one, which has more behind it.
                for client in CLIENTS if number == 1 else COMPARED[:: 1 if number % 2 else -1]:
                    group = _group(topic, client) if number == 1 else f"{_group(topic, client)}-{number}"
                    if number > 1:
                        _commit(servers, topic, group, committed[client])
                    after = _AFTER if number == 1 else 0.0  # only the first is drawn
                    runs.append(_return(client, backlog, servers, topic, group, writer, committed[client], after))
                    say(_shown(runs[-1]))
                    loads.append(machine.load())
        finally:
            writer.end()
    return Results(runs, before, statistics.fmean(loads))


def _group(topic: str, client: str) -> str:
    return f"{topic}-{client}"


def _first_lives(servers: str, topic: str, writer: Writer, outage: float) -> dict[str, float]:
    """All at once, until they are killed."""
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
    parser.add_argument("--repeat", type=int, default=REPEAT, help="how often headrace with and without lanes returns")
    options = parser.parse_args(arguments)
    with LocalBroker(properties={"group.initial.rebalance.delay.ms": 0}) as broker:
        results = measure(broker.bootstrap_servers, options.backlog, options.repeat, _say)
    from .freshness_report import draw, page  # matplotlib is slow to load, and wanted only now

    print(page(results))
    if options.write:
        draw(results, options.write)
        options.write.with_suffix(".md").write_text(page(results, options.write.name))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
