"""Which records were handed out, and which of them are done: with `commit.mode=done`, commits follow completion
(KIP-983).

Work ends in any order and on any thread, but a committed offset says that everything before it is done. So a commit has
the lowest offset that is not done, and in its metadata what is done beyond it: the next owner, if it is headrace, does
not get those records again.

`done` and `in_flight` may be called from any thread; everything is behind a lock of its own, which is never held
together with another one. Watchers are called with it held: they wake somebody, and do nothing else.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable

from ..._machines.commit.completion import Completion
from ..._machines.commit.offset_set import OffsetSet, Range
from ...records import Batch, Record, Records
from ...types import TopicPartition
from ..background import call_if_open
from ..fetch.source import ReadingStart
from ..poll_signal import PollSignal


class _Tracked:
    __slots__ = ("between", "completion", "next")

    def __init__(self, start: ReadingStart, first: Batch) -> None:
        assert first.first_offset is not None
        done = start.already_done or OffsetSet(first.first_offset)
        self.completion = Completion(done)
        # Both by `Record.lane`. What was delivered ends here, and these offsets are not read there.
        self.next: dict[str | None, int] = dict(start.next) or {first.lane: min(first.first_offset, done.low)}
        self.between = start.between

    def is_refuted(self, batch: Batch) -> bool:
        """Whether it has other records at offsets that are done: the topic was recreated, or its log truncated.
        (Records that were handed out and come again for another reason are not done.)"""
        first = batch.first_offset
        if first is None or first >= self.next.get(batch.lane, 0):
            return False
        done = self.completion.as_set()
        return any(record.offset in done for record in batch)

    def passed(self, lane: str | None, start: int, end: int) -> None:
        """There are no records, or they were done before. But another lane may have to read what is not read here."""
        spans = self.between[lane].open(start, end) if lane in self.between else [(start, end)]
        for first, last in spans:
            self.completion.done_range(first, last)


class CompletionTracker:
    """The partitions of one consumer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[TopicPartition, _Tracked] = {}
        self._watchers: list[Callable[[], None]] = []  # called on any thread when a partition has nothing in flight

    # -- the consumer ------------------------------------------------------------------------------------------

    def delivered(self, records: Records, reading_start: Callable[[TopicPartition], ReadingStart]) -> None:
        """These are handed out. `reading_start` says how the reading of a partition began."""
        with self._lock:
            for batch in records._batches:
                tp = TopicPartition(batch.topic, batch.partition)
                tracked = self._partitions.get(tp)
                if tracked is None or tracked.is_refuted(batch):
                    tracked = self._partitions[tp] = _Tracked(reading_start(tp), batch)
                _deliver(tracked, batch)

    def delivered_again(self, record: Record) -> None:
        """One of those that were withdrawn is handed out."""
        with self._lock:
            tracked = self._partitions.get(TopicPartition(record.topic, record.partition))
            if tracked is not None:
                tracked.completion.delivered(record.offset, record.offset + 1)

    def withdrawn(self, records: Records) -> None:
        """Nobody has got these, and their positions are back before them: they will be delivered again. Without that
        they would be in flight until then, and a caller that waits for all work would wait in vain."""
        with self._lock:
            for batch in records._batches:
                tracked = self._partitions.get(TopicPartition(batch.topic, batch.partition))
                first, last = batch.first_offset, batch.last_offset
                if tracked is not None and first is not None and last is not None:
                    tracked.completion.withdrawn(first, last + 1)
            self._notify()

    def given_back(self, tp: TopicPartition, but: Collection[int]) -> None:
        """All that is in flight of a partition will be delivered again. Only these offsets are still worked on."""
        with self._lock:
            tracked = self._partitions.get(tp)
            if tracked is not None:
                for first, last in tracked.completion.in_flight():
                    tracked.completion.withdrawn(first, last)
                for offset in but:
                    tracked.completion.delivered(offset, offset + 1)
            self._notify()

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """They were given up or sought: what was handed out of them does not count any more."""
        with self._lock:
            for tp in partitions:
                self._partitions.pop(tp, None)
            self._notify()

    def committable(self, tp: TopicPartition) -> OffsetSet | None:
        """What may be committed of a partition; None if nothing is in flight, so that its position may."""
        with self._lock:
            tracked = self._partitions.get(tp)
            if tracked is None or tracked.completion.open_count == 0:
                return None
            return tracked.completion.as_set()

    # -- the user ----------------------------------------------------------------------------------------------

    def done(self, work: Record | Records) -> None:
        with self._lock:
            was_open = True
            if isinstance(work, Record):
                tracked = self._partitions.get(TopicPartition(work.topic, work.partition))
                if tracked is not None:
                    tracked.completion.done(work.offset)
                    was_open = tracked.completion.open_count > 0
            else:
                for batch in work._batches:
                    tracked = self._partitions.get(TopicPartition(batch.topic, batch.partition))
                    if tracked is not None:
                        _finish(tracked, batch)
                        was_open &= tracked.completion.open_count > 0
            if not was_open:
                self._notify()

    def in_flight(self, partitions: Collection[TopicPartition] | None) -> dict[TopicPartition, int]:
        """How many records of each partition are handed out and not done; those that have none are left out."""
        with self._lock:
            return self._open(partitions)

    def open_ranges(self) -> dict[TopicPartition, list[Range]]:
        """What is in flight, offset by offset."""
        with self._lock:
            return {tp: ranges for tp, each in self._partitions.items() if (ranges := each.completion.in_flight())}

    def wait(self, partitions: Collection[TopicPartition] | None, timeout: float) -> dict[TopicPartition, int]:
        """The same, as soon as there are none or the time is up."""
        deadline, signal = time.monotonic() + timeout, PollSignal()
        with self._lock:
            self._watchers.append(signal.notify)
        try:
            while True:
                signal.clear()
                found = self.in_flight(partitions)
                if not found or (left := deadline - time.monotonic()) <= 0:
                    return found
                signal.wait(left)
        finally:
            with self._lock:
                self._watchers.remove(signal.notify)

    async def wait_async(
        self, partitions: Collection[TopicPartition] | None, timeout: float
    ) -> dict[TopicPartition, int]:
        loop, quiet = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            call_if_open(loop, quiet.set)

        with self._lock:
            self._watchers.append(notify)
        try:
            async with asyncio.timeout(timeout):
                while self.in_flight(partitions):
                    await quiet.wait()
                    quiet.clear()
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._watchers.remove(notify)
        return self.in_flight(partitions)

    def _open(self, partitions: Collection[TopicPartition] | None) -> dict[TopicPartition, int]:
        return {
            tp: tracked.completion.open_count
            for tp, tracked in self._partitions.items()
            if tracked.completion.open_count and (partitions is None or tp in partitions)
        }

    def _notify(self) -> None:
        for watcher in self._watchers:
            watcher()


def _deliver(tracked: _Tracked, batch: Batch) -> None:
    first, last = batch.first_offset, batch.last_offset
    assert first is not None
    assert last is not None
    completion, lane = tracked.completion, batch.lane
    if first > tracked.next[lane]:
        tracked.passed(lane, tracked.next[lane], first)
    completion.delivered(first, last + 1)
    if last + 1 - first != len(batch):
        before = first
        for record in batch:
            if record.offset > before:
                completion.done_range(before, record.offset)  # compacted, or aborted
            before = record.offset + 1
    if batch.next_offset > last + 1:
        tracked.passed(lane, last + 1, batch.next_offset)
    tracked.next[lane] = batch.next_offset


def _finish(tracked: _Tracked, batch: Batch) -> None:
    first, last = batch.first_offset, batch.last_offset
    if first is not None and last is not None:
        tracked.completion.done_range(first, last + 1)
