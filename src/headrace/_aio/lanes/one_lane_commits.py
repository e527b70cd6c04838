"""The commits of a consumer without enable.parallel.rebalance. One before it in the group may have had two lanes."""

from __future__ import annotations

from collections.abc import Collection

from ...types import TopicPartition
from ..commit.group_offsets import GroupOffsets
from ..commit.plan import CommitPlan, IsDeleted
from .progress_log import ProgressLog


class OneLaneCommits:
    """The usual `OffsetStore`, after whose commits the progress of a former backlog has no meaning any more. Belongs to
    the loop's thread."""

    def __init__(self, plain: GroupOffsets, progress: ProgressLog) -> None:
        self._plain = plain
        self._progress = progress

    async def commit(self, plan: CommitPlan) -> None:
        await self._plain.commit(plan)
        await self._progress.tidy(plan.offsets)

    async def stop_starts(self, partitions: Collection[TopicPartition] | None) -> None:
        await self._plain.stop_starts(partitions)

    def needs_final_commit(self, partitions: Collection[TopicPartition] | None, is_deleted: IsDeleted) -> bool:
        return self._plain.needs_final_commit(partitions, is_deleted)

    async def final_commit(self, partitions: Collection[TopicPartition] | None, is_deleted: IsDeleted) -> None:
        await self._plain.final_commit(partitions, is_deleted)
