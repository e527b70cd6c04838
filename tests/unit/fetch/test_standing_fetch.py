"""StandingFetch: partitions stay in the fetch of their stream, and every partition that needs a fetch is in one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._machines.cluster import TopicIdPartition
from headrace._machines.fetch.partition import PAUSED, WITHHELD, Phase, Position, PreferredReplica
from headrace._machines.fetch.planner import RepeatedPartition
from headrace._machines.fetch.session import FetchSession, PartitionRequest
from headrace._machines.fetch.standing_fetch import FetchPlan, StandingFetch
from support.harness.fetch_planner import KB, TOPIC, FetchPlannerDriver, data, feed, fetched
from support.harness.machine_inputs import FakeChunk, metadata, partition, topic


def numbers(tips: Any) -> list[int]:
    return sorted(tip.partition for tip in tips)


def test_a_response_without_partitions_leaves_them_in_the_fetch() -> None:
    driver = FetchPlannerDriver([1, 1])
    driver.answered(driver.plan())
    again = driver.plan()
    assert (numbers(again.wants), numbers(again.changed)) == ([0, 1], [])


def test_only_the_partitions_of_a_response_change_in_the_next_request() -> None:
    driver = FetchPlannerDriver([1, 1, 1])
    ((asked, item),), *_ = driver.answered(driver.plan(), data(1, records=b"x"))
    driver.fetching.arrived(asked, item, next_offset=4)
    again = driver.plan()
    assert (numbers(again.wants), numbers(again.changed)) == ([0, 1, 2], [1])
    assert again.wants[TopicIdPartition(TOPIC, 1)].offset == 4


def test_the_cost_of_a_plan_depends_on_what_changed_and_not_on_the_number_of_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = FetchPlannerDriver([1] * 500)
    driver.answered(driver.plan())
    assert driver.fetching.nodes(0.0) == {1}
    looks = []
    monkeypatch.setattr(driver.fetching, "_node_of", lambda state, now: looks.append(state) or 1)
    monkeypatch.setattr(driver.assignment, "is_running_low", lambda state: looks.append(state) or True)
    plan = driver.plan()
    driver.answered(plan)
    assert driver.fetching.nodes(0.0) == {1}
    assert looks == []
    driver.answered(driver.plan(), data(7))
    driver.plan()
    assert {state.tp.partition for state in looks} == {7}


@pytest.mark.parametrize("when", ["during the request", "after the response"])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda driver: driver.state(1).seek(Position(7, 5)), id="sought"),
        pytest.param(lambda driver: setattr(driver.state(1), "paused", True), id="paused"),
        pytest.param(lambda driver: setattr(driver.state(1), "withheld", True), id="withheld"),
        pytest.param(lambda driver: driver.state(1).await_position(), id="without a position"),
        pytest.param(lambda driver: driver.assignment.assign([driver.partitions[0]]), id="given up"),
        pytest.param(lambda driver: lead(driver, 2), id="with another leader"),
        pytest.param(lambda driver: lead(driver, -1), id="without a leader"),
    ],
)
def test_a_partition_leaves_its_fetch_when_it_is(change: Any, when: str) -> None:
    driver = FetchPlannerDriver([1, 1])
    plan = driver.plan()
    if when == "during the request":
        change(driver)
    driver.answered(plan)
    if when == "after the response":
        change(driver)
    again = driver.plan()
    assert numbers(again.wants) == [0]
    assert 1 in numbers(again.changed), "the session forgets it"


def lead(driver: FetchPlannerDriver, leader: int) -> None:
    driver.cluster.apply(metadata(topic(partition(0), partition(1, leader=leader, epoch=6)), brokers=(1, 2)))
    driver.assignment.follow(driver.cluster)


def test_a_partition_that_was_paused_and_resumed_during_a_fetch_stays_in_it() -> None:
    driver = FetchPlannerDriver([1, 1])
    plan = driver.plan()
    driver.state(1).paused = True
    driver.state(1).paused = False
    assert driver.asked() == [], "no other stream fetches it meanwhile"
    driver.answered(plan)
    assert driver.asked() == [0, 1]


def test_a_fetch_without_budget_keeps_no_partition() -> None:
    """Its stream sleeps until there is some: another broker or stream may fetch them before."""
    driver = FetchPlannerDriver([1, 1], queued_max_bytes=300 * KB)
    driver.answered(driver.plan(), data(0))
    feed(driver.state(0), 300 * KB)
    assert driver.look() is None
    assert not driver.state(1).in_flight


def test_an_expired_replica_gives_its_idle_partitions_back_to_the_leader() -> None:
    driver = FetchPlannerDriver([1])
    driver.state().preferred = PreferredReplica(2, 60.0)
    plan = driver.plan(2, 59.0)
    assert not driver.answered(plan, now=59.5).has_moved
    plan = driver.plan(2, 59.5)
    assert driver.answered(plan, now=60.0).has_moved, "the streams to other brokers have to look"
    assert (driver.asked(1, 60.0), driver.asked(2, 60.0)) == ([0], [])


# -- the ways in which a fetch that is only repeated would leave a partition out ---------------------------------


def test_a_partition_joins_the_fetch_of_idle_ones_when_its_backoff_ends() -> None:
    driver = FetchPlannerDriver([1, 1])
    driver.state(1).backoff_until = 1.0
    plan = driver.plan(now=0.9)
    assert numbers(plan.wants) == [0]
    driver.answered(plan, now=1.1)
    assert driver.asked(now=1.1) == [0, 1]


def test_a_partition_joins_the_fetch_of_idle_ones_when_its_records_were_taken_meanwhile() -> None:
    driver = FetchPlannerDriver([1, 1])
    feed(driver.state(1), 200 * KB)
    plan = driver.plan()
    assert numbers(plan.wants) == [0]
    driver.assignment.take(10, [])
    driver.answered(plan)
    assert driver.asked() == [0, 1]


def test_a_partition_joins_a_fetch_whose_known_records_did_not_come() -> None:
    driver = FetchPlannerDriver([1, 1])
    driver.state(0).readable_end = 50
    feed(driver.state(1), 200 * KB)
    plan = driver.plan()
    assert (numbers(plan.wants), plan.parked) == ([0], False)
    driver.assignment.take(10, [])
    driver.answered(plan)
    again = driver.plan()
    assert (numbers(again.wants), again.parked) == ([0, 1], False)


def test_a_request_ends_once() -> None:
    """The thread that received the response and the loop that gave up waiting for it may both end the request."""
    driver = FetchPlannerDriver([1])
    plan = driver.plan()
    assert driver.fetching.failed(plan) == [driver.partitions[0]]
    again = driver.plan()
    assert driver.answered(plan, data(records=b"x")) == ([], False, False)
    assert driver.fetching.failed(plan) == []
    assert again.fetch.under_way is again
    driver.fetching.failed(again)
    assert driver.fetching._reserved == 0


@pytest.mark.parametrize("is_under_way", [True, False])
def test_a_stream_that_ends_leaves_its_partitions_to_others(is_under_way: bool) -> None:
    """Also if no request is under way: its thread has a response, and has not planned the next one."""
    driver = FetchPlannerDriver([1])
    plan = driver.plan()
    if not is_under_way:
        driver.answered(plan)
    driver.fetching.release(plan.fetch)
    assert driver.fetching._reserved == 0
    other = driver.fetching.plan(StandingFetch(plan.fetch.node, keeps=False), 0.0)
    assert other is not None
    assert numbers(other.wants) == [0]


STEP = st.tuples(
    st.sampled_from(
        ["plan"] * 4
        + ["answer"] * 4
        + ["repeat"] * 2
        + ["fail", "take", "pause", "resume", "seek", "lead", "assign", "prefer", "wait"]
    ),
    st.integers(0, 5),
    st.integers(0, 5),
)


@settings(deadline=None, derandomize=True, max_examples=400)
@given(st.lists(STEP, max_size=60))
def test_every_partition_that_needs_a_fetch_is_in_one(steps: list[tuple[str, int, int]]) -> None:
    """Whatever happens between requests and responses: after a stream has looked, no partition of its broker needs a
    fetch and is in none, each is in one at most, and the session at the broker has exactly what is requested."""
    driver = FetchPlannerDriver([1, 2, 1, 2, 1, 2])
    sessions: dict[int, tuple[FetchSession, dict[TopicIdPartition, PartitionRequest]]] = {}
    flying: list[FetchPlan] = []
    now, epoch = 0.0, 5
    for what, one, other in steps:
        tp = driver.partitions[one]
        state = driver.assignment.get(tp)
        if what == "plan":
            node = 1 + one % 2
            plan = driver.look(node, now)
            if plan is not None:
                flying.append(plan)
                session, believed = sessions.setdefault(id(plan.fetch), (FetchSession(), {}))
                request = session.request(plan.wants, plan.changed)
                if request.epoch == 0:
                    believed.clear()
                believed.update(request.send)
                for tip in request.forget:
                    del believed[tip]
                session.answered(0, 9)
                assert believed == plan.wants
            check(driver, node, now)
        elif what == "answer" and flying:
            plan = flying.pop(one % len(flying))
            items = [data(tip.partition, records=b"x" if other % 2 else None) for tip in list(plan.wants)[: other - 2]]
            found, _, _ = driver.fetching.answered(plan, fetched(*items), now)
            for asked, item in found:
                arrival = driver.fetching.arrived(asked, item, asked.offset + 1)
                feed_arrived(driver, arrival)
        elif what == "repeat" and flying:
            place = one % len(flying)
            plan = flying[place]
            listed = [
                RepeatedPartition(
                    tip, asked.offset + 1, asked.offset + 1, asked.offset + 1, 9, one_record(asked.offset)
                )
                for tip, asked in list(plan.asked.items())[:other]
            ]
            repeated = driver.fetching.repeated(plan, listed, now)
            assert repeated is not None
            flying[place] = repeated.plan
            session, believed = sessions[id(plan.fetch)]
            believed.update(repeated.sent)
            session.repeated(repeated.sent)
        elif what == "fail" and flying:
            driver.fetching.failed(flying.pop(one % len(flying)))
        elif what == "take":
            driver.assignment.take(2, [])
        elif what == "lead":
            epoch += 1
            leaders = [partition(n, leader=other % 3 or -1 if n == one else 1 + n % 2, epoch=epoch) for n in range(6)]
            driver.cluster.apply(metadata(topic(*leaders), brokers=(1, 2)))
            driver.assignment.follow(driver.cluster)
        elif what == "wait":
            now += 0.3
        elif what == "prefer":
            if state is not None:
                state.preferred = PreferredReplica(1 + other % 2, now + 0.5)
        else:
            driver.user_step(what, one, other)
    for plan in flying:
        driver.fetching.failed(plan)
    assert driver.fetching._reserved == 0
    assert not any(state.in_flight for state in driver.assignment if state in driver.assignment.free)


def one_record(offset: int) -> FakeChunk:
    return FakeChunk((offset,), offset + 1, -1, 90 * KB)


def feed_arrived(driver: FetchPlannerDriver, arrival: Any) -> None:
    state = driver.assignment.get(arrival.tp)
    if state is not None and state.position_version == arrival.position_version:
        state.decoded(arrival.offset, arrival.room, one_record(arrival.offset), arrival.next_offset)


def check(driver: FetchPlannerDriver, node: int, now: float) -> None:
    fetches = [fetch for found in driver.fetches.values() for fetch in found]
    for fetch in fetches:
        assert fetch.asked.keys() == fetch.wants.keys()
        assert fetch.unfetched <= fetch.wants.keys(), "others' records would keep the broker from parking the fetch"
    for state in driver.assignment:
        assert state.in_flight == (state not in driver.assignment.free)
        if state.in_flight:
            (fetch,) = [fetch for fetch in fetches if state.is_in(fetch)]
            assert state.topic_id is not None
            asked = fetch.asked[TopicIdPartition(state.topic_id, state.tp.partition)]
            assert asked.position_version == state.position_version
            assert asked.offset <= state.fetch_offset, "a late response of another broker may have been used"
            continue
        needs_fetch = (
            state.phase is Phase.READY
            and not state.blocked_by & (PAUSED | WITHHELD)
            and state.retained + state.undecoded < 200 * KB
            and driver.fetching._node_of(state, now) == node
        )
        assert not needs_fetch or driver.fetching.is_over_budget
