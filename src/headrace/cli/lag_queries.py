"""The requests of `headrace lag`: the commits of a group, the ends of its logs, and the ages of its next records."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from .._aio import AsyncConsumer
from .._aio.admin import AsyncAdmin, GroupDescription
from .._machines.lanes.commit_metadata import BACKLOG_SUFFIX, CommitMark
from ..errors import AuthorizationError, HeadraceError
from ..types import OffsetAndMetadata, TopicPartition
from .checkpoints import read_checkpoints, slowest
from .connection_options import Settings
from .groups import no_such_group
from .lag_calculation import Row, Sample, done_rows, plain_row, rows_of, uncommitted_row, unread_row

Ages = dict[tuple[TopicPartition, int], float]

_LOOK_FOR = 5.0  # seconds to wait for the next records
_LOOK_ON_FOR = 1.0  # seconds to wait for the others if this client is not allowed to read some topics
_LOOK_EVERY = 0.2


async def group_sample(admin: AsyncAdmin, settings: Settings, group: str, topics: Collection[str]) -> Sample:
    """Raises HeadraceError if the group does not exist, or has neither commits nor assigned partitions."""
    described = await admin.describe_group(group)
    if described is None:
        raise no_such_group(group)
    if described.listing.kind == "share":
        rows = await _share_rows(admin, group, described)
    else:
        rows = await _group_rows(admin, group, described)
    done = "has received no records yet" if described.listing.kind == "share" else "has no committed offsets"
    return await _complete(settings, rows, topics, f"group {group!r} {done}")


async def checkpoint_sample(admin: AsyncAdmin, settings: Settings, path: Path, topics: Collection[str]) -> Sample:
    """Raises HeadraceError if there is no checkpoint, or if it has no Kafka source."""
    checkpoints = read_checkpoints(path)
    done = slowest(checkpoint.done for checkpoint in checkpoints)
    owners: dict[TopicPartition, str] = {}
    if len(checkpoints) > 1:
        owners = {tp: next(it.name for it in checkpoints if it.done.get(tp) == found) for tp, found in done.items()}
    logs = await admin.bounds(done)
    rows = [row for tp in sorted(done) if tp in logs for row in done_rows(tp, done[tp], logs[tp], owners.get(tp))]
    otherwise = f"{path} has no finished batch of a Kafka source"
    if done:
        names = ", ".join(sorted({tp.topic for tp in done}))
        otherwise = f"the topics of {path} ({names}) are not on this cluster: name the right cluster with -b"
    return await _complete(settings, rows, topics, otherwise)


async def _group_rows(admin: AsyncAdmin, group: str, described: GroupDescription) -> list[Row]:
    committed = await admin.committed(group)
    marks = {tp: _mark(tp, group, found) for tp, found in committed.items()}
    progress: Mapping[TopicPartition, CommitMark] = {}
    if any(mark.token for mark in marks.values()):
        found = await admin.committed(group + BACKLOG_SUFFIX)
        progress = {tp: _mark(tp, group + BACKLOG_SUFFIX, it) for tp, it in found.items()}
    owners = _owners(described)
    logs = await admin.bounds(marks.keys() | owners.keys())
    rows = []
    for tp in sorted(logs):
        owner, member = owners.get(tp, (None, None))
        if tp in marks:
            found_here = rows_of(tp, marks[tp], progress.get(tp), logs[tp], owner)
        else:
            found_here = [uncommitted_row(tp, logs[tp], owner)]
        rows += [dataclasses.replace(row, member=member) for row in found_here]
    return rows


def _mark(tp: TopicPartition, group: str, found: OffsetAndMetadata) -> CommitMark:
    try:
        return CommitMark.read(found)
    except ValueError as error:
        raise HeadraceError(f"the commit of group {group} for {tp} cannot be parsed: {error}") from None


async def _share_rows(admin: AsyncAdmin, group: str, described: GroupDescription) -> list[Row]:
    found, owners = await admin.share_offsets(group), _owners(described)
    logs = await admin.bounds(found.keys() | owners.keys())
    return [
        plain_row(tp, found[tp].start, log, found[tp].lag) if tp in found else unread_row(tp, log, owners[tp][0])
        for tp, log in sorted(logs.items())
    ]


def _owners(described: GroupDescription) -> dict[TopicPartition, tuple[str, str]]:
    """Client id and host, and the member's id."""
    return {
        tp: (f"{it.client_id}@{it.host.lstrip('/')}", it.member_id) for it in described.members for tp in it.partitions
    }


async def _complete(settings: Settings, rows: list[Row], topics: Collection[str], otherwise: str) -> Sample:
    if not rows:
        raise HeadraceError(otherwise)
    if unknown := sorted(set(topics) - {row.tp.topic for row in rows}):
        raise HeadraceError(f"this group or query does not read topic {unknown[0]!r}")
    chosen = [row for row in rows if not topics or row.tp.topic in topics]
    ages = await _ages(settings, [row for row in chosen if row.lag and row.next < row.end])
    aged = [dataclasses.replace(row, seconds=ages.get((row.tp, row.next)) if row.lag else None) for row in chosen]
    return Sample(time.time(), aged)


async def _ages(settings: Settings, rows: Collection[Row]) -> Ages:
    """The age of the next record of each row, in seconds, if it can be read in time."""
    first_lanes: dict[TopicPartition, Row] = {}
    others: dict[TopicPartition, Row] = {}
    for row in rows:  # a partition with two lanes is read twice
        (others if row.tp in first_lanes else first_lanes)[row.tp] = row
    found: Ages = {}
    for wanted in filter(None, (first_lanes, others)):
        found.update(await _read_ages(settings, wanted))
    return found


async def _read_ages(settings: Settings, wanted: Mapping[TopicPartition, Row]) -> Ages:
    """Records that this client is not allowed to read, or cannot read in time, have no age. The age is 0 if only
    transaction markers or aborted records are left."""
    config = {**settings, "max.poll.records": -1, "auto.offset.reset": "earliest", "allow.auto.create.topics": False}
    found: Ages = {}
    deadline = asyncio.get_running_loop().time() + _LOOK_FOR
    async with AsyncConsumer(config) as consumer:
        consumer.assign(list(wanted))
        for tp, row in wanted.items():
            consumer.seek(tp, row.next)
        waiting = set(wanted)
        while waiting and (left := deadline - asyncio.get_running_loop().time()) > 0:
            try:
                records = await consumer.poll(min(left, _LOOK_EVERY))
                passed = [tp for tp in waiting if await consumer.position(tp) >= wanted[tp].end]
            except AuthorizationError:
                # The error is raised repeatedly, while other topics can be read.
                deadline = min(deadline, asyncio.get_running_loop().time() + _LOOK_ON_FOR)
                continue
            except HeadraceError:
                break
            for tp in {*records.partitions, *passed} & waiting:
                waiting.discard(tp)
                timestamp = records[tp][0].timestamp if records[tp] else None
                if timestamp is None:
                    found[tp, wanted[tp].next] = 0.0
                elif timestamp >= 0:
                    found[tp, wanted[tp].next] = max(0.0, time.time() - timestamp / 1000)
            consumer.pause(list(records.partitions))
    return found
