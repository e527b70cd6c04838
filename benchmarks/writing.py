"""Runs the measurements of writing, each in a separate process with a new topic, with the writers in turns."""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.local import LocalBroker

from . import child, write_latency
from .datasets import PARTITIONS, Dataset, payload_file
from .groups import figures
from .process import CommandFailed, run
from .process_stats import stat
from .readers import Job
from .results import Figure, Measurement, median_figure
from .write_contenders import LIMIT_ONE, PROFILES, Profile, Writer, writers_with
from .write_results import WriteOutcome, WriteRun, WriteTable, Writings
from .writers import WriteJob

Say = Callable[[str], None]

BROKER = {"log.segment.delete.delay.ms": 500}
"""By default the files of a deleted topic stay for a minute, which would fill the disk."""
LATENCY_RECORDS = 2_000
# Rounds take seconds. One more comes first and does not count: the broker's JVM compiles its code then, and the clients
# that come first would measure that.
LATENCY_ROUNDS = 5
JAVA = "Java"
# Slower than any client. It only limits a run that hangs.
_RECORDS_PER_SECOND = 5_000
_DELETED_WITHIN = 10.0


def measure(
    broker: LocalBroker, datasets: Sequence[Dataset], writers: Sequence[Writer], repeat: int, say: Say
) -> Writings:
    present = []
    for writer in writers:
        if writer.missing:
            say(f"writing: {writer.name}: {writer.missing}")
        else:
            present.append(writer)
    absent = {writer.name: WriteOutcome((), (writer.missing,)) for writer in writers if writer.missing}
    tables = []
    for dataset in datasets:
        with payload_file(dataset) as payload:
            for profile in PROFILES:
                table = _table(_Rounds(broker, dataset, profile, payload, repeat, say), writers_with(profile, present))
                tables.append(dataclasses.replace(table, outcomes={**table.outcomes, **absent}))
    return Writings(repeat, tables, _latencies(broker.bootstrap_servers, say))


@dataclasses.dataclass(frozen=True, slots=True)
class _Rounds:
    broker: LocalBroker
    dataset: Dataset
    profile: Profile
    payload: Path
    repeat: int
    say: Say

    def job(self, records: int) -> WriteJob:
        """A job with a new topic."""
        return WriteJob(
            self.broker.bootstrap_servers,
            f"writing-{self.dataset.name}-{uuid.uuid4()}",
            PARTITIONS,
            records,
            str(self.payload),
            codec=self.dataset.codec,
            batch_bytes=self.profile.batch_bytes,
            buffer_bytes=self.profile.buffer_bytes,
        )


def _table(rounds: _Rounds, writers: Sequence[Writer]) -> WriteTable:
    dataset, say = rounds.dataset, rounds.say
    about = f"writing: {dataset.name}, {rounds.profile.name}"
    say(f"{about}: warming up")
    measure_one(LIMIT_ONE, rounds.job(dataset.records), rounds.broker)
    outcomes = dict.fromkeys((writer.name for writer in writers), WriteOutcome())
    for number in range(1, rounds.repeat + 1):
        for writer in writers:
            outcome = outcomes[writer.name]
            try:
                found = measure_one(writer, rounds.job(writer.records_of(dataset.records)), rounds.broker)
            except (CommandFailed, ValueError) as error:
                say(f"{about}: {number}/{rounds.repeat} {writer.name}: failed: {error}")
                outcomes[writer.name] = outcome.with_failure(str(error))
            else:
                say(f"{about}: {number}/{rounds.repeat} {writer.name}: {found.measurement.rate:,.0f} records/s")
                outcomes[writer.name] = outcome.with_run(found)
    return WriteTable(dataset, rounds.profile, outcomes)


def measure_one(writer: Writer, job: WriteJob, broker: LocalBroker) -> WriteRun:
    """Run a writer. Raises CommandFailed, and ValueError if the broker does not have the records afterwards."""
    topic = Job(job.servers, job.topic, job.partitions, job.records)
    run(child.command("write_topics.create", topic), timeout=60)
    pid = broker.pid(broker.live_brokers[0])
    before = stat(pid).cpu_seconds
    try:
        finished = run(writer.command(job), timeout=60 + job.records / _RECORDS_PER_SECOND)
        broker_cpu = stat(pid).cpu_seconds - before
    finally:
        stored = _stored(topic)
        _wait_until_deleted(job.topic, broker.data_dir)
    writing = writer.parse(finished.output)
    if stored != writing.sent or writing.sent < job.records:
        raise ValueError(f"the topic has {stored:,} records, {writing.sent:,} of {job.records:,} were sent")
    part = writing.records / writing.sent
    measurement = Measurement(
        records=writing.records,
        seconds=writing.seconds,
        loop_cpu_seconds=writing.cpu_seconds,
        process_cpu_seconds=finished.cpu_seconds * part,
        peak_bytes=finished.peak_bytes,
    )
    return WriteRun(measurement, broker_cpu * part if before else None, writing.grown_bytes)


def _stored(topic: Job) -> int:
    found: int = json.loads(run(child.command("write_topics.count_and_delete", topic), timeout=120).output)["records"]
    return found


def _wait_until_deleted(topic: str, data_dir: Path) -> None:
    """Wait, so that the disk does not fill up and the next writer does not compete with the deletion."""
    deadline = time.monotonic() + _DELETED_WITHIN
    while any(data_dir.glob(f"broker-*/data/{topic}-*")) and time.monotonic() < deadline:
        time.sleep(0.1)


def _latencies(servers: str, say: Say) -> Mapping[str, Figure]:
    job = Job(servers, f"write-latency-{uuid.uuid4()}", 1, LATENCY_RECORDS)
    run(child.command("write_topics.create", job), timeout=60)
    runs: dict[str, list[Figure]] = {}
    for number in range(LATENCY_ROUNDS + 1):
        for client in (*write_latency.CLIENTS, JAVA):
            if client == JAVA:
                found = figures(write_latency.java_command_line(job), write_latency.figures_of_java)
            else:
                found = figures(child.command(f"write_latency.{client}", job), json.loads)
            shown = found if isinstance(found, str) else f"p50 {found['p50']:.2f} ms, p99 {found['p99']:.2f} ms"
            if number == 0:
                say(f"write latency: warm-up {client}: {shown}")
            else:
                say(f"write latency: {number}/{LATENCY_ROUNDS} {client}: {shown}")
                runs.setdefault(client, []).append(found)
    return {client: median_figure(found) for client, found in runs.items()}
