"""How partitions start with KIP-333: in two lanes, if their commit is behind the end of the log.

The end of the log is asked for together with the commits, and before the leader epochs of the commits are compared with
the log: a truncation in between is then found by that comparison, or by the live lane.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection, Mapping

from ..._machines.commit.committed_offset import CommittedOffset
from ..._machines.fetch.partition import Phase, Position
from ..._machines.lanes.lanes import Lanes, lanes_for
from ..._machines.positions.positions import Committed, Positions, PositionVersions, refuse
from ...errors import CommitFailedError, HeadraceError
from ...types import TopicPartition
from ..fetch.buffer import FetchBuffer
from ..positions.list_offsets import LATEST, ListOffsets
from ..positions.partition_start import Answers, CommittedOffsets, LogEnds, Settled
from .backlog import Backlog
from .tokens import LaneTokens


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
        min_lag: int,
    ) -> None:
        self._offsets = offsets
        self._reader = reader
        self._buffer = buffer
        self._positions = Positions(buffer.assignment, buffer.cluster)
        self._backlog = backlog
        self._tokens = tokens
        self._min_lag = min_lag

    @property
    def is_member(self) -> bool:
        return self._reader.is_member

    async def ask(self, partitions: Collection[TopicPartition]) -> Answers:
        committed, ends = await asyncio.gather(
            self._reader.read(partitions), self._offsets.by_time(dict.fromkeys(partitions, LATEST))
        )
        return Answers(committed, ends)

    async def settle(self, committed: Committed, ends: LogEnds, versions: PositionVersions) -> Settled:
        """None of the records of these partitions is handed out before their token is committed."""
        again = self._refuse_unknown_ends(committed, ends, versions)
        settled = {tp for tp, end in ends.items() if self._has_commit(tp, committed) and isinstance(end, HeadraceError)}
        lanes = self._lanes(committed, ends)
        settled |= lanes.keys()
        with self._buffer.lock:
            lanes = {tp: it for tp, it in lanes.items() if self._may_begin(tp, versions)}
        if lanes:
            self._backlog.get_ready(lanes.keys())
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
                    state = self._positions.current(tp, versions, Phase.UNKNOWN)
                    if state is not None:
                        refuse(state, end, time.monotonic())
                    again = (end if end.retriable else None) or again
        return again

    def _has_commit(self, tp: TopicPartition, committed: Committed) -> bool:
        return isinstance(committed.get(tp), CommittedOffset)

    def _lanes(self, committed: Committed, ends: LogEnds) -> dict[TopicPartition, Lanes]:
        lanes: dict[TopicPartition, Lanes] = {}
        for tp, end in ends.items():
            found = committed.get(tp)
            if isinstance(found, CommittedOffset) and not isinstance(end, HeadraceError):
                token = secrets.token_urlsafe(6)
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
