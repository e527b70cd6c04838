"""FetchPlanner.repeated: a fetch that was sent again without a plan is noted as if it had been planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace._machines.cluster import TopicIdPartition
from headrace._machines.commit.offset_set import LAST_OFFSET, OffsetSet
from headrace._machines.fetch.partition import PartitionState, Position, PreferredReplica
from headrace._machines.fetch.planner import Repeated, RepeatedPartition
from headrace._machines.fetch.session import FetchSession
from headrace._machines.fetch.standing_fetch import FetchPlan
from support.harness.fetch_planner import KB, TOPIC, FetchPlannerDriver, feed
from support.harness.machine_inputs import FakeChunk


def place(number: int, start: int, count: int = 1, size: int = 100) -> RepeatedPartition:
    """A partition with new records, or without any. The log ends behind them."""
    end = start + count
    chunk = FakeChunk(tuple(range(start, end)), end, 5, size) if count else None
    return RepeatedPartition(TopicIdPartition(TOPIC, number), end, end, end, size if count else 0, chunk)


def repeat(driver: FetchPlannerDriver, plan: FetchPlan, *places: RepeatedPartition, now: float = 0.0) -> Repeated:
    found = driver.fetching.repeated(plan, places, now)
    assert found is not None
    return found


def test_records_are_buffered_and_the_offset_behind_them_is_in_flight() -> None:
    driver = FetchPlannerDriver([1, 1])
    plan = driver.plan()
    found = repeat(driver, plan, place(1, 0, 3))
    state = driver.state(1)
    assert (state.available, state.fetch_offset, state.in_flight) == (3, 3, True)
    assert {tip.partition: want.offset for tip, want in found.sent.items()} == {1: 3}
    assert [want.offset for want in found.plan.wants.values()] == [0, 3]
    assert found.may_continue
    assert driver.look() is None, "both are in a fetch that is under way"


def test_a_response_without_records_changes_nothing() -> None:
    driver = FetchPlannerDriver([1, 1])
    plan = driver.plan()
    reserved = driver.fetching._reserved
    found = repeat(driver, plan)
    assert (found.sent, found.may_continue, driver.fetching._reserved) == ({}, True, reserved)
    driver.answered(found.plan)
    assert driver.fetching._reserved == 0


def test_a_repeated_fetch_ends_once() -> None:
    driver = FetchPlannerDriver([1])
    plan = driver.plan()
    found = repeat(driver, plan)
    assert driver.fetching.repeated(plan, [place(0, 0)], 0.0) is None, "another one has replaced it"
    assert driver.fetching.failed(plan) == []
    assert driver.fetching.failed(found.plan) == [driver.partitions[0]]
    assert driver.fetching.repeated(found.plan, [place(0, 0)], 0.0) is None
    assert (driver.state().available, driver.fetching._reserved) == (0, 0)


@pytest.mark.parametrize(
    ("change", "buffered"),
    [
        pytest.param(lambda driver: driver.state(1).seek(Position(7)), 0, id="sought"),
        pytest.param(lambda driver: setattr(driver.state(1), "paused", True), 1, id="paused"),
        pytest.param(lambda driver: driver.assignment.assign([driver.partitions[0]]), None, id="given up"),
        pytest.param(lambda driver: driver.assignment.follow(driver.cluster), 1, id="in a changed cluster"),
    ],
)
@pytest.mark.parametrize("has_records", [True, False])
def test_the_next_request_is_planned_after_a_partition_was(
    change: Any, buffered: int | None, has_records: bool
) -> None:
    driver = FetchPlannerDriver([1, 1])
    plan = driver.plan()
    change(driver)
    found = repeat(driver, plan, *([place(1, 0)] if has_records else []))
    assert not found.may_continue
    state = driver.assignment.get(driver.partitions[1])
    assert (None if state is None else state.available) == (buffered if has_records or buffered is None else 0)
    driver.answered(found.plan)
    session = FetchSession()
    session.request(plan.wants, plan.changed)
    again = driver.plan()
    assert again.wants[TopicIdPartition(TOPIC, 0)].offset == 0
    if (want := again.wants.get(TopicIdPartition(TOPIC, 1))) is not None:
        assert state is not None
        assert want.offset == state.fetch_offset


def test_a_partition_that_was_sought_is_fetched_by_another_stream_at_once() -> None:
    driver = FetchPlannerDriver([1, 1])
    plan = driver.plan()
    driver.state(1).seek(Position(7))
    repeat(driver, plan, place(1, 0))
    other = driver.plan()
    assert {tip.partition: want.offset for tip, want in other.wants.items()} == {1: 7}


def test_a_partition_with_enough_buffered_is_planned_again() -> None:
    driver = FetchPlannerDriver([1])
    feed(driver.state(), 150 * KB)
    plan = driver.plan()
    found = repeat(driver, plan, place(0, 1, size=60 * KB))
    assert not found.may_continue


@pytest.mark.parametrize("fill", [feed, lambda state, size: state.arrived(size, 1)], ids=["buffered", "being decoded"])
def test_a_fetch_without_room_in_the_budget_is_planned_again(fill: Callable[[PartitionState, int], None]) -> None:
    driver = FetchPlannerDriver([1, 2], queued_max_bytes=1000 * KB)
    plan = driver.plan()
    found = repeat(driver, plan, place(0, 0))
    assert found.may_continue
    fill(driver.state(1), 990 * KB)
    assert not repeat(driver, found.plan, place(0, 1)).may_continue


def test_records_that_are_decoded_before_anybody_looks_exceed_the_budget_once_at_most() -> None:
    """They may become much larger than a small response lets expect. The bound is that of all decoding."""
    driver = FetchPlannerDriver([1], queued_max_bytes=1000 * KB)
    plan = driver.plan()
    room, offset = driver.fetching.room_for_repetition, 0
    while True:
        assert driver.assignment.retained + room <= 2000 * KB
        found = repeat(driver, plan, place(0, offset, size=150 * KB))
        plan, offset = found.plan, offset + 1
        if not found.may_continue:
            break


def test_records_that_a_broker_sends_twice_in_a_response_are_buffered_once() -> None:
    driver = FetchPlannerDriver([1])
    found = repeat(driver, driver.plan(), place(0, 0, 2), place(0, 0, 2))
    assert (driver.state().available, driver.state().fetch_offset) == (2, 2)
    assert {tip.partition: want.offset for tip, want in found.sent.items()} == {0: 2}


def test_offsets_that_the_last_owner_has_read_are_not_requested() -> None:
    driver = FetchPlannerDriver([1])
    state = driver.state()
    state.already_done = OffsetSet(LAST_OFFSET, [(0, 2), (9, LAST_OFFSET)])
    plan = driver.plan()
    found = repeat(driver, plan, place(0, 0, 2))
    assert (state.available, state.fetch_offset, found.may_continue) == (2, 9, False)
    other = driver.plan()
    assert [want.offset for want in other.wants.values()] == [9], "the other stream need not wait for this one"


def test_a_replica_that_is_not_preferred_any_more_is_planned_again() -> None:
    driver = FetchPlannerDriver([1])
    driver.state().preferred = PreferredReplica(2, 60.0)
    plan = driver.plan(2, 59.0)
    assert repeat(driver, plan, now=59.5).may_continue
    plan = driver.fetches[2][0].under_way  # type: ignore[assignment]
    assert not repeat(driver, plan, now=60.0).may_continue


def test_the_session_knows_what_was_requested() -> None:
    driver = FetchPlannerDriver([1, 1])
    session = FetchSession()
    plan = driver.plan()
    session.request(plan.wants, plan.changed)
    session.answered(0, 9)
    found = repeat(driver, plan, place(1, 0))
    session.repeated(found.sent)
    driver.answered(found.plan)
    again = driver.plan()
    request = session.request(again.wants, again.changed)
    assert (request.session_id, request.epoch, request.send, request.forget) == (9, 2, {}, ())
