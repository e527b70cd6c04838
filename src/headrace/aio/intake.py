"""What the threads of a consumer share, and the lock that guards it.

Three kinds of threads meet here: the one with the event loop (it plans fetches and takes answers in), the
decoding ones (they add records), and the user's (it takes records out, seeks, pauses). Everything that they
share is behind `lock`: the cluster view, the assignment with its buffers, the fetch decisions. The lock is held
for short, synchronous steps only, never across an await, I/O, decoding or a user's callback.

With `enable.parallel.rebalance` there are two lanes: the intake itself is the live one, and `backlog` lies beside it.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import NamedTuple

from ..config import ConsumerConfig
from ..errors import AuthenticationError, HeadraceError
from ..machines.assignment import Assignment, TakenFrom
from ..machines.cluster import Cluster
from ..machines.lanes import Lanes
from ..machines.pace import RETRIED, STAYS, Pace
from ..machines.partition import Chunk, PartitionState, Position
from ..offsets import LAST_OFFSET, OffsetSet
from ..protocol.codes import topics_denied
from ..records import Batch, Record, Records
from ..types import TopicPartition, Watermarks
from .backlog import Backlog, LostRange
from .doorbell import Doorbell
from .lane import Lane


@dataclasses.dataclass(slots=True)
class Handover:
    """Records on their way from the buffers to the caller of poll(), and from where they were taken.

    A signal handler may raise between two instructions on the main thread (Ctrl-C). So whatever a poll takes is noted
    before it is taken, and `is_confirmed` is set by the very last statement of poll(): records that are not confirmed
    have not arrived, and are taken back. No signal comes between that statement and the return: CPython handles
    signals when a function begins, when a loop jumps back, and after calls.
    """

    live: list[TakenFrom] = dataclasses.field(default_factory=list)
    backlog: list[TakenFrom] = dataclasses.field(default_factory=list)
    is_confirmed: bool = False


class Intake(Lane):
    """The shared state. Every public method takes the lock itself."""

    def __init__(self, config: ConsumerConfig) -> None:
        lock, cluster, doorbell = threading.Lock(), Cluster(), Doorbell()
        two = config.enable_parallel_rebalance
        budget = config.queued_max_bytes // 2 if two else config.queued_max_bytes
        super().__init__(config, lock, cluster, doorbell, name="live" if two else None, budget=budget)
        self.backlog = Backlog(config, lock, cluster, doorbell, budget) if two else None
        self.records_returned = 0
        self.bytes_returned = 0
        self.polls = 0
        self.offsets_skipped = 0
        self.lost: collections.deque[LostRange] = collections.deque()  # by resets, and not told to the listener yet
        self.assignments = 0  # how often partitions came or went
        self._crash: BaseException | None = None
        self._obstacle: HeadraceError | None = None
        self.pace = Pace()
        self.denied: frozenset[str] = frozenset()  # topics that are subscribed, and that brokers tell nothing of
        self._has_raised = False  # the last poll has
        self.handover = Handover(is_confirmed=True)  # belongs to the thread that polls
        self._last_one: tuple[_Place, Record] | None = None  # that an iteration has handed out
        self._iteration: Generator[Record, None, None] | None = None

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return (self,) if self.backlog is None else (self, self.backlog)

    def crashed(self, error: BaseException) -> None:
        """Polls tell it, instead of staying empty for ever."""
        self._crash = error

    def obstructed(self, error: HeadraceError | None) -> None:
        """No broker can be asked, for a reason that trying again does not mend: polls tell it. None: it is over."""
        self._obstacle = error
        self.doorbell.ring()

    @property
    def refusal(self) -> HeadraceError | None:
        """What lets nothing of this consumer reach a broker any more, if there is such a thing."""
        return self._obstacle if self._obstacle is not None and _is_final(self._obstacle) else None

    def skipped(self, lost: LostRange, *, is_heard: bool) -> None:
        """A reset has passed these over. Called with the lock held; `is_heard` says whether there is a listener."""
        self.offsets_skipped += lost.end - lost.start
        if is_heard:
            self.lost.append(lost)

    def take(self, limit: int, *, is_late: bool = False) -> Records | None:
        """The records of one poll, or None if there are none. Raises what lies in a partition's way: once before the
        records of others, which may never end, and then when there are none; the same not too often (`pace`), where it
        counts whether the poll's time is up (`is_late`)."""
        now = time.monotonic()
        backlog = self.backlog
        with self.lock:
            error = None if self._has_raised else self._pending_error(now, news=True)
            chunks: list[Chunk] = []
            if error is None:
                handover = self.handover = Handover()
                if backlog is None:
                    chunks = self.assignment.take(limit, handover.live)
                else:
                    chunks = backlog.take(limit, self.assignment, handover.live, handover.backlog)
            hungry = _left_hungry(self)
            hungry_beside = backlog is not None and _left_hungry(backlog)
            moved = False
            if not chunks or backlog is not None:
                moved = self.assignment.resolve_out_of_range()
            if not chunks and error is None:
                error = self._pending_error(now, is_late=is_late)
            self._has_raised = error is not None
        if hungry:
            self.wake_fetching()
        if backlog is not None and hungry_beside:
            backlog.wake_fetching()
        if moved:
            self.wake_all()
        if error is not None:
            raise error.with_traceback(None)  # of the last time
        if not chunks:
            self._raise_obstacle(now, is_late)
            return None
        records = Records(chunks)  # type: ignore[arg-type]  # only decode() makes them
        self.records_returned += len(records)
        self.bytes_returned += records.nbytes
        return records

    def _raise_obstacle(self, now: float, is_late: bool) -> None:
        obstacle, pace = self._obstacle, self.pace
        if obstacle is not None:
            is_final = _is_final(obstacle)
            if pace.admits(obstacle, now, STAYS if is_final else RETRIED, is_late=is_late and is_final):
                raise obstacle.with_traceback(None)
        if self._crash is not None:
            crash = HeadraceError(f"a background task of this consumer ended: {self._crash!r}")
            if pace.admits(crash, now, STAYS, is_late=is_late):
                raise crash from self._crash

    def _pending_error(self, now: float, *, news: bool = False, is_late: bool = False) -> HeadraceError | None:
        """With the lock held."""
        faulty = [lane.assignment for lane in self.lanes if lane.assignment.is_faulty]
        if faulty or self.denied:
            topics = self.denied.union(*(assignment.denied_topics() for assignment in faulty))
            if topics and self.pace.admits(denied := topics_denied(topics), now, RETRIED):
                return denied
        found = (each.pending_error(self.pace, now, news=news, is_late=is_late) for each in faulty)
        return next((error for error in found if error is not None), None)

    # -- handing over ------------------------------------------------------------------------------------------

    def poll_begins(self) -> None:
        """The user comes back: what the last poll has returned is done with. What it has not returned, because it was
        interrupted, is given back."""
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
        """As if the last poll had returned nothing: its records come again. Of an iteration, the last record."""
        self.end_iteration()
        handover, last_one = self.handover, self._last_one
        with self.lock:
            self.assignment.undo(handover.live)
            if self.backlog is not None:
                self.backlog.undo(handover.backlog)
            if last_one is not None and (state := last_one[0].unmoved_state) is not None:
                state.position = Position(last_one[1].offset)
                state.refetch()
        self._forget_handover()
        self.wake_all()

    @property
    def last_delivery(self) -> Delivered:
        """What the user got last."""
        return Delivered(self.handover, self._last_one)

    def finished(self, partitions: Mapping[TopicPartition, int] | None, what: Delivered) -> None:
        """The user has committed what the last poll returned, all of it or up to these offsets: `take_back` does not go
        back behind that. `what` is the last delivery from before the commit: another task may have polled since."""
        if partitions is None:
            if what.handover is self.handover and what.record is self._last_one:
                self._forget_handover()
            return
        for taken in (self.handover.live, self.handover.backlog):
            taken[:] = [each.finished(partitions.get(each.state.tp, 0)) for each in taken]
        if self._last_one is not None:
            place, record = self._last_one
            if record.offset < partitions.get(place.tp, 0):
                self._last_one = None

    # -- record by record --------------------------------------------------------------------------------------

    def one_by_one(self, records: Records) -> Iterator[Record]:
        """The records of a poll, with the position moving as they are taken and not all at once. Those of a
        partition that the user seeks or gives up in between are left out; those that are not taken at all,
        because the iteration was left, come again with the next poll.

        The poll has not confirmed them: interrupted before the first one is taken, all come again."""
        self._iteration = self._walk(records)
        return self._iteration

    def end_iteration(self) -> None:
        """Gives back what the iteration has not handed out. A program that leaves its loop does not say so (an
        asynchronous iterator is not even closed then), so the next poll asks for it."""
        if self._iteration is not None:
            self._iteration.close()
            self._iteration = None

    def _walk(self, records: Records) -> Generator[Record, None, None]:
        left: list[_Unseen] = []
        with self.lock:
            for (tp, name), own in _by_place(records).items():
                assignment = self._lane(name).assignment
                state = assignment.get(tp)
                if state is not None:
                    left.append(_Unseen(_Place(assignment, tp, state.start, state.origin, state.position), own))
                    state.position = Position(own[0].offset)
        try:
            self.handover = Handover(is_confirmed=True)
            while left:
                first = left[0]
                place = first.place
                for record in first.records:
                    if not self._move(place, Position(record.offset + 1, record.leader_epoch)):
                        break
                    first.taken += 1
                    self._last_one = (place, record)
                    yield record
                else:
                    self._move(place, place.end)
                del left[0]
        finally:
            with self.lock:
                try:
                    _give_back(left)
                except BaseException:
                    _fetch_again(left)
                    self.wake_all()
                    raise

    def _move(self, place: _Place, position: Position | None) -> bool:
        with self.lock:
            state = place.state
            if state is None:
                return False
            state.position = position
            return True

    def _lane(self, name: str | None) -> Lane:
        return self.backlog if self.backlog is not None and name == self.backlog.name else self

    # -- what a user asks or changes between polls -----------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        chosen = list(partitions)

        def assign() -> None:
            self.assignments += 1
            self.assignment.assign(chosen)
            self.assignment.follow(self.cluster)
            if self.backlog is not None:
                self.backlog.keep(self.assignment.partitions)

        with self.lock:
            _make_whole(assign)
        self.wake_all()

    def change(self, partitions: Iterable[TopicPartition], change: Callable[[PartitionState], None]) -> None:
        """Applies `change` to all of the partitions, in both lanes, or raises StateError and changes none."""
        with self.lock:
            states = [self.assignment.state(tp) for tp in partitions]
            if self.backlog is not None:
                states += filter(None, [self.backlog.assignment.get(state.tp) for state in states])

            def change_all() -> None:
                for state in states:
                    change(state)

            _make_whole(change_all)
        self.wake_all()

    def move(self, partitions: Iterable[TopicPartition], change: Callable[[PartitionState], None]) -> None:
        """The same for what changes the position: the user decides where to go on, and that ends a backlog."""
        with self.lock:
            states = [self.assignment.state(tp) for tp in partitions]

            def move() -> None:
                if self.backlog is not None:
                    self.backlog.drop([state.tp for state in states])
                for state in states:
                    change(state)

            _make_whole(move)
        self.wake_all()

    def read_range(self, tp: TopicPartition, start: int, stop: int) -> None:
        """Hands out these offsets, and fetches nothing from `stop` on."""
        with self.lock:
            state = self.assignment.state(tp)
            state.seek(Position(start))
            state.stop = stop
            state.known = OffsetSet(LAST_OFFSET, [(0, stop)])
        self.wake_all()

    def rewind(self, tp: TopicPartition, done: OffsetSet) -> None:
        """Hands out again what was handed out and is not done."""
        with self.lock:
            state = self.assignment.get(tp)
            if state is None:
                return
            if self.backlog is not None:
                done = self.backlog.rewind(tp, done)
            state.seek(Position(done.low))
            state.known = done
        self.wake_all()

    def withhold(self, partitions: Iterable[TopicPartition], withheld: bool) -> None:
        """Hands out nothing more of these, or goes on with them. What was fetched ahead is dropped."""
        with self.lock:
            for tp in partitions:
                for state in filter(None, (lane.assignment.get(tp) for lane in self.lanes)):
                    state.withheld = withheld
                    if withheld:
                        state.refetch()
        self.wake_all()

    def begun(self, tp: TopicPartition) -> tuple[OffsetSet | None, Lanes | None]:
        """What was done of a partition, by its last owner's commit, when its reading began here; its lanes."""
        with self.lock:
            lanes = None if self.backlog is None else self.backlog.lanes.get(tp)
            if lanes is not None:
                return lanes.known, lanes
            state = self.assignment.get(tp)
            return None if state is None else state.known, None

    def handed_out(self) -> dict[TopicPartition, Watermarks]:
        """From where to where partitions with an open backlog were read, if anything was handed out of them."""
        if self.backlog is None:
            return {}
        with self.lock:
            positions = self.assignment.positions()
            spans = {
                tp: self.backlog.handed_out(tp, positions[tp].offset)
                for tp, lanes in self.backlog.lanes.items()
                if tp in positions and not lanes.is_closed
            }
            return {tp: span for tp, span in spans.items() if span is not None}

    def positions(self) -> dict[TopicPartition, Position]:
        with self.lock:
            return self.assignment.positions()

    def partitions(self) -> set[TopicPartition]:
        with self.lock:
            return self.assignment.partitions

    def ordered_partitions(self) -> list[TopicPartition]:
        """In the order in which they were assigned."""
        with self.lock:
            return [state.tp for state in self.assignment]


