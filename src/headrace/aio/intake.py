"""What the threads of a consumer share, and the lock that guards it.

Three kinds of threads meet here: the one with the event loop (it plans fetches and takes answers in), the
decoding ones (they add records), and the user's (it takes records out, seeks, pauses). Everything that they
share is behind `lock`: the cluster view, the assignment with its buffers, the fetch decisions. The lock is held
for short, synchronous steps only, never across an await, I/O, decoding or a user's callback.

`Doorbell` is how one of them tells another that it is worth looking again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator

from ..config import ConsumerConfig
from ..errors import HeadraceError
from ..machines.assignment import Assignment
from ..machines.cluster import Cluster
from ..machines.fetching import Fetching
from ..machines.partition import PartitionState, Position
from ..offsets import OffsetSet
from ..records import Batch, Record, Records
from ..types import TopicPartition

log = logging.getLogger(__name__)


_SHORT_SLEEP = 0.5


class Doorbell:
    """Wakes the one who waits in poll(), be it a thread or a task.

    `ring` may be called from any thread, with or without the intake's lock, and in a signal handler, even one
    that interrupts `clear` or `wait`: hence a bare lock, held while the bell is silent, and not an Event, whose
    own lock the handler would wait for in vain. A ring with nobody waiting is remembered until the next wait, so
    none gets lost between a look at the buffer and the wait.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()
        self._task_side: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has rung already
            self._silent.release()
        side = self._task_side
        if side is not None:
            loop, event = side
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits there any more
                loop.call_soon_threadsafe(event.set)

    def clear(self) -> None:
        """To be called before the look at the buffer that the wait follows."""
        self._silent.acquire(blocking=False)

    def wait(self, timeout: float) -> None:
        """May end early, with nothing having happened: a signal (Ctrl-C) that comes just before the thread falls
        asleep is noticed only when it wakes, so it never sleeps for long."""
        if self._silent.acquire(timeout=min(timeout, _SHORT_SLEEP)):
            self.ring()

    async def wait_async(self, timeout: float) -> None:
        event = asyncio.Event()
        self._task_side = (asyncio.get_running_loop(), event)
        try:
            if not self._silent.locked():
                return
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._task_side = None


def _nobody() -> None:
    """Nobody is there yet to be woken."""


