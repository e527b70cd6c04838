"""What was handed out, and what of it is done: with `commit.mode=done`, commits follow completion (KIP-983).

Work ends in any order and on any thread, but a committed offset says that everything before it is done. So a commit has
the lowest offset that is not done, and in its metadata what is done beyond it: the next owner, if it is headrace, does
not get that again.

`done` and `in_flight` may be called from any thread; everything is behind a lock of its own, which is never held
together with another one. Watchers are called with it held: they wake somebody, and do nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable

from ..completion import Completion
from ..machines.lanes import Lanes
from ..offsets import OffsetSet
from ..records import Batch, Record, Records
from ..types import TopicPartition
from .doorbell import Doorbell


class _Tracked:
    __slots__ = ("completion", "next", "within")

    def __init__(self, known: OffsetSet, lanes: Lanes | None, lane: str | None, first: int) -> None:
        self.completion = Completion(known)
        self.within = None if lanes is None else lanes.within  # done outside of the backlog's ranges
        # What was delivered of each lane ends here.
        self.next: dict[str | None, int] = {lane: first}
        if lanes is not None:
            self.next = {"live": lanes.live_start, "backlog": 0}

    def is_refuted(self, batch: Batch) -> bool:
        """Whether it has records that were done already: others, at the same offsets. The topic was made again, or its
        log cut short. (Records that were handed out and come again for another reason are not done.)"""
        first = batch.first_offset
        if first is None or first >= self.next.get(batch.lane, 0):
            return False
        done = self.completion.as_set()
        return any(record.offset in done for record in batch)

    def passed(self, lane: str | None, start: int, end: int) -> None:
        """No records are there, or they were done before. What lies between the backlog's ranges is not its own."""
        spans = self.within.open(start, end) if self.within is not None and lane == "backlog" else [(start, end)]
        for first, last in spans:
            self.completion.done_range(first, last)


class Completions:
    """The partitions of one consumer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[TopicPartition, _Tracked] = {}
        self._watchers: list[Callable[[], None]] = []  # called on any thread when a partition has nothing in flight

    # -- the consumer ------------------------------------------------------------------------------------------

    def delivered(
        self, records: Records, begun: Callable[[TopicPartition], tuple[OffsetSet | None, Lanes | None]]
    ) -> None:
        """These are handed out. `begun` tells what was done of a partition when its reading began, and its lanes."""
        with self._lock:
            for batch in records._batches:
                tp = TopicPartition(batch.topic, batch.partition)
                tracked = self._partitions.get(tp)
                if tracked is None or tracked.is_refuted(batch):
                    first = batch.first_offset
                    assert first is not None
                    known, lanes = begun(tp)
                    start = known or OffsetSet(first)
                    tracked = self._partitions[tp] = _Tracked(start, lanes, batch.lane, min(first, start.low))
                _deliver(tracked, batch)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """They are read elsewhere now, or by others: what was handed out of them has no meaning any more."""
        with self._lock:
            for tp in partitions:
                self._partitions.pop(tp, None)
            self._tell()

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
                self._tell()

    def in_flight(self, partitions: Collection[TopicPartition] | None) -> dict[TopicPartition, int]:
        """How many records of each partition are handed out and not done; those that have none are left out."""
        with self._lock:
            return self._open(partitions)

    def wait(self, partitions: Collection[TopicPartition] | None, timeout: float) -> dict[TopicPartition, int]:
        """The same, as soon as there are none or the time is up."""
        deadline, bell = time.monotonic() + timeout, Doorbell()
        with self._lock:
            self._watchers.append(bell.ring)
        try:
            while True:
                bell.clear()
                found = self.in_flight(partitions)
                if not found or (left := deadline - time.monotonic()) <= 0:
                    return found
                bell.wait(left)
        finally:
            with self._lock:
                self._watchers.remove(bell.ring)

    async def wait_async(
        self, partitions: Collection[TopicPartition] | None, timeout: float
    ) -> dict[TopicPartition, int]:
        loop, quiet = asyncio.get_running_loop(), asyncio.Event()

        def ring() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits there any more
                loop.call_soon_threadsafe(quiet.set)

        with self._lock:
            self._watchers.append(ring)
        try:
            async with asyncio.timeout(timeout):
                while self.in_flight(partitions):
                    await quiet.wait()
                    quiet.clear()
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._watchers.remove(ring)
        return self.in_flight(partitions)

    def _open(self, partitions: Collection[TopicPartition] | None) -> dict[TopicPartition, int]:
        return {
            tp: tracked.completion.open_count
            for tp, tracked in self._partitions.items()
            if tracked.completion.open_count and (partitions is None or tp in partitions)
        }

    def _tell(self) -> None:
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
