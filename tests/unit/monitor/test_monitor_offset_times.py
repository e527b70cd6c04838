"""When the record at an offset was written, from the ends that passes have seen."""

from __future__ import annotations

import random

import pytest

from headrace.monitor.offset_times import OffsetTimes, WrittenAt
from headrace.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def times(*ends: int | None, every: float = 10.0) -> OffsetTimes:
    found = OffsetTimes()
    for number, end in enumerate(ends):
        found.add(number * every, {} if end is None else {A: end})
    return found


@pytest.mark.parametrize(
    ("ends", "offset", "expected"),
    [
        ([100, 200], 100, WrittenAt(0.0, 10.0)),
        ([100, 200], 150, WrittenAt(5.0, 5.0)),
        ([100, 200], 199, WrittenAt(9.9, 9.9)),
        ([100, 200, 200, 200, 300], 200, WrittenAt(30.0, 10.0)),  # idle: 200 came after the last of the three passes
        ([100, 200, 300, 400, 500], 350, WrittenAt(25.0, 5.0)),
        ([100, 200], 99, None),  # before the first pass
        ([100, None, None, 400], 250, WrittenAt(15.0, 15.0)),  # without a leader meanwhile
        ([None, None, 100, 200], 150, WrittenAt(25.0, 5.0)),
        ([100, 200, 50, 60], 55, WrittenAt(25.0, 5.0)),  # recreated: it has no past
        ([100, 200, 50, 60], 10, None),
        ([100, 200, None, 50, 60], 55, WrittenAt(35.0, 5.0)),  # recreated while it had no leader
        ([100, 200, 300, 400, 500, None, 60, 250], 155, WrittenAt(65.0, 5.0)),
        ([100, 200, 300, 400, 500, None, 60, 250], 40, None),
    ],
)
def test_a_time_is_interpolated_between_two_passes(
    ends: list[int | None], offset: int, expected: WrittenAt | None
) -> None:
    found = times(*ends).written_at(A, offset)
    assert found == (expected and pytest.approx(expected))


def test_a_partition_that_appears_later_has_no_time_before() -> None:
    found = OffsetTimes()
    found.add(0, {A: 10})
    found.add(10, {A: 20, B: 500})
    found.add(20, {A: 30, B: 600})
    assert found.written_at(B, 550) == WrittenAt(15.0, 5.0)
    assert found.written_at(B, 400) is None
    assert found.written_at(TopicPartition("other", 0), 0) is None


@pytest.mark.parametrize(
    ("notes", "offset", "expected"),
    [
        ([(20, 100.0)], 20, WrittenAt(100.0, 0.0)),
        ([(20, 100.0)], 60, WrittenAt(550.0, 450.0)),  # halfway to the first end, which was seen at 1000
        ([(20, 100.0), (60, 900.0)], 40, WrittenAt(500.0, 400.0)),
        ([(60, 900.0), (20, 100.0)], 40, WrittenAt(500.0, 400.0)),
        ([(20, 100.0)], 10, None),
        ([(20, 100.0)], 150, WrittenAt(1005.0, 5.0)),  # passes are better than notes
    ],
)
def test_records_that_were_read_extend_the_past(
    notes: list[tuple[int, float]], offset: int, expected: WrittenAt | None
) -> None:
    found = OffsetTimes()
    found.add(1000, {A: 100})
    found.add(1010, {A: 200})
    for note in notes:
        found.note(A, *note)
    assert found.written_at(A, offset) == expected


def test_a_recreated_topic_forgets_the_records_that_were_read() -> None:
    found = times(100)
    found.note(A, 20, -50.0)
    found.add(10, {A: 30})
    assert found.written_at(A, 20) is None


