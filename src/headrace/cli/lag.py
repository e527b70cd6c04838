"""`headrace lag`: shows the lag of a group, a share group or a streaming query, once or repeatedly; or serves the lag
of all groups as metrics."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import AuthenticationError, HeadraceError, NetworkError
from .commands import command
from .connection_options import Settings, client_settings, cluster_options, format_option, with_cluster
from .formatting import clipped, document, is_terminal, printable, records, say, seconds, table
from .lag_exporter import DEFAULT_INTERVAL, Address, AddressType, pattern_of, serve
from .option_types import Seconds, WholeNumber
from .start_offsets import span_seconds

if TYPE_CHECKING:
    from ..monitor.model import PartitionView as Row
    from ..monitor.model import Trend
    from .lag_queries import Sample

TOO_MUCH = 3

_WATCH_INTERVAL = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Threshold:
    """The largest accepted lag: records in all partitions together, or the age of the oldest record."""

    records: int | None = None
    seconds: float | None = None

    def is_passed(self, sample: Sample) -> bool:
        """Raises HeadraceError if the lag is unknown."""
        if self.records is not None:
            return sample.lag > self.records
        assert self.seconds is not None
        if sample.seconds is not None and sample.seconds > self.seconds:
            return True
        if unknown := next((row for row in sample.rows if row.lag and row.seconds is None), None):
            raise HeadraceError(f"the age of the lag of {unknown.tp} is unknown: its next record could not be read")
        return False


class _ThresholdType(click.ParamType):  # type: ignore[type-arg]  # it has no parameter before click 8.4
    name = "threshold"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Threshold:
        if isinstance(value, Threshold):
            return value
        text = str(value).replace(",", "").replace("_", "")
        if re.fullmatch(r"\d+", text):
            return Threshold(records=int(text))
        span = span_seconds(text)
        if span is None:
            self.fail(f"{value!r} is neither a number of records nor a time such as 30s, 5m, 2h", param, context)
        return Threshold(seconds=span)


@command(
    epilog="""\b
Examples:
  headrace lag -g billing                      a group, with its backlog lane if it has one
  headrace lag -g billing --watch              refreshed every two seconds, with the trend
  headrace lag checkpoints/orders              a Spark streaming query, by its checkpoint
  headrace lag -g billing --threshold 10000    exit code 3 if more records are waiting
  headrace lag -g billing --threshold 5m       exit code 3 if one has been waiting for longer
  headrace lag --serve :9308                   all groups as Prometheus metrics
