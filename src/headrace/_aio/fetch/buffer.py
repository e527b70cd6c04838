"""The state that the threads of a consumer share, and the lock that guards it.

Three kinds of threads meet here: the event loop's (it plans fetches and receives responses), the decoding threads (they
add records), and the user's (it takes records, seeks, pauses). Everything that they share is behind `lock`: the cluster
view, the assignment with its buffers, the fetch decisions. The lock is held for short, synchronous steps only, never
across an await, I/O, decoding or a user's callback.

Where the records of a partition come from is the `source`'s business (`source.py`).
"""

from __future__ import annotations

import collections
import logging
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Protocol

from ..._machines.cluster import Cluster
from ..._machines.commit.offset_set import LAST_OFFSET, OffsetSet
from ..._machines.error_pacing import RETRIED, ErrorPacing
from ..._machines.fetch.partition import Chunk, PartitionState, Position, repeated_if_interrupted
from ..._machines.positions.positions import LostRange
from ..._protocol.codes import topics_denied
from ...config.consumer import ConsumerConfig
from ...errors import HeadraceError
from ...records import Record, Records
from ...types import TopicPartition, Watermarks
from ..background import BackgroundErrors
from ..poll_signal import PollSignal
from .handover import Delivered, Handover, RecordOrigin, Unseen, by_origin, fetch_again, give_back
from .partitions import FetchedPartitions
from .poll_receiving import PollReceiving
from .source import PlainSource, ReadingStart, RecordSource

log = logging.getLogger(__name__)


class InFlight(Protocol):
    """The records that were handed out and are not done (commit.mode=done), as far as an iteration changes them."""

    def withdrawn(self, records: Records) -> None: ...
    def delivered_again(self, record: Record) -> None: ...


