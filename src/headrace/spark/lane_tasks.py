"""The tasks of a batch: pieces of its ranges, those of the live lane first, and the column `lane` of what they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from .checkpoint import LIVE, LaneRange
from .ranges import split

if TYPE_CHECKING:
    import pyarrow

LANE = "lane"


class LaneTask(InputPartition):
    def __init__(self, wanted: LaneRange) -> None:
        super().__init__(wanted)


def in_pieces(ranges: Sequence[LaneRange], least: int | None, longest: int | None) -> list[LaneRange]:
    lanes = {each.tp: [other for other in ranges if other.tp == each.tp] for each in ranges}
    pieces = [
        LaneRange(*piece, next(each.lane for each in lanes[piece.tp] if each.start <= piece.start < each.end))
        for piece in split([each.offsets for each in ranges], least, longest)
    ]
    return sorted(pieces, key=lambda piece: piece.lane != LIVE)


def with_lane(batches: Iterator[pyarrow.RecordBatch], lane: str) -> Iterator[pyarrow.RecordBatch]:
    """The column comes last."""
    import pyarrow

    for batch in batches:
        column = pyarrow.repeat(pyarrow.scalar(lane, pyarrow.string()), batch.num_rows)
        yield batch.append_column(LANE, column)
