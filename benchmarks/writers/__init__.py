"""The writing loops, one module per client library.

A writer prepares (loads the payload and sends one record, to connect and get metadata and a producer id), starts the
meter, sends all records, and stops the meter when the last one is acknowledged. Every writer sends the same lines.
"""

from __future__ import annotations

import dataclasses
import itertools
import resource
import time
from collections.abc import Iterator
from pathlib import Path

LARGE_BATCH_BYTES = 1_000_000
"""librdkafka's default."""
FIRST = b"first"
"""The record before the measured ones."""
FLUSHED_WITHIN = 300.0
"""Seconds until a writer gives up on acknowledgements."""


@dataclasses.dataclass(frozen=True, slots=True)
class WriteJob:
    """What to write, with which settings. `payload` is a file of lines. A size of 0 is the client's default."""

    servers: str
    topic: str
    partitions: int
    records: int
    payload: str
    codec: str = "none"
    linger_ms: int = 5
    batch_bytes: int = 0
    buffer_bytes: int = 0

    def lines(self) -> list[bytes]:
        return Path(self.payload).read_bytes().splitlines()

    def values(self) -> Iterator[bytes]:
        """The value of each record: the lines, repeated. They are in memory before this returns."""
        return itertools.islice(itertools.cycle(self.lines()), self.records)


@dataclasses.dataclass(frozen=True, slots=True)
class Writing:
    """The result of a writer. `sent` counts all records that it wrote, `records` those that it wrote in `seconds`.

    `cpu_seconds` is the CPU time of all threads in that time. `grown_bytes` is the memory peak minus the size before
    the first record. None means unknown.
    """

    records: int
    seconds: float
    cpu_seconds: float | None
    grown_bytes: int | None
    sent: int


class WriteMeter:
    def __init__(self) -> None:
        self._started = self._started_cpu = 0.0
        self._size: int | None = None
        self.writing: Writing | None = None

    def start(self) -> None:
        """Call it just before the first record."""
        self._size = _reset_peak()
        self._started_cpu = time.process_time()
        self._started = time.perf_counter()

    def stop(self, records: int, before: int = 0) -> None:
        """Call it when all records are acknowledged. `before` is the number of records before the start."""
        seconds = time.perf_counter() - self._started
        cpu = time.process_time() - self._started_cpu
        grown = None if self._size is None else max(0, _peak() - self._size)
        self.writing = Writing(records, seconds, cpu, grown, before + records)


def _reset_peak() -> int | None:
    """Reset the recorded memory peak of the process to its current size, and return it. None except on Linux."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * resource.getpagesize()


def _peak() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024


def check_flushed(left: int) -> None:
    """Raises TimeoutError if records are left."""
    if left:
        raise TimeoutError(f"{left:,} records were not acknowledged in {FLUSHED_WITHIN:.0f} seconds")
