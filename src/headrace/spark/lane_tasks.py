"""The tasks of a batch, and the column `lane` of what they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from ..types import TopicPartition
from .checkpoint import LIVE, LaneRange
from .ranges import LONG_RANGE, split

if TYPE_CHECKING:
    import pyarrow

LANE = "lane"


class LaneTask(InputPartition):
    """Ranges of one partition, read one after the other."""

    def __init__(self, ranges: tuple[LaneRange, ...]) -> None:
        super().__init__(ranges)


def in_tasks(ranges: Sequence[LaneRange], least: int | None, longest: int | None) -> list[tuple[LaneRange, ...]]:
    """As `split` has it; but what a batch reads of a partition at several places is one task, if it is not too long: a
    task costs more than a fetch. So a batch with two lanes takes about as long as one without."""
    lanes: dict[TopicPartition, list[LaneRange]] = {}
    for each in ranges:
        lanes.setdefault(each.tp, []).append(each)
    pieces = [
        LaneRange(*piece, next(each.lane for each in lanes[piece.tp] if each.start <= piece.start < each.end))
        for piece in split([each.offsets for each in ranges], least, longest)
    ]
    if least is not None:
        return [(piece,) for piece in pieces]
    tasks: list[tuple[LaneRange, ...]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.tp, piece.lane != LIVE, piece.start)):
        before = tasks[-1] if tasks and tasks[-1][0].tp == piece.tp else ()
        if before and sum(each.offsets.size for each in (*before, piece)) <= (longest or LONG_RANGE):
            tasks[-1] = (*before, piece)
        else:
            tasks.append((piece,))
    return tasks


def with_lane(batches: Iterator[pyarrow.RecordBatch], lane: str) -> Iterator[pyarrow.RecordBatch]:
    """The column comes last."""
    import pyarrow

    for batch in batches:
        column = pyarrow.repeat(pyarrow.scalar(lane, pyarrow.string()), batch.num_rows)
        yield batch.append_column(LANE, column)