def _make_whole(change: Callable[[], object]) -> None:
    """A signal's handler can raise in the middle of a change (Ctrl-C). It is made again then, as a whole, before the
    interrupt goes on: every change is one that can be made twice."""
    try:
        change()
    except BaseException:
        change()
        raise


def _is_final(error: HeadraceError) -> bool:
    return isinstance(error, AuthenticationError) and error.is_final


def _left_hungry(lane: Lane) -> bool:
    """Whether there is something to fetch since this poll. It is told once."""
    hungry = lane.assignment.has_appetite or lane.fetching.is_starved
    lane.assignment.has_appetite = False
    return hungry


class Delivered(NamedTuple):
    """The records of a poll, and the last one of an iteration. To be compared, and not to be looked into."""

    handover: Handover
    record: object


class _Place(NamedTuple):
    """Where records came from: a partition of a lane, and from when on it was read, for a seek makes it another."""

    assignment: Assignment
    tp: TopicPartition
    start: int
    origin: int
    end: Position | None

    @property
    def state(self) -> PartitionState | None:
        state = self.assignment.get(self.tp)
        return state if state is not None and state.start == self.start else None

    @property
    def unmoved_state(self) -> PartitionState | None:
        """The same, also if its buffer was dropped since: then the records that were not handed out come again."""
        state = self.assignment.get(self.tp)
        return state if state is not None and state.origin == self.origin else None


@dataclasses.dataclass(slots=True)
class _Unseen:
    """Records of one place that an iteration hands out, and how many of them it has."""

    place: _Place
    records: Records
    taken: int = 0


def _give_back(left: Iterable[_Unseen]) -> None:
    """What was not handed out comes next."""
    for each in left:
        state = each.place.state
        if state is not None and (unseen := each.records[each.taken :]):
            state.position = Position(unseen[0].offset)
            state.give_back(unseen._batches)


def _fetch_again(left: Iterable[_Unseen]) -> None:
    """The same, if it was interrupted at any place."""
    for each in left:
        state = each.place.state
        if state is not None and each.taken < len(each.records):
            state.position = Position(each.records[each.taken].offset)
            state.refetch()


def _by_place(records: Records) -> dict[tuple[TopicPartition, str | None], Records]:
    found: dict[tuple[TopicPartition, str | None], list[Batch]] = {}
    for batch in records._batches:
        found.setdefault((TopicPartition(batch.topic, batch.partition), batch.lane), []).append(batch)
    return {place: Records(batches) for place, batches in found.items()}
