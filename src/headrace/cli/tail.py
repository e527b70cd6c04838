"""`headrace tail`: prints the records of a topic as lines, at the speed of the client."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from .commands import command
from .connection_options import Settings, cluster_options, format_option, with_cluster
from .formatting import say
from .option_types import WholeNumber
from .pipes import PipeClosed, reader_is_gone
from .start_offsets import StartOffset, parse_start_offset, select_partitions
from .topics import no_such_topic
from .typed_values import TypedFields, decoder, typed_options

if TYPE_CHECKING:
    from .. import Consumer, Record, Records
    from ..types import TopicPartition

_POLL = 0.5

Limit = Callable[[], int | None]


@command(
    epilog="""\b
Examples:
  headrace tail -t orders                          new records
  headrace tail -t orders -o -10 -e                the last ten of each partition
  headrace tail -t orders -o @-15m --grep Berlin   the records of the last 15 minutes that contain Berlin
  headrace tail -t orders -o beginning -e --format json | jq .value
  headrace tail -t orders --value avro --registry http://localhost:8081
  headrace tail -t orders -g billing               as a member of a group, with commits

\b
-o takes  beginning | end | OFFSET | -LAST | @2026-11-16T04:00 | @-15m
          @1763262000 (seconds since 1970) | @1763262000000 (milliseconds)