class FetchBuffer(FetchedPartitions):
    """The shared state. Every public method takes the lock itself, unless it says that the lock is held.

    `lane` is `Record.lane` of the records that are read from the positions on, `budget` their part of queued.max.bytes.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        make_source: Callable[[FetchedPartitions], RecordSource] = PlainSource,
        *,
        lane: str | None = None,
        budget: int | None = None,
    ) -> None:
        budget = config.queued_max_bytes if budget is None else budget
        super().__init__(config, threading.Lock(), Cluster(), PollSignal(), lane=lane, budget=budget)
        self.poll_receiving: PollReceiving = PollReceiving(self.poll_signal)
        self.records_returned = 0
        self.bytes_returned = 0
        self.polls = 0
        self.offsets_skipped = 0
        self.lost: collections.deque[LostRange] = collections.deque()  # the listener does not know of these yet
        self.assignments = 0  # how often partitions were assigned or given up
        self._background = BackgroundErrors()
        self.pace = ErrorPacing()
        self.denied: frozenset[str] = frozenset()  # subscribed topics that brokers do not describe to this client
        self._has_raised = False  # the last poll has
        self.handover = Handover(is_confirmed=True)  # belongs to the thread that polls
        self._last_one: tuple[RecordOrigin, Record] | None = None  # that an iteration has handed out
        self._iteration: Generator[Record, None, None] | None = None
        self.source = make_source(self)

    def crashed(self, error: BaseException) -> None:
        """Polls raise it, instead of staying empty for ever."""
        self._background.crash = error

    def obstructed(self, error: HeadraceError | None) -> None:
        """No broker can be asked, for a reason that retries do not resolve: polls raise it. None: it is over."""
        self._background.obstacle = error
        self.poll_signal.notify()

    @property
    def refusal(self) -> HeadraceError | None:
        """The error that keeps this consumer from reaching any broker for good, if there is one."""
        return self._background.refusal

    def skipped(self, lost: LostRange, *, has_listener: bool) -> None:
        """A reset has skipped these. The lock is held."""
        self.offsets_skipped += lost.end - lost.start
        if has_listener:
            self.lost.append(lost)

    def take(self, limit: int, *, is_late: bool = False) -> Records | None:
        """The records of one poll, or None if there are none. Raises the error that blocks a partition: once before the
        records of others, which may never end, and then when there are none. The same error is not raised too often
        (`pace`), which depends on whether the poll's time is up (`is_late`)."""
        now = time.monotonic()
        source = self.source
        with self.lock:
            error = None if self._has_raised else self._pending_error(now, news=True)
            chunks: list[Chunk] = []
            if error is None:
                handover = self.handover = Handover()
                chunks = source.take(limit, handover.taken)
            wake_fetching = source.consume_needs_fetch()
            moved = False
            if not chunks:
                moved = self.assignment.resolve_out_of_range()
            if not chunks and error is None:
                error = self._pending_error(now, is_late=is_late)
            self._has_raised = error is not None
        if wake_fetching is not None:
            wake_fetching()
        if moved:
            self.wake_all()
        if error is not None:
            raise error.with_traceback(None)  # of the last time
        if not chunks:
            self._background.raise_due(self.pace, now, is_late)
            return None
        records = Records(chunks)  # type: ignore[arg-type]  # only decode() makes them
        self.records_returned += len(records)
        self.bytes_returned += records.nbytes
        return records

    def _pending_error(self, now: float, *, news: bool = False, is_late: bool = False) -> HeadraceError | None:
        """The lock is held."""
        faulty = [assignment for assignment in self.source.assignments if assignment.is_faulty]
        if not faulty and not self.denied:  # as a rule
            return None
        topics = self.denied.union(*(assignment.denied_topics() for assignment in faulty))
        if topics and self.pace.admits(denied := topics_denied(topics), now, RETRIED):
            return denied
        found = (each.pending_error(self.pace, now, news=news, is_late=is_late) for each in faulty)
        return next((error for error in found if error is not None), None)

    # -- handing over ------------------------------------------------------------------------------------------

    def poll_begins(self) -> None:
        """The user has finished with the records of the last poll. Those that it has not returned, because it was
        interrupted, are given back."""
        self.end_iteration()
        self.recover()
        self._forget_handover()

    def recover(self) -> None:
        """After an interrupt."""
        if not self.handover.is_confirmed:
            self.take_back()

    def _forget_handover(self) -> None:
        self.handover = Handover(is_confirmed=True)
        self._last_one = None

    def take_back(self) -> None:
        """As if the last poll had returned nothing: the next one returns its records. Of an iteration, the last
        record."""
        self.end_iteration()
        handover, last_one = self.handover, self._last_one
        with self.lock:
            self.source.undo(handover.taken)
            if last_one is not None and (state := last_one[0].unmoved_state) is not None:
                offset = last_one[1].offset
                if state.position is None or offset < state.position.offset:  # else the log was truncated before it
                    state.position = Position(offset)
                    state.refetch()
        if handover.untrack is not None:
            handover.untrack()
        self._forget_handover()
        self.wake_all()

    @property
    def last_delivery(self) -> Delivered:
        """The records that the user got last."""
        return Delivered(self.handover, self._last_one)

    def finished(self, partitions: Mapping[TopicPartition, int] | None, what: Delivered) -> None:
        """The user has committed the records of the last poll, all of them or up to these offsets: `take_back` does not
        take those back. `what` is the last delivery before the commit: another task may have polled since."""
        if partitions is None:
            if what.handover is self.handover and what.record is self._last_one:
                self._forget_handover()
            return
        taken = self.handover.taken
        taken[:] = [each.finished(partitions.get(each.state.tp, 0)) for each in taken]
        if self._last_one is not None:
            origin, record = self._last_one
            if record.offset < partitions.get(origin.tp, 0):
                self._last_one = None

    # -- record by record --------------------------------------------------------------------------------------

    def one_by_one(self, records: Records, completions: InFlight | None = None) -> Iterator[Record]:
        """The records of a poll. The position moves with each of them and not with all at once. Those of a partition
        that the user seeks or gives up in between are left out; those that are not taken, because the program left the
        loop, are returned by the next poll.

        The poll has not confirmed them: interrupted before the first one is taken, all are returned again. With
        `completions` a record is in flight from when it is handed out."""
        self._iteration = self._walk(records, completions)
        return self._iteration

    def end_iteration(self) -> None:
        """Gives back what the iteration has not handed out. Python gives no signal when a program leaves its loop (an
        asynchronous iterator is not even closed then), so the next poll calls this."""
        if self._iteration is not None:
            self._iteration.close()
            self._iteration = None

    def _walk(self, records: Records, completions: InFlight | None) -> Generator[Record, None, None]:
        left: list[Unseen] = []
        with self.lock:
            for (tp, lane), own in by_origin(records).items():
                assignment = self.source.assignment_of(lane)
                state = assignment.get(tp)
                if state is not None:
                    left.append(Unseen(RecordOrigin(assignment, tp, state.start, state.origin, state.position), own))
                    state.position = Position(own[0].offset)
        try:
            if completions is not None:
                completions.withdrawn(records)
            self.handover = Handover(is_confirmed=True)
            while left:
                first = left[0]
                origin = first.origin
                for record in first.records:
                    if not self._move(origin, Position(record.offset + 1, record.leader_epoch)):
                        break
                    if completions is not None:
                        completions.delivered_again(record)
                    first.taken += 1
                    self._last_one = (origin, record)
                    yield record
                else:
                    self._move(origin, origin.end)
                del left[0]
        finally:
            # An interrupt (Ctrl-C) can come as soon as the lock is held: hence the lock inside of the try.
            try:
                with self.lock:
                    give_back(left)
            except BaseException:
                with self.lock:
                    fetch_again(left)
                self.wake_all()
                raise
            if completions is not None:
                for each in left:
                    completions.withdrawn(each.records[each.taken :])

    def _move(self, origin: RecordOrigin, position: Position | None) -> bool:
        with self.lock:
            state = origin.state
            if state is None:
                return False
            state.position = position
            return True

    # -- what a user asks or changes between polls -----------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        chosen = list(partitions)

        @repeated_if_interrupted
        def assign() -> None:
            self.assignments += 1
            self.assignment.assign(chosen)
            self.assignment.follow(self.cluster)
            self.source.keep(self.assignment.partitions)

        with self.lock:
            assign()
        self.wake_all()

    def change(self, partitions: Iterable[TopicPartition], change: Callable[[PartitionState], None]) -> None:
        """Applies `change` to all of the partitions, wherever they are read, or raises StateError and changes none."""
        with self.lock:
            states = [state for tp in partitions for state in self.source.states(tp)]

            @repeated_if_interrupted
            def change_all() -> None:
                for state in states:
                    change(state)

            change_all()
        self.wake_all()

    def move(self, partitions: Iterable[TopicPartition], change: Callable[[PartitionState], None]) -> None:
        """Moves the positions of the partitions. From now on they are read there, and nowhere else."""
        with self.lock:
            states = [self.assignment.state(tp) for tp in partitions]

            @repeated_if_interrupted
            def move() -> None:
                self.source.drop([state.tp for state in states])
                for state in states:
                    change(state)

            move()
        self.wake_all()

    def read_range(self, tp: TopicPartition, start: int, stop: int) -> None:
        """Hands out these offsets, and fetches nothing from `stop` on."""
        with self.lock:
            state = self.assignment.state(tp)
            state.seek(Position(start))
            state.stop = stop
            state.already_done = OffsetSet(LAST_OFFSET, [(0, stop)])
        self.wake_all()

    def rewind(self, tp: TopicPartition, done: OffsetSet) -> None:
        """Hands out again what was handed out and is not done."""
        with self.lock:
            state = self.assignment.get(tp)
            if state is None:
                return
            done = self.source.rewind(tp, done)
            state.seek(Position(done.low))
            state.already_done = done
        self.wake_all()

    def withhold(self, partitions: Iterable[TopicPartition], withheld: bool) -> None:
        """Hands out nothing more of these, or resumes them. What was fetched ahead is dropped."""
        with self.lock:
            for tp in partitions:
                for state in self.source.states(tp) if tp in self.assignment else ():
                    state.withheld = withheld
                    if withheld:
                        state.refetch()
        self.wake_all()

    def reading_start(self, tp: TopicPartition) -> ReadingStart:
        with self.lock:
            return self.source.reading_start(tp)

    def handed_out(self) -> dict[TopicPartition, Watermarks]:
        """From where to where partitions were read that are read at more than one place."""
        with self.lock:
            return self.source.handed_out()

    def follow_metadata(self) -> None:
        """The cluster view has changed. The lock is held."""
        recreated = self.assignment.follow(self.cluster)
        for tp in recreated:
            log.warning("the topic of %s was deleted and recreated: its old offsets are invalid", tp)
        self.source.drop(recreated)
        self.source.follow(self.cluster)

    def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, uuid.UUID | None]:
        """Of the topics that were read, which may be others than those of the same names now. The lock is held."""
        ids: dict[str, uuid.UUID | None] = {}
        for tp in partitions:
            state = self.assignment.get(tp)
            ids[tp.topic] = (state and state.topic_id) or self.cluster.topic_id(tp.topic)
        return ids

    def partitions(self) -> set[TopicPartition]:
        with self.lock:
            return self.assignment.partitions

    def ordered_partitions(self) -> list[TopicPartition]:
        """In the order in which they were assigned."""
        with self.lock:
            return [state.tp for state in self.assignment]
