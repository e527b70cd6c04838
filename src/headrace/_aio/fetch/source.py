"""Where a partition's records come from.

`RecordSource` is what polls, seeks, rebalances and metrics ask. `PlainSource` is the usual one: a partition has one
buffer, and one fetcher fills it. The other one reads a partition at two places at once and lives in `_aio/lanes/`.

All methods of a source are called with the lock of the buffer held, except for `start`. Each can be called twice in a
row with the same effect: a call that is interrupted (Ctrl-C) is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ..._machines.cluster import Cluster
from ..._machines.commit.offset_set import OffsetSet
from ..._machines.fetch.assignment import Assignment, TakenFrom
from ..._machines.fetch.partition import Chunk, PartitionState
from ...config.consumer import ConsumerConfig
from ...types import TopicPartition, Watermarks
from ..network.client import Client
from .partitions import FetchedPartitions


class ReadingStart(NamedTuple):
    """How the reading of a partition began: what commit.mode=done needs for its first record."""

    already_done: OffsetSet | None  # by the commit of the last owner
    # By `Record.lane`: the offset at which the reading began, if not at its first record, and what is not read there.
    next: Mapping[str | None, int]
    between: Mapping[str | None, OffsetSet]


class SourceTasks(Protocol):
    """The tasks of a source, besides the fetcher of the buffer. Belongs to the loop's thread."""

    @property
    def is_alive(self) -> bool:
        """Whether there are such tasks now."""

    def wake(self) -> None:
        """Something may have become fetchable."""

    def abandon(self) -> None:
        """Lets go of threads. The end of the loop cancels the tasks."""

    async def close(self) -> None: ...


class RecordSource(Protocol):
    @property
    def assignments(self) -> Sequence[Assignment]:
        """Everything that records are taken from."""

    def assignment_of(self, lane: str | None) -> Assignment:
        """From where the records with that `Record.lane` were taken."""

    def states(self, tp: TopicPartition) -> list[PartitionState]:
        """All that is read of the partition. Raises StateError if it is not assigned."""

    def take(self, limit: int, taken_from: list[TakenFrom]) -> list[Chunk]:
        """The records of one poll, at most `limit` (-1: all). What `undo` needs is added to `taken_from` beforehand."""

    def undo(self, taken_from: list[TakenFrom]) -> None:
        """As if `take` had not been called."""

    def consume_needs_fetch(self) -> Callable[[], None] | None:
        """What wakes the fetching after a poll, if that is necessary: to be called without the lock."""

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """All other partitions were given up."""

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """These are read from their position on, and nowhere else: the user has sought, or the topic is another one."""

    def cut(self, tp: TopicPartition, offset: int) -> None:
        """The position moved to `offset` because the log was reset or truncated."""

    def rewind(self, tp: TopicPartition, done: OffsetSet) -> OffsetSet:
        """What is not done is to be handed out again. Returns what of the partition is done, or read elsewhere."""

    def follow(self, cluster: Cluster) -> None:
        """There is new metadata, and the assignment of the buffer has it."""

    def reading_start(self, tp: TopicPartition) -> ReadingStart: ...

    def handed_out(self) -> dict[TopicPartition, Watermarks]:
        """From where to where partitions were read that are read at more than one place."""

    def describe(self) -> dict[str, Any] | None:
        """The metrics of the backlog, if the source can have one."""

    def start(self, client: Client[ConsumerConfig]) -> SourceTasks:
        """On the loop's thread."""


class NoTasks:
    """The fetcher of the buffer is enough."""

    @property
    def is_alive(self) -> bool:
        return False

    def wake(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    async def close(self) -> None:
        pass


class PlainSource:
    """One buffer per partition: that of the assignment."""

    def __init__(self, partitions: FetchedPartitions) -> None:
        self._assignment = assignment = partitions.assignment
        self.assignments = (assignment,)
        # Polls call these: they are bound here, so that a poll makes no call more than it needs.
        self.take = assignment.take
        self.undo = assignment.undo
        self.consume_needs_fetch = partitions.consume_needs_fetch

    def assignment_of(self, lane: str | None) -> Assignment:
        return self._assignment

    def states(self, tp: TopicPartition) -> list[PartitionState]:
        return [self._assignment.state(tp)]

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        pass

    def cut(self, tp: TopicPartition, offset: int) -> None:
        pass

    def rewind(self, tp: TopicPartition, done: OffsetSet) -> OffsetSet:
        return done

    def follow(self, cluster: Cluster) -> None:
        pass

    def reading_start(self, tp: TopicPartition) -> ReadingStart:
        state = self._assignment.get(tp)
        return ReadingStart(None if state is None else state.already_done, {}, {})

    def handed_out(self) -> dict[TopicPartition, Watermarks]:
        return {}

    def describe(self) -> dict[str, Any] | None:
        return None

    def start(self, client: Client[ConsumerConfig]) -> SourceTasks:
        return NoTasks()
