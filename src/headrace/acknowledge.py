"""What a share consumer says of records that it was given, and offsets with a value each, kept as runs.

A million records that are accepted are a handful of runs: one for each stretch of offsets without a gap.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")


class AcknowledgeType(enum.IntEnum):
    """What becomes of a record."""

    ACCEPT = 1
    """It was worked on: it is not delivered again."""
    RELEASE = 2
    """It was not: deliver it again, to whichever member. That counts as another delivery."""
    REJECT = 3
    """It cannot be worked on: do not deliver it again."""
    RENEW = 4
    """It is being worked on: the time of its lock starts anew (KIP-1222). It has to be acknowledged later."""


GAP = 0
"""An offset without a record: one that was compacted away, or has a transaction's marker."""


class Run(NamedTuple, Generic[V]):
    """The offsets from `first` to `last`, both included."""

    first: int
    last: int
    value: V

    @property
    def offsets(self) -> range:
        return range(self.first, self.last + 1)


class OffsetMap(Generic[V]):
    """Offsets with a value each. Runs are ascending and disjoint; neighbours with equal values are one."""

    __slots__ = ("_firsts", "_lasts", "_values")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._values: list[V] = []

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        """How many offsets."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def __iter__(self) -> Iterator[Run[V]]:
        return map(Run, self._firsts, self._lasts, self._values)

    def within(self, first: int, last: int) -> list[Run[V]]:
        """The runs from `first` to `last`, cut off there."""
        begin, end = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        return [
            Run(max(first, self._firsts[at]), min(last, self._lasts[at]), self._values[at]) for at in range(begin, end)
        ]

    def set(self, first: int, last: int, value: V) -> None:
        if first > last:
            return
        if self._lasts and first <= self._lasts[-1]:
            self.remove(first, last)
        at = bisect_left(self._firsts, first)
        joins_left = at > 0 and self._lasts[at - 1] == first - 1 and self._values[at - 1] == value
        joins_right = at < len(self._firsts) and self._firsts[at] == last + 1 and self._values[at] == value
        if joins_left and joins_right:
            self._lasts[at - 1] = self._lasts[at]
            del self._firsts[at], self._lasts[at], self._values[at]
        elif joins_left:
            self._lasts[at - 1] = last
        elif joins_right:
            self._firsts[at] = first
        else:
            self._firsts.insert(at, first)
            self._lasts.insert(at, last)
            self._values.insert(at, value)

    def remove(self, first: int, last: int) -> list[Run[V]]:
        """Takes the offsets from `first` to `last` out, and returns what was there."""
        removed = self.within(first, last)
        if removed:
            begin, end = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
            rest: list[Run[V]] = []
            if self._firsts[begin] < first:
                rest.append(Run(self._firsts[begin], first - 1, self._values[begin]))
            if self._lasts[end - 1] > last:
                rest.append(Run(last + 1, self._lasts[end - 1], self._values[end - 1]))
            self._firsts[begin:end] = [run.first for run in rest]
            self._lasts[begin:end] = [run.last for run in rest]
            self._values[begin:end] = [run.value for run in rest]
        return removed

    def take(self) -> list[Run[V]]:
        """Everything, which is out then."""
        runs = list(self)
        self._firsts, self._lasts, self._values = [], [], []
        return runs


def count(runs: list[Run[V]]) -> int:
    """How many offsets these runs have."""
    return sum(run.last - run.first + 1 for run in runs)
