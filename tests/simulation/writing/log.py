"""A partition as its leader has it: batches, the state of each producer, open and aborted transactions.

The rules are those of Kafka 4.3 (`ProducerStateManager`, `ProducerAppendInfo`):

    arrives                                              response
    the next sequence number                             appended
    one of the last five batches of the producer again   success, with the offset of the first time
    anything else with the current epoch                 OUT_OF_ORDER_SEQUENCE_NUMBER
    a higher epoch that starts at 0                      appended; another start: OUT_OF_ORDER_SEQUENCE_NUMBER
    a lower epoch                                        INVALID_PRODUCER_EPOCH
    an unknown producer                                  appended, whatever its number; in a transaction only from 0 on

A batch is acknowledged when it is replicated. If the leader dies before, the next one may not have it. It rebuilds the
state of producers from the batches that it has.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator

from kio.schema.errors import ErrorCode as E

REMEMBERED = 5
_SEQUENCES = 2**31


@dataclasses.dataclass(eq=False, slots=True)
class LogBatch:
    """With `commits`, it is a marker: the end of a transaction."""

    producer_id: int
    epoch: int
    first: int
    values: list[bytes]
    is_transactional: bool
    base: int = -1
    is_replicated: bool = False
    commits: bool | None = None

    @property
    def last(self) -> int:
        return (self.first + len(self.values) - 1) % _SEQUENCES

    @property
    def next_offset(self) -> int:
        return self.base + max(1, len(self.values))


@dataclasses.dataclass(eq=False, slots=True)
class ProducerState:
    epoch: int = -1
    last: int = -1
    recent: deque[LogBatch] = dataclasses.field(default_factory=lambda: deque(maxlen=REMEMBERED))
    open_since: int | None = None  # the first offset of its open transaction

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.last = epoch, -1
        self.recent.clear()


class PartitionLog:
    def __init__(self) -> None:
        self.batches: list[LogBatch] = []
        self.producers: dict[int, ProducerState] = {}
        self.truncated = 0

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def check(self, batch: LogBatch) -> tuple[int, LogBatch | None]:
        """The error code, and the batch that this one repeats."""
        state = self.producers.get(batch.producer_id)
        if batch.producer_id < 0:
            return E.none, None
        if state is None:
            is_wrong = batch.is_transactional and batch.first != 0
            return (E.out_of_order_sequence_number if is_wrong else E.none), None
        if batch.epoch < state.epoch:
            return E.invalid_producer_epoch, None
        if batch.epoch > state.epoch:
            return (E.none if batch.first == 0 else E.out_of_order_sequence_number), None
        for each in state.recent:
            if (each.first, each.last) == (batch.first, batch.last):
                return E.none, each
        if batch.first != (state.last + 1) % _SEQUENCES:
            return E.out_of_order_sequence_number, None
        if not batch.is_transactional and state.open_since is not None:
            return E.invalid_txn_state, None
        return E.none, None

    def append(self, batch: LogBatch) -> None:
        """A batch that `check` accepts, or a marker."""
        batch.base = self.end
        self.batches.append(batch)
        self._note(batch)

    def _note(self, batch: LogBatch) -> None:
        if batch.producer_id < 0:
            return
        state = self.producers.setdefault(batch.producer_id, ProducerState())
        if batch.epoch > state.epoch:
            state.begin_epoch(batch.epoch)
        if batch.commits is not None:
            state.open_since = None
            return
        state.last = batch.last
        state.recent.append(batch)
        if batch.is_transactional and state.open_since is None:
            state.open_since = batch.base

    def has_open(self, producer_id: int, epoch: int) -> bool:
        state = self.producers.get(producer_id)
        return state is not None and state.epoch == epoch and state.open_since is not None

    def lose_unreplicated(self) -> None:
        """The leader has died, and the next one has only what was replicated."""
        kept = [each for each in self.batches if each.is_replicated]
        if len(kept) == len(self.batches):
            return
        # Only the tail can be missing: replication is in order.
        at = next(number for number, each in enumerate(self.batches) if not each.is_replicated)
        self.truncated += len(self.batches) - at
        del self.batches[at:]
        self.producers.clear()
        for each in self.batches:
            self._note(each)

    # -- readers -------------------------------------------------------------------------------------------------

    def records(self) -> Iterator[tuple[int, bytes]]:
        """All records with their offsets, committed or not."""
        for batch in self.batches:
            yield from enumerate(batch.values, batch.base)

    def committed(self) -> list[bytes]:
        """As consumers with isolation.level=read_committed see the partition."""
        starts = [each.open_since for each in self.producers.values() if each.open_since is not None]
        stable = min(starts, default=self.end)
        ends: dict[int, list[LogBatch]] = {}
        for batch in self.batches:
            if batch.commits is not None:
                ends.setdefault(batch.producer_id, []).append(batch)
        found: list[bytes] = []
        for batch in self.batches:
            if batch.base >= stable:
                break
            if batch.is_transactional and batch.commits is None:
                marker = next(each for each in ends[batch.producer_id] if each.base > batch.base)
                if not marker.commits:
                    continue
            found += batch.values
        return found
