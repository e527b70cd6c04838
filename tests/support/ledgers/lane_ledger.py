"""The fate of every record that members with two lanes consume, from their events and the two commit logs.

    started                         the consumer exists
    assigned, gave_up               a rebalance listener was called
    handed                          records that a poll returned, as ranges with their lanes
    done                            records that are done now; without commit.mode=done all records that were handed out
    committed, refused, closed      a commit or close() has returned
    rests                           the member stops reading

A *life* is one process of a member. An *ownership* is the time in which it owns a partition. Invariants:

    at least once               every written record was handed out
    no false commits            after each commit, all offsets that both logs mark as done were done by then
    no needless redelivery      offsets committed before an ownership are not handed out in it
    once in an ownership        no record is handed out twice, and the live lane is beyond the backlog lane
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace import OffsetAndMetadata
from headrace._machines.commit.offset_set import OffsetSet, Range
from headrace._machines.lanes.commit_metadata import BACKLOG_SUFFIX, CommitMark
from support.ledgers.commit_history import Commit, commit_history

_NOTHING = OffsetSet(0)
Life = tuple[str, int]
"""A member's name and process."""


@dataclass(slots=True, eq=False)
class Ownership:
    life: Life
    partition: int
    begun: int
    lanes: dict[str | None, OffsetSet] = field(default_factory=dict)
    twice: list[Range] = field(default_factory=list)
    committed: OffsetSet = _NOTHING
    """The done offsets in both logs at its start."""

    @property
    def handed(self) -> OffsetSet:
        together = _NOTHING
        for lane in self.lanes.values():
            together |= lane
        return together

    def take(self, lane: str | None, start: int, end: int) -> None:
        if end - start != _count(self.handed.open(start, end)):
            self.twice.append((start, end))
        self.lanes[lane] = self.lanes.get(lane, _NOTHING).with_done(start, end)


@dataclass(frozen=True, slots=True)
class LaneCommit:
    """A commit of a partition in one of the two logs."""

    at: int
    is_second: bool
    partition: int
    mark: CommitMark
    metadata: str


def lane_commits(bootstrap_servers: str, group: str) -> list[LaneCommit]:
    """All commits of both logs, in the order in which they were accepted."""
    found = [
        LaneCommit(each.at, is_second, each.tp[1], _mark(each), each.metadata)
        for is_second, name in ((False, group), (True, group + BACKLOG_SUFFIX))
        for each in commit_history(bootstrap_servers, name)
    ]
    return sorted(found, key=lambda each: (each.at, not each.is_second))


def _mark(commit: Commit) -> CommitMark:
    return CommitMark.read(OffsetAndMetadata(commit.offset, commit.metadata))


class Logs:
    """The current marks of each partition in both logs."""

    def __init__(self, commits: Iterable[LaneCommit] = ()) -> None:
        self.marks: dict[tuple[int, bool], CommitMark] = {}
        for commit in commits:
            self.take(commit)

    def take(self, commit: LaneCommit) -> None:
        self.marks[commit.partition, commit.is_second] = commit.mark

    def first(self, partition: int) -> CommitMark | None:
        return self.marks.get((partition, False))

    def second(self, partition: int) -> CommitMark | None:
        return self.marks.get((partition, True))

    def done(self, partition: int) -> OffsetSet:
        """The done offsets as KIP-333 defines them: those of the first log, and the progress of the second log in the
        ranges of the same token. This does not use headrace's own function, which is under test."""
        first, second = self.first(partition), self.second(partition)
        if first is None:
            return _NOTHING
        if second is None or not first.token or second.token != first.token:
            return first.done
        return first.done | (second.done & OffsetSet(first.offset))


