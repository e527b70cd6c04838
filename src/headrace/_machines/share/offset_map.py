"""A map of offsets, stored as runs: the state or the acknowledgement of acquired records.

A million accepted records are a few runs: one for each range of offsets without a gap.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")

_first = operator.itemgetter(0)


GAP = 0
"""The value of an offset without a record: it was compacted away, or is a transaction marker."""


class OffsetRun(NamedTuple, Generic[V]):
    """The offsets from `first` to `last`, both included."""

    first: int
    last: int
    value: V

    @property
    def offsets(self) -> range:
        return range(self.first, self.last + 1)


class OffsetMap(Generic[V]):
    """Maps offsets to values. Runs are ascending and disjoint; adjacent runs with equal values are merged.

    Every change is one assignment to (or in) one list. A signal handler that raises (Ctrl-C) runs between two
    bytecodes, never inside of such an assignment, so the map is always consistent.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[OffsetRun[V]] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __len__(self) -> int:
        """The number of offsets."""
        return count(self._runs)

    def __iter__(self) -> Iterator[OffsetRun[V]]:
        return iter(self._runs)

    def copy(self) -> OffsetMap[V]:
        made: OffsetMap[V] = OffsetMap()
        made._runs = self._runs[:]
        return made

    def within(self, first: int, last: int) -> list[OffsetRun[V]]:
        """The runs from `first` to `last`, clipped."""
        begin, end = self._span(first, last)
        return [OffsetRun(max(first, run.first), min(last, run.last), run.value) for run in self._runs[begin:end]]

    def set(self, first: int, last: int, value: V) -> None:
        if first > last:
            return
        runs = self._runs
        if not runs or runs[-1].last < first:  # the usual case: after all others
            if runs and runs[-1].last == first - 1 and runs[-1].value == value:
                runs[-1] = OffsetRun(runs[-1].first, last, value)
            else:
                runs.append(OffsetRun(first, last, value))
            return
        begin, end = self._span(first - 1, last + 1)  # with the neighbours
        new: list[OffsetRun[V]] = []
        if begin < end and (left := runs[begin]).first < first:
            if left.value == value:
                first = left.first
            else:
                new.append(OffsetRun(left.first, min(left.last, first - 1), left.value))
        after: list[OffsetRun[V]] = []
        if begin < end and (right := runs[end - 1]).last > last:
            if right.value == value:
                last = right.last
            else:
                after.append(OffsetRun(max(right.first, last + 1), right.last, right.value))
        runs[begin:end] = [*new, OffsetRun(first, last, value), *after]

    def remove(self, first: int, last: int) -> list[OffsetRun[V]]:
        """Removes and returns the runs from `first` to `last`."""
        removed = self.within(first, last)
        if removed:
            begin, end = self._span(first, last)
            left, right = self._runs[begin], self._runs[end - 1]
            rest: list[OffsetRun[V]] = []
            if left.first < first:
                rest.append(OffsetRun(left.first, first - 1, left.value))
            if right.last > last:
                rest.append(OffsetRun(last + 1, right.last, right.value))
            self._runs[begin:end] = rest
        return removed

    def take(self) -> list[OffsetRun[V]]:
        """Removes and returns everything."""
        runs, self._runs = self._runs, []
        return runs

    def _span(self, first: int, last: int) -> tuple[int, int]:
        """The indexes of the runs with an offset from `first` to `last`."""
        runs = self._runs
        begin = bisect_left(runs, first, key=_first)
        if begin and runs[begin - 1].last >= first:
            begin -= 1
        return begin, bisect_left(runs, last + 1, key=_first)


def count(runs: list[OffsetRun[V]]) -> int:
    """The number of offsets in these runs."""
    return sum(run.last - run.first + 1 for run in runs)
