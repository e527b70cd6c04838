"""The fate of every record of a topic that a group consumes, from the events of its members.

An *ownership* is the time in which a member owns a partition: from its assignment until it is revoked or lost, or the
member is closed or ends. It has the offsets read and committed in that time.

    unread      offsets in no ownership
    repeats     offsets in two ownerships, or twice in one
    stutters    offsets twice in one ownership
    broken      repeats of offsets that an earlier ownership had committed: an orderly hand-over does not cause them
    overlaps    two members that owned a partition at the same time
    strays      offsets read by a member that did not own the partition
    stable      exactly these members are present, each partition has one owner, and the counts differ by at most one

Repeats that are not broken are allowed by at-least-once delivery: the earlier owner was killed, or its commits were
rejected, as its `uncommitted` shows. The latter happens to Java's VerifiableConsumer: during a cooperative rebalance it
keeps consuming, the coordinator rejects its commits, and it does not retry them before the revoke.

Nothing here waits or reads a clock. Each member's events must come in order; different members may interleave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from support.members.events import (
    Assigned,
    Closed,
    Committed,
    Ended,
    Event,
    Lost,
    Read,
    Revoked,
    Started,
    TopicAndPartition,
)

Ending = Literal["revoked", "lost", "closed", "killed"]


@dataclass(slots=True, eq=False)
class Ownership:
    member: str
    tp: TopicAndPartition
    begun: int
    over: int | None = None
    ending: Ending | None = None
    ranges: list[tuple[int, int]] = field(default_factory=list)
    committed: int = 0
    """The offset of the last successful commit."""

    @property
    def read_to(self) -> int:
        return self.ranges[-1][1] if self.ranges else 0

    @property
    def uncommitted(self) -> int:
        """The number of offsets that were read and not committed."""
        return sum(max(0, end - max(start, self.committed)) for start, end in self.ranges)


@dataclass(frozen=True, slots=True)
class Repeat:
    """Offsets from `start` to before `end` that were read in both ownerships, which may be the same one."""

    tp: TopicAndPartition
    start: int
    end: int
    first: Ownership
    second: Ownership

    @property
    def stutter(self) -> bool:
        return self.first is self.second

    @property
    def broken(self) -> bool:
        return not self.stutter and self.start < self.first.committed

    def __str__(self) -> str:
        committed = f"committed to {self.first.committed}"
        return (
            f"{self.tp} {self.start}..{self.end - 1}: {self.first.member} ({committed}, {self.first.ending}), "
            f"then {self.second.member}"
        )


class Ledger:
    def __init__(self, partitions: Iterable[TopicAndPartition]) -> None:
        self.partitions = frozenset(partitions)
        self.ownerships: list[Ownership] = []
        self.present: set[str] = set()
        """Members that have started and not ended."""
        self.strays: list[tuple[str, TopicAndPartition, tuple[int, int]]] = []
        self.refused: list[tuple[str, str]] = []
        """Failed commits as (member, error)."""
        self._open: dict[tuple[str, TopicAndPartition], Ownership] = {}
        self._last: dict[tuple[str, TopicAndPartition], Ownership] = {}

    # -- in ------------------------------------------------------------------------------------------------------

    def take(self, member: str, event: Event) -> None:
        match event:
            case Started():
                self.present.add(member)
            case Assigned(at, partitions):
                for tp in partitions:
                    self._begin(member, tp, at)
            case Revoked(at, partitions):
                self._end(member, partitions, at, "revoked")
            case Lost(at, partitions):
                self._end(member, partitions, at, "lost")
            case Read(_, ranges):
                self._read(member, ranges)
            case Committed(_, offsets, error):
                self._commit(member, offsets, error)
            case Closed(at):
                self._end(member, self.owned(member), at, "closed")
                self.present.discard(member)
            case Ended(at):
                self._end(member, self.owned(member), at, "killed")
                self.present.discard(member)

    def _begin(self, member: str, tp: TopicAndPartition, at: int) -> None:
        if (member, tp) not in self._open:
            ownership = Ownership(member, tp, at)
            self.ownerships.append(ownership)
            self._open[member, tp] = self._last[member, tp] = ownership

    def _end(self, member: str, partitions: Iterable[TopicAndPartition], at: int, ending: Ending) -> None:
        for tp in partitions:
            if ownership := self._open.pop((member, tp), None):
                ownership.over, ownership.ending = at, ending

    def _read(self, member: str, ranges: Mapping[TopicAndPartition, tuple[int, int]]) -> None:
        for tp, span in ranges.items():
            ownership = self._open.get((member, tp))
            if ownership is None:
                self.strays.append((member, tp, span))
            elif ownership.ranges and ownership.ranges[-1][1] == span[0]:
                ownership.ranges[-1] = (ownership.ranges[-1][0], span[1])
            else:
                ownership.ranges.append(span)

    def _commit(self, member: str, offsets: Mapping[TopicAndPartition, int], error: str | None) -> None:
        if error is not None:
            self.refused.append((member, error))
            return
        for tp, offset in offsets.items():
            # The event may come after the partition was revoked: it then belongs to the last ownership.
            if ownership := self._last.get((member, tp)):
                ownership.committed = offset

    # -- owners --------------------------------------------------------------------------------------------------

    def owned(self, member: str) -> frozenset[TopicAndPartition]:
        return frozenset(tp for owner, tp in self._open if owner == member)

    def open_ownerships(self) -> list[Ownership]:
        return list(self._open.values())

    def is_stable(self, members: Collection[str]) -> bool:
        if self.present != set(members):
            return False
        shares = [self.owned(member) for member in members]
        sizes = [len(share) for share in shares]
        whole = frozenset[TopicAndPartition]().union(*shares) == self.partitions
        return whole and sum(sizes) == len(self.partitions) and max(sizes) - min(sizes) <= 1

    def overlaps(self) -> list[tuple[Ownership, Ownership]]:
        """All times are of one clock, and a member reports a revoke before another member can own the partition."""
        found = []
        for ownerships in self._by_partition().values():
            ownerships.sort(key=lambda ownership: (ownership.begun, ownership.over is None, ownership.over or 0))
            for earlier, later in pairwise(ownerships):
                if earlier.over is None or earlier.over > later.begun:
                    found.append((earlier, later))
        return found

    # -- records -------------------------------------------------------------------------------------------------

    def count(self) -> int:
        """The number of records read, including repeats."""
        return sum(end - start for ownership in self.ownerships for start, end in ownership.ranges)

    def unread(self, ends: Mapping[TopicAndPartition, int]) -> list[tuple[TopicAndPartition, int, int]]:
        """Ranges from 0 to the log ends that no member read."""
        by_partition = self._by_partition()
        missing = []
        for tp, end in sorted(ends.items()):
            position = 0
            for start, stop, _ in _in_order(by_partition.get(tp, [])):
                if start > position:
                    missing.append((tp, position, start))
                position = max(position, stop)
            if position < end:
                missing.append((tp, position, end))
        return missing

    def repeats(self) -> list[Repeat]:
        found = []
        for tp, ownerships in self._by_partition().items():
            running: list[tuple[int, int, Ownership]] = []
            for start, end, ownership in _in_order(ownerships):
                running = [each for each in running if each[1] > start]
                for _, other_end, other in running:
                    first, second = sorted((other, ownership), key=lambda each: each.begun)
                    found.append(Repeat(tp, start, min(end, other_end), first, second))
                running.append((start, end, ownership))
        return found

    def stutters(self) -> list[Repeat]:
        return [repeat for repeat in self.repeats() if repeat.stutter]

    def broken(self) -> list[Repeat]:
        return [repeat for repeat in self.repeats() if repeat.broken]

    def _by_partition(self) -> dict[TopicAndPartition, list[Ownership]]:
        grouped: dict[TopicAndPartition, list[Ownership]] = defaultdict(list)
        for ownership in self.ownerships:
            grouped[ownership.tp].append(ownership)
        return grouped


def _in_order(ownerships: Iterable[Ownership]) -> list[tuple[int, int, Ownership]]:
    ranges = ((start, end, ownership) for ownership in ownerships for start, end in ownership.ranges)
    return sorted(ranges, key=lambda each: each[:2])
