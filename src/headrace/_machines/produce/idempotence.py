"""Idempotence: the batches of one partition, their sequence numbers, and the reaction to each response.

    pending     -> in flight     `take_next`: the batch gets the next sequence numbers, and keeps them
    in flight   -> done          the broker has appended it, now or before (it recognizes the last five batches)
    in flight   -> to retry      a retriable error, or no response: it may have been appended, so it is sent again with
                                 the same sequence numbers
    in flight   -> failed        an error that is not retriable: nothing was appended
    in flight   -> split         it is too large for the broker: its parts share its sequence numbers
    any         -> expired       delivery.timeout.ms has passed: the delivery fails, even if the batch is appended later

The response for a batch (the error codes of Produce):

    NONE, DUPLICATE_SEQUENCE_NUMBER               done
    OUT_OF_ORDER_SEQUENCE_NUMBER, batches before  to retry: it is out of order because they have not been appended yet
      it are not done
    OUT_OF_ORDER_SEQUENCE_NUMBER, it is the       a gap in the log: new epoch
      lowest one
    INVALID_PRODUCER_EPOCH, UNKNOWN_PRODUCER_ID   new epoch
    MESSAGE_TOO_LARGE, more than one record       split
    a retriable error                             to retry
    any other                                     failed

Order and uniqueness hold by these rules:

- The first batch with a new producer id is sent alone: a broker that does not know the id accepts any sequence number,
  so it would append the second batch after an error of the first.
- No batch is sent that would be the sixth from the lowest one that is not done: the broker remembers five, and would
  append the lowest one again after a new epoch. (Those between may be done already, after errors of the lowest.)
- While one of them is to be retried, only the lowest one is sent, and nothing new.
- A new epoch begins when no batch is in flight. All batches that are not done get new sequence numbers, from 0 on.
  That is safe: the lowest one was not appended, so none after it was.
- A batch that failed or expired leaves a gap, unless one of its attempts was appended. The next batch shows which: it
  is done, or out of order. So sequence numbers are never reused, except those of the last batch if the broker has
  rejected its only attempt: it was certainly not appended.

The sequence numbers can be lent: whoever has them sends one batch at a time, and returns the next number. A batch that
is on the wire then is adopted, and treated as any other.

Nothing here waits, sends or reads a clock. The owner locks.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from ..._protocol.codes import is_retriable

MAX_IN_FLIGHT = 5
_SEQUENCES = 2**31  # after the last one comes 0

_DONE = {ErrorCode.none, ErrorCode.duplicate_sequence_number}
_NEW_EPOCH = {ErrorCode.invalid_producer_epoch, ErrorCode.unknown_producer_id}


class ProducerIdentity(NamedTuple):
    producer_id: int
    epoch: int


class Countable(Protocol):
    def __len__(self) -> int: ...


B = TypeVar("B", bound=Countable)


@dataclasses.dataclass(eq=False, slots=True)
class SentBatch(Generic[B]):
    """A batch with sequence numbers."""

    batch: B
    identity: ProducerIdentity
    sequence: int
    is_on_wire: bool = True
    attempts: int = 1
    number: int = 0  # how many batches had sequence numbers before it


class BatchOutcome(enum.Enum):
    DONE = "done"
    RETRY = "retry"
    SPLIT = "split"
    FAILED = "failed"


class PartitionBatches(Generic[B]):
    """The batches of one partition. After `needs_epoch` the owner calls `begin_epoch` with a new identity."""

    def __init__(self, max_in_flight: int = MAX_IN_FLIGHT) -> None:
        self._max_in_flight = min(max_in_flight, MAX_IN_FLIGHT)
        self._pending: deque[B] = deque()
        self._sent: list[SentBatch[B]] = []  # neither done nor failed, in order
        self._identity: ProducerIdentity | None = None
        self._next = 0
        self._is_broken = False  # the broker misses a batch: a new epoch is needed
        self._known_id = -1  # the producer id that the partition's broker knows
        self._is_lent = False
        self._numbered = 0  # batches that have got sequence numbers

    def __len__(self) -> int:
        """The number of batches that are neither done nor failed."""
        return len(self._pending) + len(self._sent)

    def append(self, batch: B) -> None:
        assert not self._is_lent
        self._pending.append(batch)

    @property
    def pending(self) -> int:
        """The number of batches that were never sent."""
        return len(self._pending)

    @property
    def identity(self) -> ProducerIdentity | None:
        """The identity of the last batch that was sent."""
        return self._identity

    @property
    def needs_epoch(self) -> bool:
        """Whether a new epoch must begin, and can: no batch is in flight."""
        return self._is_broken and not any(each.is_on_wire for each in self._sent)

    def begin_epoch(self, identity: ProducerIdentity) -> None:
        """`identity` must be new for this partition."""
        assert not any(each.is_on_wire for each in self._sent)
        self._identity, self._next = identity, 0
        self._is_broken = False
        for at, each in enumerate(self._sent):
            each.identity, each.sequence, each.number = identity, self._reserve(each.batch), at
        self._numbered = len(self._sent)

    def take_next(self, identity: ProducerIdentity) -> SentBatch[B] | None:
        """The batch to send now, or None. `identity` is the producer's current one. This partition adopts it when all
        its batches with the previous one are done.
        """
        if self._is_broken:
            return None
        if any(not each.is_on_wire for each in self._sent):
            lowest = self._sent[0]
            if lowest.is_on_wire:
                return None
            lowest.is_on_wire = True
            lowest.attempts += 1
            return lowest
        if not self._pending or len(self._sent) >= self._max_in_flight:
            return None
        if self._sent and self._numbered - self._sent[0].number >= MAX_IN_FLIGHT:
            return None
        if identity != self._identity:
            if self._sent:
                return None
            self._identity, self._next = identity, 0
        if self._sent and identity.producer_id != self._known_id:
            return None
        return self._put_on_wire(self._pending.popleft(), identity)

    def answered(self, sent: SentBatch[B], code: int) -> BatchOutcome:
        """Handles the broker's response to a batch. After SPLIT the owner calls `split`. A batch that has expired
        meanwhile is FAILED, or DONE if the broker has it.
        """
        sent.is_on_wire = False
        is_ours = sent in self._sent
        if code in _DONE:
            self._known_id = sent.identity.producer_id
            if is_ours:
                self._sent.remove(sent)
            return BatchOutcome.DONE
        if not is_ours:
            return BatchOutcome.FAILED
        if code == ErrorCode.out_of_order_sequence_number:
            self._is_broken |= sent is self._sent[0]
            return BatchOutcome.RETRY
        if code in _NEW_EPOCH:
            self._is_broken = True
            return BatchOutcome.RETRY
        if code == ErrorCode.message_too_large and len(sent.batch) > 1:
            return BatchOutcome.SPLIT
        if is_retriable(code):
            return BatchOutcome.RETRY
        self._sent.remove(sent)
        is_last = self._next == (sent.sequence + len(sent.batch)) % _SEQUENCES
        if is_last and sent.attempts == 1:
            self._next = sent.sequence
        return BatchOutcome.FAILED

    def unanswered(self, sent: SentBatch[B]) -> None:
        """There will be no response: the connection was lost, or the request timed out."""
        sent.is_on_wire = False

    def put_back(self, sent: SentBatch[B]) -> None:
        """Puts back a batch that was taken but not sent."""
        sent.is_on_wire = False
        sent.attempts -= 1

    def split(self, sent: SentBatch[B], parts: Sequence[B]) -> None:
        """Replaces a batch with the outcome SPLIT, which was not appended, by parts with its records."""
        assert sum(map(len, parts)) == len(sent.batch)
        sequence, replaced = sent.sequence, []
        for number, part in enumerate(parts, sent.number):
            replaced.append(SentBatch(part, sent.identity, sequence, is_on_wire=False, attempts=0, number=number))
            sequence = (sequence + len(part)) % _SEQUENCES
        at = self._sent.index(sent)
        for each in self._sent[at + 1 :]:
            each.number += len(parts) - 1
        self._numbered += len(parts) - 1
        self._sent[at : at + 1] = replaced

    def expire(self, batch: B) -> ProducerIdentity | None:
        """The delivery of this batch has timed out. Returns the identity that it was sent with, if it was sent."""
        for sent in self._sent:
            if sent.batch is batch:
                self._sent.remove(sent)
                return sent.identity
        self._pending.remove(batch)
        return None

    @property
    def is_broken(self) -> bool:
        """Whether a new epoch is needed: the broker misses a batch."""
        return self._is_broken

    def drop_unsent(self) -> list[tuple[B, ProducerIdentity | None]]:
        """Removes the batches that are not in flight, because their transaction is aborted. Returns each with the
        identity that it was sent with, if any. They may have been appended, so sequence numbers need a new epoch.
        """
        dropped = [(each.batch, each.identity) for each in self._sent if not each.is_on_wire]
        self._is_broken |= bool(dropped)
        never_sent = [(batch, None) for batch in self._pending]
        self._sent = [each for each in self._sent if each.is_on_wire]
        self._pending.clear()
        return [*dropped, *never_sent]

    def drop_all(self) -> list[B]:
        """Removes all batches, which have failed. Those in flight may be appended nevertheless, so a new epoch is
        needed.
        """
        dropped = [*(each.batch for each in self._sent), *self._pending]
        self._is_broken |= any(each.identity.producer_id >= 0 for each in self._sent)
        self._sent.clear()
        self._pending.clear()
        return dropped

    # -- batches that are sent elsewhere, one at a time ------------------------------------------------------------

    def lend(self, identity: ProducerIdentity) -> int | None:
        """The sequence number of the next batch, which is sent elsewhere, as are those after it until `take_back`: each
        when the one before is done. None if there is something to send here."""
        if self._is_lent or self._is_broken or self._pending or self._sent:
            return None
        if identity != self._identity:
            self._identity, self._next = identity, 0
        self._is_lent = True
        return self._next

    def take_back(self, sequence: int, *, is_known: bool) -> None:
        """`sequence` is the next one. `is_known`: the broker has acknowledged a batch since `lend`."""
        self._is_lent = False
        self._next = sequence
        if is_known and self._identity is not None:
            self._known_id = self._identity.producer_id

    def adopt(self, batch: B) -> SentBatch[B]:
        """The batch that was on the wire at `take_back`. It has the sequence number given there."""
        assert self._identity is not None
        assert not len(self)
        return self._put_on_wire(batch, self._identity)

    def _put_on_wire(self, batch: B, identity: ProducerIdentity) -> SentBatch[B]:
        sent = SentBatch(batch, identity, self._reserve(batch), number=self._numbered)
        self._numbered += 1
        self._sent.append(sent)
        return sent

    def _reserve(self, batch: B) -> int:
        sequence = self._next
        self._next = (sequence + len(batch)) % _SEQUENCES
        return sequence
