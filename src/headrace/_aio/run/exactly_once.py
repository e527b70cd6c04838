"""The additions of an exactly-once `run()`: outputs wait here for the transaction that commits their offsets.

Handlers run on any thread: `put` takes the lock. Everything else belongs to the thread that polls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from ..._machines.fetch.partition import PartitionState, Position
from ..._machines.run.outputs import Cut, PendingOutputs
from ...config.consumer import ConsumerConfig
from ...errors import ConfigError
from ...records import Record, Records
from ...types import ProducerRecord, TopicPartition
from ..commit.tracker import CompletionTracker
from ..fetch.buffer import FetchBuffer
from ..group.rebalance import Rebalancer
from .transactional_commits import TransactionalCommits, outputs_of


class ExactlyOnce:
    def __init__(
        self,
        producer: Any,
        config: ConsumerConfig,
        buffer: FetchBuffer,
        completions: CompletionTracker,
        group: Rebalancer,
    ) -> None:
        if config.enable_auto_commit:
            raise ConfigError("run(producer=…) needs enable.auto.commit=false: transactions commit the offsets")
        if config.enable_parallel_rebalance:
            raise ConfigError(
                "run(producer=…) does not work with enable.parallel.rebalance=true: the offsets of two lanes cannot be "
                "committed in one transaction"
            )
        if config.is_given("isolation_level") and not config.reads_committed:
            raise ConfigError(
                "run(producer=…) needs isolation.level=read_committed, or the setting left out: with read_uncommitted, "
                "the records of an aborted transaction have outputs, too, and so has the transaction that repeats it"
            )
        if not config.reads_committed:
            config.read_committed()
            buffer.move(buffer.partitions(), PartitionState.refetch)
        self.transactions = TransactionalCommits(producer, self._cut, self._committed, group.metadata)
        self._buffer = buffer
        self._completions = completions
        self._outputs: PendingOutputs[ProducerRecord] = PendingOutputs()
        self._lock = threading.Lock()  # guards `_outputs`

    def take_in(self, records: Records, assigned: Collection[TopicPartition] | None) -> None:
        """Adds the records of a poll. `assigned` is set if the assignment has changed."""
        with self._lock:
            if assigned is not None:
                self._outputs.keep(assigned)
            for batch in records._batches:
                if batch.first_offset is not None:
                    self._outputs.begin(TopicPartition(batch.topic, batch.partition), batch.first_offset)

    def put(self, record: Record, result: Any) -> None:
        """Adds the result of a handler, before its record counts as done. Raises TypeError if it is not an output."""
        outputs = outputs_of(result)
        with self._lock:
            self._outputs.put(TopicPartition(record.topic, record.partition), record.offset, outputs)

    def _cut(self) -> Cut[ProducerRecord]:
        done = {}
        with self._buffer.lock:
            positions = {each.tp: each.position.offset for each in self._buffer.assignment if each.position is not None}
        for tp, position in positions.items():
            in_flight = self._completions.committable(tp)
            done[tp] = position if in_flight is None else in_flight.low
        with self._lock:
            return self._outputs.cut(done)

    def _committed(self, cut: Cut[ProducerRecord]) -> None:
        with self._lock:
            self._outputs.committed(cut)

    def end(self) -> None:
        """If the user continues with this consumer, records whose outputs were not written are delivered again."""
        with self._lock:
            unwritten = self._outputs.unwritten()
        owned = self._buffer.partitions()
        unresolved = self.transactions.unresolved_partitions
        for tp in (unwritten.keys() | unresolved) & owned:
            if tp in unresolved:  # only the group knows whether the last transaction was committed
                self._buffer.move([tp], PartitionState.await_position)
            else:
                self._buffer.move([tp], _seek_to(unwritten[tp]))
            self._completions.forget([tp])


def _seek_to(offset: int) -> Callable[[PartitionState], None]:
    return lambda state: state.seek(Position(offset))
