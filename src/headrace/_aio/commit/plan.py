"""Where commits go.

`CommitTarget` decides what a commit consists of: a `CommitPlan`. It lives as long as its consumer. `OffsetStore` writes
it, and `CommittedReader` reads what a group has committed; both belong to the loop on which they were made. The usual
target and store commit one offset per partition to the group. The others, for two lanes per partition (KIP-333), are in
`_aio/lanes/`. So is the only reader: it understands all commits that headrace writes, because a consumer without
enable.parallel.rebalance must not skip the ranges that one with it has left open.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol, Self

from ..._machines.commit.committed_offset import CommittedOffset
from ..._machines.commit.offset_set import OffsetSet
from ..._machines.positions.positions import position_commit
from ...errors import HeadraceError
from ...types import OffsetAndMetadata, TopicPartition
from ..fetch.buffer import FetchBuffer

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Entries = Mapping[TopicPartition, tuple[object, ...]]
IsDeleted = Callable[[TopicPartition], bool]
"""Whether nothing can be committed of a partition: its topic was deleted. Called with the buffer's lock held."""


class CommitPlan(Protocol):
    """A commit that is to be written."""

    @property
    def is_of_positions(self) -> bool:
        """And not of offsets that the user chose."""

    @property
    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """For the callback."""

    def __bool__(self) -> bool: ...

    def of(self, chosen: Callable[[TopicPartition], bool]) -> Self:
        """The part of these partitions."""

    def entries(self) -> Entries:
        """Equal for a partition of two plans exactly if the second one would write nothing new."""


class CommitTarget(Protocol):
    @property
    def has_final_commit(self) -> bool:
        """Whether partitions that are given up need a last commit, for clients other than headrace."""

    def needs_position(self, offsets: Offsets) -> Iterable[TopicPartition]:
        """The partitions that must have a position before these offsets can be planned."""

    def plan(self, offsets: Offsets) -> CommitPlan:
        """A commit of offsets that the user chose. Raises StateError if it is not possible."""

    def plan_positions(self, done: Mapping[TopicPartition, OffsetSet | None], is_deleted: IsDeleted) -> CommitPlan:
        """A commit of all positions; of the partitions in `done`, of what is done."""


class CommittedReader(Protocol):
    """One try each: the caller retries what is retriable."""

    @property
    def is_member(self) -> bool:
        """Whether commits are fenced by a membership."""

    async def read(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset | HeadraceError]:
        """What is done of each partition that has a commit, or why that is not known."""

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets, as the user sees them: everything before them is done."""


class OffsetStore(Protocol):
    """One try each: the caller retries what is retriable."""

    async def commit(self, plan: CommitPlan) -> None:
        """If some topics do not exist any more, everything else is written before CommitFailedError is raised."""

    async def stop_starts(self, partitions: Collection[TopicPartition] | None) -> None:
        """These partitions (None: all) are about to be given up. Waits until no start of theirs writes a commit."""

    def needs_final_commit(self, partitions: Collection[TopicPartition] | None, is_deleted: IsDeleted) -> bool: ...

    async def final_commit(self, partitions: Collection[TopicPartition] | None, is_deleted: IsDeleted) -> None:
        """Leaves commits that any client can resume from."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlainPlan:
    """One offset per partition."""

    offsets: dict[TopicPartition, OffsetAndMetadata]
    topic_ids: Mapping[str, uuid.UUID | None] = dataclasses.field(default_factory=dict)  # when it was planned
    is_of_positions: bool = False

    def __bool__(self) -> bool:
        return bool(self.offsets)

    def of(self, chosen: Callable[[TopicPartition], bool]) -> PlainPlan:
        return dataclasses.replace(self, offsets={tp: it for tp, it in self.offsets.items() if chosen(tp)})

    def entries(self) -> Entries:
        return {tp: (it,) for tp, it in self.offsets.items()}


class PlainTarget:
    """Positions and chosen offsets are committed as they are."""

    has_final_commit = False

    def __init__(self, buffer: FetchBuffer) -> None:
        self._buffer = buffer

    def needs_position(self, offsets: Offsets) -> Iterable[TopicPartition]:
        return ()

    def plan(self, offsets: Offsets) -> PlainPlan:
        with self._buffer.lock:
            return PlainPlan(dict(offsets), self._buffer.topic_ids(offsets))

    def plan_positions(self, done: Mapping[TopicPartition, OffsetSet | None], is_deleted: IsDeleted) -> PlainPlan:
        with self._buffer.lock:
            offsets = {
                state.tp: position_commit(state.position, state.already_done, done.get(state.tp))
                for state in self._buffer.assignment
                if state.position is not None and not is_deleted(state.tp)
            }
            return PlainPlan(offsets, self._buffer.topic_ids(offsets), is_of_positions=True)
