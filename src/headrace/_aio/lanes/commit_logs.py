"""Writes KIP-333's two commit logs: the group's own, and that of the group `<group.id>.backlog`.

A commit of both writes the second one first, and does not wait long for it: each has a coordinator of its own, and the
live lane's commits must not wait for the backlog's. Correctness does not depend on the order: the second log counts
only together with the token in the first, and the first repeats the token until the second has acknowledged that
nothing of it is open.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping

from kio.schema.errors import ErrorCode

from ..._machines.lanes.commit_metadata import CommitMark
from ..._machines.lanes.lanes import Lanes
from ..._protocol.codes import kafka_error
from ...errors import CommitFailedError, HeadraceError, RequestTimeoutError
from ...types import OffsetAndMetadata, TopicPartition
from ..commit.offset_requests import OffsetRequests
from ..commit.plan import CommitPlan, IsDeleted
from ..fetch.buffer import FetchBuffer
from .backlog import Backlog
from .commit_target import LanedPlan
from .progress_log import ProgressLog
from .tokens import LaneTokens

log = logging.getLogger(__name__)

_PATIENCE = 0.25  # seconds for the second log to answer, before the first is written ...
_LAST_PATIENCE = 5.0  # ... and after it: the next commits wait this long


class CommitLogs:
    """The `OffsetStore` of two lanes. Belongs to the loop's thread; its notes on lanes are behind the buffer's lock."""

    def __init__(
        self,
        first: OffsetRequests,
        second: ProgressLog,
        buffer: FetchBuffer,
        backlog: Backlog,
        tokens: LaneTokens,
    ) -> None:
        self._first = first
        self._second = second
        self._buffer = buffer
        self._lock = buffer.lock
        self._backlog = backlog
        self._tokens = tokens
        self._writing: asyncio.Task[HeadraceError | None] | None = None  # to the second log

    # -- commits -----------------------------------------------------------------------------------------------------

    async def commit(self, plan: CommitPlan) -> None:
        """If the second log cannot be written, or does not answer, the first one is written before that is raised."""
        assert isinstance(plan, LanedPlan)
        with self._lock:
            made = {tp: it.lanes.backlog_mark(it.done, it.note) for tp, it in plan.backlog.items()}
            progress = {tp: mark for tp, mark in made.items() if mark is not None}
        begun = await self._begin_second(plan, progress) if progress else None
        with self._lock:
            marks = {tp: it.lanes.live_mark(it.done, it.note, it.leader_epoch) for tp, it in plan.live.items()}
            lanes = {tp: it.lanes for tp, it in (*plan.backlog.items(), *plan.live.items())}
            for tp in plan.backlog.keys() - marks.keys():
                if lanes[tp].is_closed and lanes[tp].has_token:  # perhaps nobody commits the live lane after this
                    marks[tp] = lanes[tp].final_commit()
        refused: CommitFailedError | None = None
        if plan.plain or marks:
            refused = await self._write_first({**plan.plain, **_commits(marks, self._first.group)}, plan.topic_ids)
            if refused is not None:
                marks = {tp: mark for tp, mark in marks.items() if tp not in refused.partitions}
            with self._lock:
                for tp, mark in marks.items():
                    lanes[tp].first = mark
            plain = [*plan.plain, *(tp for tp, mark in marks.items() if not mark.token)]
            await self._tidy(plain if refused is None else set(plain) - refused.partitions)
        if progress:
            try:
                await self._end_second(begun)
            except CommitFailedError as error:
                if refused is None or not error.partitions <= refused.partitions:
                    raise
        if refused is not None:
            raise refused

    async def _write_first(
        self, commits: Mapping[TopicPartition, OffsetAndMetadata], topic_ids: Mapping[str, uuid.UUID | None]
    ) -> CommitFailedError | None:
        """Returns the error if a part of it was rejected."""
        try:
            await self._first.commit(commits, topic_ids)
        except CommitFailedError as error:
            if not error.partitions:
                raise
            return error
        return None

    async def _begin_second(
        self, plan: LanedPlan, progress: Mapping[TopicPartition, CommitMark]
    ) -> asyncio.Task[HeadraceError | None] | None:
        """A write that is under way cannot be withdrawn, also if its caller is cancelled: the next one has to
        wait for it. None: it is still under way."""
        commits = _commits(progress, self._second.group)
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=_PATIENCE)
            if not self._writing.done():
                return None
        lanes = {tp: plan.backlog[tp].lanes for tp in progress}
        writing = self._write_second(lanes, progress, commits, plan.topic_ids)
        self._writing = asyncio.create_task(writing, name="backlog commit")
        await asyncio.wait({self._writing}, timeout=_PATIENCE)
        return self._writing

    async def _write_second(
        self,
        lanes: Mapping[TopicPartition, Lanes],
        progress: Mapping[TopicPartition, CommitMark],
        commits: Mapping[TopicPartition, OffsetAndMetadata],
        topic_ids: Mapping[str, uuid.UUID | None],
    ) -> HeadraceError | None:
        refused: CommitFailedError | None = None
        try:
            await self._second.commit(commits, topic_ids)
        except CommitFailedError as error:
            if not error.partitions:
                return error
            refused = error
            progress = {tp: mark for tp, mark in progress.items() if tp not in error.partitions}
        except HeadraceError as error:
            return error
        with self._lock:
            for tp, mark in progress.items():
                lanes[tp].progress = mark.done
            self._backlog.committed(progress)
        return refused

    async def _end_second(self, begun: asyncio.Task[HeadraceError | None] | None) -> None:
        if begun is not None:
            await asyncio.wait({begun}, timeout=_LAST_PATIENCE)
        if begun is None or not begun.done():
            raise RequestTimeoutError(
                f"OffsetCommit to group {self._second.group}: no response yet. Only the progress of the backlog "
                f"is not committed"
            )
        if (failure := begun.result()) is not None:
            raise failure

    async def _tidy(self, partitions: Iterable[TopicPartition]) -> None:
        """The first log has plain commits of these. A write to the second log that is still under way would come after
        the deletion."""
        stale = self._second.noted(partitions)
        if stale and self._writing is not None:
            await asyncio.wait({self._writing}, timeout=_PATIENCE)
        if self._writing is None or self._writing.done():
            await self._second.tidy(stale)

    # -- the final commit --------------------------------------------------------------------------------------------

    async def stop_starts(self, partitions: Collection[TopicPartition] | None) -> None:
        """After this, the lanes of these partitions are known: no token is written for them any more."""
        await self._tokens.stop(partitions)

    def needs_final_commit(self, partitions: Collection[TopicPartition] | None, is_deleted: IsDeleted) -> bool:
        with self._lock:
            return bool(self._lanes_with_tokens(partitions, is_deleted))

    async def final_commit(self, partitions: Collection[TopicPartition] | None, is_deleted: IsDeleted) -> None:
        """Leaves plain offsets in the first log."""
        with self._lock:
            lanes = self._lanes_with_tokens(partitions, is_deleted)
            topic_ids = self._buffer.topic_ids(lanes)
            marks = {tp: it.final_commit(self._backlog.position(tp)) for tp, it in lanes.items()}
        if marks:
            await self._first.commit({tp: mark.commit for tp, mark in marks.items()}, topic_ids)
            with self._lock:
                for tp, mark in marks.items():
                    lanes[tp].first = mark
            await self._tidy(marks)

    def _lanes_with_tokens(
        self, partitions: Collection[TopicPartition] | None, is_deleted: IsDeleted
    ) -> dict[TopicPartition, Lanes]:
        return {
            tp: lanes
            for tp, lanes in self._backlog.lanes.items()
            if (partitions is None or tp in partitions) and lanes.has_token and not is_deleted(tp)
        }


def _commits(marks: Mapping[TopicPartition, CommitMark], group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Raises CommitFailedError if the user's metadata leaves no room."""
    made: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, mark in marks.items():
        try:
            made[tp] = mark.commit
        except ValueError as error:
            code = ErrorCode.offset_metadata_too_large
            raise kafka_error(code, f"OffsetCommit of {tp} to group {group}", str(error), CommitFailedError) from None
    return made
