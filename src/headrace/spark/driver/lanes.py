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
- Without lanes, the holes of a checkpoint are filled first, in order, before the query continues at the frontier.

`ranges.py` has how quotas are distributed. With lanes they are always fair.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from ..._machines.commit.offset_set import OffsetSet
from ...types import TopicPartition
from ..checkpoint import DoneOffsets
from ..offset_range import Offsets
from ..options.group import LaneOptions
from .ranges import distribute

DEFAULT_MAX_OFFSETS = 1_000_000
"""The maximum of a batch while a backlog is open, without maxOffsetsPerTrigger."""


def partitions_to_jump(
    done: DoneOffsets, latest: Offsets, resumed: Collection[TopicPartition], lanes: LaneOptions
) -> set[TopicPartition]:
    """The resumed partitions that have a backlog."""
    return {tp for tp in resumed if tp in done and latest[tp] - done[tp].frontier >= lanes.min_lag}


def plan_batch(
    done: DoneOffsets,
    latest: Offsets,
    most: int | None,
    distribution: str,
    lanes: LaneOptions | None = None,
    jumping: Collection[TopicPartition] = (),
) -> DoneOffsets:
    """The offsets that are done after the next batch. `most` limits how many offsets it reads (a few more with the
    proportional distribution, as in Spark); None is no limit. A partition of `jumping` that did not fit into the batch
    is still behind `latest`, and should be among the `jumping` of the next one."""
    ahead = {tp: max(0, latest[tp] - each.frontier) for tp, each in done.items()}
    if lanes is not None and (jumping or any(each.holes for each in done.values())):
        return _plan_lanes(done, latest, ahead, most or DEFAULT_MAX_OFFSETS, lanes, set(jumping))
    return _plan_in_order(done, latest, ahead, most, distribution)


def count_done(done: DoneOffsets) -> int:
    return sum(each.frontier - each.count_open for each in done.values())


def _plan_in_order(
    done: DoneOffsets, latest: Offsets, ahead: Offsets, most: int | None, distribution: str
) -> DoneOffsets:
    unread = {tp: ahead[tp] + each.count_open for tp, each in done.items()}
    if most is None or sum(unread.values()) <= most:
        return _plan_everything(done, latest)
    quotas = distribute(unread, most, distribution, count_done(done))
    return {tp: _fill(each, quotas.get(tp, 0), max(latest[tp], each.frontier)) for tp, each in done.items()}


def _plan_lanes(
    done: DoneOffsets,
    latest: Offsets,
    ahead: Offsets,
    most: int,
    lanes: LaneOptions,
    jumping: set[TopicPartition],
) -> DoneOffsets:
    live = sum(ahead.values())
    backlog = sum(each.count_open for each in done.values())
    if live + backlog <= most:
        return _plan_everything(done, latest)
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
    return {tp: _fill(each, quotas.get(tp, 0), each.frontier) for tp, each in after.items()}


def _plan_everything(done: DoneOffsets, latest: Offsets) -> DoneOffsets:
    return {tp: each | OffsetSet(max(latest[tp], each.frontier)) for tp, each in done.items()}


def _advance(done: OffsetSet, count: int, latest: int, jumps: bool) -> OffsetSet:
    """Adds `count` live records: the newest ones if it jumps, otherwise those that follow the frontier."""
    first = latest - count if jumps else done.frontier
    return done.with_done(first, first + count) if count else done


def _fill(done: OffsetSet, count: int, end: int) -> OffsetSet:
    """Adds the lowest `count` open offsets before `end`."""
    for first, last in done.open(0, end):
        if count <= 0:
            break
        taken = min(count, last - first)
        done = done.with_done(first, first + taken)
        count -= taken
    return done
