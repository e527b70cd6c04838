"""How partitions start with KIP-333: in two lanes, if their commit is behind the end of the log.

The end of the log is asked for together with the commits, and before the leader epochs of the commits are compared with
the log: a truncation in between is then found by that comparison, or by the live lane.

The second log is looked at, too. If somebody else's group has its name, and a commit of the partition, the partition
has one lane: its owner could not store progress without destroying that commit. Progress of ours that no token refers
to was left behind (by a crash just before its deletion), and is deleted.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Collection, Mapping

from ..._machines.commit.committed_offset import CommittedOffset
from ..._machines.fetch.partition import Phase, Position
from ..._machines.lanes.commit_metadata import token_of
from ..._machines.lanes.lanes import Lanes, lanes_for
from ..._machines.positions.positions import Committed, Positions, PositionVersions, refuse
from ...errors import CommitFailedError, HeadraceError, RequestTimeoutError
from ...types import OffsetAndMetadata, TopicPartition
from ..fetch.buffer import FetchBuffer
from ..positions.list_offsets import LATEST, ListOffsets
from ..positions.partition_start import Answers, CommittedOffsets, LogEnds, Settled
from .backlog import Backlog
from .progress_log import ProgressLog
from .tokens import LaneTokens

log = logging.getLogger(__name__)

_PATIENCE = 5.0  # seconds for the second log to answer: partitions that get one lane do not need it

_FOREIGN = (
    "%s is consumed in one lane, in order: the group %s has a commit of it, at %d, that enable.parallel.rebalance has "
    "not written, and would overwrite. Choose another group.id, or, if nobody uses that group, delete it "
    "(headrace groups delete -g %s)"
)


class TwoLaneStart:
    """See `PartitionStart`. Belongs to the loop's thread."""

    checks_plain_commits = True  # a commit decides where the backlog begins

    def __init__(
        self,
        offsets: ListOffsets,
        reader: CommittedOffsets,
        buffer: FetchBuffer,
        backlog: Backlog,
        tokens: LaneTokens,
        progress: ProgressLog,
        min_lag: int,
    ) -> None:
        self._offsets = offsets
        self._reader = reader
        self._buffer = buffer
        self._positions = Positions(buffer.assignment, buffer.cluster)
        self._backlog = backlog
        self._tokens = tokens
        self._progress = progress
        self._min_lag = min_lag
        self._beside: dict[TopicPartition, OffsetAndMetadata | HeadraceError | None] = {}  # what the second log has
        self._warned: set[TopicPartition] = set()

    @property
    def is_member(self) -> bool:
        return self._reader.is_member

    async def ask(self, partitions: Collection[TopicPartition]) -> Answers:
        committed, ends, _ = await asyncio.gather(
            self._reader.read(partitions),
            self._offsets.by_time(dict.fromkeys(partitions, LATEST)),
            self._look_beside(partitions),
        )
        return Answers(committed, ends)

    async def _look_beside(self, partitions: Collection[TopicPartition]) -> None:
        failure: HeadraceError
        try:
            async with asyncio.timeout(_PATIENCE):
                self._beside.update(await self._progress.committed(partitions))
            return
        except HeadraceError as error:
            failure = error
        except TimeoutError:
            failure = RequestTimeoutError(f"OffsetFetch of group {self._progress.group}: no response in {_PATIENCE} s")
        self._beside.update(dict.fromkeys(partitions, failure))

    async def settle(self, committed: Committed, ends: LogEnds, versions: PositionVersions) -> Settled:
        """None of the records of these partitions is handed out before their token is committed."""
        again = self._refuse_unknown_ends(committed, ends, versions)
        settled = {tp for tp, end in ends.items() if self._has_commit(tp, committed) and isinstance(end, HeadraceError)}
        lanes = self._lanes(committed, ends)
        beside = {tp: self._beside.pop(tp, None) for tp in versions}
        for tp in list(lanes):
            found = beside[tp]
            if isinstance(found, HeadraceError):
                settled.add(tp)
                again = self._refuse(tp, found, versions) or again
                del lanes[tp]
            elif found is not None and self._progress.is_foreign(found):
                self._warn(tp, found)
                del lanes[tp]
        settled |= lanes.keys()
        await self._tidy({tp: it for tp, it in beside.items() if tp not in lanes})
        with self._buffer.lock:
            lanes = {tp: it for tp, it in lanes.items() if self._may_begin(tp, versions)}
        if lanes:
            self._backlog.get_ready(lanes.keys())
            self._progress.note(lanes)
            try:
                await self._tokens.begin(lanes)
            except CommitFailedError as error:
                if error.partitions:  # their topics were deleted; the others have their tokens
                    again = error
                    lanes = {tp: it for tp, it in lanes.items() if tp not in error.partitions}
                elif self._reader.is_member:
                    # Fenced: the member's machine knows by now, and these partitions are about to be revoked, or to be
                    # assigned again.
                    return Settled(settled, error)
                else:
                    raise
            self._open(lanes, versions)
        return Settled(settled, again)

    def _refuse_unknown_ends(
        self, committed: Committed, ends: LogEnds, versions: PositionVersions
    ) -> HeadraceError | None:
        again: HeadraceError | None = None
        with self._buffer.lock:
            for tp, end in ends.items():
                if isinstance(end, HeadraceError) and self._has_commit(tp, committed):
                    again = self._refuse_locked(tp, end, versions) or again
        return again

    def _refuse(self, tp: TopicPartition, error: HeadraceError, versions: PositionVersions) -> HeadraceError | None:
        with self._buffer.lock:
            return self._refuse_locked(tp, error, versions)

    def _refuse_locked(
        self, tp: TopicPartition, error: HeadraceError, versions: PositionVersions
    ) -> HeadraceError | None:
        state = self._positions.current(tp, versions, Phase.UNKNOWN)
        if state is not None:
            refuse(state, error, time.monotonic())
        return error if error.retriable else None

    # -- the second log ------------------------------------------------------------------------------------------------

    def _warn(self, tp: TopicPartition, found: OffsetAndMetadata) -> None:
        if tp not in self._warned:
            self._warned.add(tp)
            group = self._progress.group
            log.warning(_FOREIGN, tp, group, found.offset, group)

    async def _tidy(self, beside: Mapping[TopicPartition, OffsetAndMetadata | HeadraceError | None]) -> None:
        """Of partitions that start in one lane. Where the first log has a token, their first commit does this."""
        own = [tp for tp, it in beside.items() if isinstance(it, OffsetAndMetadata) and self._progress.is_own(it)]
        if left := [tp for tp in own if tp not in self._progress.noted(own)]:
            self._progress.note(left)
            await self._progress.tidy(left)

    def _has_commit(self, tp: TopicPartition, committed: Committed) -> bool:
        return isinstance(committed.get(tp), CommittedOffset)

    def _lanes(self, committed: Committed, ends: LogEnds) -> dict[TopicPartition, Lanes]:
        lanes: dict[TopicPartition, Lanes] = {}
        for tp, end in ends.items():
            found = committed.get(tp)
            if isinstance(found, CommittedOffset) and not isinstance(end, HeadraceError):
                token = token_of(self._progress.owner, secrets.token_urlsafe(6))
                made = lanes_for(found, end.offset, end.leader_epoch, self._min_lag, token)
                if made is not None:
                    lanes[tp] = made
        return lanes

    def _may_begin(self, tp: TopicPartition, versions: PositionVersions) -> bool:
        is_current = self._positions.current(tp, versions, Phase.UNKNOWN) is not None
        return is_current and self._tokens.may_begin(tp, versions[tp])

    def _open(self, lanes: Mapping[TopicPartition, Lanes], versions: PositionVersions) -> None:
        with self._buffer.lock:
            for tp, two in lanes.items():
                state = self._positions.current(tp, versions, Phase.UNKNOWN)
                if state is not None:
                    epoch = two.first.leader_epoch
                    self._positions.settle(state, Position(two.live_start, -1 if epoch is None else epoch))
                    state.already_done = two.beyond
                    self._backlog.open(state, two)
        self._backlog.wake_all()
