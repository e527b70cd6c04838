"""Where a query goes on with a partition that its group gives it: the table of `ownership.py`."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from headrace.offsets import OffsetSet
from headrace.spark.checkpoint import Checkpoint
from headrace.spark.membership import Arrival, Standing
from headrace.spark.ownership import EVERYTHING, Ownership, Portion
from headrace.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NONE: frozenset[TopicPartition] = frozenset()
LOG_STARTS_AT = 3


def earliest(partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    return dict.fromkeys(partitions, LOG_STARTS_AT)


def given(*arrivals: tuple[TopicPartition, Arrival], asked_back: frozenset[TopicPartition] = NONE) -> Standing:
    return Standing(True, dict(arrivals), asked_back, NONE)


def look(ownership: Ownership, start: Checkpoint, standing: Standing) -> tuple[Portion, Checkpoint]:
    """And the end of a batch that reads nothing."""
    portion = ownership.look(start, standing, earliest)
    assert portion.readable is not None
    return portion, portion.rest(start, {tp: start.done[tp] for tp in portion.readable})


def plain(offset: int, *, unread: bool = False) -> Checkpoint:
    return Checkpoint.plain({T0: offset}, unread=unread)


@pytest.mark.parametrize(
    ("start", "committed", "goes_on_at"),
    [
        (plain(100), None, OffsetSet(100)),
        (plain(100), OffsetSet(100), OffsetSet(100)),
        (plain(100), OffsetSet(80), OffsetSet(100)),
        (plain(100), OffsetSet(120), OffsetSet(120)),
        (plain(100, unread=True), None, OffsetSet(100)),
        (plain(100, unread=True), OffsetSet(80), OffsetSet(80)),
        (plain(100, unread=True), OffsetSet(120), OffsetSet(120)),
        (Checkpoint({}), OffsetSet(120), OffsetSet(120)),
        (Checkpoint({}), None, OffsetSet(LOG_STARTS_AT)),
        (Checkpoint({T0: OffsetSet(100, [(20, 90)])}), OffsetSet(30), OffsetSet(100, [(30, 90)])),
        (plain(100), OffsetSet(150, [(40, 110)]), OffsetSet(150, [(100, 110)])),
    ],
)
def test_the_rule(start: Checkpoint, committed: OffsetSet | None, goes_on_at: OffsetSet) -> None:
    ownership, arrival = Ownership(), Arrival(committed)
    portion, end = look(ownership, start, given((T0, arrival)))
    if portion.readable and not start.unread:
        # It may have been killed before it could commit this.
        assert portion.completed == {T0: goes_on_at}
    if not portion.readable:
        assert start.ranges_to(end) == [], "nobody reads on the way there"
        assert T0 in end.unread
        portion, end = look(ownership, end, given((T0, arrival)))
    assert portion.readable == {T0}
    assert end == Checkpoint({T0: goes_on_at})
    again, _ = look(ownership, end, given((T0, arrival)))
    assert (again.readable, again.completed, again.arrived) == ({T0}, {T0: goes_on_at}, NONE)


def test_what_is_asked_back_is_not_read_and_committed_for_the_last_time() -> None:
    ownership, arrival, other = Ownership(), Arrival(None), Arrival(None)
    start = Checkpoint.plain({T0: 10, T1: 20})
    look(ownership, start, given((T0, arrival), (T1, other)))
    portion, end = look(ownership, start, given((T0, arrival), (T1, other), asked_back=frozenset([T0])))
    assert portion.readable == {T1}
    assert portion.released == {T0}
    assert portion.completed == {T0: OffsetSet(10), T1: OffsetSet(20)}
    assert end == start, "its place is kept"
    portion, _ = look(ownership, end, given((T1, other)))
    assert portion.completed == {T1: OffsetSet(20)}


def test_a_partition_that_went_and_came_back_goes_on_where_others_have_got() -> None:
    ownership = Ownership()
    start = plain(10)
    look(ownership, start, given((T0, Arrival(None))))
    portion, end = look(ownership, start, given((T0, Arrival(OffsetSet(50)))))
    assert portion.readable == NONE
    assert portion.completed == {}, "its old place must not be committed"
    assert end == plain(50, unread=True)


def test_who_has_arrived_with_a_backlog() -> None:
    """Where nobody has read before, there is none: it simply starts."""
    portion, _ = look(Ownership(), plain(10, unread=True), given((T0, Arrival(None))))
    assert portion.arrived == NONE
    portion, _ = look(Ownership(), plain(10), given((T0, Arrival(None))))
    assert portion.arrived == {T0}


def test_without_a_group_everything_is_readable() -> None:
    assert EVERYTHING.has(T0)
    assert EVERYTHING.rest(plain(10, unread=True), {T1: OffsetSet(5)}) == Checkpoint({T1: OffsetSet(5)})