A closed pipe (| head) ends the command with exit code 0.
"""
)
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="The topic to read.")
@click.option(
    "-p",
    "--partition",
    "partitions",
    multiple=True,
    type=WholeNumber(0),
    help="Only this partition. May be repeated.",
)
@click.option("-o", "--offset", "start", default="end", show_default=True, metavar="WHERE", help="Where to start.")
@click.option("-c", "--count", type=WholeNumber(1), help="Stop after this many records.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end. Records written meanwhile are ignored.")
@click.option("--grep", metavar="REGEX", help="Only records whose value matches.")
@click.option("--grep-key", metavar="REGEX", help="Only records whose key matches.")
@click.option("-k", "--keys", is_flag=True, help="Show keys.")
@click.option("--headers", is_flag=True, help="Show headers.")
@click.option("--offsets", is_flag=True, help="Show partition:offset and time.")
@click.option("-g", "--group", metavar="GROUP", help="Join this group, and commit the records that are shown.")
@format_option("text", "json", "hex")
@typed_options
@cluster_options
def tail(
    settings: Settings,
    timeout: float,
    topic: str,
    partitions: tuple[int, ...],
    start: str,
    count: int | None,
    exit_at_end: bool,
    grep: str | None,
    grep_key: str | None,
    keys: bool,
    headers: bool,
    offsets: bool,
    group: str | None,
    form: str,
    typed: TypedFields,
) -> None:
    """Follow a topic: print its records, one per line, until Ctrl-C.

    --value avro decodes values with the schemas of a registry, and shows them as JSON; --grep then searches that. A
    record that cannot be decoded is shown as null, and the reason on stderr.
    """
    from .. import Consumer
    from .record_format import Filter, LineColumns, renderer

    start_offset = parse_start_offset(start, time.time())
    wanted = Filter(_pattern(grep, "--grep"), _pattern(grep_key, "--grep-key"))
    render = renderer(form, LineColumns(offsets, keys, headers), sys.stdout.isatty())
    if group and (partitions or exit_at_end or start_offset.kind not in ("beginning", "end")):
        raise click.UsageError(
            "-g cannot be combined with -p, -e and most values of -o: the group determines partitions and offsets"
        )
    config = {
        "client.id": "headrace-cli",
        "max.poll.records": -1,
        **with_cluster(settings),
        "allow.auto.create.topics": False,
        "default.api.timeout.ms": round(timeout * 1000),
        **(_membership(group, start_offset) if group else {}),
    }
    decode = decoder(typed) if typed else None
    out = sys.stdout.buffer
    left = count

    def at_most() -> int | None:
        """The maximum number of records of a poll: without a filter, no more than are shown."""
        return None if wanted else left

    with Consumer(config) as consumer:
        if group:
            polls = _member_polls(consumer, topic, at_most)
        else:
            polls = _polls(consumer, topic, partitions, start_offset, exit_at_end, at_most)
        for records in polls:
            shown: Any = records if decode is None else decode(records)
            found: Any = wanted(shown) if wanted else shown
            if left is not None:
                found = found[:left]
                left -= len(found)
            if found:
                out.write(render(found))
                out.flush()
            elif reader_is_gone():
                raise PipeClosed
            if group:
                consumer.done(_seen(records, found) if left == 0 else records)
            if left == 0:
                return


def _seen(records: Records, shown: Sequence[Record]) -> Records:
    """The records up to the last one that was shown. The later ones go to the next member."""
    last = shown[-1]
    shown_last = (last.partition, last.offset)
    return records[: 1 + next(at for at, it in enumerate(records) if (it.partition, it.offset) == shown_last)]


def _pattern(text: str | None, option: str) -> re.Pattern[bytes] | None:
    try:
        return None if text is None else re.compile(text.encode())
    except re.error as error:
        raise click.BadParameter(f"{text!r} is not a valid regular expression: {error}", param_hint=option) from None


def _membership(group: str, start_offset: StartOffset) -> Settings:
    """The settings of a group member. It commits the records that were shown or filtered out, not all polled ones."""
    reset = "earliest" if start_offset.kind == "beginning" else "latest"
    return {"group.id": group, "auto.offset.reset": reset, "commit.mode": "done"}


def _member_polls(consumer: Consumer, topic: str, at_most: Limit) -> Iterator[Records]:
    if not consumer.partitions_for_topic(topic):
        raise no_such_topic(topic)
    consumer.subscribe([topic])
    while True:
        yield consumer.poll(_POLL, max_records=at_most())


def _polls(
    consumer: Consumer,
    topic: str,
    wanted: tuple[int, ...],
    start_offset: StartOffset,
    exit_at_end: bool,
    at_most: Limit,
) -> Iterator[Records]:
    from .. import TopicPartition

    infos = consumer.partitions_for_topic(topic)
    if not infos:
        raise no_such_topic(topic)
    numbers = select_partitions((info.partition for info in infos), wanted, topic)
    tps = [TopicPartition(topic, number) for number in numbers]
    ends = consumer.end_offsets(tps)
    starts = _starts(consumer, tps, start_offset, ends)
    consumer.assign(tps)
    for tp, offset in starts.items():
        consumer.seek(tp, offset)
    waiting = {tp for tp in tps if starts[tp] < ends[tp]}
    if exit_at_end:
        consumer.pause([tp for tp in tps if tp not in waiting])
    while waiting or not exit_at_end:
        records = consumer.poll(_POLL, max_records=at_most())
        if not exit_at_end:
            yield records
            continue
        # Check all partitions if there are no records: the last offsets of a log may be transaction markers.
        looked_at = records.partitions if records else tuple(waiting)
        over = [tp for tp in looked_at if tp in waiting and consumer.position(tp) >= ends[tp]]
        yield from _before(records, {tp: ends[tp] for tp in over})
        waiting.difference_update(over)
        consumer.pause(over)


def _before(records: Records, ends: Mapping[TopicPartition, int]) -> Iterator[Records]:
    """The records before these end offsets."""
    if all(records[tp][-1].offset < end for tp, end in ends.items() if records[tp]):
        yield records
        return
    for tp in records.partitions:
        part = records[tp]
        if tp in ends:
            part = part[: sum(record.offset < ends[tp] for record in part)]
        if part:
            yield part


def _starts(
    consumer: Consumer, tps: list[TopicPartition], start_offset: StartOffset, ends: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    if start_offset.kind == "time":
        found = consumer.offsets_for_times(dict.fromkeys(tps, start_offset.number))
        if all(at is None for at in found.values()):
            say(f"{tps[0].topic} has no record at or after {start_offset.text}: starting at the end")
        return {tp: ends[tp] if (at := found[tp]) is None else at.offset for tp in tps}
    first = consumer.beginning_offsets(tps)
    for warning in start_offset.warnings(first, ends):
        say(warning)
    return start_offset.offsets(first, ends)
