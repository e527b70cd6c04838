"""How a streaming query uses its group: not at all, to commit offsets for tools that show lag, or as a member."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from ...types import TopicPartition
from ..checkpoint import Checkpoint
from ..offset_range import Offsets
from ..options.consumer import with_unique_client_id
from ..options.group import GroupOptions
from ..options.source import SourceOptions
from .committer import QueryCommitter
from .member import QueryMember
from .ownership import ALL_PARTITIONS, BatchAssignment, Ownership
from .sigterm import install_sigterm_handler

log = logging.getLogger(__name__)

_JOIN_TIMEOUT = 60.0
_COMMIT_TIMEOUT = 5.0


class GroupIntegration:
    """Created without I/O, since Spark also creates readers only to send them to executors. Belongs to the thread of
    Spark's calls; committer and member have threads of their own."""

    def __init__(self, options: SourceOptions, group_options: GroupOptions) -> None:
        self._options = options
        self._group_options = group_options
        self._settings = (
            with_unique_client_id(group_options.settings) if group_options.is_member else group_options.settings
        )
        self._committer: QueryCommitter | None = None
        self._member: QueryMember | None = None
        self._ownership = Ownership()
        self._pending_revokes = 0
        self._partitions_lost = 0
        self._offsets_of_lost = 0
        self._last_start: Checkpoint | None = None  # of the last batch that was completed

    def wait_for_assignment(self) -> None:
        """For an AvailableNow query: waits for the first assignment. The query also reads what is assigned later."""
        if self._group_options.is_member and not self._running_member.wait_for_assignment(_JOIN_TIMEOUT):
            log.warning(
                "The group %r assigned no partitions within %g s: this run of the query may read no records",
                *(self._settings["group.id"], _JOIN_TIMEOUT),
            )

    def assign_next_batch(
        self,
        start: Checkpoint,
        earliest_offsets: Callable[[Collection[TopicPartition]], Offsets],
        *,
        is_new: bool,
        is_available_now: bool,
    ) -> BatchAssignment | None:
        """The partitions that the next batch may read; None while they are not known. Everything before `start` is
        complete, and is committed. With `is_available_now` this waits for the commit: the last batch of such a query
        cannot be told from its others."""
        if not self._group_options.is_member:
            if not is_new:
                self.commit_completed(start)
            return ALL_PARTITIONS
        member = self._running_member
        snapshot = member.take_snapshot()
        self._log_lost(snapshot.lost, start)
        self._last_start = start
        if not snapshot.has_joined:
            return None
        assignment = self._ownership.assign_next_batch(start, snapshot, earliest_offsets)
        self._pending_revokes = len(snapshot.to_be_revoked)
        member.request_commit(assignment.to_commit, assignment.released)
        if is_available_now:
            member.wait_for_commits(_COMMIT_TIMEOUT)
        return assignment

    def _log_lost(self, lost: Collection[TopicPartition], start: Checkpoint) -> None:
        read = [] if self._last_start is None else self._last_start.ranges_to(start)
        for tp in sorted(lost):
            self._partitions_lost += 1
            self._offsets_of_lost += sum(each.end - each.start for each in read if each.tp == tp)
            spans = ", ".join(f"{each.start} to before {each.end}" for each in read if each.tp == tp)
            log.warning(
                "The query lost %s during a batch that contains %s of it. The query cannot commit this batch, so "
                "another member of the group %r may read these records again",
                *(tp, f"offsets {spans}" if spans else "no offsets", self._settings["group.id"]),
            )

    def commit_completed(self, end: Checkpoint) -> None:
        if self._group_options.commits:
            if self._committer is None:
                install_sigterm_handler()
                self._committer = QueryCommitter(self._group_options.settings)
            self._committer.request_commit(end.done)

    def metrics(self) -> dict[str, int]:
        if not self._group_options.is_member:
            return {}
        return {
            "partitionsOwned": self._ownership.count,
            "pendingRevokes": self._pending_revokes,
            "partitionsLost": self._partitions_lost,
            "readOfLost": self._offsets_of_lost,
        }

    @property
    def client_id(self) -> str | None:
        """Of a member."""
        return self._settings["client.id"] if self._group_options.is_member else None

    def close(self) -> None:
        committer, self._committer = self._committer, None
        member, self._member = self._member, None
        if committer is not None:
            committer.close()
        if member is not None:
            member.close()

    @property
    def _running_member(self) -> QueryMember:
        if self._member is None:
            install_sigterm_handler()
            self._member = QueryMember(self._options, self._settings)
        return self._member
