"""Acquired records of a share group that no poll has returned yet.

They are in the order of arrival; a broker starts with another partition each time. Their locks are running. Records
whose session is lost, or whose lock has expired, are dropped: another member may have them.

A signal handler that raises (Ctrl-C) can interrupt a poll almost anywhere. The records that it took then come first in
the next poll; otherwise that poll would accept records that nobody has seen. CPython calls signal handlers when a
function begins, at the end of a loop's round, and after calls of C functions. So consecutive stores of values that were
computed before are done together or not at all, and a `ShareHandover` says at any time between them what to undo.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, Self

from ...types import TopicPartition
from .acquired import AcquiredRecords, AcquisitionLock


class RecordColumns(Protocol):
    """Records of one partition."""

    def __len__(self) -> int: ...
    def slice(self, start: int, length: int) -> Self: ...
    def runs(self) -> list[tuple[int, int]]: ...


class AcquiredBatch:
    """Records of one partition that were acquired together."""

    __slots__ = ("acquired", "lock", "records")

    def __init__(self, acquired: AcquiredRecords, records: RecordColumns, lock: AcquisitionLock) -> None:
        self.acquired = acquired
        self.records = records
        self.lock = lock


class ShareHandover:
    """The records that one poll moves from the buffer to the user.

    open      the batches are noted here before they are moved
    returned  the poll stores this last, directly before its `return`
    broken    the poll raises instead: that poll undoes it, or the next call if that is interrupted, too
    """

    __slots__ = ("batches", "is_broken", "is_moved", "is_open", "total")

    def __init__(self, batches: Iterable[AcquiredBatch] = (), *, is_moved: bool = False) -> None:
        self.batches: tuple[AcquiredBatch, ...] = tuple(batches)
        self.is_moved = is_moved  # they are no longer in the buffer
        self.is_open = True
        self.is_broken = False
        self.total = 0  # records returned since the start, including these


class ShareBuffer:
    def __init__(self) -> None:
        self._batches: deque[AcquiredBatch] = deque()
        self.count = 0
        self.expired = 0
        """Records that were dropped because their lock had expired."""

    def __iter__(self) -> Iterator[AcquiredBatch]:
        return iter(self._batches)

    def add(self, batch: AcquiredBatch) -> None:
        if len(batch.records):
            self._batches.append(batch)
            self.count += len(batch.records)

    def put_back(self, handover: ShareHandover) -> None:
        """The user has not seen these: the next poll returns them first. Can be repeated after an interrupt."""
        if handover.is_moved:
            batches = deque(
                batch for batch in handover.batches if batch.acquired.lock_of(batch.records.runs()) is batch.lock
            )
            count = self.count + sum(len(batch.records) for batch in batches)
            batches.extend(self._batches)
            self._batches, self.count, handover.is_moved = batches, count, False
        for batch in handover.batches:
            batch.acquired.take_back(batch.records.runs(), batch.lock)

    def take(self, limit: int, now: float, handover: ShareHandover) -> list[RecordColumns]:
        """Up to `limit` records, grouped by partition. They are in hand from now on."""
        batches, count, expired = self._batches.copy(), self.count, self.expired
        taken: list[AcquiredBatch] = []
        locks: dict[AcquisitionLock, AcquisitionLock] = {}
        while batches and limit > 0:
            batch = batches.popleft()
            records = batch.records
            size = len(records)
            if batch.acquired.lost is not None or batch.lock.expires <= now:
                count, expired = count - size, expired + size
                continue
            if size > limit:
                batches.appendleft(AcquiredBatch(batch.acquired, records.slice(limit, size - limit), batch.lock))
                records = records.slice(0, limit)
                size = limit
            limit -= size
            count -= size
            if batch.lock not in locks:
                locks[batch.lock] = batch.lock.taken(now)
            taken.append(AcquiredBatch(batch.acquired, records, locks[batch.lock]))
        parts: dict[TopicPartition, list[RecordColumns]] = {}
        for batch in taken:
            parts.setdefault(batch.acquired.tp, []).append(batch.records)
        found = [records for each in parts.values() for records in each]
        handover.batches = tuple(taken)
        for batch in taken:
            batch.acquired.hand_out(batch.records.runs(), batch.lock)
        self._batches, self.count, self.expired, handover.is_moved = batches, count, expired, True
        return found

    def remove(self, is_unwanted: Callable[[AcquiredBatch], bool]) -> list[AcquiredBatch]:
        """Removes and returns unwanted batches."""
        removed = [batch for batch in self._batches if is_unwanted(batch)]
        if removed:
            batches = deque(batch for batch in self._batches if not is_unwanted(batch))
            count = self.count - sum(len(batch.records) for batch in removed)
            self._batches, self.count = batches, count
        return removed
