"""The requests of `headrace lag`: the commits of a group, the ends of its logs, and the ages of its next records."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from .._aio.admin import AsyncAdmin, GroupDescription
from .._machines.admin.reset import is_sink_decision
from .._machines.lanes.commit_metadata import BACKLOG_SUFFIX, CommitMark
from ..errors import HeadraceError
from ..monitor.checkpoints import read_checkpoints, slowest
from ..monitor.lag import done_rows, plain_row, progress_in, rows_of, uncommitted_row, unread_row
from ..monitor.model import PartitionView
from ..monitor.read_times import read_times
from ..types import OffsetAndMetadata, TopicPartition
from .connection_options import Settings
from .groups import no_such_group
from .missing_subscriptions import missing_subscriptions

Row = PartitionView

_LOOK_FOR = 5.0  # seconds to wait for the next records


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """The rows at one time. All of their numbers are known, except ages."""

    at: float
    rows: Sequence[Row]
    missing: Sequence[str] = ()
    """What members have subscribed and does not exist, one sentence for each."""

    @property
    def lag(self) -> int:
        return sum(row.lag or 0 for row in self.rows)

    @property
    def seconds(self) -> float | None:
        return max((row.seconds for row in self.rows if row.seconds is not None), default=None)

    @property
    def lost(self) -> int:
        return sum(row.lost for row in self.rows)


async def group_sample(admin: AsyncAdmin, settings: Settings, group: str, topics: Collection[str]) -> Sample:
    """Raises HeadraceError if the group does not exist, or has neither commits nor assigned partitions; then the error
    says which subscribed topics do not exist."""
    described = await admin.describe_group(group)
    if described is None:
        raise no_such_group(group)
    if described.listing.kind == "share":
        rows = await _share_rows(admin, group, described)
    else:
        rows = await _group_rows(admin, group, described)
    done = "has received no records yet" if described.listing.kind == "share" else "has no committed offsets"
    missing = await missing_subscriptions(admin, described)
    otherwise = ". ".join([f"group {group!r} {done}", *missing])
    return dataclasses.replace(await _complete(settings, rows, topics, otherwise), missing=missing)


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
    committed = {tp: it for tp, it in (await admin.committed(group)).items() if not is_sink_decision(it)}
    marks = {tp: _mark(tp, group, found) for tp, found in committed.items()}
    progress: Mapping[TopicPartition, CommitMark | None] = {}
    if any(mark.token for mark in marks.values()):
        found = await admin.committed(group + BACKLOG_SUFFIX)
        progress = {tp: progress_in(it) for tp, it in found.items()}
    owners = _owners(described)
    logs = await admin.bounds(marks.keys() | owners.keys())
    rows = []
    for tp in sorted(logs):
        owner, member = owners.get(tp, (None, None))
        if tp in marks:
            rows += rows_of(tp, marks[tp], progress.get(tp), logs[tp], owner, member)
        else:
            rows.append(uncommitted_row(tp, logs[tp], owner, member))
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
    return Sample(time.time(), await _aged(settings, chosen))


async def _aged(settings: Settings, rows: Sequence[Row]) -> list[Row]:
    """The rows with the ages of their next records, as far as these can be read in time."""
    first_lanes: dict[TopicPartition, tuple[int, int]] = {}
    others: dict[TopicPartition, tuple[int, int]] = {}
    for row in rows:  # a partition with two lanes is read twice
        if row.lag and row.next is not None and row.end is not None and row.next < row.end:
            (others if row.tp in first_lanes else first_lanes)[row.tp] = (row.next, row.end)
    written: dict[tuple[TopicPartition, int | None], float] = {}
    for wanted in filter(None, (first_lanes, others)):
        found = await read_times(settings, wanted, _LOOK_FOR)
        written.update(((tp, wanted[tp][0]), at) for tp, at in found.items())
    now = time.time()
    return [
        dataclasses.replace(row, seconds=max(0.0, now - written[row.tp, row.next]))
        if row.lag and (row.tp, row.next) in written
        else row
        for row in rows
    ]
