"""KIP-333 in a streaming query: the ranges of its batches, against plain sets of offsets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.lanes.lanes import BACKLOG, LIVE
from headrace.spark.checkpoint import Checkpoint, DoneOffsets, LaneRange
from headrace.spark.driver.batch_plan import plan_batch
from headrace.spark.driver.lanes import partitions_to_jump
from headrace.spark.driver.tasks import plan_tasks
from headrace.spark.options.group import LaneOptions
from headrace.types import TopicPartition

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
TERMS = LaneOptions()


def saved(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint as Spark returns it."""
    return Checkpoint.from_json(json.loads(json.dumps(checkpoint.to_json())))


class TestCheckpoint:
    @pytest.mark.parametrize(
        ("checkpoint", "text"),
        [
            (Checkpoint({T1: OffsetSet(5), T0: OffsetSet(3)}), '{"t": {"0": 3, "1": 5}}'),
            (Checkpoint({T0: OffsetSet(131, [(70, 120)])}), '{"t": {"0": {"frontier": 131, "holes": {"70": 120}}}}'),
            (Checkpoint({T0: OffsetSet(9)}, frozenset([T0])), '{"t": {"0": {"frontier": 9, "unread": true}}}'),
        ],
    )
    def test_a_checkpoint_is_kafka_s_json(self, checkpoint: Checkpoint, text: str) -> None:
        assert json.dumps(checkpoint.to_json()) == text
        assert saved(checkpoint) == checkpoint

    @pytest.mark.parametrize(
        "text", ['{"index": 3}', '{"t": {"0": {"holes": {}}}}', '{"t": [1]}', '{"t": {"x": 1}}', '{"t": {"0": 1.9}}']
    )
    def test_a_checkpoint_of_another_source_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="does not contain Kafka offsets"):
            Checkpoint.from_json(json.loads(text))

    def test_the_ranges_between_two_checkpoints_have_their_lanes(self) -> None:
        start = Checkpoint({T0: OffsetSet(70), T1: OffsetSet(10), T2: OffsetSet(5)})
        end = Checkpoint({T0: OffsetSet(200, [(80, 170)]), T1: OffsetSet(12), T2: OffsetSet(50)}, frozenset([T2]))
        assert start.ranges_to(end) == [
            LaneRange(T0, 70, 80, BACKLOG),
            LaneRange(T0, 170, 200, LIVE),
            LaneRange(T1, 10, 12, LIVE),
        ]
        later = Checkpoint({T0: OffsetSet(230, [(90, 170)]), T1: OffsetSet(12), T2: OffsetSet(60)})
        assert end.ranges_to(later) == [
            LaneRange(T0, 80, 90, BACKLOG),
            LaneRange(T0, 200, 230, LIVE),
            LaneRange(T2, 50, 60, LIVE),
        ]
        assert later.ranges_to(Checkpoint({T0: OffsetSet(240)})) == [
            LaneRange(T0, 90, 170, BACKLOG),
            LaneRange(T0, 230, 240, LIVE),
        ]

    def test_ranges_of_both_lanes_become_tasks(self) -> None:
        """A partition becomes one task unless it is too large. With minPartitions, each range becomes a task."""
        ranges = [LaneRange(T0, 0, 40, BACKLOG), LaneRange(T0, 90, 100, LIVE), LaneRange(T1, 0, 10, BACKLOG)]
        live, first, second = (
            LaneRange(T0, 90, 100, LIVE),
            LaneRange(T0, 0, 20, BACKLOG),
            LaneRange(T0, 20, 40, BACKLOG),
        )
        assert plan_tasks(ranges, None, None) == [(live, ranges[0]), (ranges[2],)]
        assert plan_tasks(ranges, None, 20) == [(live,), (first,), (second,), (ranges[2],)]
        assert plan_tasks(ranges, None, 30) == [(live, first), (second,), (ranges[2],)]
        assert plan_tasks(ranges, 3, None) == [(each,) for each in ranges]


class TestPlans:
    def test_a_plan_has_the_newest_records_first(self) -> None:
        first = plan_batch({T0: OffsetSet(70)}, {T0: 200}, 40, "fair", TERMS, {T0})
        assert first == {T0: OffsetSet(200, [(80, 170)])}
        second = plan_batch(first, {T0: 230}, 40, "fair", TERMS)
        assert second == {T0: OffsetSet(230, [(90, 170)])}
        third = plan_batch(second, {T0: 235}, 40, "fair", TERMS)
        assert third == {T0: OffsetSet(235, [(125, 170)])}, "the backlog gets what the live lane leaves"

    def test_a_backlog_that_fits_is_read_in_order(self) -> None:
        assert plan_batch({T0: OffsetSet(70)}, {T0: 110}, 40, "fair", TERMS, {T0}) == {T0: OffsetSet(110)}

    def test_a_small_lag_makes_no_backlog(self) -> None:
        terms = LaneOptions(min_lag=100)
        assert partitions_to_jump({T0: OffsetSet(70), T1: OffsetSet(0)}, {T0: 169, T1: 100}, {T0, T1}, terms) == {T1}
        found = plan_batch({T0: OffsetSet(70), T1: OffsetSet(0)}, {T0: 169, T1: 100}, 40, "fair", terms, {T1})
        assert found == {T0: OffsetSet(85), T1: OffsetSet(100, [(10, 85)])}

    def test_without_a_limit_a_batch_beside_a_backlog_has_one(self) -> None:
        found = plan_batch({T0: OffsetSet(0)}, {T0: 5_000_000}, None, "fair", TERMS, {T0})
        assert found == {T0: OffsetSet(5_000_000, [(250_000, 4_250_000)])}
        assert plan_batch({T0: OffsetSet(0)}, {T0: 5_000_000}, None, "fair", TERMS) == {T0: OffsetSet(5_000_000)}

    def test_with_lanes_switched_off_the_holes_come_first(self) -> None:
        holed = {T0: OffsetSet(200, [(80, 100), (120, 130)])}
        assert plan_batch(holed, {T0: 300}, 25, "fair") == {T0: OffsetSet(200, [(125, 130)])}
        assert plan_batch(holed, {T0: 300}, 40, "fair") == {T0: OffsetSet(210)}
        assert plan_batch(holed, {T0: 300}, None, "fair") == {T0: OffsetSet(300)}

    def test_plans_of_one_record_serve_both_lanes(self) -> None:
        done: DoneOffsets = {T0: OffsetSet(0)}
        lanes = []
        latest = 100
        jumping = {T0}
        for _ in range(40):
            after = plan_batch(done, {T0: latest}, 1, "fair", TERMS, jumping)
            (only,) = Checkpoint(done).ranges_to(Checkpoint(after))
            assert only.end - only.start == 1
            lanes.append(only.lane)
            done, latest, jumping = after, latest + 1, set()
        assert lanes.count(BACKLOG) == 10


