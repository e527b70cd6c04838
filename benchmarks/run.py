"""One run: a broker, and rounds over the contenders for each dataset, so that drift affects all equally."""

from __future__ import annotations

import compileall
import dataclasses
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import headrace
from headrace.local import LocalBroker

from . import (
    arrivals,
    child,
    formats,
    groups,
    latency,
    machine,
    pinning,
    polling,
    scaling,
    share_runs,
    spark,
    spark_formats,
    spark_writing,
    tls,
    writing,
)
from .contenders import LIMIT_IN_TURN, Contender
from .datasets import PARTITIONS, Dataset, create_topic, records_in, stored_bytes, write
from .plan import Effort
from .process import CommandFailed, run
from .readers import Job, Reading
from .report import Results
from .results import Figure, Figures, Measurement, Outcome, Table
from .write_contenders import Writer

_Measure = Callable[[Effort], Any]
# The names of parts in Results, where they differ.
_FIELDS = {
    "reading": "tables",
    "polls": "poll_costs",
    "latency": "latencies",
    "share": "shares",
    "spark": "sparks",
    "writing": "writings",
    "writing_spark": "spark_writings",
}
_WITH_OWN_BROKER: Mapping[str, _Measure] = {
    "tls": lambda effort: tls.measure(effort.records, effort.repeat, _say),
    "formats": lambda effort: formats.measure(effort.records, effort.repeat, _say),
    "scaling": lambda effort: scaling.measure(effort.records, _say),
}

# The parts that write their datasets and keep them.
_WRITTEN = ("reading", "polls", "groups", "spark")

_WARM_UPS = 2
_ONE_BY_ONE = 2_000
# Slower than any client. It only limits a run that hangs.
_RECORDS_PER_SECOND = 10_000


class NotEnoughRoom(Exception):
    """The disk is too small for the datasets."""


def benchmark(
    *,
    plan: Mapping[str, Effort],
    contenders: Sequence[Contender],
    writers: Sequence[Writer],
    keep: Path | None,
    command: str,
    facts: Mapping[str, str],
) -> Results:
    """Run the parts of the plan, in the order of PARTS. Polls and groups read the first dataset. `contenders` read,
    `writers` write. `keep` is a directory in which topics are kept for later runs. `facts` are further ones for the
    report."""
    compile_modules(Path(headrace.__file__).parent)
    together = {part: effort for part, effort in plan.items() if part not in _WITH_OWN_BROKER}
    _check_room(together, keep or Path(tempfile.gettempdir()))
    reading = plan.get("reading")
    facts = machine.facts() | dict(facts)
    found = Results(facts, machine.load(), command, reading.repeat if reading else 1, [], {}, {}, plan=plan)
    if together:
        _say("starting a broker")
        with pinning.broker(LocalBroker(data_dir=keep, properties=writing.BROKER)) as broker:
            measures = _measures(broker, contenders, writers)
            found = _with_parts(found, together, measures)
    alone = {part: effort for part, effort in plan.items() if part in _WITH_OWN_BROKER}
    return _with_parts(found, alone, _WITH_OWN_BROKER)


def compile_modules(package: Path) -> None:
    """As pip does when it installs a package. Otherwise, in a checkout with PYTHONDONTWRITEBYTECODE, each measured
    process would compile headrace's modules again, and none of the other clients'."""
    compileall.compile_dir(package, quiet=2)


def _with_parts(found: Results, plan: Mapping[str, Effort], measures: Mapping[str, _Measure]) -> Results:
    for part, effort in plan.items():
        started = time.monotonic()
        measured = measures[part](effort)
        seconds = time.monotonic() - started
        _say(f"{part}: took {seconds:.0f} s")
        durations = {**found.durations, part: seconds}
        found = dataclasses.replace(found, durations=durations, **{_FIELDS.get(part, part): measured})
    return found


def _measures(broker: LocalBroker, contenders: Sequence[Contender], writers: Sequence[Writer]) -> dict[str, _Measure]:
    """The parts that share a broker."""
    servers = broker.bootstrap_servers
    return {
        "reading": lambda effort: [_table(each, contenders, effort.repeat, broker) for each in effort.datasets],
        "polls": lambda effort: _poll_costs(_written(effort, servers)),
        "latency": lambda effort: _latencies(servers),
        "arrivals": lambda effort: arrivals.measure(servers, effort.repeat, _say),
        "groups": lambda effort: groups.measure(_written(effort, servers), effort.repeat, _say),
        "share": lambda effort: share_runs.measure(servers, effort.repeat, _say),
        "spark": lambda effort: spark.measure(servers, effort.datasets, effort.repeat, _say),
        "spark_formats": lambda effort: spark_formats.measure(servers, effort.records, effort.repeat, _say),
        "writing": lambda effort: writing.measure(broker, effort.datasets, writers, effort.repeat, _say),
        "writing_spark": lambda effort: spark_writing.measure(servers, effort.datasets, effort.repeat, _say),
    }


def _written(effort: Effort, servers: str) -> Job:
    """The first dataset, which is written unless it exists."""
    dataset = effort.datasets[0]
    _write(dataset, servers)
    return _job(dataset, dataset.records, servers)


def _table(dataset: Dataset, contenders: Sequence[Contender], repeat: int, broker: LocalBroker) -> Table:
    servers = broker.bootstrap_servers
    _write(dataset, servers)
    outcomes = {contender.name: Outcome(skipped=_reason_to_skip(contender)) for contender in contenders}
    contenders = [contender for contender in contenders if not outcomes[contender.name].skipped]
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


def _reason_to_skip(contender: Contender) -> str:
    reason = contender.missing
    if not reason:
        try:
            contender.prepare()
        except CommandFailed as error:
            reason = f"skipped: {error}"
    if reason:
        _say(f"{contender.name}: {reason}")
    return reason


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
        instructions=finished.instructions,
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


def _check_room(plan: Mapping[str, Effort], where: Path) -> None:
    there = next(path for path in (where, *where.absolute().parents) if path.exists())
    written = {dataset for part in _WRITTEN if part in plan for dataset in plan[part].datasets}
    needed, free = sum(dataset.room for dataset in written), shutil.disk_usage(there).free
    if needed > free:
        raise NotEnoughRoom(
            f"{needed / 1e9:.1f} GB are needed in {there}, {free / 1e9:.1f} GB are free: "
            "set TMPDIR to another directory, use --keep with one, or fewer --records"
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
