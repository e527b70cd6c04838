"""KIP-333: backlog ranges with offsets that have no record (control, aborted or compacted records).
A commit after the last delivered record of a range closes it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import OffsetAndMetadata
from headrace._aio.lanes.backlog import Backlog
from headrace._aio.lanes.source import two_lane_buffer
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.fetch.assignment import Assignment
from headrace._machines.fetch.partition import PartitionState, Position
from headrace._machines.lanes.lanes import Lanes, LaneStart
from headrace.config.consumer import ConsumerConfig
from headrace.records import decode
from support.brokers.fake_broker import run
from support.brokers.record_batches import Entry, encode_batch
from support.harness.two_lanes_in_memory import TP, TwoLaneDriver, backlog_of, fill, two_lane_consumer


def fetched(state: PartitionState, present: Collection[int], end: int) -> None:
    """Buffer one batch from the fetch offset up to `end`, with records at the `present` offsets."""
    start = state.fetch_offset
    entries = [Entry(value=b"x", offset_delta=offset - start) for offset in range(start, end) if offset in present]
    data = encode_batch(entries, base_offset=start, last_offset_delta=end - 1 - start)
    state.arrived(100, end)
    state.decoded(start, 100, decode(data, topic="t", partition=0, position=start, lane="backlog"), end)


def beside(driver: TwoLaneDriver) -> PartitionState:
    return driver.backlog.assignment.state(TP)


def polled(driver: TwoLaneDriver, limit: int = -1) -> list[int]:
    records = driver.buffer.take(limit)
    return [] if records is None else [record.offset for record in records if record.lane == "backlog"]


class TestCommits:
    def test_a_commit_behind_the_last_record_closes_a_range_that_ends_in_a_marker(self) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                fetched(beside(driver), range(70, 119), 120)
                assert polled(driver)[-1] == 118
                await driver.consumer.commit({TP: 119})
                assert driver.lanes.is_closed
                await driver.consumer.commit({TP: 125})
                assert driver.first.has[TP] == OffsetAndMetadata(125), "plain"
                assert TP not in driver.second.has, "forgotten"

        run(main())

    def test_a_commit_before_the_last_record_of_a_range_leaves_it_open(self) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                fetched(beside(driver), range(70, 119), 120)
                polled(driver)
                await driver.consumer.commit({TP: 118})
                assert driver.lanes.open == [(118, 119)], "the marker counts as done"
                assert (await driver.consumer.committed([TP]))[TP].offset == 118  # type: ignore[union-attr]

        run(main())

    def test_the_next_commit_closes_a_range_whose_marker_arrived_late(self) -> None:
        """Any next commit closes the range."""

        async def main() -> None:
            async with two_lane_consumer() as driver:
                fetched(beside(driver), range(70, 119), 119)
                polled(driver)
                await driver.consumer.commit({TP: 119})
                assert driver.lanes.open == [(119, 120)]
                fetched(beside(driver), (), 120)
                await driver.consumer.commit({TP: 125})
                assert driver.first.has[TP] == OffsetAndMetadata(125)

        run(main())

    def test_a_range_without_a_single_record_is_closed(self) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                fetched(beside(driver), (), 120)
                assert polled(driver) == []
                results: list[object] = []
                driver.consumer.commit_async({TP: 125}, lambda *it: results.append(it))
                await asyncio.wait(driver.consumer._parts.committer._running, timeout=30)
                assert driver.first.has[TP] == OffsetAndMetadata(125)
                driver.consumer._parts.committer.run_callbacks()
                assert results == [({TP: OffsetAndMetadata(125)}, None)], "the callback gets the requested offset"

        run(main())

    def test_the_final_commit_counts_offsets_without_records(self) -> None:
        """Otherwise another client would consume all live records again."""

        async def main() -> None:
            async with two_lane_consumer() as driver:
                fetched(beside(driver), range(70, 119), 119)
                polled(driver)
                await driver.consumer.commit({TP: 119})
                await driver.consumer.commit({TP: 2000})
                fetched(beside(driver), (), 120)
                await driver.consumer._parts.committer.final_commit(driver.engine, 5.0)
                assert driver.first.has[TP] == OffsetAndMetadata(2000)

        run(main())

    def test_a_done_backlog_is_closed_while_live_records_are_in_flight(self) -> None:
        async def main() -> None:
            async with two_lane_consumer(commit_mode="done") as driver:
                driver.state.seek(Position(120))
                fill(driver.state, 120, 3)
                fetched(beside(driver), range(70, 110), 110)
                records = driver.buffer.take(-1)
                assert records is not None
                driver.consumer._parts.completions.delivered(records, driver.buffer.reading_start)
                fetched(beside(driver), (), 120)
                for record in records:
                    if record.lane == "backlog":
                        driver.consumer.done(record)
                await driver.consumer.commit()
                assert driver.lanes.is_closed
                assert (driver.first.has[TP].offset, driver.mark.token) == (120, ""), "the live records are in flight"

        run(main())

    def test_records_that_a_restarted_backlog_lane_repeats_are_not_done(self) -> None:
        """After a failure the lane resumes from its last commit; earlier deliveries do not count."""

        async def main() -> None:
            async with two_lane_consumer() as driver:
                fetched(beside(driver), range(70, 119), 120)
                polled(driver)
                with driver.buffer.lock:
                    driver.backlog.resume_all()
                await driver.consumer.commit({TP: 125})
                assert driver.lanes.open == [(70, 120)]
                fetched(beside(driver), range(70, 100), 100)
                assert polled(driver)[-1] == 99
                await driver.consumer.commit({TP: 100})
                assert driver.lanes.open == [(100, 120)]

        run(main())


@dataclasses.dataclass
class Log:
    """Ranges with some records, in batches with random ends, and poll limits."""

    ranges: list[tuple[int, int]]
    present: set[int]
    batch_ends: set[int]
    limits: list[int]

    @property
    def stop(self) -> int:
        return self.ranges[-1][1]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    bounds = sorted(draw(st.sets(st.integers(0, 40), min_size=2, max_size=8)))
    bounds = bounds[: len(bounds) // 2 * 2]
    ranges = list(zip(bounds[::2], bounds[1::2], strict=True))
    present = draw(st.sets(st.integers(0, ranges[-1][1] - 1)))
    ends = draw(st.sets(st.integers(1, ranges[-1][1])))
    return Log(ranges, present, ends, draw(st.lists(st.integers(1, 5), min_size=1)))


class User:
    """Consumes the backlog of a log and commits after the last record of some polls."""

    def __init__(self, log: Log) -> None:
        config = ConsumerConfig.parse(bootstrap_servers="127.0.0.1:1", group_id="g", enable_parallel_rebalance=True)
        buffer = two_lane_buffer(config)
        self.log = log
        self.source = buffer.source
        self.backlog: Backlog = backlog_of(buffer)
        self.live: Assignment = buffer.assignment
        buffer.assign([TP])
        self.lanes = Lanes("t", LaneStart(log.stop, OffsetSet(log.stop), tuple(log.ranges)))
        state = self.live.state(TP)
        state.seek(Position(log.stop))
        self.backlog.open(state, self.lanes)
        self.handed_out: list[int] = []

    def fetch(self) -> bool:
        state = self.backlog.assignment.state(TP)
        start, stop = state.fetch_offset, self.log.stop
        if start >= stop:
            return False
        fetched(state, self.log.present, min((end for end in self.log.batch_ends if end > start), default=stop))
        return True

    def poll(self, limit: int) -> list[int]:
        found = [record.offset for chunk in self.source.take(limit, []) for record in chunk]
        self.handed_out += found
        return found

    def commit(self, offset: int) -> None:
        done = self.backlog.done(TP, self.lanes.progress | OffsetSet(offset))
        if (mark := self.lanes.backlog_mark(done)) is not None:
            self.lanes.progress = mark.done


@settings(max_examples=300, deadline=None)
@given(logs(), st.data())
def test_a_commit_behind_the_last_record_closes_a_range_with_any_gaps(log: Log, data: st.DataObject) -> None:
    user = User(log)
    wanted = [offset for offset in sorted(log.present) if any(start <= offset < end for start, end in log.ranges)]
    committed = 0
    turn = 0
    while True:
        found = user.poll(log.limits[turn % len(log.limits)])
        turn += 1
        if found and data.draw(st.booleans()):
            committed = found[-1] + 1
            user.commit(committed)
        done = user.backlog.done(TP, user.lanes.progress)
        assert all(offset < committed for offset in wanted if offset in done), "an uncommitted record counts as done"
        if not found and not user.fetch():
            break
    assert user.handed_out == wanted
    for start, end in log.ranges:
        last = max((offset for offset in wanted if offset < end), default=None)
        if last is not None:
            user.commit(max(last, committed - 1) + 1)
        still = user.backlog.done(TP, user.lanes.progress).open(start, end)
        assert still == [], f"[{start}, {end}) is closed"
    user.commit(0)
    assert user.lanes.is_closed


@pytest.mark.parametrize("position", [0, 75, 100, 120, 1000])
def test_only_offsets_behind_the_backlog_position_count_as_empty(position: int) -> None:
    lanes = Lanes("t", LaneStart(120, OffsetSet(120), ((70, 80), (100, 120))))
    lanes.handed_out(73)
    found = lanes.without_records(OffsetSet(70), position)
    expected = OffsetSet(70)
    if position > 73:
        expected = expected.with_done(73, min(position, 80))
    if position > 100:
        expected = expected.with_done(100, min(position, 120))
    assert found == expected
