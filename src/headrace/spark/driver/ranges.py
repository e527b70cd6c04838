"""How many offsets of each partition a batch reads, and how ranges are split into tasks. No I/O, no state.

How `maxOffsetsPerTrigger` is distributed among the partitions (`maxOffsetsPerTriggerShares`):

    fair          each partition gets the same quota; what it cannot use goes to the others (KIP-41). A partition with
                  few offsets to read gets all of them in this batch, however large the backlog of the others is
    proportional  in proportion to the offsets that each partition has to read, as in Spark; at least one for each

If there are fewer offsets than partitions, or a remainder that cannot be divided, the partitions take turns. Whose turn
it is follows from how many offsets were read so far, so that a batch that is planned again is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..._machines.commit.offset_set import OffsetSet
from ..._machines.fetch.drain import fair_quotas
from ..checkpoint import DoneOffsets
from ..offset_range import OffsetRange, Offsets

# A longer range is split into several tasks, so that a task that fails does not read everything again.
MAX_RANGE_SIZE = 10_000_000


def distribute(sizes: Offsets, most: int, distribution: str, so_far: int) -> Offsets:
    """How many of `most` offsets each partition gets, given how many it has to read. (With the proportional
    distribution the sum may be a few more, as in Spark.) `so_far`, the number of offsets that were read so far, decides
    whose turn it is."""
    nonempty = {tp: sizes[tp] for tp in sorted(sizes) if sizes[tp] > 0}
    total = sum(nonempty.values())
    if total <= most:
        return nonempty
    if most <= 0:
        return {}
    if distribution == "proportional":
        return {tp: _proportional_quota(size, total, most) for tp, size in nonempty.items()}
    turn = so_far // most % len(nonempty)
    order = [*list(nonempty)[turn:], *list(nonempty)[:turn]]
    quotas, _ = fair_quotas([nonempty[tp] for tp in order], most)
    return dict(zip(order, quotas, strict=True))


def _proportional_quota(size: int, total: int, most: int) -> int:
    quota = most * (size / total)
    return min(size, math.ceil(quota) if quota < 1 else math.floor(quota))


def count_done(done: DoneOffsets) -> int:
    return sum(each.count_done for each in done.values())


def read_everything(done: DoneOffsets, latest: Offsets) -> DoneOffsets:
    """The offsets that are done after a batch without a limit."""
    return {tp: each | OffsetSet(max(latest[tp], each.frontier)) for tp, each in done.items()}


def fill(done: OffsetSet, count: int, end: int) -> OffsetSet:
    """Adds the lowest `count` open offsets before `end`."""
    for first, last in done.open(0, end):
        if count <= 0:
            break
        taken = min(count, last - first)
        done = done.with_done(first, first + taken)
        count -= taken
    return done


def split_ranges(ranges: Iterable[OffsetRange], min_tasks: int | None, max_size: int | None) -> list[OffsetRange]:
    """One range for each task. Splits a range into equal parts if it is longer than `max_size`, or if there would be
    fewer than `min_tasks` tasks. The parts are those of Spark's KafkaOffsetRangeCalculator, rounding included. So the
    number of tasks can differ a little from `min_tasks`."""
    max_size = max_size or MAX_RANGE_SIZE
    found = [_cut(each, math.ceil(each.size / max_size)) for each in ranges if each.size > 0]
    tasks = sum(map(len, found))
    if min_tasks is None or tasks >= min_tasks:
        return [part for parts in found for part in parts]
    # The remaining tasks are for the large parts. One small part keeps all parts of its range as they are, as in Spark.
    size = sum(part.size for parts in found for part in parts)
    small = [[part for part in parts if _count_parts(part.size, size, min_tasks) == 1] for parts in found]
    tasks_left = max(1, min_tasks - sum(map(len, small)))
    size_left = size - sum(part.size for parts in small for part in parts)
    return [
        piece
        for parts, stays in zip(found, small, strict=True)
        for part in parts
        for piece in ([part] if stays else _cut(part, _count_parts(part.size, size_left, tasks_left)))
    ]


def _count_parts(size: int, total: int, tasks: int) -> int:
    """Rounds half up, as Java does. Python's round() rounds half to even."""
    exact = size / total * tasks
    return max(1, math.floor(exact) + (exact % 1 >= 0.5))


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    found, start = [], whole.start
    for left in range(min(count, whole.size), 0, -1):
        end = start + (whole.end - start) // left
        found.append(OffsetRange(whole.tp, start, end))
        start = end
    return found
