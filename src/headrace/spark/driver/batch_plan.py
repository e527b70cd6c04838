"""Which offsets the next micro-batch reads (maxOffsetsPerTrigger). No I/O, no clock, no state.

Without lanes (KIP-333, `lanes.py`), the holes of a checkpoint are filled first, in order, before the query continues at
the frontier. `ranges.py` has how the quotas are distributed among the partitions.
"""

from __future__ import annotations

from collections.abc import Collection

from ...types import TopicPartition
from ..checkpoint import DoneOffsets
from ..offset_range import Offsets
from ..options.group import LaneOptions
from .lanes import DEFAULT_MAX_OFFSETS, plan_lanes
from .ranges import count_done, distribute, fill, read_everything


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
        return plan_lanes(done, latest, ahead, most or DEFAULT_MAX_OFFSETS, lanes, set(jumping))
    return _plan_in_order(done, latest, ahead, most, distribution)


def _plan_in_order(
    done: DoneOffsets, latest: Offsets, ahead: Offsets, most: int | None, distribution: str
) -> DoneOffsets:
    unread = {tp: ahead[tp] + each.count_open for tp, each in done.items()}
    if most is None or sum(unread.values()) <= most:
        return read_everything(done, latest)
    quotas = distribute(unread, most, distribution, count_done(done))
    return {tp: fill(each, quotas.get(tp, 0), max(latest[tp], each.frontier)) for tp, each in done.items()}
