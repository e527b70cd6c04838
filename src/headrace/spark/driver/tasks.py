"""The tasks of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from ..._machines.lanes.lanes import LIVE
from ...types import TopicPartition
from ..checkpoint import LaneRange
from .ranges import MAX_RANGE_SIZE, split_ranges


class StreamInputPartition(InputPartition):
    """One task: ranges of one Kafka partition, read one after the other."""

    def __init__(self, ranges: tuple[LaneRange, ...]) -> None:
        super().__init__(ranges)


def plan_tasks(ranges: Sequence[LaneRange], min_tasks: int | None, max_size: int | None) -> list[tuple[LaneRange, ...]]:
    """Splits as `split_ranges` does. But several ranges of one partition are one task, unless that is too long: a task
    costs more than a fetch. So a batch with two lanes takes about as long as one without."""
    by_partition: dict[TopicPartition, list[LaneRange]] = {}
    for each in ranges:
        by_partition.setdefault(each.tp, []).append(each)
    parts = [
        LaneRange(*part, next(each.lane for each in by_partition[part.tp] if each.start <= part.start < each.end))
        for part in split_ranges([each.offsets for each in ranges], min_tasks, max_size)
    ]
    if min_tasks is not None:
        return [(part,) for part in parts]
    tasks: list[tuple[LaneRange, ...]] = []
    for part in sorted(parts, key=lambda part: (part.tp, part.lane != LIVE, part.start)):
        before = tasks[-1] if tasks and tasks[-1][0].tp == part.tp else ()
        if before and sum(each.offsets.size for each in (*before, part)) <= (max_size or MAX_RANGE_SIZE):
            tasks[-1] = (*before, part)
        else:
            tasks.append((part,))
    return tasks
