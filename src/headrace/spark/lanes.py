"""KIP-333 in a streaming query: what the next batch reads, newest records first. No I/O, no clock, no memory.

    offset    70 . . . . . . . . . . . 170 . . 200          a query comes back: it had read to 70, the log ends at 200
              backlog >                > live               maxOffsetsPerTrigger=40, of which a quarter for the backlog
    batch 1   70 . 80                  170 . . 200          done: 200 but for 80 to 170
    batch 2        80 . 90                     200 . 230    done: 230 but for 90 to 170, and so on until nothing is open

- A partition that *arrives* (its query was started again, or its group has given it) with `min_lag` offsets or more to
  read goes on at the end of its log: with the newest records that fit into the live part of the batch. What lies before
  them is a hole. If everything fits into one batch, there is none.
- Live records come first. When they alone would fill the batch, the backlog gets `backlog_share` of it. Over many small
  batches as well: its part of a batch follows from how much is done so far.
- Holes are filled from the lowest offset on, all partitions by fair shares.
- Without lanes, holes that a checkpoint has are filled first, in order, and then it goes on at the frontier.

How shares are given is in `ranges.py`. With lanes they are always fair.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

from ..offsets import OffsetSet
from ..types import TopicPartition
from .checkpoint import Done
from .ranges import Offsets, shared_out

MOST_BESIDE_BACKLOG = 1_000_000
"""What a batch reads at most while a backlog is open, without maxOffsetsPerTrigger."""


@dataclasses.dataclass(frozen=True, slots=True)
class LaneTerms:
    """`min_lag` as the consumer has it, `backlog_share` as well."""

    min_lag: int = 1
    backlog_share: float = 0.25


def to_jump(done: Done, latest: Offsets, arrived: Collection[TopicPartition], lanes: LaneTerms) -> set[TopicPartition]:
    """Those of the partitions that arrived which have a backlog."""
    return {tp for tp in arrived if tp in done and latest[tp] - done[tp].frontier >= lanes.min_lag}


def planned(
    done: Done,
    latest: Offsets,
    most: int | None,
    shares: str,
    lanes: LaneTerms | None = None,
    jumping: Collection[TopicPartition] = (),
) -> Done:
    """What is done when the next batch is. `most` is how many offsets it reads at most (a few more with proportional
    shares, as in Spark); None is no limit. One that should jump and had no place in the batch is still behind `latest`,
    and should be among the `jumping` of the next."""
    ahead = {tp: max(0, latest[tp] - each.frontier) for tp, each in done.items()}
    if lanes is not None and (jumping or any(each.holes for each in done.values())):
        return _in_lanes(done, latest, ahead, most or MOST_BESIDE_BACKLOG, lanes, set(jumping))
    return _in_order(done, latest, ahead, most, shares)


def count_done(done: Done) -> int:
    return sum(each.frontier - each.count_open for each in done.values())


def _in_order(done: Done, latest: Offsets, ahead: Offsets, most: int | None, shares: str) -> Done:
    waiting = {tp: ahead[tp] + each.count_open for tp, each in done.items()}
    if most is None or sum(waiting.values()) <= most:
        return _all(done, latest)
    given = shared_out(waiting, most, shares, count_done(done))
    return {tp: _filled(each, given.get(tp, 0), max(latest[tp], each.frontier)) for tp, each in done.items()}


def _in_lanes(
    done: Done,
    latest: Offsets,
    ahead: Offsets,
    most: int,
    terms: LaneTerms,
    jumping: set[TopicPartition],
) -> Done:
    live = sum(ahead.values())
    behind = sum(each.count_open for each in done.values())
    if live + behind <= most:
        return _all(done, latest)
    so_far = count_done(done)
    # Its share of all that is done after this batch, less that of all before: so also a batch of one record is shared.
    reserved = math.floor((so_far + most) * terms.backlog_share) - math.floor(so_far * terms.backlog_share)
    # A hole is made by live records beyond it: without any there would be none, nor any progress.
    reserved = min(reserved, behind if behind and not jumping else most - 1)
    ours = min(live, most - reserved)
    while True:
        given = shared_out(ahead, ours, "fair", so_far)
        after = {tp: _moved(each, given.get(tp, 0), latest[tp], tp in jumping) for tp, each in done.items()}
        holes = {tp: each.count_open for tp, each in after.items()}
        if ours + sum(holes.values()) >= most:
            break
        # Fewer holes than the backlog may have: those that could not jump yet would have made them.
        ours = most - sum(holes.values())
    given = shared_out(holes, most - ours, "fair", so_far)
    return {tp: _filled(each, given.get(tp, 0), each.frontier) for tp, each in after.items()}


def _all(done: Done, latest: Offsets) -> Done:
    return {tp: each | OffsetSet(max(latest[tp], each.frontier)) for tp, each in done.items()}


def _moved(done: OffsetSet, count: int, latest: int, jumps: bool) -> OffsetSet:
    """So many live records: the newest there are, or those that follow the last ones."""
    first = latest - count if jumps else done.frontier
    return done.with_done(first, first + count) if count else done


def _filled(done: OffsetSet, count: int, end: int) -> OffsetSet:
    """So many of the lowest that are open before `end`."""
    for first, last in done.open(0, end):
        if count <= 0:
            break
        taken = min(count, last - first)
        done = done.with_done(first, first + taken)
        count -= taken
    return done
