"""What a process uses: memory, file descriptors, threads, objects. And whether that grows.

A leak grows with every cycle. What grows at first and then stays (caches, the arenas of an allocator) is none. So the
figures of the second quarter of a run are compared with those of its last quarter.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import statistics
import threading
from collections.abc import Sequence

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MB = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    cycles: int
    memory: int
    """Resident bytes, after a garbage collection."""
    descriptors: int
    threads: int
    """Of the system: those of the native module, too."""
    objects: int
    """That the garbage collector knows."""

    @classmethod
    def now(cls, cycles: int) -> Figures:
        gc.collect()
        gc.collect()  # threads of abandoned clients end meanwhile
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        return cls(
            cycles,
            pages * _PAGE,
            len(os.listdir("/proc/self/fd")),
            max(len(os.listdir("/proc/self/task")), threading.active_count()),
            len(gc.get_objects()),
        )

    def line(self, seconds: float) -> str:
        return (
            f"{seconds:8.0f} {self.cycles:8,} {self.memory / _MB:10.1f} {self.descriptors:8} {self.threads:8} "
            f"{self.objects:10,}"
        )


HEADER = f"{'seconds':>8} {'cycles':>8} {'memory MB':>10} {'files':>8} {'threads':>8} {'objects':>10}"

# How much more the last quarter may have than the second one: a number, and a part of it.
LIMITS = {
    "memory": (10 * _MB, 0.02),
    "descriptors": (4, 0.0),  # two consumers stay, and each needs two sockets more once a poll has waited natively
    "threads": (2, 0.0),
    "objects": (2_000, 0.01),
}


def growth(samples: Sequence[Figures]) -> list[str]:
    """A text for each figure that grows beyond its limit. Needs eight samples."""
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    found = []
    for name, (most, part) in LIMITS.items():
        before = statistics.median(getattr(each, name) for each in early)
        after = statistics.median(getattr(each, name) for each in late)
        if after - before > most + part * before:
            cycles = late[-1].cycles - early[0].cycles
            found.append(f"{name} grew from {before:,.0f} to {after:,.0f} in {cycles:,} cycles")
    return found
