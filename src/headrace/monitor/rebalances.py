"""The rebalances of one group, from what passes saw of its members. Nothing here does I/O or reads a clock.

    pass      state                members   partition 0   partition 1
    10:00:00  Stable               a         a             a
    10:00:02  PreparingRebalance   a, b      -             -             a rebalance begins: b joined
    10:00:04  Stable               a, b      a             b             it ends: 1 moved, 2 had no owner for 2 s

A rebalance begins when members, their partitions or the state change, and ends when the group is stable and every
partition that had an owner has one again; or is stable for two passes, because nobody wants some of them any more. A
group whose last member leaves is in a rebalance until another one comes.
What happens between two passes is not seen.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping

from ..types import TopicPartition
from .model import GroupView, MemberView, Rebalance

_MOST_REBALANCES = 50
_SETTLED = {"Stable", "Empty", "Dead", ""}

Owners = Mapping[TopicPartition, frozenset[str]]


class RebalanceTimeline:
    def __init__(self) -> None:
        self._done: deque[Rebalance] = deque(maxlen=_MOST_REBALANCES)
        self._open: _OpenRebalance | None = None
        self._members: tuple[MemberView, ...] | None = None  # of the last pass
        self._owners: Owners = {}

    def add(self, at: float, group: GroupView) -> None:
        settled = group.state in _SETTLED
        before = self._members
        if before == group.members and settled and self._open is None:
            return
        owners = _owners(group.members)
        if before is None:  # how the group was found is not a rebalance
            self._members, self._owners = group.members, owners
            return
        if self._open is None:
            self._open = _OpenRebalance(at, before, self._owners)
        self._members, self._owners = group.members, owners
        is_complete = self._open.add(at, group.members, owners)
        is_steady = bool(group.members) and before == group.members
        if settled and (is_complete or is_steady):
            entry = self._open.entry(at)
            if entry.joined or entry.left or entry.moved or entry.unowned:
                self._done.append(entry)
            self._open = None

    def shift(self, seconds: float) -> None:
        """The clock has jumped: all times until now are later by so many seconds."""
        moved = [
            dataclasses.replace(it, at=it.at + seconds, until=None if it.until is None else it.until + seconds)
            for it in self._done
        ]
        self._done = deque(moved, _MOST_REBALANCES)
        if self._open is not None:
            self._open.shift(seconds)

    def entries(self) -> tuple[Rebalance, ...]:
        """The latest last."""
        return (*self._done, *([] if self._open is None else [self._open.entry(None)]))


class _OpenRebalance:
    def __init__(self, at: float, members: tuple[MemberView, ...], owners: Owners) -> None:
        self._at = at
        self._before = members
        self._owners_before = owners
        self._members = members
        self._owners = owners
        self._latest = at
        self._unowned_since: dict[TopicPartition, float] = {}
        self._was_unowned: set[TopicPartition] = set()
        self._longest = 0.0

    def add(self, at: float, members: tuple[MemberView, ...], owners: Owners) -> bool:
        """Returns whether every partition has an owner again."""
        for tp in self._owners_before:
            if tp in owners:
                if (since := self._unowned_since.pop(tp, None)) is not None:
                    self._longest = max(self._longest, at - since)
            else:
                self._unowned_since.setdefault(tp, at)
                self._was_unowned.add(tp)
        self._members, self._owners, self._latest = members, owners, at
        return not self._unowned_since

    def shift(self, seconds: float) -> None:
        self._at += seconds
        self._latest += seconds
        self._unowned_since = {tp: since + seconds for tp, since in self._unowned_since.items()}

    def entry(self, until: float | None) -> Rebalance:
        before = {it.id: it.owner for it in self._before}
        after = {it.id: it.owner for it in self._members}
        waiting = (self._latest - since for since in self._unowned_since.values())
        return Rebalance(
            self._at,
            until,
            joined=tuple(sorted(owner for member, owner in after.items() if member not in before)),
            left=tuple(sorted(owner for member, owner in before.items() if member not in after)),
            moved=sum(1 for tp, owner in self._owners_before.items() if self._owners.get(tp, owner) != owner),
            unowned=len(self._was_unowned),
            unowned_seconds=max((self._longest, *waiting)),
        )


def _owners(members: tuple[MemberView, ...]) -> Owners:
    """A partition of a share group may have several."""
    found: dict[TopicPartition, frozenset[str]] = {}
    for member in members:
        only = frozenset((member.id,))
        for tp in member.partitions:
            found[tp] = found[tp] | only if tp in found else only
    return found
