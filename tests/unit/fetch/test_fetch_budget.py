"""The fetch budget: buffered bytes plus bytes that may still arrive stay within it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._machines.fetch.partition import PartitionState, Position
from headrace._machines.fetch.standing_fetch import FetchPlan
from support.harness.fetch_planner import KB, FetchPlannerDriver, data, feed, fetched
from support.harness.machine_inputs import FakeChunk


def test_a_fetch_requests_as_many_bytes_as_its_partitions_can_use() -> None:
    assert FetchPlannerDriver([1, 1]).plan().max_bytes == 200 * KB
    assert FetchPlannerDriver([1] * 30).plan().max_bytes <= 1000 * KB


def test_buffered_and_reserved_bytes_reduce_the_fetch_budget() -> None:
    driver = FetchPlannerDriver([1, 1, 2], queued_max_bytes=600 * KB)
    feed(driver.state(0), 150 * KB)
    driver.state(1).arrived(150 * KB, 1)
    driver.state(2).readable_end = 9
    assert driver.plan(2).max_bytes == 100 * KB
    assert driver.look(1) is None, "(600 - 150 - 150 - 3 * 100) / 3 are left"
    assert driver.fetching.is_over_budget


def test_the_fetch_budget_follows_the_measured_expansion_of_records() -> None:
    driver = FetchPlannerDriver([1, 1], queued_max_bytes=300 * KB)
    assert driver.plan().max_bytes == 100 * KB
    driver = FetchPlannerDriver([1, 1], queued_max_bytes=300 * KB)
    for _ in range(50):
        driver.fetching.measured(10 * KB, 10 * KB)
    driver.state(0).readable_end = 9
    assert driver.plan().max_bytes == 200 * KB
    driver.fetching.measured(100, 100_000)  # too small a sample to count
    assert driver.fetching._expansion == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("expansion", "numbers"), [(1.0, [0]), (3.0, [])])
def test_undecoded_records_count_with_their_expanded_size(expansion: float, numbers: list[int]) -> None:
    """100 KB that expand threefold exceed the 200 KB read-ahead of a partition; uncompressed they do not."""
    driver = FetchPlannerDriver([1])
    driver.fetching._expansion = expansion
    ((found, item),), *_ = driver.answered(driver.plan(), data(records=bytes(100 * KB)))
    arrival = driver.fetching.arrived(found, item, next_offset=12)
    assert driver.asked() == numbers
    driver.state().decoded(0, arrival.room, FakeChunk((0,), 12, -1, arrival.room), 12)
    assert (driver.state().undecoded, driver.state().retained) == (0, expansion * 100 * KB)


def test_room_for_records_is_twice_the_budget_minus_buffered_bytes() -> None:
    driver = FetchPlannerDriver([1, 1], queued_max_bytes=300 * KB)
    feed(driver.state(0), 250 * KB)
    assert driver.fetching.room_for_records == 350 * KB
    feed(driver.state(1), 400 * KB)
    assert driver.fetching.room_for_records == 0


def test_one_fetch_is_sent_however_small_the_budget() -> None:
    driver = FetchPlannerDriver([1, 2], queued_max_bytes=10)
    plan = driver.plan(1)
    assert plan.max_bytes == 10
    assert driver.look(2) is None
    driver.fetching.failed(plan)
    assert driver.plan(2).max_bytes == 10


def test_buffers_of_paused_partitions_are_dropped_when_the_budget_is_used_up() -> None:
    driver = FetchPlannerDriver([1, 1], queued_max_bytes=300 * KB)
    feed(driver.state(0), 300 * KB)
    driver.state(0).paused = True
    assert driver.asked() == [1]
    assert (driver.state(0).retained, driver.state(0).position) == (0, (0, -1)), "resume() fetches it again"


def test_a_parked_fetch_of_one_broker_leaves_budget_for_another() -> None:
    """A fetch of idle partitions waits at the broker, returns nothing and is sent again at once, so its reservation
    is never released."""
    driver = FetchPlannerDriver([1] * 40 + [2], queued_max_bytes=3000 * KB)
    idle = driver.plan(1)
    assert idle.parked
    assert driver.asked(2) == [40]


def test_a_broker_held_back_by_the_budget_is_fetched_from_first() -> None:
    driver = FetchPlannerDriver([1, 2, 2], queued_max_bytes=500 * KB)
    first = driver.plan(1)
    assert driver.look(2) is None
    assert driver.fetching.is_over_budget
    driver.answered(first)
    assert driver.look(1) is None, "it would take the bytes that broker 2 waits for"
    assert driver.asked(2) == [1, 2]
    assert driver.fetching.is_over_budget, "and now broker 1 waits"


def test_a_broker_without_wanted_partitions_gives_up_its_priority() -> None:
    driver = FetchPlannerDriver([1, 2], queued_max_bytes=400 * KB)
    first = driver.plan(1)
    assert driver.asked(2) == []
    driver.answered(first)
    driver.state(1).paused = True
    assert driver.asked(2) == []
    assert not driver.fetching.is_over_budget
    assert driver.asked(1) == [0]


STEP = st.tuples(
    st.sampled_from(["plan", "plan", "answer", "fail", "decode", "take", "pause", "seek"]),
    st.integers(1, 3),
    st.integers(0, 11),
    st.floats(0, 1),
)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.integers(1, 2000), st.lists(STEP, max_size=60))
def test_buffered_and_reserved_bytes_never_exceed_the_budget(
    budget_kb: int, steps: list[tuple[str, int, int, float]]
) -> None:
    """Buffered bytes plus bytes that may still arrive never exceed the budget, given the measured expansion (1 here).
    The only exception is a fetch that is sent when nothing else is buffered or in flight."""
    driver = FetchPlannerDriver([1, 2, 3] * 4, queued_max_bytes=budget_kb * KB)
    driver.fetching._expansion = 1.0
    flying: list[tuple[int, FetchPlan]] = []
    decoding: list[tuple[PartitionState, int, int, int, int]] = []

    def held() -> int:
        return sum(state.retained + state.undecoded for state in driver.assignment)

    for what, node, number, fraction in steps:
        state = driver.state(number)
        if what == "plan":
            nothing_else = not flying and held() == 0 and not driver.fetching.is_over_budget
            needs_fetch = [
                each
                for each in list(driver.assignment)
                if each.tp.partition % 3 == node - 1 and not each.paused and not each.in_flight
            ]
            plan = driver.look(node)
            assert plan is not None or not needs_fetch or not nothing_else, "one fetch must be sent"
            if plan is not None:
                flying.append((node, plan))
                assert held() + sum(plan.max_bytes for _, plan in flying) <= budget_kb * KB
                assert 0 < plan.max_bytes <= 1000 * KB
        elif what in ("answer", "fail") and flying:
            node, plan = flying.pop(number % len(flying))
            if what == "fail":
                driver.fetching.failed(plan)
                continue
            each = int(fraction * plan.max_bytes / len(plan.asked))
            numbers = [tip.partition for tip in plan.wants]
            body = fetched(*(data(number, records=bytes(min(each, 100 * KB))) for number in numbers))
            with_records, *_ = driver.fetching.answered(plan, body, 0.0)
            for asked, item in with_records:
                arrival = driver.fetching.arrived(asked, item, asked.offset + 1)
                target = driver.assignment.state(asked.tp)
                decoding.append((target, asked.position_version, asked.offset, len(arrival.records), asked.offset + 1))
        elif what == "decode" and decoding:
            target, position_version, start, size, end = decoding.pop(number % len(decoding))
            if target.position_version == position_version:
                target.decoded(start, size, FakeChunk((start,), end, -1, size), end)
        elif what == "take":
            driver.assignment.take(1 + number, [])
        elif what == "pause":
            state.paused = not state.paused
        elif what == "seek":
            state.seek(Position(int(fraction * 100)))
        assert driver.fetching._reserved == sum(plan.max_bytes for _, plan in flying)
        assert driver.fetching._reserved >= 0
    for _, plan in flying:
        driver.fetching.failed(plan)
    assert driver.fetching._reserved == 0
    # In the end, polls drain the buffer, and every broker is fetched from.
    for target, position_version, start, size, end in decoding:
        if target.position_version == position_version:
            target.decoded(start, size, FakeChunk((start,), end, -1, size), end)
    for state in driver.assignment:
        state.paused = False
        state.seek(Position(0))
    asked: set[int] = set()
    for _ in range(4):
        for node in (1, 2, 3):
            if (plan := driver.look(node)) is not None:
                asked.add(node)
                driver.fetching.failed(plan)
    assert asked == {1, 2, 3}
