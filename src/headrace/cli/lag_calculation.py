"""Computes the lag of a group from offsets. Nothing here does I/O or reads a clock.

    plain commit       one row: from the committed offset to the end of the log
    no commit          one row for an assigned partition: the whole log
    with a token       two rows (KIP-333): one for the live lane, one for the rest of the backlog lane
    share group        one row: from the start offset of the group; the brokers report the lag
    checkpoint         like a plain commit, or like one with a token if it has holes

Records that were deleted before they were read are `lost`; they are not part of the lag.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from .._machines.commit.offset_set import OffsetSet
from .._machines.lanes.commit_metadata import CommitMark, done_offsets
from .._machines.lanes.lanes import BACKLOG, LIVE
from ..types import TopicPartition, Watermarks

_ID_LENGTHS = (8, 16)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One partition of a group, or one lane of it."""

    tp: TopicPartition
    lane: str
    """live, backlog, or empty if there is only one lane."""
    next: int
    """The first offset that is not processed; without a commit, the first offset of the log."""
    end: int
    lag: int
    lost: int = 0
    owner: str | None = None
    """The consumer of the partition: a member's client id and host, or the name of a checkpoint."""
    member: str | None = None
    """The member's id. Several members may have the same client id and host."""
    seconds: float | None = None
    """The age of the record at `next`; None without lag, or if the record could not be read."""
    is_committed: bool = True

    @property
    def is_beyond(self) -> bool:
        """Whether the next offset is beyond the end: the offsets belong to another cluster, or the topic was
        recreated."""
        return self.next > self.end


def rows_of(
    tp: TopicPartition, first: CommitMark, second: CommitMark | None, log: Watermarks, owner: str | None
) -> list[Row]:
    """The rows of a partition, from its two commit logs."""
    done = done_offsets(first, second)
    rows = []
    if first.token:
        open_ranges = done.open(min(done.low, first.offset), first.offset)
        still = [(max(start, log.low), end) for start, end in open_ranges if end > log.low]
        lost = sum(end - start for start, end in open_ranges) - sum(end - start for start, end in still)
        if still or lost:
            following = still[0][0] if still else first.offset
            lag = sum(end - start for start, end in still)
            rows.append(Row(tp, BACKLOG, following, first.offset, lag, lost, owner))
    start = max(first.offset, log.low)
    ranges = done.open(start, max(log.high, start))
    following = ranges[0][0] if ranges else max(log.high, start)
    lane = LIVE if first.token else ""
    live = Row(tp, lane, following, log.high, sum(b - a for a, b in ranges), start - first.offset, owner)
    return [live, *rows]


def uncommitted_row(tp: TopicPartition, log: Watermarks, owner: str | None) -> Row:
    """The row of a partition without a commit. All of its records count, so that an alert is not late."""
    return Row(tp, "", log.low, log.high, log.high - log.low, owner=owner, is_committed=False)


def done_rows(tp: TopicPartition, done: OffsetSet, log: Watermarks, owner: str | None = None) -> list[Row]:
    """The rows of a partition, from a query's checkpoint. Its holes are the backlog."""
    return rows_of(tp, CommitMark(done.frontier, done, "checkpoint" if done.holes else ""), None, log, owner)


def plain_row(tp: TopicPartition, offset: int, log: Watermarks, lag: int | None = None) -> Row:
    start = max(offset, log.low)
    return Row(tp, "", start, log.high, max(0, log.high - start) if lag is None else lag, start - offset)


def unread_row(tp: TopicPartition, log: Watermarks, owner: str) -> Row:
    """The row of a partition that a share group has assigned but not consumed yet."""
    return Row(tp, "", log.high, log.high, 0, owner=owner, is_committed=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Trend:
    """The trend over the watched time, in records per second. `caught_up` is in seconds from now, or None if the group
    will not catch up."""

    written: float
    read: float
    caught_up: float | None

    @property
    def change(self) -> float:
        """The growth of the lag, in records per second."""
        return self.written - self.read


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    at: float
    rows: Sequence[Row]

    @property
    def lag(self) -> int:
        return sum(row.lag for row in self.rows)

    @property
    def seconds(self) -> float | None:
        return max((row.seconds for row in self.rows if row.seconds is not None), default=None)

    @property
    def lost(self) -> int:
        return sum(row.lost for row in self.rows)


def owner_labels(rows: Iterable[Row]) -> dict[str, str]:
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


class History:
    """The samples of the last `window` seconds. Commits come in steps, so the trend covers all of them."""

    def __init__(self, window: float = 60.0) -> None:
        self._window = window
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)
        while len(self._samples) > 2 and self._samples[1].at <= sample.at - self._window:
            self._samples.popleft()

    def trend(self) -> Trend | None:
        """None before the second sample."""
        first, last = self._samples[0], self._samples[-1]
        if last.at <= first.at:
            return None
        span = last.at - first.at
        written = _growth(first.rows, last.rows) / span
        read = written - (last.lag - first.lag) / span
        if last.lag == 0:
            return Trend(written, read, 0.0)
        faster = read - written
        return Trend(written, read, last.lag / faster if faster > 0 else None)


def _growth(before: Iterable[Row], after: Iterable[Row]) -> int:
    """The number of records written between two samples, to the partitions that are in both."""
    ends: Mapping[TopicPartition, int] = {row.tp: row.end for row in before if row.lane != BACKLOG}
    return sum(row.end - ends[row.tp] for row in after if row.lane != BACKLOG and row.tp in ends)
