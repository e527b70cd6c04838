"""KIP-333 in a streaming query: what the next batch reads, newest records first. No I/O, no clock, no state.

    offset    70 . . . . . . . . . . . 170 . . 200          a query restarts: it had read to 70, the log ends at 200
              backlog >                > live               maxOffsetsPerTrigger=40, a quarter of it for the backlog
    batch 1   70 . 80                  170 . . 200          done: 200 except 80 to 170
    batch 2        80 . 90                     200 . 230    done: 230 except 90 to 170, and so on until no hole is left

- A partition that is *resumed* (the query was restarted, or the group has assigned it) with `min_lag` or more offsets
  to read jumps to the end of its log: the batch reads its newest records, as many as fit into the live part. The
  offsets before them become a hole. If everything fits into one batch, there is no hole.
- Live records come first. If they alone would fill the batch, the backlog gets `backlog_share` of it. This also holds
  over many small batches: the backlog's part of a batch follows from how many offsets are done so far.
- Holes are filled from the lowest offset on, with fair quotas for all partitions.

`ranges.py` has how quotas are distributed. With lanes they are always fair. `batch_plan.py` has plans without lanes.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from ..._machines.commit.offset_set import OffsetSet
from ...types import TopicPartition
from ..checkpoint import DoneOffsets
from ..offset_range import Offsets
from ..options.group import LaneOptions
from .ranges import count_done, distribute, fill, read_everything

DEFAULT_MAX_OFFSETS = 1_000_000
"""The maximum of a batch while a backlog is open, without maxOffsetsPerTrigger."""


def partitions_to_jump(
    done: DoneOffsets, latest: Offsets, resumed: Collection[TopicPartition], lanes: LaneOptions
) -> set[TopicPartition]:
    """The resumed partitions that have a backlog."""
    return {tp for tp in resumed if tp in done and latest[tp] - done[tp].frontier >= lanes.min_lag}


def plan_lanes(
    done: DoneOffsets,
    latest: Offsets,
    ahead: Offsets,
    most: int,
    lanes: LaneOptions,
    jumping: set[TopicPartition],
) -> DoneOffsets:
    """The offsets that are done after the next batch, which reads at most `most` offsets. `ahead`: how many each
    partition has to read behind its frontier."""
    live = sum(ahead.values())
    backlog = sum(each.count_open for each in done.values())
    if live + backlog <= most:
        return read_everything(done, latest)
    so_far = count_done(done)
    # The backlog's part of all that is done after this batch, minus its part of all before. So batches of a single
    # record are distributed, too.
    reserved = math.floor((so_far + most) * lanes.backlog_share) - math.floor(so_far * lanes.backlog_share)
    # Live records beyond it create a hole: without any there would be neither a hole nor progress.
    reserved = min(reserved, backlog if backlog and not jumping else most - 1)
    live_quota = min(live, most - reserved)
    while True:
        quotas = distribute(ahead, live_quota, "fair", so_far)
        after = {tp: _advance(each, quotas.get(tp, 0), latest[tp], tp in jumping) for tp, each in done.items()}
        holes = {tp: each.count_open for tp, each in after.items()}
        if live_quota + sum(holes.values()) >= most:
            break
        # There are fewer offsets in holes than the backlog may read: partitions that could not jump yet would have
        # created more.
        live_quota = most - sum(holes.values())
    quotas = distribute(holes, most - live_quota, "fair", so_far)
    return {tp: fill(each, quotas.get(tp, 0), each.frontier) for tp, each in after.items()}


def _advance(done: OffsetSet, count: int, latest: int, jumps: bool) -> OffsetSet:
    """Adds `count` live records: the newest ones if it jumps, otherwise those that follow the frontier."""
    first = latest - count if jumps else done.frontier
    return done.with_done(first, first + count) if count else done
