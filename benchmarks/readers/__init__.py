"""The timed loops, one module per client library.

A reader prepares (connects, gets the topic's metadata), starts the meter, lets its client fetch, and stops the meter
when it has received the last record. It fails when no records come for a while.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

# Settings of all clients: the common defaults of Java, librdkafka and headrace. They are set where a library has
# another default.
FETCH_MAX_BYTES = 50 * 1024 * 1024
MAX_PARTITION_FETCH_BYTES = 1024 * 1024
FETCH_MAX_WAIT_MS = 500

_STALLED_AFTER = 20.0


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What to read: the first `records` of a topic, from its beginning.

    With a `protocol` ("classic" or "consumer") as `members` of a group, otherwise by assignment. `work_ms` is how long
    the consumer works between polls."""

    servers: str
    topic: str
    partitions: int
    records: int
    protocol: str = ""
    members: int = 1
    work_ms: int = 0

    @property
    def numbers(self) -> Sequence[int]:
        return range(self.partitions)


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """The result of a reader. `bytes` are those of values. `cpu_seconds` is that of the loop alone; None if unknown."""

    records: int
    bytes: int
    seconds: float
    cpu_seconds: float | None


class Meter:
    """Counts records and measures time. CPU time includes all threads of the process."""

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
        """The number of records that are still to come."""
        return self._wanted - self._records

    def add(self, records: int, nbytes: int) -> bool:
        """Count records and the bytes of their values; return whether all have come. Raises TimeoutError when none have
        come for a while."""
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
