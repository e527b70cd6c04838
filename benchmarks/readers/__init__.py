"""The loops that are timed, one module for each client library.

A reader prepares (connects, learns the topic's metadata), starts the meter, lets its client begin to fetch,
and stops the meter when the last record wanted has been received. It gives up when nothing comes for a while.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

# Settings that all clients share, and their defaults in Java, librdkafka and headrace alike. Written out where
# a library's own default differs.
FETCH_MAX_BYTES = 50 * 1024 * 1024
MAX_PARTITION_FETCH_BYTES = 1024 * 1024
FETCH_MAX_WAIT_MS = 500

_STALLED_AFTER = 20.0


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What to read: the first `records` that come out of a topic, from its beginning.

    With a `protocol` ("classic" or "consumer") as `members` of a group, without one by assignment."""

    servers: str
    topic: str
    partitions: int
    records: int
    protocol: str = ""
    members: int = 1

    @property
    def numbers(self) -> Sequence[int]:
        return range(self.partitions)


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What a reader did. `cpu_seconds` is that of the loop alone, None where it cannot be told."""

    records: int
    bytes: int
    seconds: float
    cpu_seconds: float | None


class Meter:
    """Counts, and knows when it started. CPU time is that of all threads of the process."""

    def __init__(self, records: int) -> None:
        self._wanted = records
        self._records = self._bytes = 0
        self._started = self._started_cpu = self._progress = 0.0
        self.reading: Reading | None = None

    def start(self) -> None:
        self._started_cpu = time.process_time()
        self._started = self._progress = time.perf_counter()

    @property
    def left(self) -> int:
        """How many records are still to come."""
        return self._wanted - self._records

    def add(self, records: int, nbytes: int) -> bool:
        """Whether that was the last of them. Raises TimeoutError when nothing has come for a while."""
        if records == 0:
            self._check_progress()
            return False
        self._records += records
        self._bytes += nbytes
        self._progress = time.perf_counter()
        if self._records < self._wanted:
            return False
        cpu = time.process_time() - self._started_cpu
        self.reading = Reading(self._records, self._bytes, self._progress - self._started, cpu)
        return True

    def _check_progress(self) -> None:
        if time.perf_counter() - self._progress > _STALLED_AFTER:
            raise TimeoutError(
                f"{self._records:,} of {self._wanted:,} records, then none for {_STALLED_AFTER:.0f} seconds"
            )
