"""Computes the lag of a group from offsets. Nothing here does I/O or reads a clock.

    plain commit       one row: from the committed offset to the end of the log
    no commit          one row for an assigned partition: the whole log
    with a token       two rows (KIP-333): one for the live lane, one for the rest of the backlog lane
    share group        one row: from the start offset of the group; the brokers report the lag
    checkpoint         like a plain commit, or like one with a token if it has holes

Records that were deleted before they were read are `lost`; they are not part of the lag. So retention never raises it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .._machines.commit.offset_set import OffsetSet
from .._machines.lanes.commit_metadata import CommitMark, done_offsets
from .._machines.lanes.lanes import BACKLOG, LIVE
from ..types import OffsetAndMetadata, TopicPartition, Watermarks
from .model import PartitionView, Range

_ID_LENGTHS = (8, 16)


def rows_of(
    tp: TopicPartition,
    first: CommitMark,
    second: CommitMark | None,
    log: Watermarks,
    owner: str | None = None,
    member: str | None = None,
) -> list[PartitionView]:
    """The rows of a partition, from its two commit logs."""
    done = done_offsets(first, second)
    lane = LIVE if first.token else ""
    start = max(first.offset, log.low)
    ranges = done.open(start, max(log.high, start))
    following = ranges[0][0] if ranges else max(log.high, start)
    lost = _below(done.open(first.offset, start), log.low)
    rows = [_row(tp, lane, first.offset, following, log, log.high, ranges, lost, owner, member)]
    if first.token:
        below = done.open(min(done.low, first.offset), first.offset)
        # A log that was recreated ends before the committed offset: what it does not have is no backlog.
        still = [
            (max(start, log.low), min(end, log.high)) for start, end in below if start < log.high and end > log.low
        ]
        lost = _below(below, log.low)
        if still or lost:
            following = still[0][0] if still else first.offset
            rows.append(_row(tp, BACKLOG, below[0][0], following, log, first.offset, still, lost, owner, member))
    return rows


def progress_in(commit: OffsetAndMetadata | None) -> CommitMark | None:
    """The progress of a backlog lane. One that cannot be parsed is ignored, as consumers do: it completes nothing."""
    try:
        return None if commit is None else CommitMark.read(commit)
    except ValueError:
        return None


def _row(
    tp: TopicPartition,
    lane: str,
    committed: int | None,
    following: int,
    log: Watermarks,
    end: int,
    ranges: Sequence[Range],
    lost: Sequence[Range],
    owner: str | None,
    member: str | None,
) -> PartitionView:
    return PartitionView(
        tp,
        lane,
        committed,
        following,
        log.low,
        end,
        _length(ranges),
        open=tuple(ranges),
        lost=_length(lost),
        lost_ranges=tuple(lost),
        owner=owner,
        member=member,
    )


def _below(ranges: Iterable[Range], begin: int) -> list[Range]:
    """The parts of the ranges that the log no longer has."""
    return [(start, min(end, begin)) for start, end in ranges if start < begin]


def _length(ranges: Iterable[Range]) -> int:
    return sum(end - start for start, end in ranges)


def plain_row(
    tp: TopicPartition,
    offset: int,
    log: Watermarks,
    lag: int | None = None,
    owner: str | None = None,
    member: str | None = None,
    seconds: float | None = None,
) -> PartitionView:
    """The row of a commit without metadata, or of a share group, whose `lag` the brokers report. They count what
    retention has deleted until somebody fetches."""
    low, end = log
    start = max(offset, low)
    waiting = max(0, end - start)
    return PartitionView(
        tp,
        "",
        offset,
        start,
        low,
        end,
        waiting if lag is None else min(lag, waiting),
        seconds,
        open=((start, end),) if waiting else (),
        lost=start - offset,
        lost_ranges=((offset, start),) if start > offset else (),
        owner=owner,
        member=member,
    )


def uncommitted_row(tp: TopicPartition, log: Watermarks, owner: str | None, member: str | None = None) -> PartitionView:
    """The row of a partition without a commit. All of its records count, so that an alert is not late."""
    ranges = [(log.low, log.high)] if log.high > log.low else []
    return _row(tp, "", None, log.low, log, log.high, ranges, (), owner, member)


def unread_row(tp: TopicPartition, log: Watermarks, owner: str, member: str | None = None) -> PartitionView:
    """The row of a partition that a share group has assigned but not consumed yet."""
    return _row(tp, "", None, log.high, log, log.high, (), (), owner, member)


def done_rows(tp: TopicPartition, done: OffsetSet, log: Watermarks, owner: str | None = None) -> list[PartitionView]:
    """The rows of a partition, from a query's checkpoint. Its holes are the backlog."""
    return rows_of(tp, CommitMark(done.frontier, done, "checkpoint" if done.holes else ""), None, log, owner)


def owner_labels(rows: Iterable[PartitionView]) -> dict[str, str]:
    """A unique label for each member that has the same client id and host as another one, such as two Spark queries on
    one driver, or two consumers in one process. The label adds the beginning of the member id (without the client id,
    with which a member id of a classic group starts), of eight characters if they are enough."""
    members: dict[str, set[str]] = {}
    for row in rows:
        if row.owner is not None and row.member is not None:
            members.setdefault(row.owner, set()).add(row.member)
    names: dict[str, str] = {}
    for owner, ids in members.items():
        if len(ids) > 1:
            client = owner.rpartition("@")[0]
            tails = {each: each.removeprefix(f"{client}-") for each in ids}
            shortest = next((n for n in _ID_LENGTHS if len({it[:n] for it in tails.values()}) == len(ids)), None)
            names |= {each: f"{owner} {tail[:shortest]}" for each, tail in tails.items()}
    return names
