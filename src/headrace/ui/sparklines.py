"""The lag of the last hour as the few points that a small drawing has room for. Nothing here does I/O.

The drawing covers what was observed, an hour at most, in buckets whose width is chosen for it: the largest lag of each.
Only closed buckets are part of it: it changes once for each bucket, not with each pass. The browser adds the current
lag.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..monitor.model import LagPoint

_BUCKETS = 60
_WIDTHS = (1, 2, 5, 10, 15, 30, 60)


@dataclasses.dataclass(frozen=True, slots=True)
class Sparkline:
    bucket: int
    """The number of the first bucket that is not closed, counted from 1970."""
    width: int
    """The width of a bucket in seconds."""
    document: dict[str, Any]
    """`points` are pairs of time and lag."""


def width_for(span: float) -> int:
    """The width of the buckets that cover so many seconds."""
    return next((width for width in _WIDTHS if span <= width * _BUCKETS), _WIDTHS[-1])


def sparkline(points: Sequence[LagPoint], now: float, before: Sparkline | None = None) -> Sparkline | None:
    """The drawing for `now`; the one before, if no bucket has been closed since. None without points."""
    if not points:
        return None
    width = width_for(now - points[0].at)
    current = int(now // width)
    if before is not None and (before.bucket, before.width) == (current, width):
        return before
    largest: dict[int, int] = {}
    for point in points:
        bucket = int(point.at // width)
        if point.lag is not None and bucket < current:
            largest[bucket] = max(point.lag, largest.get(bucket, 0))
    drawn = [[bucket * width, lag] for bucket, lag in sorted(largest.items())]
    return Sparkline(current, width, {"width": width, "points": drawn})
