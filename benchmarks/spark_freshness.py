"""A chart of KIP-333 in Structured Streaming: the freshness of a query's records after downtime.

    python -m benchmarks.spark_freshness --write docs/spark-freshness.png

A query reads a topic and is stopped. Two million records are written, with the timestamps that they would have at the
steady rate. Then records are written at that rate, the query is restarted from its checkpoint, and its freshness is
measured: now minus the timestamp of the newest record in the sink. With and without `enable.parallel.rebalance=true`.

The exit code is 1 if the query with two lanes has no live record, one written after its restart, within two
micro-batches.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.cli.demo_consumer import now
from headrace.local import LocalBroker

from . import machine
from .datasets import create_topic
from .freshness import PARTITIONS, RATE, Writer
from .markdown import markdown_table

BACKLOG = 2_000_000
MOST = 200_000  # maxOffsetsPerTrigger
WAYS: dict[str, dict[str, str]] = {
    'format("headrace")': {},
    "with enable.parallel.rebalance": {"enable.parallel.rebalance": "true"},
}
_COLOURS = ("#1f6feb", "#d1242f")
_TOO_LATE = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """The time at which it was in the sink, and its newest timestamp, in milliseconds. `live` rows were written since
    the restart."""

    at: float
    newest: float
    rows: int
    live: int


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One restart of a query. Times are seconds since its start."""

    way: str
    backlog: int
    batches: Sequence[Batch]
    began: float

    @property
    def first_live(self) -> tuple[int, float]:
        """The number of the first batch with a live record, and its seconds."""
        return next(
            (number, (batch.at - self.began) / 1000) for number, batch in enumerate(self.batches, 1) if batch.live
        )

    @property
    def done(self) -> float:
        """Seconds until the backlog is done."""
        read = 0
        for batch in self.batches:
            read += batch.rows - batch.live
            if read >= self.backlog:
                return (batch.at - self.began) / 1000
        raise AssertionError("the backlog is not done")

    @property
    def series(self) -> list[tuple[float, float]]:
        """Seconds behind, just before each batch was in the sink and just after."""
        found = []
        newest = self.began - self.backlog * 1000 / RATE
        for batch in self.batches:
            found.append(((batch.at - self.began) / 1000, (batch.at - newest) / 1000))
            newest = max(newest, batch.newest)
            found.append(((batch.at - self.began) / 1000, (batch.at - newest) / 1000))
        return found


class Query:
    """A query with one set of options, and its checkpoint."""

    def __init__(self, spark: Any, servers: str, topic: str, way: str, where: Path) -> None:
        self._spark, self._where, self.way = spark, where / str(list(WAYS).index(way)), way
        self._options = {
            "kafka.bootstrap.servers": servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(MOST),
            **WAYS[way],
        }
        self._batches: list[Batch] = []
        self._began = 0.0

    def _take(self, frame: Any, number: int) -> None:
        live = f"count_if(timestamp >= timestamp_millis({int(self._began)}))"
        rows = frame.selectExpr("unix_millis(max(timestamp)) newest", "count(*) rows", f"{live} live").collect()
        if rows[0].rows:
            self._batches.append(Batch(now(), rows[0].newest, rows[0].rows, rows[0].live))

    def _start(self, **trigger: Any) -> Any:
        self._began, self._batches = now(), []
        writer = self._spark.readStream.format("headrace").options(**self._options).load().writeStream
        writer = writer.foreachBatch(self._take).option("checkpointLocation", str(self._where))
        return writer.trigger(**trigger).start()

    def first_life(self) -> None:
        assert self._start(availableNow=True).awaitTermination(_TOO_LATE)

    def second_life(self, backlog: int) -> Run:
        query = self._start(processingTime="0 seconds")
        try:
            deadline = time.monotonic() + _TOO_LATE
            while not self._is_over(backlog):
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline, "the query took too long"
                time.sleep(0.1)
        finally:
            query.stop()
            query.awaitTermination(_TOO_LATE)
        return Run(self.way, backlog, tuple(self._batches), self._began)

    def _is_over(self, backlog: int) -> bool:
        """Whether the backlog is done and live records arrive."""
        batches = list(self._batches)
        return sum(batch.rows - batch.live for batch in batches) >= backlog and bool(batches[-1].live)


