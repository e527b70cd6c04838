"""One assigned partition: its position, its buffered records, and the fault that blocks it.

    phase       waits for                                             leaves it by
    UNKNOWN     a committed offset, or else the reset policy          seek, await_reset
    RESET       the log's own offsets (ListOffsets)                   seek
    VALIDATE    whether the log still has the records that were read  validated, seek, await_reset
    READY       nothing: it is fetched                                follow (a new leader: VALIDATE), seek, await_reset

Two offsets move through the log. `position` is the next record that the user gets: `position()` returns it, and commits
contain it. `fetch_offset` is the next one to request from a broker. Between them are the buffered batches, and those
that have arrived and are being decoded.

- Responses and decoded batches carry the `position_version` of their request. It changes whenever fetching restarts
  elsewhere (seek, reset, truncation), so that a late one is recognized and dropped.
- Batches are decoded by several threads and can be finished out of order: an outcome (records, or damage) that comes
  before its predecessor's is parked until that has come.
- A fault (a damaged batch, an offset out of range) is behind the buffered records: it takes effect when those were
  handed out. It stays until the user seeks; a broker's refusal stays until the broker's next response.
"""

from __future__ import annotations

import bisect
import collections
import enum
import functools
import itertools
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar, cast

from ...errors import HeadraceError
from ...types import TopicPartition
from ..backoff import REFUSAL
from ..cluster import TopicIdPartition
from ..commit.offset_set import LAST_OFFSET, OffsetSet


class Chunk(Protocol):
    """Decoded records of one partition, in order; slices share memory."""

    @property
    def next_offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def first_offset(self) -> int | None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...
    def slice(self, start: int, length: int) -> Self: ...


class Fetch(Protocol):
    """The fetch that a partition is in."""

    def touch(self, tip: TopicIdPartition, /) -> None:
        """The partition may not belong there any more."""


quick_tuple = tuple.__new__
"""Creates a NamedTuple of a class and a tuple, in half of the time of the class itself: polls create a dozen."""


class Position(NamedTuple):
    """The next offset to read, and the leader epoch of the record before it (-1: not known)."""

    offset: int
    epoch: int = -1


class Phase(enum.Enum):
    UNKNOWN = "unknown"
    RESET = "reset"
    VALIDATE = "validate"
    READY = "ready"


class PreferredReplica(NamedTuple):
    node: int
    until: float


class OutOfRange(NamedTuple):
    """The log does not have this offset (any more)."""

    offset: int


class Parked(NamedTuple):
    """The result of decoding: records and the room that was reserved for them, or the error of the first batch. None:
    it was put off."""

    outcome: Chunk | HeadraceError | None
    room: int
    expected_next: int


# Flags: the user has paused it; the group revokes it; run() has no room for its records.
PAUSED, WITHHELD, CROWDED = 1, 2, 4

# Never the same twice, so that a response for a partition that was given up and assigned again is recognized as late.
_position_versions = itertools.count(1)


M = TypeVar("M", bound=Callable[..., None])


def repeated_if_interrupted(change: M) -> M:
    """Users change partitions on the main thread, where a signal handler may raise between two instructions (Ctrl-C).
    An interrupted change is repeated before the interrupt continues: half a move would skip records. It must be one
    that can be made twice."""

    @functools.wraps(change)
    def make(*args: Any) -> None:
        try:
            change(*args)
        except BaseException:
            change(*args)
            raise

    return cast("M", make)


