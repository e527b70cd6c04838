"""A clock for intervals. Unlike the time since 1970 it never jumps, and unlike `time.monotonic()` it continues while
this machine sleeps, because records keep aging."""

from __future__ import annotations

import time

# Linux has it. macOS has CLOCK_MONOTONIC, which counts sleep there, and Windows has neither.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def steady_time() -> float:
    """Seconds since some moment in the past."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
