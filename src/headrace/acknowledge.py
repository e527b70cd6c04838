"""What a share consumer says of records that it was given, and offsets with a value each, kept as runs.

A million records that are accepted are a handful of runs: one for each stretch of offsets without a gap.
"""

from __future__ import annotations

import enum
import operator
from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")

_first = operator.itemgetter(0)


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
    """Offsets with a value each. Runs are ascending and disjoint; neighbours with equal values are one.

    Every change is one assignment to (or in) one list. A signal handler that raises (Ctrl-C) runs between two bytecodes
    and never inside of that, so it leaves the map whole.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[Run[V]] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __len__(self) -> int:
        """How many offsets."""
        return count(self._runs)

    def __iter__(self) -> Iterator[Run[V]]:
        return iter(self._runs)

    def copy(self) -> OffsetMap[V]:
        made: OffsetMap[V] = OffsetMap()
        made._runs = self._runs[:]
        return made

    def within(self, first: int, last: int) -> list[Run[V]]:
        """The runs from `first` to `last`, cut off there."""
        begin, end = self._span(first, last)
        return [Run(max(first, run.first), min(last, run.last), run.value) for run in self._runs[begin:end]]

    def set(self, first: int, last: int, value: V) -> None:
        if first > last:
            return
        runs = self._runs
        if not runs or runs[-1].last < first:  # after all others, as most are
            if runs and runs[-1].last == first - 1 and runs[-1].value == value:
                runs[-1] = Run(runs[-1].first, last, value)
            else:
                runs.append(Run(first, last, value))
            return
        begin, end = self._span(first - 1, last + 1)  # with the neighbours
        new: list[Run[V]] = []
        if begin < end and (left := runs[begin]).first < first:
            if left.value == value:
                first = left.first
            else:
                new.append(Run(left.first, min(left.last, first - 1), left.value))
        after: list[Run[V]] = []
        if begin < end and (right := runs[end - 1]).last > last:
            if right.value == value:
                last = right.last
            else:
                after.append(Run(max(right.first, last + 1), right.last, right.value))
        runs[begin:end] = [*new, Run(first, last, value), *after]

    def remove(self, first: int, last: int) -> list[Run[V]]:
        """Takes the offsets from `first` to `last` out, and returns what was there."""
        removed = self.within(first, last)
        if removed:
            begin, end = self._span(first, last)
            left, right = self._runs[begin], self._runs[end - 1]
            rest: list[Run[V]] = []
            if left.first < first:
                rest.append(Run(left.first, first - 1, left.value))
            if right.last > last:
                rest.append(Run(last + 1, right.last, right.value))
            self._runs[begin:end] = rest
        return removed

    def take(self) -> list[Run[V]]:
        """Everything, which is out then."""
        runs, self._runs = self._runs, []
        return runs

    def _span(self, first: int, last: int) -> tuple[int, int]:
        """Where the runs are that have an offset from `first` to `last`."""
        runs = self._runs
        begin = bisect_left(runs, first, key=_first)
        if begin and runs[begin - 1].last >= first:
            begin -= 1
        return begin, bisect_left(runs, last + 1, key=_first)


def count(runs: list[Run[V]]) -> int:
    """How many offsets these runs have."""
    return sum(run.last - run.first + 1 for run in runs)