class Intake:
    """The shared state. Every public method takes the lock itself."""

    def __init__(self, config: ConsumerConfig) -> None:
        self.lock = threading.Lock()
        self.cluster = Cluster()
        self.assignment = Assignment(
            config.auto_offset_reset, config.poll_drain_strategy, 2 * config.max_partition_fetch_bytes
        )
        self.fetching = Fetching(config, self.assignment, self.cluster)
        self.doorbell = Doorbell()
        self.records_returned = 0
        self.bytes_returned = 0
        self.polls = 0
        self.assignments = 0  # how often partitions came or went
        self._crash: BaseException | None = None
        self._iteration: Generator[Record, None, None] | None = None
        # Set by the engine. The first two may be called from any thread, the others on the loop's only.
        self.wake_all: Callable[[], None] = _nobody
        self.wake_fetching: Callable[[], None] = _nobody
        self.fetch_soon: Callable[[], None] = _nobody
        self.positions_soon: Callable[[], None] = _nobody

    def watch(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """A task that must not end by itself. If it does, that is a bug of ours: polls tell it instead of staying
        empty for ever."""
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the task %s ended: %r", task.get_name(), error, exc_info=error)
            self._crash = error
            self.doorbell.ring()

    def fail(self, partitions: Iterable[TopicPartition], error: HeadraceError) -> None:
        """What stopped the fetching cannot be mended by trying again: a poll raises it."""
        with self.lock:
            for tp in partitions:
                state = self.assignment.get(tp)
                if state is not None:
                    state.fault = error
        self.doorbell.ring()

    def take(self, limit: int) -> Records | None:
        """The records of one poll, or None if there are none. Raises what lies in a partition's way then."""
        with self.lock:
            assignment = self.assignment
            chunks: list[Batch] = assignment.take(limit)  # type: ignore[assignment]  # only decode() makes them
            appetite = assignment.has_appetite or self.fetching.is_starved
            assignment.has_appetite = False
            moved, error = False, None
            if not chunks:
                moved = assignment.resolve_out_of_range()
                error = assignment.pending_error()
        if appetite:
            self.wake_fetching()
        if moved or error is not None:
            self.wake_all()  # after a refusal it is tried again
        if error is not None:
            raise error
        if self._crash is not None and not chunks:
            raise HeadraceError(f"a background task of this consumer ended: {self._crash!r}") from self._crash
        if not chunks:
            return None
        records = Records(chunks)
        self.records_returned += len(records)
        self.bytes_returned += records.nbytes
        return records

    # -- record by record --------------------------------------------------------------------------------------

    def one_by_one(self, records: Records) -> Iterator[Record]:
        """The records of a poll, with the position moving as they are taken and not all at once. Those of a
        partition that the user seeks or gives up in between are left out; those that are not taken at all,
        because the iteration was left, come again with the next poll."""
        self._iteration = self._walk(records)
        return self._iteration

    def end_iteration(self) -> None:
        """Gives back what the iteration has not handed out. A program that leaves its loop does not say so (an
        asynchronous iterator is not even closed then), so the next poll asks for it."""
        if self._iteration is not None:
            self._iteration.close()
            self._iteration = None

    def _walk(self, records: Records) -> Generator[Record, None, None]:
        left: dict[TopicPartition, tuple[Records, int, Position | None]] = {}
        with self.lock:
            for tp in records.partitions:
                state = self.assignment.get(tp)
                if state is not None:
                    left[tp] = (records[tp], state.start, state.position)
                    state.position = Position(records[tp][0].offset)
        taken = 0
        try:
            for tp, (own, start, end) in list(left.items()):
                taken = 0
                for record in own:
                    if not self._move(tp, start, Position(record.offset + 1, record.leader_epoch)):
                        break
                    taken += 1
                    yield record
                else:
                    self._move(tp, start, end)
                del left[tp]
        finally:
            # `taken` belongs to the first one that is left.
            with self.lock:
                for tp, (own, start, _) in left.items():
                    state = self.assignment.get(tp)
                    if state is not None and state.start == start:
                        state.give_back(own[taken:]._batches)
                    taken = 0

    def _move(self, tp: TopicPartition, start: int, position: Position | None) -> bool:
        with self.lock:
            state = self.assignment.get(tp)
            if state is None or state.start != start:
                return False
            state.position = position
            return True

    # -- what a user asks or changes between polls -----------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        with self.lock:
            self.assignments += 1
            self.assignment.assign(partitions)
            self.assignment.follow(self.cluster)
        self.wake_all()

    def change(self, partitions: Iterable[TopicPartition], change: Callable[[PartitionState], None]) -> None:
        """Applies `change` to all of the partitions, or raises StateError and changes none."""
        with self.lock:
            for state in [self.assignment.state(tp) for tp in partitions]:
                change(state)
        self.wake_all()

    def withhold(self, partitions: Iterable[TopicPartition], withheld: bool) -> None:
        """Hands out nothing more of these, or goes on with them. What was fetched ahead is dropped."""
        with self.lock:
            for tp in partitions:
                state = self.assignment.get(tp)
                if state is None:
                    continue
                state.withheld = withheld
                if withheld:
                    state.refetch()
        self.wake_all()

    def known(self, tp: TopicPartition) -> OffsetSet | None:
        """What was done of a partition, by its last owner's commit, when its reading began here."""
        with self.lock:
            state = self.assignment.get(tp)
            return None if state is None else state.known

    def positions(self) -> dict[TopicPartition, Position]:
        with self.lock:
            return self.assignment.positions()

    def partitions(self) -> set[TopicPartition]:
        with self.lock:
            return self.assignment.partitions

    def ordered_partitions(self) -> list[TopicPartition]:
        """In the order in which polls go around them."""
        with self.lock:
            return [state.tp for state in self.assignment]
