"""The records of both lanes (KIP-333): the live one's, and a quota for the backlog's.

The live lane is the consumer's own assignment: its positions are what the user sees and seeks. The backlog has
positions of its own. A seek ends the backlog of a partition: from then on the user decides what is read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ..._machines.cluster import Cluster
from ..._machines.commit.offset_set import OffsetSet
from ..._machines.fetch.assignment import Assignment, TakenFrom
from ..._machines.fetch.partition import Chunk, PartitionState
from ..._machines.lanes.backlog_quota import BacklogQuota
from ..._machines.lanes.lanes import LIVE
from ...config.consumer import ConsumerConfig
from ...types import TopicPartition, Watermarks
from ..fetch.buffer import FetchBuffer
from ..fetch.partitions import FetchedPartitions
from ..fetch.source import ReadingStart
from ..network.client import Client
from .backlog import Backlog
from .backlog_task import BacklogTask


def two_lane_buffer(config: ConsumerConfig) -> FetchBuffer:
    """Each lane has half of queued.max.bytes, so that neither keeps the other from fetching."""
    budget = config.queued_max_bytes // 2

    def source(live: FetchedPartitions) -> TwoLaneSource:
        assert isinstance(live, FetchBuffer)
        return TwoLaneSource(config, live, Backlog(config, live, budget, live.lost.append))

    return FetchBuffer(config, source, lane=LIVE, budget=budget)


class TwoLaneSource:
    """See `RecordSource`."""

    def __init__(self, config: ConsumerConfig, live: FetchedPartitions, backlog: Backlog) -> None:
        self._live = live
        self.backlog = backlog
        self.assignments = (live.assignment, backlog.assignment)
        self._quota = BacklogQuota(config.parallel_rebalance_backlog_share)

    def assignment_of(self, lane: str | None) -> Assignment:
        return self.backlog.assignment if lane == self.backlog.lane else self._live.assignment

    def states(self, tp: TopicPartition) -> list[PartitionState]:
        live, beside = self._live.assignment.state(tp), self.backlog.assignment.get(tp)
        return [live] if beside is None else [live, beside]

    # -- polls -------------------------------------------------------------------------------------------------------

    def take(self, limit: int, taken_from: list[TakenFrom]) -> list[Chunk]:
        """Live records first, but not so many that nothing of its quota is left for the backlog."""
        taken = self._take(limit, taken_from)
        # A buffer looks at this when a poll has no records. Those of one lane may never end.
        if taken and self._live.assignment.resolve_out_of_range():
            self._live.wake_all()
        return taken

    def _take(self, limit: int, taken_from: list[TakenFrom]) -> list[Chunk]:
        live, backlog = self._live.assignment, self.backlog
        if not len(backlog.assignment):
            return live.take(limit, taken_from)
        if limit < 0:
            taken = live.take(limit, taken_from) + backlog.take(limit, taken_from)
        else:
            kept = self._quota.reserve(limit, backlog.assignment.available)
            taken = live.take(limit - kept, taken_from) if kept < limit else []
            left = limit - sum(map(len, taken))
            if left:
                taken += backlog.take(left, taken_from)
        if backlog.assignment.out_of_range_offsets():
            backlog.wake_all()
        backlog.log_progress(live)
        return taken

    def undo(self, taken_from: list[TakenFrom]) -> None:
        """Each lane leaves what was taken from the other one alone: it is of another state."""
        self._live.assignment.undo(taken_from)
        self.backlog.undo(taken_from)

    def consume_needs_fetch(self) -> Callable[[], None] | None:
        live, beside = self._live.consume_needs_fetch(), self.backlog.consume_needs_fetch()
        if live is None or beside is None:
            return live or beside
        return functools.partial(_call_both, live, beside)

    # -- partitions --------------------------------------------------------------------------------------------------

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        self.backlog.keep(partitions)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        self.backlog.drop(partitions)

    def cut(self, tp: TopicPartition, offset: int) -> None:
        """The lanes must not overlap."""
        self.backlog.cut(tp, offset)

    def rewind(self, tp: TopicPartition, done: OffsetSet) -> OffsetSet:
        return self.backlog.rewind(tp, done)

    def follow(self, cluster: Cluster) -> None:
        self.backlog.assignment.follow(cluster)

    def reading_start(self, tp: TopicPartition) -> ReadingStart:
        lanes = self.backlog.lanes.get(tp)
        if lanes is not None:
            starts = {self._live.lane: lanes.live_start, self.backlog.lane: 0}
            return ReadingStart(lanes.already_done, starts, {self.backlog.lane: lanes.within})
        state = self._live.assignment.get(tp)
        return ReadingStart(None if state is None else state.already_done, {}, {})

    def handed_out(self) -> dict[TopicPartition, Watermarks]:
        """Of partitions with an open backlog, if anything was handed out of them."""
        positions = self._live.assignment.positions()
        spans = {
            tp: self.backlog.handed_out(tp, positions[tp].offset)
            for tp, lanes in self.backlog.lanes.items()
            if tp in positions and not lanes.is_closed
        }
        return {tp: span for tp, span in spans.items() if span is not None}

    def describe(self) -> dict[str, Any] | None:
        return self.backlog.describe()

    def start(self, client: Client[ConsumerConfig]) -> BacklogTask:
        return BacklogTask(client, self.backlog)


def _call_both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()