# -- against a model -----------------------------------------------------------------------------------------------


@dataclass
class Query:
    """A query whose batches are planned twice, as Spark may do."""

    ends: dict[TopicPartition, int]
    done: DoneOffsets
    read: dict[TopicPartition, set[int]] = field(default_factory=dict)
    arrived: set[TopicPartition] = field(default_factory=set)

    def batch(self, most: int | None, lanes: LaneOptions | None) -> list[LaneRange]:
        jumping = set() if lanes is None else partitions_to_jump(self.done, self.ends, self.arrived, lanes)
        after = plan_batch(self.done, self.ends, most, "fair", lanes, jumping)
        again = plan_batch(self.done, self.ends, most, "fair", lanes, jumping)
        assert again == after, "planning must be repeatable"
        self.arrived = {tp for tp in jumping if after[tp].frontier < self.ends[tp]}
        start, end = saved(Checkpoint(self.done)), saved(Checkpoint(after))
        ranges = start.ranges_to(end)
        for each in ranges:
            offsets = set(range(each.start, each.end))
            before = self.read.setdefault(each.tp, set())
            assert not offsets & before, "an offset is read twice"
            before |= offsets
        if most is not None:
            assert sum(each.end - each.start for each in ranges) <= most
        self.done = end.done
        return ranges


shapes = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 200)), min_size=1, max_size=5)
steps = st.lists(
    st.tuples(
        st.sampled_from(["batch", "batch", "batch", "restart", "off", "on"]), st.integers(0, 40), st.integers(0, 4)
    ),
    max_size=25,
)
terms = st.builds(LaneOptions, st.integers(1, 50), st.sampled_from([0.01, 0.1, 0.25, 0.5, 0.9, 0.99]))


@given(shapes, steps, terms, st.none() | st.integers(1, 80))
@example([(0, 2), (1, 1)], [], LaneOptions(1, 0.5), 2)  # neither partition can open a hole
def test_nothing_is_lost_and_nothing_read_twice(
    shape: list[tuple[int, int]], steps: list[tuple[str, int, int]], lanes: LaneOptions, most: int | None
) -> None:
    partitions = [TopicPartition("t", number) for number in range(len(shape))]
    starts = {tp: start for tp, (start, _) in zip(partitions, shape, strict=True)}
    ends = {tp: start + size for tp, (start, size) in zip(partitions, shape, strict=True)}
    query = Query(ends, {tp: OffsetSet(start) for tp, start in starts.items()}, arrived=set(partitions))
    is_on = True
    for what, grown, where in steps:
        query.ends[partitions[where % len(partitions)]] += grown
        if what == "restart":
            query.arrived = set(partitions)
        elif what in ("off", "on"):
            is_on = what == "on"
            query.arrived = set(partitions)
        query.batch(most, lanes if is_on else None)
    # Without new records the query finishes: no hole is left, and every batch makes progress.
    left = sum(query.ends[tp] - done.frontier + done.count_open for tp, done in query.done.items())
    while left:
        query.batch(most, lanes if is_on else None)
        now = sum(query.ends[tp] - done.frontier + done.count_open for tp, done in query.done.items())
        assert now < left
        assert most is None or now == max(0, left - most), "a batch is smaller than its limit"
        left = now
    assert all(query.read.get(tp, set()) == set(range(starts[tp], query.ends[tp])) for tp in partitions)
    assert not any(done.holes for done in query.done.values())


@given(shapes, terms, st.integers(2, 80))
def test_the_newest_records_are_in_the_first_batch(shape: list[tuple[int, int]], lanes: LaneOptions, most: int) -> None:
    partitions = [TopicPartition("t", number) for number in range(len(shape))]
    done = {tp: OffsetSet(start) for tp, (start, _) in zip(partitions, shape, strict=True)}
    ends = {tp: start + size for tp, (start, size) in zip(partitions, shape, strict=True)}
    jumping = partitions_to_jump(done, ends, partitions, lanes)
    after = plan_batch(done, ends, most, "fair", lanes, jumping)
    reads = Checkpoint(done).ranges_to(Checkpoint(after))
    served = {each.tp for each in reads if each.end == ends[each.tp]}
    others = sum(ends[tp] > done[tp].frontier for tp in partitions if tp not in jumping)
    room = most - int(most * lanes.backlog_share) - 1 - others
    assert len(served & jumping) >= min(len(jumping), room)