def measure(repeat: int) -> tuple[list[Run], float]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    runs, loads = [], []
    try:
        with LocalBroker() as broker, tempfile.TemporaryDirectory() as scratch:
            for way in WAYS:  # warm-up: the JVM gets faster over time
                _one(spark, broker.bootstrap_servers, f"warm-up-{list(WAYS).index(way)}", way, Path(scratch), MOST)
        for number in range(repeat):
            with LocalBroker() as broker, tempfile.TemporaryDirectory() as scratch:
                for way in list(WAYS)[:: 1 if number % 2 else -1]:
                    runs.append(_one(spark, broker.bootstrap_servers, f"freshness-{len(runs)}", way, Path(scratch)))
                    loads.append(machine.load())
                    at, seconds = runs[-1].first_live
                    _say(
                        f"{way}: first live record in batch {at}, after {seconds:.1f} s; done in {runs[-1].done:.1f} s"
                    )
    finally:
        spark.stop()
    return runs, statistics.fmean(loads)


def _one(spark: Any, servers: str, topic: str, way: str, where: Path, backlog: int = BACKLOG) -> Run:
    create_topic(topic, PARTITIONS, servers)
    writer = Writer(servers, topic)
    writer.write_backlog(PARTITIONS, now() - backlog * 1000 / RATE)
    query = Query(spark, servers, topic, way, where)
    query.first_life()
    writer.write_backlog(backlog, now())
    _say(f"a backlog of {backlog:,} records is written")
    writer.begin()
    try:
        return query.second_life(backlog)
    finally:
        writer.end()


def draw(runs: Sequence[Run], path: Path) -> None:
    """A PNG chart of freshness over time, for the first run of each set of options."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(11, 4.2))
    for way, colour in zip(WAYS, _COLOURS, strict=True):
        run = next(run for run in runs if run.way == way)
        times, values = zip((0.0, BACKLOG / RATE), *run.series, strict=True)
        panel.plot(times, values, color=colour, label=f"{way}\nbacklog done after {run.done:.1f} s")
        panel.axvline(run.done, color=colour, linestyle=":", linewidth=1)
    panel.set_yscale("log")
    panel.set_xlim(left=0)
    panel.set_title(f"{BACKLOG:,} records of backlog, {RATE:,} records/s written, batches of {MOST:,}", loc="left")
    panel.set_xlabel("seconds since the query was restarted; dotted: its backlog is done")
    panel.set_ylabel("seconds behind")
    panel.grid(alpha=0.3)
    panel.legend(frameon=False)
    figure.suptitle("Now minus the timestamp of the newest record in the sink of a streaming query, after downtime")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def table(runs: Sequence[Run], load: float) -> str:
    rows = []
    for way in WAYS:
        own = [run for run in runs if run.way == way]
        batches = ", ".join(str(run.first_live[0]) for run in own)
        soon, done = (statistics.median(each) for each in ([r.first_live[1] for r in own], [r.done for r in own]))
        rows.append([way, batches, f"{soon:.1f} s", f"{done:.1f} s"])
    head = ["", "first live record in batch", "after", "backlog done after"]
    return f"{markdown_table(head, rows)}\n\nMedians of {len(runs) // 2}; load of the machine {load:.1f}."


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_freshness", description=__doc__.split("\n")[0])
    parser.add_argument("--write", metavar="FILE.png", type=Path, help="write the picture")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args(arguments)
    runs, load = measure(options.repeat)
    print(table(runs, load))
    if options.write:
        draw(runs, options.write)
    return 0 if all(run.first_live[0] <= 2 for run in runs if WAYS[run.way]) else 1


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
