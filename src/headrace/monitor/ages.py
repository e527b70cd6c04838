"""The age of the lag: how long the oldest unprocessed record of each row has been waiting.

`OffsetTimes` answers from the ends of the logs that passes have seen, without a request. Where that does not reach
back, or is coarse, the records themselves are read: a bounded number in each pass, those that are known worst first. A
record is read once, since it never changes. Until its turn comes, a row has no age.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..types import TopicPartition
from .model import PartitionView
from .offset_times import OffsetTimes
from .read_times import read_times

_AT_ONCE = 100  # records to read in one pass
_READ_FOR = 3.0  # seconds
_EXACT = 5.0  # seconds by which an age may be wrong, before its record is worth reading ...
_EXACT_PART = 0.1  # ... or this part of the age
_UNREADABLE_FOR = 300.0  # seconds until a partition that could not be read is tried again


class Ages:
    """One for each cluster. `settings` are those of the client that reads records."""

    def __init__(self, settings: Mapping[str, Any], at_once: int = _AT_ONCE) -> None:
        self.times = OffsetTimes()
        self._settings = settings
        self._at_once = at_once
        self._not_before: dict[TopicPartition, float] = {}
        # Partitions with nothing but transaction markers between an offset and the end.
        self._without_records: dict[TopicPartition, tuple[int, int]] = {}

    async def add(self, at: float, ends: Mapping[TopicPartition, int], rows: Iterable[PartitionView]) -> None:
        """Takes the ends of a pass, and reads what is missing for the ages of these rows."""
        self.times.add(at, ends)
        self._without_records = {tp: it for tp, it in self._without_records.items() if ends.get(tp) == it[1]}
        wanted = self._wanted(at, rows)
        if not wanted:
            return
        found = await read_times(self._settings, wanted, _READ_FOR)
        for tp, written in found.items():
            if math.isinf(written):
                self._without_records[tp] = wanted[tp]
            else:
                self.times.note(tp, wanted[tp][0], written)
        for tp in wanted.keys() - found.keys():
            self._not_before[tp] = at + _UNREADABLE_FOR

    def _wanted(self, at: float, rows: Iterable[PartitionView]) -> dict[TopicPartition, tuple[int, int]]:
        """One offset of each partition, with the end of its log."""
        self._not_before = {tp: until for tp, until in self._not_before.items() if until > at}
        candidates: list[tuple[float, TopicPartition, int, int]] = []
        written_at = self.times.written_at
        for row in rows:
            if row.lag and row.next is not None and row.end is not None and row.next < row.end:
                if self._without_records.get(row.tp) == (row.next, row.end):
                    continue
                known = written_at(row.tp, row.next)
                within = at if known is None else known.within
                if known is not None and within <= max(_EXACT, _EXACT_PART * (at - known.at)):
                    continue
                if row.tp not in self._not_before:
                    candidates.append((within, row.tp, row.next, row.end))
        candidates.sort(key=lambda it: it[0], reverse=True)
        wanted: dict[TopicPartition, tuple[int, int]] = {}
        for _, tp, offset, end in candidates:
            if len(wanted) == self._at_once:
                break
            wanted.setdefault(tp, (offset, end))
        return wanted

    def aged(self, at: float, rows: Sequence[PartitionView]) -> tuple[PartitionView, ...]:
        """The rows with the ages that are known."""
        return tuple(self._aged(at, row) if row.lag else row for row in rows)

    def _aged(self, at: float, row: PartitionView) -> PartitionView:
        if row.next is None or row.is_beyond:
            return row
        if self._without_records.get(row.tp) == (row.next, row.end):
            return dataclasses.replace(row, seconds=0.0)
        known = self.times.written_at(row.tp, row.next)
        return row if known is None else dataclasses.replace(row, seconds=max(0.0, at - known.at))
