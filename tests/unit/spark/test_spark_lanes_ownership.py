"""Where a query resumes a partition that its group assigns: the table of `ownership.py`."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from headrace._machines.commit.offset_set import OffsetSet
from headrace.spark.checkpoint import Checkpoint
from headrace.spark.group.member import AssignedPartition, MemberSnapshot
from headrace.spark.group.ownership import ALL_PARTITIONS, BatchAssignment, Ownership
from headrace.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NONE: frozenset[TopicPartition] = frozenset()
LOG_STARTS_AT = 3


def earliest(partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    return dict.fromkeys(partitions, LOG_STARTS_AT)


def given(
    *assigned: tuple[TopicPartition, AssignedPartition], to_be_revoked: frozenset[TopicPartition] = NONE
) -> MemberSnapshot:
    return MemberSnapshot(True, dict(assigned), to_be_revoked, NONE)


def look(ownership: Ownership, start: Checkpoint, snapshot: MemberSnapshot) -> tuple[BatchAssignment, Checkpoint]:
    """The next batch assignment, and the checkpoint after a batch that reads nothing."""
    assignment = ownership.assign_next_batch(start, snapshot, earliest)
    assert assignment.readable is not None
    return assignment, assignment.end_of_batch(start, {tp: start.done[tp] for tp in assignment.readable})


def plain(offset: int, *, unread: bool = False) -> Checkpoint:
    return Checkpoint.from_offsets({T0: offset}, unread=unread)


@pytest.mark.parametrize(
    ("start", "committed", "resumes_at"),
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
def test_a_partition_resumes_where_the_ownership_table_says(
    start: Checkpoint, committed: OffsetSet | None, resumes_at: OffsetSet
) -> None:
    ownership, assigned = Ownership(), AssignedPartition(committed)
    assignment, end = look(ownership, start, given((T0, assigned)))
    if assignment.readable and not start.unread:
        # The query may have been killed before it could commit this.
        assert assignment.to_commit == {T0: resumes_at}
    if not assignment.readable:
        assert start.ranges_to(end) == [], "the batch that moves the position reads nothing"
        assert T0 in end.unread
        assignment, end = look(ownership, end, given((T0, assigned)))
    assert assignment.readable == {T0}
    assert end == Checkpoint({T0: resumes_at})
    again, _ = look(ownership, end, given((T0, assigned)))
    assert (again.readable, again.to_commit, again.resumed) == ({T0}, {T0: resumes_at}, NONE)


def test_what_is_to_be_revoked_is_not_read_and_committed_for_the_last_time() -> None:
    ownership, assigned, other = Ownership(), AssignedPartition(None), AssignedPartition(None)
    start = Checkpoint.from_offsets({T0: 10, T1: 20})
    look(ownership, start, given((T0, assigned), (T1, other)))
    assignment, end = look(ownership, start, given((T0, assigned), (T1, other), to_be_revoked=frozenset([T0])))
    assert assignment.readable == {T1}
    assert assignment.released == {T0}
    assert assignment.to_commit == {T0: OffsetSet(10), T1: OffsetSet(20)}
    assert end == start, "the checkpoint keeps its offset"
    assignment, _ = look(ownership, end, given((T1, other)))
    assert assignment.to_commit == {T1: OffsetSet(20)}


def test_a_partition_that_went_and_came_back_goes_on_where_others_have_got() -> None:
    ownership = Ownership()
    start = plain(10)
    look(ownership, start, given((T0, AssignedPartition(None))))
    assignment, end = look(ownership, start, given((T0, AssignedPartition(OffsetSet(50)))))
    assert assignment.readable == NONE
    assert assignment.to_commit == {}, "its old offset must not be committed"
    assert end == plain(50, unread=True)


def test_partitions_that_arrive_with_a_backlog_are_known() -> None:
    """A partition that was never read has no backlog."""
    assignment, _ = look(Ownership(), plain(10, unread=True), given((T0, AssignedPartition(None))))
    assert assignment.resumed == NONE
    assignment, _ = look(Ownership(), plain(10), given((T0, AssignedPartition(None))))
    assert assignment.resumed == {T0}


def test_without_a_group_everything_is_readable() -> None:
    assert ALL_PARTITIONS.is_readable(T0)
    assert ALL_PARTITIONS.end_of_batch(plain(10, unread=True), {T1: OffsetSet(5)}) == Checkpoint({T1: OffsetSet(5)})
