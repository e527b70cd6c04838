"""The lag of a group, from its commits and the bounds of its logs."""

from __future__ import annotations

import pytest

from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.lanes.commit_metadata import CommitMark
from headrace.monitor.lag import done_rows, plain_row, rows_of, uncommitted_row, unread_row
from headrace.types import TopicPartition, Watermarks

TP = TopicPartition("t", 0)


def rows(*args: object) -> list[tuple[object, ...]]:
    return [(row.lane, row.next, row.end, row.lag, row.lost) for row in rows_of(TP, *args)]  # type: ignore[arg-type]


PLAIN = CommitMark(100, OffsetSet(100))
DONE_BEYOND = CommitMark(100, OffsetSet(120, [(100, 105), (110, 112)]))
TOKEN = CommitMark(100, OffsetSet(100, [(20, 50)]), "a")


@pytest.mark.parametrize(
    ("first", "second", "log", "expected"),
    [
        (PLAIN, None, (0, 130), [("", 100, 130, 30, 0)]),
        (PLAIN, None, (0, 100), [("", 100, 100, 0, 0)]),
        (PLAIN, None, (110, 130), [("", 110, 130, 20, 10)]),
        (PLAIN, None, (130, 130), [("", 130, 130, 0, 30)]),  # everything was deleted: lost, and no lag
        (PLAIN, None, (0, 90), [("", 100, 90, 0, 0)]),  # truncated log: no lag
        (DONE_BEYOND, None, (0, 130), [("", 100, 130, 5 + 2 + 10, 0)]),
        (DONE_BEYOND, None, (111, 130), [("", 111, 130, 1 + 10, 5 + 1)]),  # what was done is not lost
        (TOKEN, None, (0, 130), [("live", 100, 130, 30, 0), ("backlog", 20, 100, 30, 0)]),
        (TOKEN, CommitMark(30, OffsetSet(30), "a"), (0, 130), [("live", 100, 130, 30, 0), ("backlog", 30, 100, 20, 0)]),
        (TOKEN, CommitMark(30, OffsetSet(30), "b"), (0, 130), [("live", 100, 130, 30, 0), ("backlog", 20, 100, 30, 0)]),
        (TOKEN, CommitMark(100, OffsetSet(100), "a"), (0, 130), [("live", 100, 130, 30, 0)]),
        (TOKEN, None, (40, 130), [("live", 100, 130, 30, 0), ("backlog", 40, 100, 10, 20)]),
        (TOKEN, None, (60, 130), [("live", 100, 130, 30, 0), ("backlog", 100, 100, 0, 30)]),
        (TOKEN, None, (0, 40), [("live", 100, 40, 0, 0), ("backlog", 20, 100, 20, 0)]),  # recreated log
        (TOKEN, None, (0, 10), [("live", 100, 10, 0, 0)]),
    ],
)
def test_lag_follows_what_the_two_commit_logs_say(
    first: CommitMark, second: CommitMark | None, log: tuple[int, int], expected: list[object]
) -> None:
    assert rows(first, second, Watermarks(*log)) == expected


@pytest.mark.parametrize("log", [(0, 130), (50, 130), (110, 130), (130, 130), (0, 100), (0, 90)])
def test_a_commit_without_metadata_has_the_same_row_either_way(log: tuple[int, int]) -> None:
    assert [plain_row(TP, 100, Watermarks(*log), owner="o", member="m")] == rows_of(
        TP, PLAIN, None, Watermarks(*log), "o", "m"
    )


def test_open_and_lost_ranges_are_what_the_numbers_count() -> None:
    (row,) = rows_of(TP, DONE_BEYOND, None, Watermarks(102, 130))
    assert (row.open, row.lost_ranges) == (((102, 105), (110, 112), (120, 130)), ((100, 102),))
    assert (row.lag, row.lost) == (15, 2)
    live, backlog = rows_of(TP, TOKEN, None, Watermarks(40, 130))
    assert (live.open, live.lost_ranges) == (((100, 130),), ())
    assert (backlog.open, backlog.lost_ranges) == (((40, 50),), ((20, 40),))
    assert (backlog.committed, backlog.next) == (20, 40)


def test_a_share_groups_lag_is_what_the_brokers_say() -> None:
    assert plain_row(TP, 10, Watermarks(0, 50), 7).lag == 7
    assert plain_row(TP, 10, Watermarks(0, 50)).lag == 40
    deleted = plain_row(TP, 10, Watermarks(30, 50), 40)
    assert (deleted.lag, deleted.lost) == (20, 20), "brokers count what retention has deleted"
    assert unread_row(TP, Watermarks(0, 50), "m").lag == 0


def test_a_partition_without_a_commit_counts_its_whole_log() -> None:
    row = uncommitted_row(TP, Watermarks(20, 50), "owner")
    assert (row.committed, row.next, row.lag, row.lost, row.is_committed) == (None, 20, 30, 0, False)


def test_holes_of_a_checkpoint_are_its_backlog() -> None:
    live, backlog = done_rows(TP, OffsetSet(100, [(20, 50), (60, 70)]), Watermarks(0, 130))
    assert (live.lane, live.lag, backlog.lane, backlog.lag) == ("live", 30, "backlog", 40)
    assert backlog.open == ((20, 50), (60, 70))
