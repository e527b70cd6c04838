"""One assigned partition: where it is read, what of it is buffered, what keeps it from being read.

    phase       what it waits for                                     leaves it by
    UNKNOWN     a committed offset, or else the reset policy          settle, await_reset, seek
    RESET       the log's own offsets (ListOffsets)                   settle, seek
    VALIDATE    whether the log still has what was read of it         settle, seek
    READY       nothing: it is fetched

Two offsets move through the log. `position` is the next record that the user gets: it is what `position()`
tells and what is committed. `fetch_offset` is the next one to ask a broker for. Between them lie the buffered
batches, and those that have arrived and are being decoded.

- Answers and decoded batches name the `continuity` they were asked under; it changes whenever fetching starts
  anew elsewhere (seek, reset, truncation), so that a late one is known as such and dropped.
- Batches are decoded by several threads and can be done out of order: an outcome (records, or damage) that
  comes before its predecessor's is parked until that has come.
- A fault (a damaged batch, an offset out of range) lies behind what is buffered: it counts when that has
  been handed out. It stays until the user seeks; a broker's refusal stays until the broker answers otherwise.
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

from ..errors import HeadraceError
from ..offsets import LAST_OFFSET, OffsetSet
from ..types import TopicPartition
from .backoff import REFUSAL


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
    """What decoding gave: records and the room that was kept for them, or what is wrong with the first batch. None:
    it was put off."""

    outcome: Chunk | HeadraceError | None
    room: int
    expected_next: int


# Flags: the user has paused it; the group asks for it back; run() has no place for its records.
PAUSED, WITHHELD, CROWDED = 1, 2, 4

# Never the same twice, so that an answer for a partition that was given up and assigned again is known as late.
_continuities = itertools.count(1)


M = TypeVar("M", bound=Callable[..., None])


def _made_whole(method: M) -> M:
    """Users move partitions on the main thread, where a signal handler may raise between two instructions (Ctrl-C). An
    interrupted move is made again before the interrupt goes on: half of one would skip records."""

    @functools.wraps(method)
    def move(*args: Any) -> None:
        try:
            method(*args)
        except BaseException:
            method(*args)
            raise

    return cast("M", move)


class PartitionState:
    """The state above. Guarded, like all machines, by whoever owns it."""

    def __init__(
        self,
        tp: TopicPartition,
        filled: dict[PartitionState, None] | None = None,
        faulty: dict[PartitionState, None] | None = None,
    ) -> None:
        self.tp = tp
        # The partitions with something buffered, in the order of their turns: this one, too, while it has. And those
        # with a fault.
        self._filled = {} if filled is None else filled
        self._faulty = {} if faulty is None else faulty
        self.topic_id: uuid.UUID | None = None
        self.phase = Phase.UNKNOWN
        self.reset_to: str | None = None
        self.reset_from: int | None = None  # the position that the log does not have, until the reset is done
        self.skipped = 0  # offsets that resets have passed over
        self.silence = 0  # why nothing of it is handed out, if anything: the flags below
        self.position: Position | None = None
        self.known: OffsetSet | None = (
            None  # what need not be read: the last owner's commit said so, or another lane does
        )
        # Nothing is fetched from here on. A position at the last offset is fetched, too: the broker says that it is out
        # of range, and the reset policy brings it back.
        self.stop = LAST_OFFSET + 1
        self.leader_epoch = -1  # the leader's epoch under which fetch_offset is known to be good

        self.continuity = next(_continuities)
        self.start = self.continuity  # the continuity with which the buffer began: a cut behind it keeps it
        # Changes whenever the position is moved, but for records that are handed out: those can be taken back. A buffer
        # that is dropped and fetched again keeps it.
        self.origin = self.continuity
        self.fetch_offset = -1
        self.fetch_epoch = -1  # the epoch of the last batch that was fetched
        self.in_flight = False
        self._fault: HeadraceError | OutOfRange | None = None
        self.is_told = False  # a poll has raised the fault
        self.is_refused = False  # the fault is a broker's refusal, and asked about again when the backoff ends
        self.backoff_until = 0.0
        self.failures = 0
        self.preferred: PreferredReplica | None = None
        self.served = 0  # the tick of the last answer with records: the longest waiting goes first

        self.chunks: collections.deque[Chunk] = collections.deque()
        self.first_taken = 0  # records of chunks[0] that were handed out already ...
        self.first_bytes_taken = 0  # ... and their share of its bytes
        self.available = 0
        self.retained = 0
        self.undecoded = 0  # what those that are being decoded, or parked, are likely to take
        self.tail = -1  # where the next chunk has to start
        self.parked: dict[int, Parked] = {}

        self.readable_end = -1  # the high watermark or, with read_committed, the last stable offset; -1: unknown

    @property
    def paused(self) -> bool:
        return bool(self.silence & PAUSED)

    @paused.setter
    def paused(self, paused: bool) -> None:
        self.silence = self.silence | PAUSED if paused else self.silence & ~PAUSED

    @property
    def withheld(self) -> bool:
        return bool(self.silence & WITHHELD)

    @withheld.setter
    def withheld(self, withheld: bool) -> None:
        self.silence = self.silence | WITHHELD if withheld else self.silence & ~WITHHELD

    @property
    def fault(self) -> HeadraceError | OutOfRange | None:
        return self._fault

    @fault.setter
    def fault(self, fault: HeadraceError | OutOfRange | None) -> None:
        self._fault = fault
        self.is_told = self.is_refused = False
        if fault is None:
            self._faulty.pop(self, None)
        else:
            self._faulty[self] = None

    def refuse(self, error: HeadraceError, now: float) -> None:
        """A broker's refusal: a poll raises it, and the partition is asked for again after a pause."""
        self.failures += 1
        self.backoff_until = now + REFUSAL.seconds(self.failures, 0.5)
        self.fault = error
        self.is_refused = True

    def answered(self) -> None:
        """A broker has answered with something else since."""
        if self.is_refused:
            self.fault = None

    def may_be_asked_for(self, now: float) -> bool:
        return self._fault is None or (self.is_refused and self.backoff_until <= now)

    # -- positions -------------------------------------------------------------------------------------------

    @_made_whole
    def await_position(self) -> None:
        self._restart(Phase.UNKNOWN)
        self.position = None
        self.origin = self.start

    @_made_whole
    def await_reset(self, to: str) -> None:
        self._restart(Phase.RESET)
        self.position = None
        self.reset_to = to
        self.origin = self.start

    @_made_whole
    def seek(self, position: Position) -> None:
        """Reads from there on. An epoch that is known is checked against the log before."""
        self._read_from(position)
        self.origin = self.start

    def _read_from(self, position: Position) -> None:
        self._restart(Phase.VALIDATE if position.epoch >= 0 else Phase.READY)
        self.position = position
        self.fetch_offset = self.tail = position.offset
        self.fetch_epoch = position.epoch

    def validated(self, leader_epoch: int) -> None:
        self.answered()
        self.phase = Phase.READY
        self.leader_epoch = leader_epoch

    def refetch(self) -> None:
        """Drops what was fetched ahead and asks for it again, from the position on. A position that was valid stays so:
        in the backlog's lane nobody would validate it."""
        if self.position is not None:
            self._refetch(self.position, self.known, self.phase is Phase.READY)

    @_made_whole
    def _refetch(self, position: Position, known: OffsetSet | None, was_ready: bool) -> None:
        self._read_from(position)
        self.known = known
        if was_ready:
            self.phase = Phase.READY

    def cut_ahead(self, end: int) -> None:
        """The log was cut off there, behind the position. What was fetched ahead, and what was known to be done from
        there on, is not in it any more; other records will be."""
        assert self.position is not None
        known = self.known
        self._read_from(Position(self.position.offset))
        if known is not None:
            self.known = (known & OffsetSet(end)).with_done(min(self.stop, LAST_OFFSET), LAST_OFFSET)

    def _restart(self, phase: Phase) -> None:
        self.phase = phase
        self.known = None
        self.reset_to = self.reset_from = None
        self.continuity = self.start = next(_continuities)
        self.in_flight = False
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

    # -- what arrives ----------------------------------------------------------------------------------------

    def arrived(self, room: int, next_offset: int) -> None:
        """Records have come, that will take about that many bytes, and go to be decoded; what follows them can be
        asked for at once."""
        self.undecoded += room
        self.fetch_offset = self._next_wanted(next_offset)

    def decoded(self, start: int, room: int, chunk: Chunk, expected_next: int) -> None:
        """A chunk of this continuity is decoded; `start` is the offset it was asked with, `room` what `arrived` was
        told."""
        self._park(start, Parked(chunk, room, expected_next))

    def damaged(self, start: int, fault: HeadraceError) -> None:
        """The first batch at `start` cannot be decoded. It stays so until the user seeks past it."""
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
            # Decoding stopped short of a damaged batch: what was asked for behind it leaves a gap. Fetching
            # starts again at that batch, which then is the first one and says what is wrong with it.
            self._cut_behind()

    def _cut_behind(self) -> None:
        """Goes on at the tail. Everything before it is here by now, so whatever is still on its way lies behind
        the damage, and is late."""
        self.continuity = next(_continuities)
        self.in_flight = False
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
            # Only markers or aborted records: nobody will be handed them, but the position moves past them.
            self.position = Position(chunk.next_offset, self.fetch_epoch)
            return
        for piece in self._without_known(chunk):
            self.chunks.append(piece)
            self.available += len(piece)
            self.retained += piece.nbytes
        self._filled[self] = None  # which leaves it at its place, if it has one

    def _next_wanted(self, offset: int) -> int:
        """The first offset from here on that is not known to be done: what lies between is not even fetched."""
        return offset if self.known is None else self.known.next_open(offset)

    def _without_known(self, chunk: Chunk) -> list[Chunk]:
        """What is not known to be done already. The last piece, empty if need be, ends where the chunk does."""
        known = self.known
        if known is None or (first := chunk.first_offset) is None or first >= known.frontier:
            return [chunk]
        pieces = []
        for start, end in known.open(first, chunk.next_offset):
            row, behind = _row(chunk, start), _row(chunk, end)
            if behind > row:
                pieces.append(chunk.slice(row, behind - row))
        if not pieces or pieces[-1].next_offset != chunk.next_offset:
            pieces.append(chunk.slice(len(chunk), 0))
        return pieces

    # -- what leaves -----------------------------------------------------------------------------------------

    def take(self, count: int) -> list[Chunk]:
        """The next `count` records; the position moves behind them, and past chunks without records."""
        taken: list[Chunk] = []
        chunks = self.chunks
        while chunks:
            first = chunks[0]
            size = len(first) - self.first_taken
            if size <= count:
                chunks.popleft()
                piece = first.slice(self.first_taken, size) if self.first_taken else first
                self.retained -= first.nbytes - self.first_bytes_taken  # the pieces' shares are rounded
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
        """Puts taken records, that nobody has seen yet, in front of the buffer again. The caller sets the position."""
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
    def has_backlog(self) -> bool:
        """Whether a fetch is known to be answered at once."""
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
