"""The last hour of every group: lag, trend and rebalances. Nothing here does I/O or reads a clock.

Memory is bounded: a group has a point for every pass of the last two minutes (not more than four a second) and one for
each 15 seconds of the hour before, the passes of the last minute for its trend, and its latest 50 rebalances. A group
that no pass has seen for an hour is forgotten.

Intervals are those of a clock that never jumps. Times are shown in seconds since 1970: if that clock is set, the times
of all points and rebalances are moved with it, so that they stay in order and at their distances.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from .._machines.lanes.lanes import BACKLOG
from ..types import TopicPartition
from .model import ClusterView, GroupHistory, GroupKey, GroupView, LagPoint, PartitionView, Trend
from .rebalances import RebalanceTimeline

_SPAN = 3600.0
_FINE = 120.0
_FINEST = 0.25
_STEP = 15.0
_JUMP = 1.0  # smaller differences between the clocks are noise
_TREND_OVER = 60.0


class _Pass(NamedTuple):
    at: float
    lag: int
    written: int
    """Records written since the first pass, to the partitions that were in two passes in a row."""


class LagTrend:
    """The passes of the last `window` seconds. Commits come in steps, so the trend covers all of them."""

    def __init__(self, window: float = _TREND_OVER) -> None:
        self._window = window
        self._passes: deque[_Pass] = deque()
        self._ends: dict[TopicPartition, int] = {}

    def add(self, at: float, rows: Iterable[PartitionView]) -> None:
        lag = written = 0
        ends: dict[TopicPartition, int] = {}
        for row in rows:
            lag += row.lag or 0
            if row.lane != BACKLOG and row.end is not None:
                ends[row.tp] = row.end
                # A topic that was recreated starts again: its end went back, and nothing of that was written.
                written += max(0, row.end - self._ends.get(row.tp, row.end))
        self._ends = ends
        if self._passes and at <= self._passes[-1].at:
            self._passes.clear()  # a clock that was set back: there is no interval
        before = self._passes[-1].written if self._passes else 0
        self._passes.append(_Pass(at, lag, before + written))
        while len(self._passes) > 2 and self._passes[1].at <= at - self._window:
            self._passes.popleft()

    def shift(self, seconds: float) -> None:
        """The clock has jumped: all times until now are later by so many seconds."""
        self._passes = deque(it._replace(at=it.at + seconds) for it in self._passes)

    def trend(self) -> Trend | None:
        """None before the second pass."""
        if not self._passes or self._passes[-1].at <= self._passes[0].at:
            return None
        first, last = self._passes[0], self._passes[-1]
        span = last.at - first.at
        written = (last.written - first.written) / span
        read = written - (last.lag - first.lag) / span
        if last.lag == 0:
            return Trend(written, read, 0.0)
        faster = read - written
        return Trend(written, read, last.lag / faster if faster > 0 else None)


class _Series:
    """One group."""

    def __init__(self) -> None:
        self.coarse: deque[LagPoint] = deque()
        self.fine: deque[LagPoint] = deque()
        self.trend = LagTrend()
        self.rebalances = RebalanceTimeline()
        self.seen = 0.0

    def add(self, at: float, group: GroupView) -> None:
        self.seen = at
        point = LagPoint(at, group.lag, group.seconds)
        if len(self.fine) > 1 and self.fine[-1].at - self.fine[-2].at < _FINEST:
            self.fine[-1] = point
        else:
            self.fine.append(point)
        while self.fine[0].at < at - _FINE:
            older = self.fine.popleft()
            if not self.coarse or older.at - self.coarse[-1].at >= _STEP:
                self.coarse.append(older)
        while self.coarse and self.coarse[0].at < at - _SPAN:
            self.coarse.popleft()
        if point.lag is not None:
            self.trend.add(at, group.partitions)
        if group.error is None or group.members:
            self.rebalances.add(at, group)

    def shift(self, seconds: float) -> None:
        self.seen += seconds
        self.coarse, self.fine = (
            deque(LagPoint(it.at + seconds, it.lag, it.seconds) for it in points) for points in (self.coarse, self.fine)
        )
        self.trend.shift(seconds)
        self.rebalances.shift(seconds)


class History:
    """`add` takes each pass once, in order."""

    def __init__(self) -> None:
        self._series: dict[GroupKey, _Series] = {}
        self._to_wall: float | None = None

    def add(self, view: ClusterView) -> None:
        at = self._time(view)
        for group in view.groups:
            self._series.setdefault(group.key, _Series()).add(at, group)
        gone = [key for key, series in self._series.items() if series.seen < at - _SPAN]
        for key in gone:
            del self._series[key]

    def _time(self, view: ClusterView) -> float:
        """The time of a view since 1970, which advances as the steady clock does."""
        to_wall = view.at - view.steady_at
        if self._to_wall is None:
            self._to_wall = to_wall
        elif abs(jump := to_wall - self._to_wall) > _JUMP:
            self._to_wall = to_wall
            for series in self._series.values():
                series.shift(jump)
        return view.steady_at + self._to_wall

    def group(self, key: GroupKey) -> GroupHistory:
        """Without points if the group is unknown."""
        series = self._series.get(key)
        if series is None:
            return GroupHistory((), None, ())
        return GroupHistory((*series.coarse, *series.fine), series.trend.trend(), series.rebalances.entries())
