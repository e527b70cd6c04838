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
_NOISE = 0.05  # the part of the written rate by which the lag of a group that keeps up may change
_COMMIT_STEP = 6.0  # seconds between the commits of a consumer with default settings, and a little more


class _Pass(NamedTuple):
    at: float
    lag: int
    """Of the partitions whose lag is known."""
    written: int
    """Records written since the first pass. This and the next one: to partitions that two passes in a row know."""
    change: int
    """How much the lag has grown since the first pass."""
    compared: int
    """How many pairs of passes that know a partition have been compared since the first pass."""
    is_partial: bool


class LagTrend:
    """The passes of the last `window` seconds. A partition counts in the intervals in which its lag is known at both
    ends: neither a lag that cannot be read, nor its return, is taken for progress."""

    def __init__(self, window: float = _TREND_OVER) -> None:
        self._window = window
        self._passes: deque[_Pass] = deque()
        self._latest: dict[TopicPartition, tuple[int, int]] = {}  # lag and end

    def add(self, at: float, rows: Iterable[PartitionView]) -> None:
        lags: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        unread = set()
        for row in rows:
            if row.is_unread:
                unread.add(row.tp)
            elif row.lag is not None:
                lags[row.tp] = lags.get(row.tp, 0) + row.lag
                if row.lane != BACKLOG and row.end is not None:
                    ends[row.tp] = row.end
        latest = {tp: (lags[tp], end) for tp, end in ends.items() if tp not in unread}
        written = change = compared = 0
        for tp, (lag, end) in latest.items():
            if (before := self._latest.get(tp)) is not None:
                change += lag - before[0]
                # A topic that was recreated starts again: its end went back, and nothing of that was written.
                written += max(0, end - before[1])
                compared += 1
        self._latest = latest
        if self._passes and at <= self._passes[-1].at:
            self._passes.clear()  # a clock that was set back: there is no interval
        last = self._passes[-1] if self._passes else _Pass(at, 0, 0, 0, 0, is_partial=False)
        total = sum(lag for lag, _ in latest.values())
        self._passes.append(
            _Pass(at, total, last.written + written, last.change + change, last.compared + compared, bool(unread))
        )
        while len(self._passes) > 2 and self._passes[1].at <= at - self._window:
            self._passes.popleft()

    def shift(self, seconds: float) -> None:
        """The clock has jumped: all times until now are later by so many seconds."""
        self._passes = deque(it._replace(at=it.at + seconds) for it in self._passes)

    def trend(self) -> Trend | None:
        """None before the second pass, and if no partition was known in two passes in a row."""
        if not self._passes or self._passes[-1].at <= self._passes[0].at:
            return None
        first, last = self._passes[0], self._passes[-1]
        if last.compared == first.compared:
            return None
        span = last.at - first.at
        written = (last.written - first.written) / span
        read = written - (last.change - first.change) / span
        growth = self._growth(written)
        if last.is_partial:
            return Trend(written, read, None, growth, is_partial=True)
        caught_up = 0.0 if last.lag == 0 else last.lag / -growth if growth < 0 else None
        return Trend(written, read, caught_up, growth)

    def _growth(self, written: float) -> float:
        """Commits come in steps, so the lag of a group that keeps up goes up and down. Its least values, early and late
        in the window, tell whether it grows; differences within the noise of rates and steps are none."""
        passes = self._passes
        part = max(1, len(passes) // 3)
        # Both parts have the same number of passes: their beginnings are as far apart as their ends.
        low = min(passes[at].change for at in range(part))
        high = min(passes[at].change for at in range(-part, 0))
        span = passes[-part].at - passes[0].at
        between = (passes[-1].at - passes[0].at) / (len(passes) - 1)
        # A part that is long enough has seen a step, at most one pass after it.
        step = min(between, _COMMIT_STEP) if part * between >= _COMMIT_STEP else _COMMIT_STEP
        change = high - low
        return 0.0 if abs(change) <= written * max(_NOISE * span, step) else change / span


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
        # A sum without the partitions that nobody could ever read would look like progress.
        is_complete = all(row.lag is not None for row in group.partitions if row.is_unread)
        point = LagPoint(at, group.lag if is_complete else None, group.seconds)
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
        if group.partitions:
            self.trend.add(at, group.partitions)
        if group.stale_since is None and (group.error is None or group.members):
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