class LaneLedger:
    """Takes the events of each life in order."""

    def __init__(self) -> None:
        self.ownerships: list[Ownership] = []
        self._open: dict[tuple[Life, int], Ownership] = {}
        self._finished: list[tuple[int, int, int, int]] = []  # when, partition, start, end

    def take(self, name: str, said: Mapping[str, Any], *, only_done: bool = False) -> None:
        """Take an event. `only_done`: the member reports done records itself."""
        life = (name, said["life"])
        match said["name"]:
            case "assigned":
                for partition in said["partitions"]:
                    self._open[life, partition] = ownership = Ownership(life, partition, said["at"])
                    self.ownerships.append(ownership)
            case "gave_up":
                for partition in said["partitions"]:
                    self._open.pop((life, partition), None)
            case "handed":
                for lane, partition, start, end in said["runs"]:
                    self._open[life, partition].take(lane, start, end)
            case _:
                pass
        if said["name"] == ("done" if only_done else "handed"):
            self._finished += [(said["at"], partition, start, end) for _, partition, start, end in said["runs"]]

    def owned(self, names: Collection[str]) -> set[int]:
        """The partitions that these members own."""
        return {partition for (name, _), partition in self._open if name in names}

    def handed(self, partition: int) -> OffsetSet:
        """The offsets that any member has handed out."""
        together = _NOTHING
        for ownership in self.ownerships:
            if ownership.partition == partition:
                together |= ownership.handed
        return together

    def in_hands(self, names: Collection[str], partition: int) -> OffsetSet:
        """The offsets that the partition's newest owner of these members has handed out. Safe while events arrive."""
        ownerships = [ownership for (life, _), ownership in list(self._open.items()) if life[0] in names]
        own = [ownership for ownership in ownerships if ownership.partition == partition]
        return max(own, key=lambda ownership: ownership.begun).handed if own else _NOTHING

    def count(self, lane: str) -> int:
        """The number of records of a lane, including repeats."""
        return sum(_size(ownership.lanes.get(lane, _NOTHING)) for ownership in self.ownerships)

    def missing(self, ends: Mapping[int, int]) -> dict[int, list[Range]]:
        """Offsets that were written and never handed out."""
        found = {partition: self.handed(partition).open(0, end) for partition, end in ends.items()}
        return {partition: ranges for partition, ranges in found.items() if ranges}

    # -- checks ----------------------------------------------------------------------------------------------------

    def check_ownerships(self) -> None:
        for ownership in self.ownerships:
            assert not ownership.twice, f"handed out twice in one ownership: {ownership}"
            backlog, live = ownership.lanes.get("backlog"), ownership.lanes.get("live")
            if backlog is not None and live is not None:
                first_live = (live - _NOTHING)[0][0]
                assert backlog.frontier <= first_live, f"the lanes overlap: {ownership}"

    def check_commits(self, commits: Iterable[LaneCommit], before: Mapping[int, OffsetSet] | None = None) -> None:
        """`before`: offsets that were done before these members started."""
        done = defaultdict(lambda: _NOTHING, before or {})
        logs = Logs()
        events: list[tuple[int, int, Any]] = [(each[0], 0, each) for each in self._finished]
        events += [(each.at, 1, each) for each in commits]
        events += [(each.begun, 2, each) for each in self.ownerships]
        for _, _, event in sorted(events, key=lambda each: each[:2]):
            if isinstance(event, LaneCommit):
                logs.take(event)
                too_much = logs.done(event.partition) - done[event.partition]
                assert not too_much, f"{event} marks {too_much} as done, but it is not"
            elif isinstance(event, Ownership):
                event.committed = logs.done(event.partition)
            else:
                _, partition, start, end = event
                done[partition] = done[partition].with_done(start, end)
        for ownership in self.ownerships:
            again = (ownership.handed & ownership.committed) - _NOTHING
            assert not again, f"{again} was committed and handed out again: {ownership}"

    def repeats(self) -> tuple[int, int]:
        """The number of repeated records, and the largest number that is allowed: for each ownership, the offsets that
        earlier ones had handed out and not committed. Call `check_commits` first."""
        earlier: dict[int, OffsetSet] = defaultdict(lambda: _NOTHING)
        repeated = uncommitted = 0
        for ownership in sorted(self.ownerships, key=lambda each: each.begun):
            seen = earlier[ownership.partition]
            repeated += _size(ownership.handed & seen)
            uncommitted += _count(seen - ownership.committed)
            earlier[ownership.partition] = seen | ownership.handed
        return repeated, uncommitted


def _size(offsets: OffsetSet) -> int:
    return _count(offsets - _NOTHING)


def _count(ranges: Iterable[Range]) -> int:
    return sum(end - start for start, end in ranges)
