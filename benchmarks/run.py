"""One run: a broker, and rounds over the contenders for each dataset, so that drift affects all equally."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.local import LocalBroker

from . import child, groups, latency, machine, polling, share_runs, spark, spark_formats, spark_writing, writing
from .contenders import LIMIT_IN_TURN, Contender
from .datasets import PARTITIONS, Dataset, create_topic, records_in, stored_bytes, write
from .process import CommandFailed, run
from .readers import Job, Reading
from .report import Results
from .results import Figure, Figures, Measurement, Outcome, Table
from .write_contenders import Writer

PARTS = ("reading", "polls", "latency", "groups", "share", "spark", "spark_formats", "writing", "writing_spark")
_WITHOUT_DATASET = {"spark_formats", "writing", "writing_spark"}

_WARM_UPS = 2
_ONE_BY_ONE = 2_000
# Slower than any client. It only limits a run that hangs.
_RECORDS_PER_SECOND = 10_000


class NotEnoughRoom(Exception):
    """The disk is too small for the datasets."""


def benchmark(
    *,
    datasets: Sequence[Dataset],
    contenders: Sequence[Contender],
    writers: Sequence[Writer],
    repeat: int,
    parts: Sequence[str],
    keep: Path | None,
    command: str,
) -> Results:
    """Run the measurements. `parts` are some of PARTS; polls and groups read the first dataset. `contenders` read,
    `writers` write. `keep` is a directory in which topics are kept for later runs."""
    _check_room(datasets, keep or Path(tempfile.gettempdir()))
    facts, load_before = machine.facts(), machine.load()
    _say("starting a broker")
    with LocalBroker(data_dir=keep, properties=writing.BROKER) as broker:
        servers = broker.bootstrap_servers
        if "reading" in parts:
            tables = [_table(dataset, contenders, repeat, broker) for dataset in datasets]
        else:
            tables = []
            if not _WITHOUT_DATASET.issuperset(parts):
                _write(datasets[0], servers)
        job = _job(datasets[0], datasets[0].records, servers)
        return Results(
            facts,
            load_before,
            command,
            repeat,
            tables,
            _poll_costs(job) if "polls" in parts else {},
            _latencies(servers) if "latency" in parts else {},
            groups.measure(job, repeat, _say) if "groups" in parts else None,
            share_runs.measure(servers, repeat, _say) if "share" in parts else None,
            spark.measure(servers, datasets, repeat, _say) if "spark" in parts else None,
            writing.measure(broker, datasets, writers, repeat, _say) if "writing" in parts else None,
            spark_writing.measure(servers, datasets, repeat, _say) if "writing_spark" in parts else None,
            spark_formats.measure(servers, datasets[0].records, repeat, _say) if "spark_formats" in parts else None,
        )


def _table(dataset: Dataset, contenders: Sequence[Contender], repeat: int, broker: LocalBroker) -> Table:
    servers = broker.bootstrap_servers
    _write(dataset, servers)
    outcomes = dict.fromkeys((contender.name for contender in contenders), Outcome())
    for number in range(1, repeat + 1):
        for contender in contenders:
            outcome = outcomes[contender.name]
            about = f"{dataset.name}: {number}/{repeat} {contender.name}"
            try:
                measurement = measure(contender, _job(dataset, contender.records_of(dataset.records), servers))
            except (CommandFailed, ValueError) as error:
                _say(f"{about}: failed: {error}")
                outcomes[contender.name] = outcome.with_failure(str(error))
            else:
                _say(f"{about}: {measurement.rate:,.0f} records/s")
                outcomes[contender.name] = outcome.with_measurement(measurement)
    return Table(dataset, stored_bytes(dataset, broker.data_dir), outcomes)


def _write(dataset: Dataset, servers: str) -> None:
    _say(f"{dataset.name}: writing {dataset.title}")
    if not write(dataset, servers):
        _say(f"{dataset.name}: it exists already")
    for _ in range(_WARM_UPS):
        run(LIMIT_IN_TURN.command(_job(dataset, dataset.records, servers)), _timeout(dataset.records))


def measure(contender: Contender, job: Job) -> Measurement:
    """Run a contender. Raises CommandFailed, and ValueError for an impossible result."""
    finished = run(contender.command(job), _timeout(job.records))
    reading = contender.parse(finished.output)
    _check(reading, job)
    return Measurement(
        records=reading.records,
        seconds=reading.seconds,
        loop_cpu_seconds=reading.cpu_seconds,
        process_cpu_seconds=finished.cpu_seconds,
        peak_bytes=finished.peak_bytes,
    )


def _check(reading: Reading, job: Job) -> None:
    if reading.records < job.records:
        raise ValueError(f"read {reading.records:,} of {job.records:,} records")
    if reading.seconds <= 0:
        raise ValueError(f"{reading.records:,} records in {reading.seconds} seconds")


def _poll_costs(few: Job) -> Figures:
    many = Job(few.servers, "many-partitions", polling.MANY_PARTITIONS, polling.MANY_RECORDS)
    _say(f"writing {many.records:,} records to {many.partitions:,} partitions")
    create_topic(many.topic, many.partitions, many.servers)
    if not records_in(many.topic, many.servers):
        run(child.command("filling.evenly", many), _timeout(many.records))
    found: Figures = {}
    for job in (few, many):
        for client, ways in polling.CLIENTS.items():
            for protocol, way in ways.items():
                name = f"{client}, {way}, {job.partitions:,} partitions"
                _say(f"cost of a poll: {name}")
                found[name] = _figures(
                    child.command(f"polling.{client}", dataclasses.replace(job, protocol=protocol)), json.loads
                )
    return found


def _latencies(servers: str) -> Figures:
    job = Job(servers, "latency", 1, _ONE_BY_ONE)
    create_topic(job.topic, job.partitions, servers)
    found: Figures = {}
    for client in latency.CLIENTS:
        _say(f"latency: {client}")
        found[client] = _figures(child.command(f"latency.{client}", job), json.loads)
    _say("latency: Java")
    found["Java"] = _figures(latency.java_command_line(job), latency.figures_of_java)
    return found


def _figures(command: Sequence[str], parse: Callable[[str], dict[str, float]]) -> Figure:
    found = groups.figures(command, parse, timeout=300)
    if isinstance(found, str):
        _say(found)
    return found


def _job(dataset: Dataset, records: int, servers: str) -> Job:
    return Job(servers, dataset.topic, PARTITIONS, records)


def _timeout(records: int) -> float:
    return 60 + records / _RECORDS_PER_SECOND


def _check_room(datasets: Sequence[Dataset], where: Path) -> None:
    there = next(path for path in (where, *where.absolute().parents) if path.exists())
    needed, free = sum(dataset.room for dataset in datasets), shutil.disk_usage(there).free
    if needed > free:
        raise NotEnoughRoom(
            f"{needed / 1e9:.1f} GB are needed in {there}, {free / 1e9:.1f} GB are free: "
            "set TMPDIR to another directory, use --keep with one, or fewer --records"
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