"""
)
@click.argument("checkpoint", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-g", "--group", metavar="GROUP", help="A group of any kind. With --serve: a regular expression.")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="Only this topic; with --serve: a regular expression. May be repeated.",
)
@click.option("-w", "--watch", is_flag=True, help="Refresh until Ctrl-C, worst partitions first.")
@click.option(
    "--interval",
    type=Seconds(0.1, 3600),
    help=f"Seconds.  [default: {_WATCH_INTERVAL:g} with --watch, {DEFAULT_INTERVAL:g} with --serve]",
)
@click.option("--times", type=WholeNumber(1), help="With --watch: stop after this many refreshes.")
@click.option(
    "--serve",
    "address",
    type=AddressType(),
    metavar="[HOST]:PORT",
    help="Serve the lag of all groups as Prometheus metrics. Without a host, on this machine only.",
)
@click.option("--threshold", type=_ThresholdType(), metavar="RECORDS|TIME", help="Exit code 3 for a larger lag.")
@format_option()
@cluster_options
@click.pass_context
def lag(
    context: click.Context,
    settings: Settings,
    timeout: float,
    checkpoint: Path | None,
    group: str | None,
    topics: tuple[str, ...],
    watch: bool,
    interval: float | None,
    times: int | None,
    address: Address | None,
    threshold: Threshold | None,
    form: str,
) -> None:
    """Show the lag of each partition: of a consumer group, of a share group, or of a Spark query by its CHECKPOINT
    directory.

    The time is the age of the oldest unprocessed record. If a partition has an owner but no committed offset, all of
    its records count. Exit code: 0; 3 if the lag exceeds the threshold at the end; 1 if the lag is unknown.
    """
    if address is not None:
        if watch or times is not None or threshold is not None or form != "table":
            raise click.UsageError("--serve cannot be combined with --watch, --times, --threshold or --format")
        groups, chosen = pattern_of([] if group is None else [group], "-g"), pattern_of(topics, "-t")
        settings = client_settings(with_cluster(settings), timeout)
        serve(settings, address, groups, chosen, checkpoint, interval=interval or DEFAULT_INTERVAL, timeout=timeout)
        return
    if (checkpoint is None) == (group is None):
        raise click.UsageError("name a group with -g, or the directory of a checkpoint")
    if times is not None and not watch:
        raise click.UsageError("--times needs --watch")
    asking = client_settings(with_cluster(settings), timeout)
    rounds = times if watch else 1
    last = asyncio.run(
        _look(asking, group, checkpoint, topics, interval or _WATCH_INTERVAL, rounds, form, is_watch=watch)
    )
    if threshold is not None:
        if beyond := _beyond(last):
            raise HeadraceError(f"the lag is unknown: {beyond}")
        if threshold.is_passed(last):
            context.exit(TOO_MUCH)


async def _look(
    settings: Settings,
    group: str | None,
    checkpoint: Path | None,
    topics: tuple[str, ...],
    interval: float,
    rounds: int | None,
    form: str,
    *,
    is_watch: bool,
) -> Sample:
    from .._aio.admin import AsyncAdmin
    from ..monitor.history import LagTrend
    from .lag_queries import checkpoint_sample, group_sample

    trends = LagTrend()
    name = group or str(checkpoint)
    done = 0
    async with AsyncAdmin(settings) as admin:
        while True:
            done += 1
            try:
                if checkpoint is not None:
                    sample = await checkpoint_sample(admin, settings, checkpoint, topics)
                else:
                    sample = await group_sample(admin, settings, name, topics)
            except HeadraceError as error:
                # If the first look fails, the command line is wrong. Later errors are temporary: brokers restart.
                is_final = isinstance(error, AuthenticationError) and error.is_final
                if is_final or done in (1, rounds):
                    raise
                _show_error(name, error, interval)
            else:
                trends.add(sample.at, sample.rows)
                _show(name, sample, trends.trend(), form, is_watch=is_watch)
                if done == rounds:
                    return sample
            await asyncio.sleep(interval)


def _show(name: str, sample: Sample, trend: Trend | None, form: str, *, is_watch: bool) -> None:
    if form == "json":
        found = _document(name, sample, trend)
        click.echo(json.dumps(found) if is_watch else document(found))
        return
    screen = shutil.get_terminal_size() if is_watch and is_terminal() else None
    if screen is not None:
        click.clear()
    click.echo(shown(name, sample, trend, screen, is_watch=is_watch))


def _show_error(name: str, error: HeadraceError, interval: float) -> None:
    """On a terminal, the error replaces the last sample, whose numbers are outdated. In a pipe, only stderr has it."""
    if is_terminal():
        click.clear()
    cause = error.__cause__ if isinstance(error.__cause__, NetworkError) else error
    say(f"{name}: {str(cause).removesuffix('.')}. Trying again in {seconds(interval)}")


def _document(name: str, sample: Sample, trend: Trend | None) -> dict[str, Any]:
    return {
        "group": name,
        "at": round(sample.at * 1000),
        "lag": sample.lag,
        "seconds": _rounded(sample.seconds),
        "lost": sample.lost,
        "missing": list(sample.missing),
        "trend": None
        if trend is None
        else {
            "written": _rounded(trend.written),
            "read": _rounded(trend.read),
            "caught_up_in": _rounded(trend.caught_up),
        },
        "partitions": [
            {
                "topic": row.tp.topic,
                "partition": row.tp.partition,
                "lane": row.lane or None,
                "next": row.next if row.is_committed else None,
                "end": row.end,
                "lag": row.lag,
                "seconds": _rounded(row.seconds),
                "lost": row.lost,
                "owner": row.owner,
                "member": row.member,
            }
            for row in sample.rows
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def shown(
    name: str, sample: Sample, trend: Trend | None, screen: os.terminal_size | None = None, *, is_watch: bool = False
) -> str:
    """The sample as text. With --watch, the partitions with the largest lag come first, and the text fits on the screen
    if there is one: more lines would scroll the important ones away, and a wrapped line counts as two."""
    width = None if screen is None else screen.columns
    head = f"{printable(name)}: {records(sample.lag)}"
    if sample.seconds is not None:
        head += f", the oldest {seconds(sample.seconds)} old"
    notes = [*filter(None, [_beyond(sample)]), *sample.missing, *([] if trend is None else [_trend_line(trend)])]
    rows = sorted(sample.rows, key=_badness, reverse=True) if is_watch else sample.rows
    if screen is not None:
        # The name, the column heads, the notes, and the cursor's line.
        room = max(1, screen.lines - 3 - len(notes))
        if len(rows) > room:
            kept = max(1, room - 1)
            rest = rows[kept:]
            notes.insert(0, f"… {len(rest):,} more rows, with {records(sum(row.lag or 0 for row in rest))}")
            rows = rows[:kept]
    return "\n".join([clipped(head, width), _table(rows, sample, width), *(clipped(note, width) for note in notes)])


def _badness(row: Row) -> tuple[bool, int, float, int]:
    return row.is_beyond, row.lag or 0, row.seconds or 0.0, row.lost


def _table(rows: Sequence[Row], sample: Sample, width: int | None) -> str:
    """A table of some rows. All rows of the sample determine its columns, so that they do not change from refresh to
    refresh."""
    from ..monitor.lag import owner_labels

    names = owner_labels(sample.rows)
    with_lanes = any(row.lane for row in sample.rows)
    with_lost = sample.lost > 0
    heads = ["topic", "partition", *(["lane"] if with_lanes else []), "next", "end", "lag", "time"]
    heads += [*(["lost"] if with_lost else []), "owner"]
    cells = [
        [
            row.tp.topic,
            row.tp.partition,
            *([row.lane] if with_lanes else []),
            row.next if row.is_committed else None,
            row.end,
            row.lag,
            seconds(row.seconds),
            *([row.lost] if with_lost else []),
            names.get(row.member or "", row.owner),
        ]
        for row in rows
    ]
    return table(heads, cells, width)


def _beyond(sample: Sample) -> str:
    found = [str(row.tp) for row in sample.rows if row.is_beyond]
    if not found:
        return ""
    return (
        f"{', '.join(found)}: the next offset is beyond the end of the log (topic recreated or truncated, or another "
        "cluster)"
    )


def _trend_line(trend: Trend) -> str:
    if trend.caught_up == 0:
        outlook = "caught up"
    elif trend.is_partial:
        outlook = "unknown, because the lag of some partitions is"
    elif trend.caught_up is None and trend.growth > 0:
        outlook = "falling behind"
    elif trend.caught_up is None:
        outlook = "keeping up" if trend.read > 0 else "not catching up"
    else:
        outlook = f"caught up in about {seconds(trend.caught_up)}"
    return f"{trend.written:,.0f} records/s written, {trend.read:,.0f} consumed: {outlook}"
