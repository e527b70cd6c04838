"""The one place that chooses between one lane per partition and two (enable.parallel.rebalance, KIP-333)."""

from __future__ import annotations

import dataclasses

from .._machines.lanes.commit_metadata import BACKLOG_SUFFIX
from ..config.consumer import ConsumerConfig
from .commit.group_offsets import GroupOffsets
from .commit.offset_requests import OffsetRequests
from .commit.plan import CommitTarget, CommittedReader, OffsetStore, PlainTarget
from .fetch.buffer import FetchBuffer
from .group.coordinator import Coordinator
from .lanes.commit_log_reader import CommitLogReader
from .lanes.commit_logs import CommitLogs
from .lanes.commit_target import TwoLaneTarget
from .lanes.one_lane_commits import OneLaneCommits
from .lanes.progress_log import ProgressLog
from .lanes.source import TwoLaneSource, two_lane_buffer
from .lanes.start import TwoLaneStart
from .lanes.tokens import LaneTokens
from .network.client import Client
from .positions.list_offsets import ListOffsets
from .positions.partition_start import CommittedStart, PartitionStart


@dataclasses.dataclass(frozen=True, slots=True)
class OffsetParts:
    """Where a running consumer commits, what its group has committed, and how its partitions start from that."""

    store: OffsetStore
    reader: CommittedReader
    start: PartitionStart


def make_buffer(config: ConsumerConfig) -> FetchBuffer:
    return two_lane_buffer(config) if config.enable_parallel_rebalance else FetchBuffer(config)


def make_commit_target(buffer: FetchBuffer) -> CommitTarget:
    source = buffer.source
    return TwoLaneTarget(buffer, source.backlog) if isinstance(source, TwoLaneSource) else PlainTarget(buffer)


def make_offset_parts(
    client: Client[ConsumerConfig], buffer: FetchBuffer, first: OffsetRequests, offsets: ListOffsets
) -> OffsetParts:
    """On the loop's thread. Commits of two lanes are read in any case: another consumer of the group may write them."""
    config, source = client.config, buffer.source
    backlog_group = None if config.group_id is None else config.group_id + BACKLOG_SUFFIX
    second = ProgressLog(OffsetRequests(client, Coordinator(client, backlog_group)))
    reader = CommitLogReader(first, second)
    if not isinstance(source, TwoLaneSource):
        return OffsetParts(OneLaneCommits(GroupOffsets(first), second), reader, CommittedStart(reader))
    tokens = LaneTokens(first, buffer)
    logs = CommitLogs(first, second, buffer, source.backlog, tokens)
    min_lag = config.parallel_rebalance_min_lag
    return OffsetParts(logs, reader, TwoLaneStart(offsets, reader, buffer, source.backlog, tokens, second, min_lag))
