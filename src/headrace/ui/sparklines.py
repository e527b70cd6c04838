"""The lag of the last hour as the few points that a small drawing has room for. Nothing here does I/O.

The drawing covers what was observed, an hour at most, in buckets whose width is chosen for it: the largest lag of each.
Only closed buckets are part of it, and they never change: a browser gets each of them once, when it is over. It adds
the current lag itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..monitor.model import LagPoint
from .patches import Points

_BUCKETS = 60
_WIDTHS = (1, 2, 5, 10, 15, 30, 60)


@dataclasses.dataclass(frozen=True, slots=True)
class Sparkline:
    bucket: int
    """The number of the first bucket that is not closed, counted from 1970."""
    points: Points


def width_for(span: float) -> int:
    """The width of the buckets that cover so many seconds."""
    return next((width for width in _WIDTHS if span <= width * _BUCKETS), _WIDTHS[-1])


def sparkline(points: Sequence[LagPoint], now: float, before: Sparkline | None = None) -> Sparkline | None:
    """The drawing for `now`; the one before, if no bucket has been closed since. None without points."""
    if not points:
        return None
    width = width_for(now - points[0].at)
    current, first = int(now // width), int(points[0].at // width)
    known: tuple[tuple[int, int], ...] = ()
    since = first
    if before is not None and before.points.width == width and before.bucket <= current:
        if before.bucket == current:
            return before
        # Older points are thinned out, so that the largest of a closed bucket may be gone.
        known = tuple(it for it in before.points.pairs if it[0] >= first * width)
        since = before.bucket
    largest: dict[int, int] = {}
    for point in points:
        bucket = int(point.at // width)
        if point.lag is not None and since <= bucket < current:
            largest[bucket] = max(point.lag, largest.get(bucket, 0))
    drawn = tuple((bucket * width, lag) for bucket, lag in sorted(largest.items()))
    return Sparkline(current, Points(width, known + drawn))
