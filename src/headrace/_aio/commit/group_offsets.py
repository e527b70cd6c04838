"""The committed offsets of a group: the usual `OffsetStore`.

It writes plain commits only. But it reads through a `CommittedReader` that understands all commits that headrace
writes: a consumer without enable.parallel.rebalance must not skip the ranges that one with it has left open.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from ..._machines.commit.committed_offset import CommittedOffset
from ...errors import HeadraceError
from ...types import OffsetAndMetadata, TopicPartition
from .plan import CommitPlan, IsDeleted, Offsets, PlainPlan


class GroupCoordinator(Protocol):
    """What commits need of the group's coordinator."""

    @property
    def is_member(self) -> bool: ...

    async def commit(self, offsets: Offsets, topic_ids: Mapping[str, uuid.UUID | None] | None = None) -> None: ...


class CommittedReader(Protocol):
    """See `OffsetStore`."""

    async def read(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset | HeadraceError]: ...

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...


class GroupOffsets:
    """Belongs to the loop's thread."""

    def __init__(self, coordinator: GroupCoordinator, reader: CommittedReader) -> None:
        self._coordinator = coordinator
        self._reader = reader

    @property
    def is_member(self) -> bool:
        return self._coordinator.is_member

    async def read(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset | HeadraceError]:
        return await self._reader.read(partitions)

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return await self._reader.committed(partitions)

    async def commit(self, plan: CommitPlan) -> None:
        assert isinstance(plan, PlainPlan)
        if plan:
            await self._coordinator.commit(plan.offsets, plan.topic_ids)

    async def stop_starts(self, partitions: Collection[TopicPartition] | None) -> None:
        """No start writes a commit."""

    def needs_final_commit(self, partitions: Collection[TopicPartition] | None, is_deleted: IsDeleted) -> bool:
        return False

    async def final_commit(self, partitions: Collection[TopicPartition] | None, is_deleted: IsDeleted) -> None:
        """Every commit is one that any client can resume from."""
