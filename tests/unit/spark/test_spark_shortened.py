"""A log that ends before the position of a query."""

from __future__ import annotations

import pytest

from headrace._machines.commit.offset_set import OffsetSet
from headrace.spark.checkpoint import Checkpoint
from headrace.spark.data_loss import Intact, Recreated, Truncated, classify_truncation
from headrace.types import TopicPartition, Watermarks

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("done", "log", "found"),
    [
        (OffsetSet(1000), Watermarks(0, 1000), Intact),  # an open transaction hid the end of the log
        (OffsetSet(1000), Watermarks(0, 499), Recreated),
        (OffsetSet(1000), Watermarks(0, 0), Recreated),
        (OffsetSet(1000), Watermarks(0, 500), Truncated),
        (OffsetSet(10**9), Watermarks(0, 10**9 - 5), Truncated),
        (OffsetSet(1000), Watermarks(3, 400), Truncated),
    ],
)
def test_a_log_is_intact_truncated_or_recreated_by_its_bounds(done: OffsetSet, log: Watermarks, found: type) -> None:
    assert type(classify_truncation(T0, done, log)) is found


def test_what_is_left_of_a_backlog_is_read_and_nothing_else() -> None:
    before = OffsetSet(1000, [(100, 200), (700, 900)])
    found = classify_truncation(T0, before, Watermarks(0, 800))
    assert isinstance(found, Truncated)
    assert found.done == OffsetSet(700, [(100, 200)])
    after = found.done.with_done(100, 150)
    assert [(each.start, each.end) for each in Checkpoint({T0: before}).ranges_to(Checkpoint({T0: after}))] == [
        (100, 150)
    ]
    assert Checkpoint({T0: before}).ranges_to(Checkpoint({T0: found.done})) == []
