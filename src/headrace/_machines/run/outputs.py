"""The records that handlers have returned, until they are written with the offsets of the records they were made of.

A transaction has, of each partition, everything up to the first record that is not done: the offset that it commits,
and the outputs of all records before that offset, in their order. Outputs of later records wait for the next one.

Nothing here waits or reads a clock. The owner locks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from ...types import TopicPartition

R = TypeVar("R")


class Cut(NamedTuple, Generic[R]):
    """What one transaction has."""

    offsets: Mapping[TopicPartition, int]
    outputs: Sequence[R]


class PendingOutputs(Generic[R]):
    def __init__(self) -> None:
        self._committed: dict[TopicPartition, int] = {}  # every record before it is done, and its output written
        self._outputs: dict[TopicPartition, dict[int, Sequence[R]]] = {}

    def begin(self, tp: TopicPartition, offset: int) -> None:
        """The first record of a partition since it was assigned."""
        self._committed.setdefault(tp, offset)

    def put(self, tp: TopicPartition, offset: int, outputs: Sequence[R]) -> None:
        """The outputs of a record, before the record counts as done."""
        if tp in self._committed and outputs:
            self._outputs.setdefault(tp, {})[offset] = outputs

    def cut(self, done: Mapping[TopicPartition, int]) -> Cut[R]:
        """The next transaction. `done` has the first offset of each partition that is not done."""
        offsets = {tp: end for tp, end in done.items() if end > self._committed.get(tp, end)}
        outputs = [
            record
            for tp, end in offsets.items()
            for offset, records in sorted(self._outputs.get(tp, {}).items())
            if offset < end
            for record in records
        ]
        return Cut(offsets, outputs)

    def committed(self, cut: Cut[R]) -> None:
        """The transaction was committed."""
        for tp, end in cut.offsets.items():
            if tp in self._committed:
                self._committed[tp] = end
                waiting = self._outputs.get(tp, {})
                self._outputs[tp] = {offset: records for offset, records in waiting.items() if offset >= end}

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """Other partitions are not assigned any more: other members get their records that are not committed."""
        for tp in self._committed.keys() - set(partitions):
            del self._committed[tp]
            self._outputs.pop(tp, None)

    def unwritten(self) -> dict[TopicPartition, int]:
        """The partitions with outputs that are not committed, and the offset from which they have to be read again."""
        return {tp: self._committed[tp] for tp, outputs in self._outputs.items() if outputs and tp in self._committed}