def test_a_day_of_passes_is_thinned_out_and_stays_exact_to_a_part_of_the_age() -> None:
    """The rate changes all the time, so a coarse interpolation is wrong by as much as it may be."""
    chance = random.Random(1)
    found = OffsetTimes()
    ends: list[int] = []
    end = 0
    for number in range(86_400 // 15 + 500):
        end += chance.choice([0, 1, 1, 1000])
        ends.append(end)
        found.add(number * 15.0, {A: end})
    now = (len(ends) - 1) * 15.0
    assert len(found) < 300
    checked = 0
    for number in range(len(ends) - 1, 0, -37):
        if ends[number] == ends[number - 1] or now - number * 15.0 > 86_000:
            continue
        known = found.written_at(A, ends[number - 1])  # written between these two passes
        assert known is not None
        age = now - number * 15.0
        # A distance of 5 % of the age at which the passes were dropped, from the earlier neighbour.
        assert abs(known.at - number * 15.0) <= max(15.0, 0.06 * age) + 15.0, age
        assert abs(known.at - number * 15.0) <= known.within + 15.0
        checked += 1
    assert checked > 50


def test_slots_of_deleted_and_recreated_partitions_are_freed() -> None:
    found = OffsetTimes()
    for number in range(5000):
        ends = {A: 10 * number, TopicPartition(f"temporary-{number}", 0): 5, B: 3 if number % 2 else 7}
        found.add(float(number), ends)
    assert len(found._born) < 2000
    assert found.written_at(A, 10 * 4999 - 5) == WrittenAt(4998.5, 0.5)


def test_an_outage_of_most_leaders_does_not_free_their_slots() -> None:
    found = OffsetTimes()
    many = {TopicPartition("many", number): 100 for number in range(2000)}
    for at in (0.0, 10.0):
        found.add(at, {A: int(at), **dict.fromkeys(many, 100 + int(at))})
    for at in (20.0, 30.0, 40.0):
        found.add(at, {A: int(at)})
    found.add(50.0, {A: 50, **dict.fromkeys(many, 200)})
    assert {found.written_at(tp, 105) for tp in many} == {WrittenAt(5.0, 5.0)}
    for at in range(60, 1000, 10):
        found.add(float(at), {A: at})
    assert len(found._born) == 1


def test_a_partition_that_was_recreated_without_a_leader_has_no_negative_rate() -> None:
    found = times(100, 200, None, 50, 60)
    assert found.rate([A]) == 1.0  # of the new log


def test_the_rate_leaves_out_partitions_whose_end_is_unknown() -> None:
    found = OffsetTimes()
    found.add(0, {A: 100, B: 0})
    found.add(10, {A: 200, B: 1000})
    found.add(20, {A: 300})
    assert found.rate([A, B]) == 10.0
    assert found.rate([B]) is None, "unknown is not 0 records per second"
    found.add(30, {A: 400, B: 1300})
    assert found.rate([B]) == pytest.approx(1300 / 30)


def test_records_that_were_read_follow_a_clock_that_is_set() -> None:
    found = OffsetTimes()
    found.add(1000.0, {A: 100}, to_wall=5000.0)
    found.note(A, 20, 5900.0)  # a minute and 40 seconds ago
    assert found.written_at(A, 20) == WrittenAt(900.0, 0.0)
    found.add(1010.0, {A: 200}, to_wall=1000.0)  # the clock was wrong by 4000 seconds
    assert found.written_at(A, 20) == WrittenAt(4900.0, 0.0)
    assert found.written_at(A, 150) == WrittenAt(1005.0, 5.0)


def test_the_rate_is_that_of_the_last_minute() -> None:
    found = OffsetTimes()
    assert found.rate([A]) is None
    found.add(0, {A: 0, B: 0})
    assert found.rate([A]) is None
    for second in range(10, 200, 10):
        found.add(second, {A: second * 10, B: 0 if second < 100 else (second - 90) * 2})
    assert found.rate([A]) == pytest.approx(10.0)
    assert found.rate([A, B]) == pytest.approx(12.0)
    assert found.rate([TopicPartition("unknown", 0)]) is None
