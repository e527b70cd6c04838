"""What a streaming query has to do with its group: nothing, commits for those who look on, or a membership."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from ..types import TopicPartition
from .checkpoint import Checkpoint
from .committing import GroupCommits
from .consumer_settings import with_own_client
from .ending import end_in_order
from .group_options import GroupOptions
from .membership import Member
from .options import SourceOptions
from .ownership import EVERYTHING, Ownership, Portion
from .ranges import Offsets

log = logging.getLogger(__name__)

_JOINS_WITHIN = 60.0
_SETTLES_WITHIN = 5.0


class Grouping:
    """Made without I/O, since Spark makes readers also where it only wants to send them away. Belongs to the thread of
    Spark's calls; the threads of what it holds are described there."""

    def __init__(self, options: SourceOptions, groups: GroupOptions) -> None:
        self._options = options
        self._groups = groups
        self._settings = with_own_client(groups.settings) if groups.is_member else groups.settings
        self._commits: GroupCommits | None = None
        self._member: Member | None = None
        self._ownership = Ownership()
        self._pending = 0
        self._lost = 0
        self._read_in_vain = 0
        self._before: Checkpoint | None = None  # where the batch began that was the last to be completed

    def prepare(self) -> None:
        """An AvailableNow query reads what the group gives it at first, for which it waits, and what comes later."""
        if self._groups.is_member and not self._membership.join(_JOINS_WITHIN):
            log.warning("the group has assigned nothing within %g s: nothing is read", _JOINS_WITHIN)

    def look(
        self,
        start: Checkpoint,
        earliest: Callable[[Collection[TopicPartition]], Offsets],
        *,
        is_new: bool,
        is_last: bool,
    ) -> Portion | None:
        """All before `start` is complete. What may be read now; None while it is not known. The end of an AvailableNow
        query cannot be told from its other batches: with `is_last` it is waited until commits are through."""
        if not self._groups.is_member:
            if not is_new:
                self.completed(start)
            return EVERYTHING
        member = self._membership
        standing = member.standing()
        self._tell_of(standing.lost, start)
        self._before = start
        if not standing.has_joined:
            return None
        portion = self._ownership.look(start, standing, earliest)
        self._pending = len(standing.asked_back)
        member.is_done(portion.completed, portion.released)
        if is_last:
            member.settle(_SETTLES_WITHIN)
        return portion

    def _tell_of(self, lost: Collection[TopicPartition], start: Checkpoint) -> None:
        read = [] if self._before is None else self._before.ranges_to(start)
        for tp in sorted(lost):
            self._lost += 1
            self._read_in_vain += sum(each.end - each.start for each in read if each.tp == tp)
            spans = ", ".join(f"{each.start} to before {each.end}" for each in read if each.tp == tp)
            log.warning(
                "%s was lost while a batch ran, which has read %s of it. Others may read that again: the group had not "
                "heard that it is done",
                *(tp, f"offsets {spans}" if spans else "nothing"),
            )

    def completed(self, end: Checkpoint) -> None:
        if self._groups.commits:
            if self._commits is None:
                end_in_order()
                self._commits = GroupCommits(self._groups.settings)
            self._commits.offer(end.done)

    def metrics(self) -> dict[str, int]:
        if not self._groups.is_member:
            return {}
        return {
            "partitionsOwned": self._ownership.count,
            "pendingRevokes": self._pending,
            "partitionsLost": self._lost,
            "readOfLost": self._read_in_vain,
        }

    @property
    def client(self) -> str | None:
        """The client.id of a member."""
        return self._settings["client.id"] if self._groups.is_member else None

    def close(self) -> None:
        commits, self._commits = self._commits, None
        member, self._member = self._member, None
        if commits is not None:
            commits.close()
        if member is not None:
            member.close()

    @property
    def _membership(self) -> Member:
        if self._member is None:
            end_in_order()
            self._member = Member(self._options, self._settings)
        return self._member
