"""The KIP-333 machine: where lanes start, their commits, and the commit texts of both logs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._machines.commit.committed_offset import CommittedOffset
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.lanes.backlog_quota import BacklogQuota
from headrace._machines.lanes.commit_metadata import CommitMark, committed_offset, done_offsets
from headrace._machines.lanes.lanes import Lanes, LaneStart, lane_start, lanes_for
from headrace.types import OffsetAndMetadata
from simulation.crashes import run


def plain(offset: int) -> CommitMark:
    return CommitMark(offset, OffsetSet(offset))


def lanes(live: int, *holes: tuple[int, int], beyond: OffsetSet | None = None) -> Lanes:
    return Lanes("token", LaneStart(live, beyond or OffsetSet(live), holes))


@pytest.mark.parametrize(
    ("committed", "end", "end_epoch", "leader_epoch"),
    [
        pytest.param(CommittedOffset(70, OffsetSet(70), 3), 120, 5, 5, id="of the end of the log, where it starts"),
        pytest.param(CommittedOffset(70, OffsetSet(70)), 120, 0, 0, id="the first one, of a commit without any"),
        pytest.param(CommittedOffset(70, OffsetSet(70), 3), 120, -1, 3, id="the commit's, if that is unknown"),
        pytest.param(
            CommittedOffset(130, OffsetSet(130, [(70, 120)]), 3),
            120,
            5,
            3,
            id="the commit's, if the log ends before it",
        ),
    ],
)
def test_the_live_lane_starts_with_the_leader_epoch(
    committed: CommittedOffset, end: int, end_epoch: int, leader_epoch: int
) -> None:
    lanes = lanes_for(committed, end, end_epoch, 1, "token")
    assert lanes is not None
    assert lanes.first.leader_epoch == leader_epoch


def test_a_commit_that_leaves_nothing_open_needs_no_lanes() -> None:
    assert lanes_for(CommittedOffset(70, OffsetSet(70), 3), 70, 5, 1, "token") is None


@pytest.mark.parametrize(
    ("first", "second", "end", "min_lag", "live", "holes"),
    [
        pytest.param(plain(70), None, 120, 1, 120, [(70, 120)], id="the proposal's first crash"),
        pytest.param(plain(140), None, 190, 1, 190, [(140, 190)], id="its second, after the first backlog is done"),
        pytest.param(plain(70), None, 70, 1, 70, [], id="nothing was missed"),
        pytest.param(plain(70), None, 60, 1, 70, [], id="the log is shorter: the next fetch reports it"),
        pytest.param(plain(70), None, 79, 10, 70, [], id="less than min.lag"),
        pytest.param(plain(70), None, 80, 10, 80, [(70, 80)], id="min.lag"),
        pytest.param(
            CommitMark(140, OffsetSet(140, [(70, 120)]), "t"),
            None,
            190,
            1,
            190,
            [(70, 120), (140, 190)],
            id="a second crash with the first range untouched",
        ),
        pytest.param(
            CommitMark(140, OffsetSet(140, [(70, 120)]), "t"),
            CommitMark(100, OffsetSet(100), "t"),
            190,
            1,
            190,
            [(100, 120), (140, 190)],
            id="with the first range half done",
        ),
        pytest.param(
            CommitMark(140, OffsetSet(140, [(70, 120)]), "t"),
            CommitMark(100, OffsetSet(100), "another"),
            190,
            1,
            190,
            [(70, 120), (140, 190)],
            id="progress of another token is ignored",
        ),
        pytest.param(
            CommitMark(140, OffsetSet(140, [(70, 120)]), "t"),
            CommitMark(100, OffsetSet(110, [(100, 105)]), "t"),
            145,
            10,
            140,
            [(100, 105), (110, 120)],
            id="no new range, but the old one stays open",
        ),
        pytest.param(plain(120), CommitMark(100, OffsetSet(100), "t"), 120, 1, 120, [], id="progress without a token"),
        pytest.param(
            CommitMark(70, OffsetSet(90, [(70, 80)])),
            None,
            100,
            1,
            100,
            [(70, 80), (90, 100)],
            id="done beyond a plain commit",
        ),
    ],
)
def test_lanes_start_at_the_end_of_the_log_and_at_all_open_ranges(
    first: CommitMark, second: CommitMark | None, end: int, min_lag: int, live: int, holes: list[tuple[int, int]]
) -> None:
    start = lane_start(committed_offset(first, second), end, min_lag)
    assert (start.live, list(start.holes)) == (live, holes)
    assert start.beyond.low >= live


class TestCommits:
    def test_the_live_mark_has_the_token_until_all_ranges_are_done(self) -> None:
        two = lanes(120, (70, 120))
        mark = two.live_mark(OffsetSet(131), "mine", 5)
        assert (mark.offset, mark.token, mark.note, mark.leader_epoch) == (131, "token", "mine", 5)
        assert mark.done.open(0, 131) == [(70, 120)]
        two.progress = OffsetSet(119)
        assert two.live_mark(OffsetSet(131)).token
        two.progress = OffsetSet(120)
        assert two.is_closed
        assert two.live_mark(OffsetSet(131)).commit == OffsetAndMetadata(131)

    def test_the_backlog_mark_ends_with_the_last_range(self) -> None:
        two = lanes(190, (70, 120), (140, 190))
        assert two.backlog_mark(OffsetSet(85)).commit.offset == 85
        assert two.backlog_mark(OffsetSet(2**63 - 1)).commit.offset == 190

    def test_offsets_done_out_of_order_are_in_the_mark_of_their_lane(self) -> None:
        two = lanes(120, (70, 120))
        done = OffsetSet(140, [(70, 75), (80, 120), (123, 130)])
        live, beside = two.live_mark(done | OffsetSet(120)), two.backlog_mark(done)
        assert (live.offset, beside.offset) == (123, 70)
        assert done_offsets(live, beside) == done

    @pytest.mark.parametrize(
        ("offset", "position", "is_backlog"),
        [
            (69, 70, False),
            (70, 70, True),
            (85, 70, True),
            (119, 70, True),
            (120, 119, False),  # the live lane's start
            (120, 120, True),  # the end of a fully delivered range
            (121, 120, False),
            (160, 70, True),
            (200, 70, False),
        ],
    )
    def test_an_offset_belongs_to_the_range_it_falls_in(self, offset: int, position: int, is_backlog: bool) -> None:
        assert lanes(190, (70, 120), (140, 190)).is_backlog(offset, position) is is_backlog

    def test_the_final_commit_is_plain_and_at_the_lowest_open_offset(self) -> None:
        two = lanes(120, (70, 120))
        two.progress = OffsetSet(85)
        two.first = two.live_mark(OffsetSet(131), "mine")
        found = CommitMark.read(two.final_commit().commit)
        assert (found.offset, found.token, found.note) == (85, "", "mine")
        assert found.done == OffsetSet(131, [(85, 120)])


class TestLogs:
    def test_retention_loses_only_offsets_that_were_not_delivered(self) -> None:
        two = lanes(190, (70, 120), (140, 190))
        assert two.log_begins(100, 80) == [(80, 100)]
        assert two.log_begins(150, 100) == [(100, 120), (140, 150)]
        assert two.open == [(150, 190)]
        assert two.backlog_mark(OffsetSet(80)).offset == 150
        assert two.log_begins(500, 150) == [(150, 190)]
        assert two.is_closed

    def test_a_live_lane_that_goes_back_takes_over_the_ranges_behind_it(self) -> None:
        two = lanes(190, (70, 120), (140, 190))
        two.cut(100)
        assert (two.open, two.stop) == ([(70, 100)], 100)
        two.cut(500)
        assert two.stop == 100

    @pytest.mark.parametrize(
        ("holes", "cut", "position", "commits", "final_commit"),
        [
            pytest.param([(70, 120)], 90, 95, (95, [(70, 90)]), (70, 70), id="inside a range"),
            pytest.param([(70, 80)], 100, 104, (104, [(70, 80)]), (70, 100), id="after the ranges"),
            pytest.param([(70, 120)], 0, 3, (3, []), (0, 0), id="the live lane takes all"),
        ],
    )
    def test_offsets_that_a_rewound_live_lane_has_not_reread_are_not_committed(
        self,
        holes: list[tuple[int, int]],
        cut: int,
        position: int,
        commits: tuple[int, list[tuple[int, int]]],
        final_commit: tuple[int, int],
    ) -> None:
        two = lanes(120, *holes)
        two.first = two.live_mark(OffsetSet(125))
        two.cut(cut)
        assert two.already_done.frontier <= cut
        last = two.final_commit()
        assert (last.offset, last.done.frontier) == final_commit
        mark = two.live_mark(two.beyond | OffsetSet(position))
        assert (mark.offset, mark.done.open(0, mark.offset)) == commits
        assert mark.done.frontier == position

    def test_a_log_that_ends_before_the_backlog_lane_leaves_its_ranges_to_the_live_lane(self) -> None:
        two = lanes(190, (70, 120), (140, 190))
        assert two.log_ends(150) == [(150, 190)]
        assert two.open == [(70, 120), (140, 190)], "the live lane is not rewound yet"


ranges = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 300)), max_size=30)
tokens = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12)
notes = st.text(max_size=200).filter(lambda text: "\x00" not in text)


class TestMarks:
    @given(ranges, st.integers(0, 6000), tokens, notes)
    def test_a_commit_mark_is_read_as_it_was_written(
        self, holes: list[tuple[int, int]], offset: int, token: str, note: str
    ) -> None:
        done = OffsetSet(offset, [(start, start + length) for start, length in holes])
        mark = CommitMark(offset, done, token, note, 3)
        assert CommitMark.read(mark.commit) == mark

    @given(st.integers(), st.integers(2000, 3000))
    @settings(max_examples=20, deadline=None)
    def test_too_many_ranges_of_a_commit_mark_are_merged_and_none_is_lost(self, seed: int, count: int) -> None:
        done = OffsetSet.from_bounds(sorted(random.Random(seed).sample(range(2**40), 2 * count + 1)))
        mark = CommitMark(done.frontier, done, "token", "a note")
        assert len(mark.commit.metadata.encode()) <= 4096
        found = CommitMark.read(mark.commit)
        assert found.done <= done
        assert found.done.low == done.low
        assert found.note == "a note"

    def test_a_commit_mark_refuses_a_note_that_leaves_no_room_for_ranges(self) -> None:
        with pytest.raises(ValueError, match="leaves no room"):
            _ = CommitMark(9, OffsetSet(9), "token", "x" * 4090).commit

    def test_a_commit_mark_of_another_offset_is_read_as_plain(self) -> None:
        commit = CommitMark(120, OffsetSet(70), "token").commit
        assert CommitMark.read(commit._replace(offset=50)).token == ""
        assert CommitMark.read(commit._replace(offset=50)).done == OffsetSet(50)

    @pytest.mark.parametrize("damage", ["headrace/2 120", "headrace/2 120 token 70 !!", "headrace/2 120 token 71 {}"])
    def test_a_commit_mark_that_cannot_be_parsed_raises(self, damage: str) -> None:
        packed = CommitMark(120, OffsetSet(70), "token").commit.metadata.split(" ")[4]
        with pytest.raises(ValueError, match=r"mark|damaged|base85|cut off|b85"):
            CommitMark.read(OffsetAndMetadata(120, damage.format(packed)))

    def test_commit_metadata_of_the_user_is_a_note(self) -> None:
        found = CommitMark.read(OffsetAndMetadata(7, "mine", 3))
        assert found == CommitMark(7, OffsetSet(7), "", "mine", 3)
        assert found.commit == OffsetAndMetadata(7, "mine", 3)


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_simulated_crashes_of_two_lanes_lose_nothing(first: int) -> None:
    for seed in range(first, first + 500):
        run(seed)


def test_the_metadata_stays_small_after_twenty_crashes_in_a_row() -> None:
    first: CommitMark = plain(70)
    for number in range(20):
        end = first.offset + 1_000_003 * (number + 1)
        two = Lanes("k3Jx0Q", lane_start(committed_offset(first, None), end, 1))
        first = two.live_mark(OffsetSet(end + 12_345))
    assert len(first.done.open(0, first.offset)) == 20
    assert len(first.commit.metadata) < 200


def test_the_quota_of_the_backlog_adds_up_over_polls_of_one_record() -> None:
    quota = BacklogQuota(0.25)
    assert [quota.reserve(1, 10) for _ in range(8)] == [0, 0, 0, 1, 0, 0, 0, 1]


def test_a_quota_for_which_the_backlog_had_no_records_is_not_owed_later() -> None:
    quota = BacklogQuota(0.5)
    assert [quota.reserve(10, available) for available in (0, 2, 10)] == [0, 2, 5]
