"""Completion against plain sets of integers: offsets that are done, in flight and committable."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._machines.commit.completion import Completion
from headrace._machines.commit.offset_set import OffsetSet, Range

END = 48
RANGES = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair)))
KNOWN = st.builds(OffsetSet, st.integers(0, 40), st.lists(RANGES, max_size=6))
STEPS = st.lists(
    st.tuples(st.just("delivered"), RANGES)
    | st.tuples(st.just("done_range"), RANGES)
    | st.tuples(st.just("withdrawn"), RANGES)
    | st.tuples(st.just("done"), st.tuples(st.integers(0, 42))),
    max_size=30,
)


def in_flight_of(completion: Completion) -> list[Range]:
    return completion._in_flight(0, completion._seen[-1])


class Model:
    """Completion as plain sets, one offset at a time."""

    def __init__(self, known: OffsetSet) -> None:
        self.finished = {offset for offset in range(END) if offset in known}
        self.in_flight: set[int] = set()

    def delivered(self, start: int, end: int) -> None:
        self.in_flight |= set(range(start, end))
        self.finished -= set(range(start, end))

    def done(self, offset: int) -> None:
        if offset in self.in_flight:
            self.done_range(offset, offset + 1)

    def done_range(self, start: int, end: int) -> None:
        self.in_flight -= set(range(start, end))
        self.finished |= set(range(start, end))

    def withdrawn(self, start: int, end: int) -> None:
        self.in_flight -= set(range(start, end))


@settings(deadline=None, derandomize=True, max_examples=200)
@given(KNOWN, STEPS)
def test_completion_does_as_a_model_of_plain_sets(known: OffsetSet, steps: list[tuple[str, tuple[int, ...]]]) -> None:
    completion, model = Completion(known), Model(known)
    for step, arguments in steps:
        getattr(completion, step)(*arguments)
        getattr(model, step)(*arguments)
        offsets = completion.as_set()
        assert {offset for offset in range(END) if offset in offsets} == model.finished
        assert offsets.low == min(set(range(END)) - model.finished)
        assert completion.open_count == len(model.in_flight)
        in_flight = in_flight_of(completion)
        assert {offset for start, end in in_flight for offset in range(start, end)} == model.in_flight
        ends = [end for span in in_flight for end in span]
        assert ends == sorted(set(ends))


def test_commits_follow_the_lowest_that_is_not_done() -> None:
    completion = Completion(OffsetSet(100))
    completion.delivered(100, 105)
    completion.done(102)
    completion.done(104)
    assert (completion.as_set().low, completion.open_count) == (100, 3)
    completion.done(100)
    assert completion.as_set().low == 101
    completion.done(101)
    assert completion.as_set().low == 103
    completion.done(103)
    assert (completion.as_set().low, completion.open_count) == (105, 0)
    assert completion.as_set() == OffsetSet(105)


def test_a_compacted_log_with_a_marker_at_its_end_is_completed() -> None:
    """Records at 5, 7 and 9, nothing between them, a control batch at 10: the next position is 11."""
    completion = Completion(OffsetSet(5))
    completion.delivered(5, 10)
    for gap in ((6, 7), (8, 9), (10, 11)):
        completion.done_range(*gap)
    assert completion.open_count == 3
    for offset in (9, 7, 5):
        assert completion.as_set().low == 5
        completion.done(offset)
    assert completion.as_set().low == 11


def test_two_lanes_are_completed_side_by_side() -> None:
    """KIP-333's example: committed offset 70, log end 120. The live lane starts at 120, the backlog lane at 70."""
    completion = Completion(OffsetSet(70))
    completion.delivered(120, 130)
    completion.delivered(70, 80)
    completion.done_range(120, 125)
    assert completion.as_set() == OffsetSet(125, [(70, 120)])
    completion.done_range(70, 75)
    assert completion.as_set().low == 75
    assert in_flight_of(completion) == [(75, 80), (125, 130)]
    assert completion.open_count == 10


def test_a_seek_back_opens_again_what_is_delivered_again() -> None:
    completion = Completion(OffsetSet(100))
    completion.delivered(50, 60)
    assert (completion.as_set().low, completion.open_count) == (50, 10)
    completion.done_range(50, 60)
    assert completion.as_set() == OffsetSet(100)


def test_done_before_it_was_delivered_says_nothing() -> None:
    """The record is from an earlier assignment. It will be delivered again and must not be skipped."""
    completion = Completion(OffsetSet(10))
    completion.done(12)
    assert completion.as_set() == OffsetSet(10)
    assert completion.open_count == 0


@pytest.mark.parametrize("offset", [5, 10, 12, 15, 20, 25])
def test_an_empty_range_changes_nothing(offset: int) -> None:
    """Whether it is done, in flight, not delivered yet, or at an edge between them."""
    completion = Completion(OffsetSet(10))
    completion.delivered(10, 20)
    completion.done_range(14, 16)
    for call in (completion.done_range, completion.delivered, completion.withdrawn):
        call(offset, offset)
        assert completion.as_set() == OffsetSet(16, [(10, 14)])
        assert (completion.in_flight(), completion.open_count) == ([(10, 14), (16, 20)], 8)


@pytest.mark.parametrize("span", [(-1, 5), (5, 4)])
def test_completion_refuses_what_is_no_range(span: Range) -> None:
    completion = Completion(OffsetSet(10))
    for call in (completion.delivered, completion.done_range):
        with pytest.raises(ValueError, match="not a range of offsets"):
            call(*span)
    assert completion.as_set() == OffsetSet(10)


def test_a_large_window_is_completed_in_random_order() -> None:
    """The number of holes never exceeds the number of open offsets, and all holes are gone at the end."""
    chance = random.Random(1)
    completion = Completion(OffsetSet(0))
    window: list[int] = []
    finished: set[int] = set()
    for start in range(0, 30_000, 500):
        completion.delivered(start, start + 500)
        window += range(start, start + 500)
        chance.shuffle(window)
        for offset in window[3_000:]:
            completion.done(offset)
            finished.add(offset)
        del window[3_000:]
        assert completion.open_count == len(window)
        assert completion.as_set().low == min(window)
        assert len(completion.as_set().holes) <= 3_000
    assert finished | set(window) == set(range(30_000))
    for offset in window:
        completion.done(offset)
    assert completion.as_set() == OffsetSet(30_000)
    assert completion.open_count == 0
