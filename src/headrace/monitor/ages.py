"""The age of the lag: how long the oldest unprocessed record of each row has been waiting.

`OffsetTimes` answers from the ends of the logs that passes have seen, without a request. Where these do not reach back,
or are imprecise, the records themselves are read: a bounded number in each pass, the least precise ages first. A record
is read once, since it never changes. Until its turn comes, a row has no age.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import HeadraceError
from ..types import TopicPartition
from .offset_times import OffsetTimes
from .read_times import read_times

_AT_ONCE = 100  # records to read in one pass
_READ_FOR = 3.0  # seconds
_EXACT = 5.0  # seconds by which an age may be wrong, before its record is worth reading ...
_EXACT_PART = 0.1  # ... or this part of the age
_UNREADABLE_FOR = 300.0  # seconds until a partition that could not be read is tried again


class Ages:
    """One for each cluster. In each pass: `begin`, then `seconds` for each row, then `read`, and `seconds` again for
    the rows of the partitions that it returns. `settings` are those of the client that reads records."""

    def __init__(self, settings: Mapping[str, Any], at_once: int = _AT_ONCE) -> None:
        self.times = OffsetTimes()
        self._settings = settings
        self._at_once = at_once
        self._at = 0.0
        self._ends: Mapping[TopicPartition, int] = {}
        self._unread: list[tuple[float, TopicPartition, int, int]] = []  # how wrong, where, and the end of the log
        self._not_before: dict[TopicPartition, float] = {}
        # Partitions with nothing but transaction markers between an offset and the end.
        self._without_records: dict[TopicPartition, tuple[int, int]] = {}

    def begin(self, at: float, ends: Mapping[TopicPartition, int], to_wall: float = 0.0) -> None:
        """Takes the ends of the logs that a pass could read, with its time as `OffsetTimes.add`."""
        self._at = at
        self._ends = ends
        self.times.add(at, ends, to_wall)
        self._unread = []
        self._not_before = {tp: until for tp, until in self._not_before.items() if until > at}
        self._without_records = {tp: it for tp, it in self._without_records.items() if ends.get(tp) == it[1]}

    def seconds(self, tp: TopicPartition, offset: int, end: int) -> float | None:
        """The age of the record at an offset below the end of what is to be processed. None if it is unknown."""
        known = self.times.written_at(tp, offset)
        if tp not in self._ends:  # no record can be read, and what was written before has its time
            return None if known is None else max(0.0, self._at - known.at)
        if tp in self._without_records and self._without_records[tp] == (offset, end):
            return 0.0
        if known is None:
            self._unread.append((math.inf, tp, offset, end))
            return None
        age = max(0.0, self._at - known.at)
        if known.within > _EXACT and known.within > _EXACT_PART * age:
            self._unread.append((known.within, tp, offset, end))
        return age

    async def read(self) -> Collection[TopicPartition]:
        """Reads records whose age is unknown or coarse. Returns the partitions with better ages."""
        wanted: dict[TopicPartition, tuple[int, int]] = {}
        # Of two lanes of a partition, the lower offset first: it is the older one.
        for _, tp, offset, end in sorted(self._unread, key=lambda it: (-it[0], it[2])):
            if len(wanted) >= self._at_once:
                break
            if tp not in self._not_before:
                wanted.setdefault(tp, (offset, end))
        if not wanted:
            return ()
        try:
            found = await read_times(self._settings, wanted, _READ_FOR)
        except HeadraceError:  # ages are worth less than the pass
            found = {}
        for tp, written in found.items():
            if math.isinf(written):
                self._without_records[tp] = wanted[tp]
            else:
                self.times.note(tp, wanted[tp][0], written)
        for tp in wanted.keys() - found.keys():
            self._not_before[tp] = self._at + _UNREADABLE_FOR
        return found.keys()
