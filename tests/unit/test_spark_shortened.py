"""A log that ends before the place where a query stands."""

from __future__ import annotations

import pytest

from headrace.offsets import OffsetSet
from headrace.spark.checkpoint import Checkpoint
from headrace.spark.shortened import CutShort, Intact, MadeAgain, what_happened
from headrace.types import TopicPartition, Watermarks

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("done", "log", "found"),
    [
        (OffsetSet(1000), Watermarks(0, 1000), Intact),  # the end that was seen was one of closed transactions
        (OffsetSet(1000), Watermarks(0, 499), MadeAgain),
        (OffsetSet(1000), Watermarks(0, 0), MadeAgain),
        (OffsetSet(1000), Watermarks(0, 500), CutShort),
        (OffsetSet(10**9), Watermarks(0, 10**9 - 5), CutShort),
        (OffsetSet(1000), Watermarks(3, 400), CutShort),
    ],
)
def test_the_table(done: OffsetSet, log: Watermarks, found: type) -> None:
    assert type(what_happened(T0, done, log)) is found


def test_what_is_left_of_a_backlog_is_read_and_nothing_else() -> None:
    before = OffsetSet(1000, [(100, 200), (700, 900)])
    found = what_happened(T0, before, Watermarks(0, 800))
    assert isinstance(found, CutShort)
    assert found.done == OffsetSet(700, [(100, 200)])
    after = found.done.with_done(100, 150)
    assert [(each.start, each.end) for each in Checkpoint({T0: before}).ranges_to(Checkpoint({T0: after}))] == [
        (100, 150)
    ]
    assert Checkpoint({T0: before}).ranges_to(Checkpoint({T0: found.done})) == []