class PartitionState:
    """The state above. Its owner locks."""

    def __init__(
        self,
        tp: TopicPartition,
        filled: dict[PartitionState, None] | None = None,
        faulty: dict[PartitionState, None] | None = None,
        free: dict[PartitionState, None] | None = None,
        decoding: dict[PartitionState, None] | None = None,
    ) -> None:
        self.tp = tp
        # The partitions with something buffered, in the order of their turns, those with a fault, and those that are
        # not in flight: this one adds and removes itself. Those that are being decoded: it only adds itself.
        self._filled = {} if filled is None else filled
        self._faulty = {} if faulty is None else faulty
        self._free = {} if free is None else free
        self._decoding = {} if decoding is None else decoding
        self.topic_id: uuid.UUID | None = None
        self.phase = Phase.UNKNOWN
        self.reset_to: str | None = None
        self.reset_from: int | None = None  # the position that the log does not have, until the reset is done
        self.skipped = 0  # offsets that resets have skipped
        self.blocked_by = 0  # why nothing of it is handed out: the flags above
        self.position: Position | None = None
        # What need not be read: by the last owner's commit, or because it is read elsewhere.
        self.already_done: OffsetSet | None = None
        # Nothing is fetched from here on. A position at the last offset is fetched, too: the broker rejects it as out
        # of range, and the reset policy applies.
        self.stop = LAST_OFFSET + 1
        self.leader_epoch = -1  # the leader's epoch under which fetch_offset was validated

        self.position_version = next(_position_versions)
        self.start = self.position_version  # the position version with which the buffer began: a cut behind it keeps it
        # Changes whenever the position is moved, except by records that are handed out: those can be taken back. A
        # buffer that is dropped and fetched again keeps it, and so does a log that is truncated.
        self.origin = self.position_version
        self.fetch_offset = -1
        self.fetch_epoch = -1  # the epoch of the last batch that was fetched
        self._fetch: Fetch | None = None
        self._fault: HeadraceError | OutOfRange | None = None
        self.was_raised = False  # the fault, by a poll
        self.is_refused = False  # the fault is a broker's refusal: the request is repeated when the backoff ends
        self.backoff_until = 0.0
        self.failures = 0
        self.preferred: PreferredReplica | None = None
        self.served = 0  # the tick of the last response with records: the longest waiting goes first

        self.chunks: collections.deque[Chunk] = collections.deque()
        self.first_taken = 0  # records of chunks[0] that were handed out already ...
        self.first_bytes_taken = 0  # ... and their portion of its bytes
        self.available = 0
        self.retained = 0
        self.undecoded = 0  # the bytes that records which are being decoded, or parked, are likely to take
        self.tail = -1  # where the next chunk has to start
        self.parked: dict[int, Parked] = {}

        self.readable_end = -1  # the high watermark or, with read_committed, the last stable offset; -1: unknown

    @property
    def paused(self) -> bool:
        return bool(self.blocked_by & PAUSED)

    @paused.setter
    def paused(self, paused: bool) -> None:
        self.blocked_by = self.blocked_by | PAUSED if paused else self.blocked_by & ~PAUSED
        self._touch()

    @property
    def withheld(self) -> bool:
        return bool(self.blocked_by & WITHHELD)

    @withheld.setter
    def withheld(self, withheld: bool) -> None:
        self.blocked_by = self.blocked_by | WITHHELD if withheld else self.blocked_by & ~WITHHELD
        self._touch()

    @property
    def in_flight(self) -> bool:
        """Whether it is in a fetch, which brings the next records."""
        return self._fetch is not None

    def is_in(self, fetch: Fetch) -> bool:
        return self._fetch is fetch

    def take_off(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._free.pop(self, None)

    def land(self) -> None:
        """It can be fetched again. Interrupted anywhere, it can be called again."""
        self._touch()
        self._fetch = None
        self._free[self] = None

    def _touch(self) -> None:
        if self._fetch is not None and self.topic_id is not None:
            self._fetch.touch(TopicIdPartition(self.topic_id, self.tp.partition))

    @property
    def fault(self) -> HeadraceError | OutOfRange | None:
        return self._fault

    @fault.setter
    def fault(self, fault: HeadraceError | OutOfRange | None) -> None:
        self._fault = fault
        self.was_raised = self.is_refused = False
        if fault is None:
            self._faulty.pop(self, None)
        else:
            self._faulty[self] = None

    def refuse(self, error: HeadraceError, now: float) -> None:
        """A broker refused the partition: a poll raises that, and the request is repeated after a backoff."""
        self.failures += 1
        self.backoff_until = now + REFUSAL.seconds(self.failures, 0.5)
        self.fault = error
        self.is_refused = True

    def end_refusal(self) -> None:
        """A broker's next response ends its refusal."""
        if self.is_refused:
            self.fault = None

    def may_be_asked_for(self, now: float) -> bool:
        return self._fault is None or (self.is_refused and self.backoff_until <= now)

    # -- positions -------------------------------------------------------------------------------------------

    @repeated_if_interrupted
    def await_position(self) -> None:
        self._restart(Phase.UNKNOWN)
        self.position = None
        self.origin = self.start

    @repeated_if_interrupted
    def await_reset(self, to: str) -> None:
        self._restart(Phase.RESET)
        self.position = None
        self.reset_to = to
        self.origin = self.start

    @repeated_if_interrupted
    def seek(self, position: Position) -> None:
        """Reads from there on. If the epoch is known, it is compared with the log before."""
        self._read_from(position)
        self.origin = self.start

    def _read_from(self, position: Position) -> None:
        self._restart(Phase.VALIDATE if position.epoch >= 0 else Phase.READY)
        self.position = position
        self.fetch_offset = self.tail = position.offset
        self.fetch_epoch = position.epoch

    def validated(self, leader_epoch: int) -> None:
        self.end_refusal()
        self.phase = Phase.READY
        self.leader_epoch = leader_epoch

    def refetch(self) -> None:
        """Drops what was fetched ahead and fetches it again, from the position on. A position that was valid stays so:
        an assignment that does not check epochs would never validate it."""
        if self.position is not None:
            self._refetch(self.position, self.already_done, self.phase is Phase.READY)

    @repeated_if_interrupted
    def _refetch(self, position: Position, already_done: OffsetSet | None, was_ready: bool) -> None:
        self._read_from(position)
        self.already_done = already_done
        if was_ready:
            self.phase = Phase.READY

    def cut_ahead(self, end: int) -> None:
        """The log was truncated at `end`, behind the position. What was fetched ahead, and what was done from there on,
        is not in it any more; other records will be."""
        assert self.position is not None
        done = self.already_done
        self._read_from(Position(self.position.offset))
        if done is not None:
            self.already_done = (done & OffsetSet(end)).with_done(min(self.stop, LAST_OFFSET), LAST_OFFSET)

    def cut_back(self, end: int) -> None:
        """The log was cut off there, before the position. Reading resumes there, and records from before that place can
        still be taken back."""
        self._read_from(Position(end))

    def _restart(self, phase: Phase) -> None:
        self.phase = phase
        self.already_done = None
        self.reset_to = self.reset_from = None
        self.position_version = self.start = next(_position_versions)
        self.land()
        self.fault = None
        self.backoff_until = 0.0
        self.failures = 0
        self.preferred = None
        self.drop_buffered()

    def drop_buffered(self) -> None:
        self.chunks.clear()
        self._filled.pop(self, None)
        self.parked.clear()
        self.first_taken = self.first_bytes_taken = self.available = self.retained = self.undecoded = 0

    # -- arriving records ------------------------------------------------------------------------------------

    def arrived(self, room: int, next_offset: int) -> None:
        """Records have arrived that will take about `room` bytes, and are being decoded. The offset behind them can be
        fetched at once."""
        self.undecoded += room
        self._decoding[self] = None
        self.fetch_offset = self._next_wanted(next_offset)

    def decoded(self, start: int, room: int, chunk: Chunk, expected_next: int) -> None:
        """A chunk of this position version is decoded. `start` is the offset that was requested, `room` that of
        `arrived`."""
        self._park(start, Parked(chunk, room, expected_next))

    def damaged(self, start: int, fault: HeadraceError) -> None:
        """The first batch at `start` cannot be decoded. The fault stays until the user seeks past it."""
        self._park(start, Parked(fault, 0, start))

    def put_off(self, start: int) -> None:
        """There is no room for the records at `start`: they are fetched again when there is."""
        self._park(start, Parked(None, 0, start))

    def _park(self, start: int, parked: Parked) -> None:
        self.parked[start] = parked
        while (next_one := self.parked.pop(self.tail, None)) is not None:
            self.undecoded -= next_one.room
            self._unpark(next_one)

    def _unpark(self, parked: Parked) -> None:
        outcome = parked.outcome
        if outcome is None or isinstance(outcome, HeadraceError):
            self._cut_behind()
            self.fault = outcome
            return
        self._append(outcome)
        if outcome.next_offset != parked.expected_next:
            # Decoding stopped before a damaged batch: what was requested behind it leaves a gap. Fetching restarts at
            # that batch, which is then the first one and raises its error.
            self._cut_behind()

    def _cut_behind(self) -> None:
        """Resumes fetching at the tail. Everything before it is here by now, so whatever is still on its way is behind
        the damage, and is dropped."""
        self.position_version = next(_position_versions)
        self.land()
        self.undecoded = 0
        self.fault = None
        self.parked.clear()
        self.fetch_offset = self.tail

    def _append(self, chunk: Chunk) -> None:
        # While records are handed out one by one the buffer can be empty and the position still before its end.
        nothing_unread = not self.chunks and self.position is not None and self.position.offset == self.tail
        self.tail = self._next_wanted(chunk.next_offset)
        self.fetch_epoch = max(self.fetch_epoch, chunk.leader_epoch)
        if len(chunk) == 0 and nothing_unread:
            # Only markers or aborted records: they are not handed out, but the position moves past them.
            self.position = Position(chunk.next_offset, self.fetch_epoch)
            return
        for piece in self._without_done(chunk):
            self.chunks.append(piece)
            self.available += len(piece)
            self.retained += piece.nbytes
        self._filled[self] = None  # which leaves it at its place, if it has one

    def _next_wanted(self, offset: int) -> int:
        """The first offset from here on that is not done already: the offsets before it are not even fetched."""
        return offset if self.already_done is None else self.already_done.next_open(offset)

    def _without_done(self, chunk: Chunk) -> list[Chunk]:
        """The parts of the chunk that are not done already. The last one, which may be empty, ends where the chunk
        does."""
        done = self.already_done
        if done is None or (first := chunk.first_offset) is None or first >= done.frontier:
            return [chunk]
        pieces = []
        for start, end in done.open(first, chunk.next_offset):
            row, behind = _row(chunk, start), _row(chunk, end)
            if behind > row:
                pieces.append(chunk.slice(row, behind - row))
        if not pieces or pieces[-1].next_offset != chunk.next_offset:
            pieces.append(chunk.slice(len(chunk), 0))
        return pieces

    # -- handing out -----------------------------------------------------------------------------------------

    def take(self, count: int) -> list[Chunk]:
        """The next `count` records; the position moves behind them, and past chunks without records."""
        chunks = self.chunks
        start = self.first_taken
        if count and chunks and len(chunks[0]) - start > count:  # the usual case, made quick
            piece = chunks[0].slice(start, count)
            nbytes = piece.nbytes
            self.retained -= nbytes
            self.first_taken = start + count
            self.first_bytes_taken += nbytes
            self.available -= count
            self.position = quick_tuple(Position, (piece.next_offset, piece.leader_epoch))
            return [piece]
        taken: list[Chunk] = []
        while chunks:
            first = chunks[0]
            size = len(first) - self.first_taken
            if size <= count:
                chunks.popleft()
                piece = first.slice(self.first_taken, size) if self.first_taken else first
                self.retained -= first.nbytes - self.first_bytes_taken  # the pieces' portions are rounded
                self.first_taken = self.first_bytes_taken = 0
            elif count:
                size = count
                piece = first.slice(self.first_taken, size)
                nbytes = piece.nbytes
                self.retained -= nbytes
                self.first_taken += size
                self.first_bytes_taken += nbytes
            else:
                return taken
            self.available -= size
            count -= size
            self.position = Position(piece.next_offset, piece.leader_epoch)
            if size:
                taken.append(piece)
        self._filled.pop(self, None)
        return taken

    def give_back(self, chunks: Sequence[Chunk]) -> None:
        """Puts records that were taken, and not seen by the user, back in front of the buffer. The caller sets the
        position."""
        if self.first_taken:
            first = self.chunks.popleft()
            rest = first.slice(self.first_taken, len(first) - self.first_taken)
            self.chunks.appendleft(rest)
            self.retained += rest.nbytes - (first.nbytes - self.first_bytes_taken)
            self.first_taken = self.first_bytes_taken = 0
        self.chunks.extendleft(reversed(chunks))
        self.available += sum(map(len, chunks))
        self.retained += sum(chunk.nbytes for chunk in chunks)
        if self.chunks:
            self._filled[self] = None

    @property
    def is_drained(self) -> bool:
        return not self.available and not self.undecoded

    @property
    def has_unfetched(self) -> bool:
        """Whether the log is known to have records to fetch: the broker then responds at once."""
        return self.fetch_offset < self.readable_end

    @property
    def lag(self) -> int | None:
        """Records between the position and the end that can be read; None if one of them is not known."""
        if self.position is None or self.readable_end < 0:
            return None
        return max(0, self.readable_end - self.position.offset)


def _row(chunk: Chunk, offset: int) -> int:
    """Of the first record at or behind the offset."""
    return bisect.bisect_left(range(len(chunk)), offset, key=lambda index: chunk[index].offset)
