"""What `headrace run` prints at the end: the tables, how fast they were filled, the last alerts, and the lag."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import HeadraceError
from ..monitor.batches import BatchView, read_batches
from .connection_options import Settings, client_settings
from .formatting import printable, table

if TYPE_CHECKING:
    from .pipeline_launch import PipelineOutcome

ASK_WITHIN = 10.0
_MOST_SHOWN = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """When the records of a run were in the table that reads them from Kafka, in seconds from its first batch."""

    table: str
    records: int
    newest_after: float
    """The newest record that was there when the run started."""
    backlog: int
    """Records that were read after newer ones (KIP-333)."""
    all_after: float


def arrival_of(batches: Sequence[BatchView]) -> Arrival | None:
    """For the first query that reads from Kafka; None if it had no finished batch with records."""
    query = next((it.query for it in batches if it.records), None)
    run = [it for it in batches if it.query == query and it.finished is not None and it.records]
    if query is None or not run:
        return None
    ends = [it.finished - run[0].planned for it in run if it.finished is not None]
    newest = ends[0] if run[0].open else ends[-1]
    return Arrival(_table_of(query), sum(it.records or 0 for it in run), newest, run[0].open, ends[-1])


def _table_of(query: str) -> str:
    """A checkpoint is in …/TABLE/FLOW/VERSION."""
    return (query.split("/")[-3:] or [query])[0]


def report(state: Path, outcome: PipelineOutcome, since: float, seconds: float) -> str:
    """`since` is the time when the run started, `seconds` how long the command has taken. Returns the summary."""
    click.echo(table(("table", "rows", "new", "seconds", "rows/s"), [_table_row(**each) for each in outcome.tables]))
    if outcome.shown:
        click.echo("\n" + table(outcome.shown["columns"], outcome.shown["rows"]))
    found = arrival_of(read_batches(state / "checkpoints", since))
    said = "\n".join(summary(found, outcome, seconds))
    click.echo(f"\n{said}")
    log = os.path.relpath(state / "run.log")
    if outcome.location is None:
        click.echo(f"log: {log}")
        return said
    place = os.path.relpath(outcome.location)
    click.echo(f"tables: {os.path.dirname(place)}, log: {log}")
    click.echo(f"""{_python()} -c "import pandas; print(pandas.read_parquet('{place}'))\"""")
    return said


def _table_row(name: str, before: int, rows: int, seconds: float | None) -> tuple[object, ...]:
    new = rows - before
    return name, rows, new, "" if seconds is None else f"{seconds:.1f}", "" if not seconds else f"{new / seconds:,.0f}"


def summary(found: Arrival | None, outcome: PipelineOutcome, seconds: float) -> list[str]:
    lines = []
    if found is not None:
        rate = found.records / found.all_after if found.all_after else 0.0
        lines.append(f"{found.records:,} new records from Kafka in {found.all_after:.1f} s ({rate:,.0f} records/s)")
        if found.backlog:
            lines.append(
                f"newest record in {found.table} after {found.newest_after:.1f} s, the backlog of {found.backlog:,} "
                f"older records after {found.all_after:.1f} s"
            )
    of_spark = f"Spark started in {outcome.spark_seconds:.1f} s, the flows took {outcome.seconds:.1f} s"
    lines.append(f"{seconds:.1f} s in all: {of_spark}")
    return lines


def _python() -> str:
    here = os.path.relpath(sys.executable)
    return "python" if here.startswith("..") else here


def report_topic(topic: str, values: Sequence[str]) -> None:
    """Show the last records of a topic that the pipeline writes to."""
    if values:
        click.echo(f"\nlast records in {topic}:")
        for value in values:
            click.echo(f"  {printable(value)}")


def last_values(topic: str, settings: Settings, count: int = _MOST_SHOWN) -> list[str]:
    """The last committed records of all partitions, in the order of their timestamps; none if it cannot be read."""
    with contextlib.suppress(HeadraceError):
        return _last_values(topic, settings, count)
    return []


def _last_values(topic: str, settings: Settings, count: int) -> list[str]:
    from .. import Consumer, TopicPartition

    deadline = time.monotonic() + ASK_WITHIN
    chosen = {**client_settings(settings, ASK_WITHIN), "isolation.level": "read_committed"}
    with Consumer(chosen) as consumer:
        places = [TopicPartition(topic, it.partition) for it in consumer.partitions_for_topic(topic)]
        ends, starts = consumer.end_offsets(places), consumer.beginning_offsets(places)
        consumer.assign(places)
        for place in places:
            # Transactions end with a control record: look back further than `count` offsets.
            consumer.seek(place, max(starts[place], ends[place] - 10 * count))
        found = []
        while any(consumer.position(place) < ends[place] for place in places) and time.monotonic() < deadline:
            found += [(it.timestamp, (it.value or b"").decode(errors="replace")) for it in consumer.poll(0.5)]
    return [value for _, value in sorted(found)[-count:]]


def lag_line(state: Path, kafka: Settings) -> str:
    from .._aio.admin import AsyncAdmin
    from .lag_queries import checkpoint_sample

    async def ask() -> str:
        settings = client_settings(kafka, ASK_WITHIN)
        async with AsyncAdmin(settings) as admin:
            sample = await checkpoint_sample(admin, settings, state / "checkpoints", ())
            return f"lag: {sample.lag:,} records in {len(sample.rows)} partitions"

    try:
        return asyncio.run(ask())
    except (HeadraceError, OSError) as error:
        return f"lag: unknown ({error})"
