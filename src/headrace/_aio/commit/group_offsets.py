"""The committed offsets of a group: the usual `OffsetStore`, which writes plain commits only."""

from __future__ import annotations

from collections.abc import Collection

from ...types import TopicPartition
from .offset_requests import OffsetRequests
from .plan import CommitPlan, IsDeleted, PlainPlan


class GroupOffsets:
    """Belongs to the loop's thread."""

    def __init__(self, requests: OffsetRequests) -> None:
        self._requests = requests

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
