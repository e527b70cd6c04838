"""When the record at an offset was written, for thousands of partitions, from the ends that passes have seen.

    pass      end of the log
    10:00:00  500                the record at 520 was written between 10:00:00 and 10:00:15,
    10:00:15  600                about at 10:00:03

- The end of a log is read in every pass anyway, so an age costs no request. It is the time since the record was
  appended, and exact to the interval of the passes; of older records, to `_COARSE` of their age, because old passes are
  thinned out. It does not depend on timestamps, which producers choose.
- An offset below the first end that was seen is unknown. `read_times.py` reads the timestamps of some such records in
  each pass. They are noted here: the record at an offset never changes. Between two noted records, or between one and
  the first end, the time is interpolated, and the answer tells how far the two are apart.
- A log whose end goes back was recreated or truncated: it starts again without a past. Meanwhile it may have had no
  leader, so its last known end decides.

A pass is one array with the ends of all partitions: 10,000 partitions and a day of passes take about 15 MB. Nothing
here does I/O or reads a clock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..types import TopicPartition

_SPAN = 86_400.0
_COARSE = 0.05
_MOST_NOTES = 8
_UNKNOWN = -1
_SPARE = 1000  # slots that may be unused
_GONE_AFTER = 600.0  # seconds without an end: a partition without a leader gets one again, a deleted one does not


class WrittenAt(NamedTuple):
    at: float
    within: float
    """The record was written at most this many seconds earlier or later."""


class OffsetTimes:
    """`add` takes each pass once, in order. Times are those of a clock that never jumps, such as `steady_time()`."""

    def __init__(self, span: float = _SPAN) -> None:
        self._span = span
        self._slots: dict[TopicPartition, int] = {}
        self._born: list[int] = []  # of each slot: how many passes had begun before it,
        self._latest: list[int] = []  # the last known end,
        self._seen: list[float] = []  # and when that was
        self._to_wall = 0.0
        self._count = 0  # passes so far
        self._times: list[float] = []
        self._numbers: list[int] = []
        self._ends: list[array[int]] = []  # a pass is shorter than a later one that has new partitions
        self._notes: dict[TopicPartition, list[tuple[int, float]]] = {}

    def __len__(self) -> int:
        """The number of passes that are kept."""
        return len(self._times)

    def add(self, at: float, ends: Mapping[TopicPartition, int], to_wall: float = 0.0) -> None:
        """`to_wall` is what has to be added to `at` for the time since 1970. It may change."""
        self._to_wall = to_wall
        latest, seen = self._latest, self._seen
        current = array("q", [_UNKNOWN]) * len(self._born)
        slots = self._slots
        for tp, end in ends.items():
            slot = slots.get(tp)
            if slot is None or latest[slot] > end:
                self._new_slot(tp, end, at)
                current.append(end)
            else:
                current[slot] = latest[slot] = end
                seen[slot] = at
        self._times.append(at)
        self._numbers.append(self._count)
        self._ends.append(current)
        self._count += 1
        self._thin_out(at)
        if len(self._born) > 2 * len(ends) + _SPARE:
            self._compact(at, len(ends) + _SPARE)

    def note(self, tp: TopicPartition, offset: int, written: float) -> None:
        """The record at `offset` has this timestamp, in seconds since 1970."""
        notes = self._notes.setdefault(tp, [])
        place = bisect_right(notes, (offset, written))
        notes.insert(place, (offset, written))
        if len(notes) > _MOST_NOTES:
            # Consumers move on: the lowest offset is the least useful one.
            notes.pop(0)

    def written_at(self, tp: TopicPartition, offset: int) -> WrittenAt | None:
        """When the record at `offset`, which is below the latest end, was written. None if that is unknown."""
        slot = self._slots.get(tp)
        if slot is None:
            return None
        before, after = self._around(slot, offset)
        if before is None and (noted := self._noted(tp, offset, after)) is not None:
            return noted
        if before is None or after is None:
            return None
        return _between(before, after, offset)

    def rate(self, partitions: Iterable[TopicPartition], over: float = 60.0) -> float | None:
        """Records per second written to these partitions, over the latest passes: of each since the first of them that
        knows its end. A partition whose end is unknown now is left out. None if none is left."""
        times, ends = self._times, self._ends
        count = len(times)
        if count < 2:
            return None
        first = min(bisect_right(times, times[-1] - over), count - 2)
        rate, is_known = 0.0, False
        for tp in partitions:
            slot = self._slots.get(tp)
            if slot is None or slot >= len(ends[-1]) or ends[-1][slot] == _UNKNOWN:
                continue
            since = first
            while since < count and (slot >= len(ends[since]) or ends[since][slot] == _UNKNOWN):
                since += 1
            if (span := times[-1] - times[since]) > 0:
                rate += (ends[-1][slot] - ends[since][slot]) / span
                is_known = True
        return rate if is_known else None

    # -- parts -------------------------------------------------------------------------------------------------------

    def _around(self, slot: int, offset: int) -> tuple[tuple[int, float] | None, tuple[int, float] | None]:
        """The latest pass whose end was at or below the offset, and the first one whose end was above it."""
        low, high = bisect_right(self._numbers, self._born[slot] - 1), len(self._times)
        first = low
        before = after = None
        while low < high:
            middle = (low + high) // 2
            probe = middle
            # The end is unknown while the partition has no leader: the next pass that knows it decides.
            while probe < high and self._ends[probe][slot] == _UNKNOWN:
                probe += 1
            if probe == high or self._ends[probe][slot] > offset:
                high = middle
            else:
                low = probe + 1
        for index in range(low, len(self._times)):
            if (end := self._ends[index][slot]) != _UNKNOWN:
                after = (end, self._times[index])
                break
        for index in range(low - 1, first - 1, -1):
            if (end := self._ends[index][slot]) != _UNKNOWN:
                before = (end, self._times[index])
                break
        return before, after

    def _noted(self, tp: TopicPartition, offset: int, after: tuple[int, float] | None) -> WrittenAt | None:
        notes = self._notes.get(tp)
        if not notes:
            return None
        place = bisect_right(notes, offset, key=lambda note: note[0])
        if place == 0:
            return None
        before = self._steady(notes[place - 1])
        if before[0] == offset:
            return WrittenAt(before[1], 0.0)
        following = self._steady(notes[place]) if place < len(notes) else after
        return None if following is None else _between(before, following, offset)

    def _steady(self, note: tuple[int, float]) -> tuple[int, float]:
        return note[0], note[1] - self._to_wall

    def _new_slot(self, tp: TopicPartition, end: int, at: float) -> None:
        self._notes.pop(tp, None)
        self._slots[tp] = len(self._born)
        self._born.append(self._count)
        self._latest.append(end)
        self._seen.append(at)

    def _thin_out(self, now: float) -> None:
        """Keeps passes at distances of `_COARSE` of their age. The two latest ones and the oldest one stay."""
        times = self._times
        kept = [True] * len(times)
        if times[0] < now - self._span:
            kept[0] = False
        before = 0
        for index in range(1, len(times) - 2):
            if times[index + 1] - times[before] <= _COARSE * (now - times[index + 1]):
                kept[index] = False
            else:
                before = index
        if not all(kept):
            self._times = [it for it, keep in zip(times, kept, strict=True) if keep]
            self._numbers = [it for it, keep in zip(self._numbers, kept, strict=True) if keep]
            self._ends = [it for it, keep in zip(self._ends, kept, strict=True) if keep]

    def _compact(self, at: float, spare: int) -> None:
        """Frees the slots of partitions that are gone, if there are more than `spare`."""
        live = sorted((slot, tp) for tp, slot in self._slots.items() if self._seen[slot] > at - _GONE_AFTER)
        if len(self._born) <= len(live) + spare:
            return
        for index, found in enumerate(self._ends):
            self._ends[index] = array("q", [found[slot] for slot, _ in live if slot < len(found)])
        self._born = [self._born[slot] for slot, _ in live]
        self._latest = [self._latest[slot] for slot, _ in live]
        self._seen = [self._seen[slot] for slot, _ in live]
        self._slots = {tp: number for number, (_, tp) in enumerate(live)}
        self._notes = {tp: notes for tp, notes in self._notes.items() if tp in self._slots}


def _between(before: tuple[int, float], after: tuple[int, float], offset: int) -> WrittenAt:
    (low, since), (high, until) = before, after
    part = (offset - low) / (high - low) if high > low else 1.0
    span = until - since
    return WrittenAt(since + span * part, abs(span) * max(part, 1 - part))
