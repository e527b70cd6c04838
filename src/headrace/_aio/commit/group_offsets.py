"""The committed offsets of a group: the usual `OffsetStore`.

It writes plain commits only. But it reads through a `CommittedReader` that understands all commits that headrace
writes: a consumer without enable.parallel.rebalance must not skip the ranges that one with it has left open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from ..._machines.commit.committed_offset import CommittedOffset
from ...errors import HeadraceError
from ...types import OffsetAndMetadata, TopicPartition
from .offset_requests import OffsetRequests
from .plan import CommitPlan, IsDeleted, PlainPlan


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

    def __init__(self, requests: OffsetRequests, reader: CommittedReader) -> None:
        self._requests = requests
        self._reader = reader

    @property
    def is_member(self) -> bool:
        return self._requests.is_member

    async def read(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset | HeadraceError]:
        return await self._reader.read(partitions)

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return await self._reader.committed(partitions)

    async def commit(self, plan: CommitPlan) -> None:
        assert isinstance(plan, PlainPlan)
        if plan:
            await self._requests.commit(plan.offsets, plan.topic_ids)

    async def stop_starts(self, partitions: Collection[TopicPartition] | None) -> None:
        """No start writes a commit."""

    def needs_final_commit(self, partitions: Collection[TopicPartition] | None, is_deleted: IsDeleted) -> bool:
        return False

    async def final_commit(self, partitions: Collection[TopicPartition] | None, is_deleted: IsDeleted) -> None:
        """Every commit is one that any client can resume from."""
