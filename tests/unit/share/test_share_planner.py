"""SharePlanner: when it fetches from which broker, and when it acknowledges."""

from __future__ import annotations

from typing import Any

import pytest

from headrace._machines.share.responses import buffer_records, handle_response
from headrace._protocol.messages import SHARE_ACKNOWLEDGE, SHARE_FETCH
from headrace.errors import StateError
from headrace.types import AcknowledgeType
from support.harness.share_broker_model import Model, tip
from support.harness.share_planner import T0, SharePlannerDriver, offsets

# -- fetches -----------------------------------------------------------------------------------------------------


def test_no_share_fetch_is_sent_before_a_poll_waits() -> None:
    driver = SharePlannerDriver(Model({0: 10}))
    assert driver.plan() is None
    driver.planner.wait(7, driver.now + 0.25)
    request = driver.plan()
    assert request is not None
    assert request.api is SHARE_FETCH
    wanted = {"share_session_epoch": 0, "max_records": 7, "batch_size": 7, "max_wait": 250, "share_acquire_mode": 0}
    assert {name: request.fields[name] for name in wanted} == wanted
    assert driver.plan() is None, "one at a time"


def test_a_share_poll_that_does_not_wait_fetches_from_each_broker_once() -> None:
    driver = SharePlannerDriver(Model({0: 10}), Model({1: 10}))
    driver.planner.nudge(7)
    assert [(request.node, request.fields["max_wait"]) for request in driver.step()] == [(1, 0), (2, 0)]
    assert [(request.node, request.fields["max_wait"]) for request in driver.step()] == [], "something is buffered"
    strict = SharePlannerDriver(Model({0: 0}), Model({1: 0}), is_strict=True)
    strict.planner.nudge(7)
    assert [request.node for request in strict.step()] == [1]
    strict.planner.nudge(7)
    assert [request.node for request in strict.step()] == [2]


def test_the_max_wait_of_a_share_fetch_is_at_most_the_setting() -> None:
    driver = SharePlannerDriver(Model({0: 10}), max_wait=0.5)
    driver.planner.wait(7, driver.now + 60)
    request = driver.plan()
    assert request is not None
    assert request.fields["max_wait"] == 500


def test_share_polls_return_no_more_than_their_limit_and_buffer_the_rest() -> None:
    driver = SharePlannerDriver(Model({0: 15}))
    assert offsets(driver.poll(6)) == [0, 1, 2, 3, 4, 5]
    assert driver.planner.buffer.count == 4
    assert offsets(driver.poll(6)) == [6, 7, 8, 9]
    assert len(driver.requests) == 1, "no fetch while records are buffered"
    assert offsets(driver.poll(6)) == [10, 11, 12, 13, 14]
    assert driver.models[1].accepted == [(0, offset) for offset in range(10)]


def test_with_record_limit_exactly_the_limit_is_acquired() -> None:
    driver = SharePlannerDriver(Model({0: 15}), is_strict=True)
    assert [offsets(driver.poll(6)) for _ in range(3)] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9, 10, 11],
        [12, 13, 14],
    ]
    assert driver.most_acquired == 6


def test_share_records_are_prefetched_for_a_quick_user() -> None:
    """It prefetches what the user consumes in 50 ms, at most twice as much as last time, before the buffer is empty."""
    driver = SharePlannerDriver(Model({0: 1000}, batch=10))
    driver.poll(10)
    assert driver.step() == [], "the user's pace is unknown yet"
    fetches = []
    for _ in range(16):
        driver.now += 0.01
        driver.poll(10)
        fetches += [(request.size.records, request.size.wait) for request in driver.step() if request.size.records]
    assert [request.size.records for request in driver.requests if request.size.records][:2] == [10, 20]
    assert fetches == [(40, 0.0), *[(50, 0.0)] * 3]
    assert driver.planner.buffer.count > 0
    for _ in range(5):
        driver.now += 5.0
        driver.poll(10)
        assert [request for request in driver.step() if request.size.records] == [], "the user has become slow"


def test_one_quick_share_poll_does_not_start_a_prefetch() -> None:
    driver = SharePlannerDriver(Model({0: 1000}, batch=10))
    for pause in (0.2, 0.001, 0.2, 0.001):
        driver.poll(10)
        driver.now += pause
    assert max(request.size.records for request in driver.requests) == 10


def test_a_share_poll_with_records_sends_no_further_fetch() -> None:
    driver = SharePlannerDriver(Model({0: 10, 1: 10}, batch=10))
    driver.planner.poll_begins(driver.now)
    driver.planner.wait(20, driver.now + 1.0)
    driver.step()
    assert driver.planner.take(20, driver.now)
    assert driver.plan() is None, "even before it returns"


def test_full_partitions_are_acknowledged_before_they_are_fetched_from() -> None:
    """A fetch does not acquire records that it releases itself, and a broker locks at most 2,000 per partition."""
    driver = SharePlannerDriver(Model({0: 4000, 1: 4000}, batch=100))
    driver.poll(4000)
    driver.poll(10)
    assert [request.api for request in driver.requests] == [SHARE_FETCH, SHARE_ACKNOWLEDGE, SHARE_FETCH]


@pytest.mark.parametrize(("limit", "requests"), [(1000, [SHARE_FETCH]), (1001, [SHARE_ACKNOWLEDGE, SHARE_FETCH])])
def test_with_record_limit_full_partitions_are_acknowledged_first_if_needed(limit: int, requests: list[Any]) -> None:
    driver = SharePlannerDriver(Model({0: 5000, 1: 5000}), is_strict=True)
    assert len(offsets(driver.poll(limit))) == limit
    driver.requests.clear()
    assert len(offsets(driver.poll(limit))) == limit
    assert [request.api for request in driver.requests] == requests


def test_share_records_are_not_prefetched_for_a_slow_user() -> None:
    slow = SharePlannerDriver(Model({0: 1000}, batch=10))
    for _ in range(3):
        slow.poll(10)
        slow.now += 5.0
        assert [request for request in slow.step() if request.size.records] == []
    assert {request.size.records for request in slow.requests} == {10}


def test_share_records_are_not_prefetched_when_there_are_few() -> None:
    driver = SharePlannerDriver(Model({0: 4}, batch=1))
    for _ in range(2):
        driver.poll(10)
        driver.now += 0.001
        assert [request for request in driver.step() if request.size.records] == []


def test_with_record_limit_share_records_are_not_prefetched() -> None:
    """Not even for the user of `test_share_records_are_prefetched_for_a_quick_user`."""
    driver = SharePlannerDriver(Model({0: 1000}, batch=10), is_strict=True)
    for _ in range(17):
        driver.poll(10)
        assert [request for request in driver.step() if request.size.records] == []
        driver.now += 0.01
    assert {request.size.records for request in driver.requests if request.size.records} == {10}
    assert driver.most_acquired == 10


def test_with_record_limit_brokers_are_fetched_from_in_turn() -> None:
    driver = SharePlannerDriver(Model({0: 0}), Model({1: 4}), is_strict=True)
    driver.planner.poll_begins(driver.now)
    driver.planner.wait(10, driver.now + 1.0)
    first = driver.plan(1)
    assert first is not None
    assert first.fields["max_wait"] == 0, "every broker is fetched from once before a fetch waits"
    assert driver.plan(2) is None
    driver.finish(first)
    assert driver.plan(1) is None
    second = driver.plan(2)
    assert second is not None
    driver.finish(second)
    assert driver.planner.buffer.count == 4
    assert driver.plan(1) is None


def test_with_record_limit_no_fetch_is_sent_while_a_response_is_decoded() -> None:
    driver = SharePlannerDriver(Model({0: 4}), Model({1: 4}), is_strict=True)
    driver.planner.poll_begins(driver.now)
    driver.planner.wait(4, driver.now + 1.0)
    first = driver.plan(1)
    assert first is not None
    (arrival,) = handle_response(driver.planner, first, driver.models[1].answer(first, driver.now), driver.now).arrivals
    assert driver.plan(2) is None
    buffer_records(driver.planner, arrival, [], [(0, 3)], driver.now)
    assert driver.plan(2) is not None, "the response had no records"


# -- acknowledgements ----------------------------------------------------------------------------------------------


def test_acknowledgements_are_sent_with_the_next_share_fetch() -> None:
    driver = SharePlannerDriver(Model({0: 20}))
    driver.poll(10)
    driver.poll(10)
    (fetch,) = (request for request in driver.requests if request.acknowledged)
    assert fetch.api is SHARE_FETCH
    assert driver.models[1].accepted == [(0, offset) for offset in range(10)]


def test_acknowledgements_are_sent_alone_when_no_share_fetch_follows() -> None:
    driver = SharePlannerDriver(Model({0: 10}), is_explicit=True)
    (records,) = driver.poll(10)
    driver.planner.decide(T0, records.runs(), AcknowledgeType.ACCEPT, driver.now)
    assert driver.step() == []
    driver.now = driver.planner.next_wake(1, driver.now)
    assert [request.api for request in driver.step()] == [SHARE_ACKNOWLEDGE]
    assert driver.planner.next_wake(1, driver.now) > driver.now + 10


def test_a_flush_sends_acknowledgements_at_once() -> None:
    driver = SharePlannerDriver(Model({0: 10}))
    driver.poll(10)
    driver.planner.accept_all(driver.now)
    goals = driver.planner.flush()
    assert not driver.planner.is_over(goals)
    driver.step()
    assert driver.planner.is_over(goals)
    assert driver.planner.flush() == {}
    assert [outcome.error for outcome in driver.planner.outcomes] == [None]


def test_an_explicit_poll_raises_for_records_neither_acknowledged_nor_renewed() -> None:
    driver = SharePlannerDriver(Model({0: 10}), is_explicit=True)
    driver.poll(10)
    driver.planner.decide(T0, [(0, 8)], AcknowledgeType.ACCEPT, driver.now)
    with pytest.raises(StateError, match="offset 9 of t-0"):
        driver.planner.poll_begins(driver.now)
    driver.planner.decide(T0, [(9, 9)], AcknowledgeType.RENEW, driver.now)
    driver.planner.poll_begins(driver.now)
    renewal = driver.plan()
    driver.planner.poll_begins(driver.now)
    assert renewal is not None
    assert renewal.is_renewal, "a renewal counts before and after it is sent"
    driver.finish(renewal)
    driver.planner.poll_begins(driver.now)
    assert driver.planner.in_hand == 1, "a renewed record stays in hand"
    driver.planner.decide(T0, [(9, 9)], AcknowledgeType.ACCEPT, driver.now)
    with pytest.raises(StateError, match="1 of the offsets 9 to 10"):
        driver.planner.decide(T0, [(9, 10)], AcknowledgeType.ACCEPT, driver.now)


@pytest.mark.parametrize("session", ["open", "forgotten"])
def test_acknowledgements_are_sent_before_a_share_session_is_closed(session: str) -> None:
    """One expired lock makes the broker reject a whole request; the acknowledgements of other locks are sent again."""
    driver = SharePlannerDriver(Model({0: 15}, batch=15), is_explicit=True)
    for _ in range(3):
        (records,) = driver.poll(5)
        driver.planner.decide(T0, records.runs(), AcknowledgeType.ACCEPT, driver.now)
    driver.models[1].logs[0][7].state = "available"
    if session == "forgotten":
        driver.models[1].forgets_session()
    sent = []
    while (request := driver.planner.closing_request(1, driver.now)) is not None:
        sent.append(request)
        driver.finish(request)
        if request.is_last:
            break
    assert [request.is_last for request in sent].index(True) == len(sent) - 1
    assert len(sent) == {"open": 5, "forgotten": 7}[session]
    assert sorted(driver.models[1].accepted) == [(0, offset) for offset in range(15) if not 5 <= offset < 10]
    assert [outcome.error is None for outcome in driver.planner.outcomes].count(False) == 1
    assert driver.models[1].violations == []


def test_acknowledgements_of_unassigned_partitions_are_sent_alone() -> None:
    driver = SharePlannerDriver(Model({0: 10, 1: 10}))
    driver.poll(10)
    driver.planner.follow([tip(1)])
    driver.poll(10)
    assert [request.api for request in driver.requests] == [SHARE_FETCH, SHARE_ACKNOWLEDGE, SHARE_FETCH]
    assert driver.models[1].session == {1}
    assert len(driver.models[1].accepted) == 10


@pytest.mark.parametrize("mode", [{"is_strict": True}, {"is_strict": False}], ids=["record_limit", "batch_optimized"])
def test_a_session_that_ends_while_its_records_are_decoded_fetches_again(mode: dict[str, bool]) -> None:
    """unsubscribe() and close() cancel the decoding of a large response."""
    driver = SharePlannerDriver(Model({0: 15}), **mode)
    driver.planner.wait(6, driver.now + 1.0)
    request = driver.plan()
    assert request is not None
    answer = handle_response(driver.planner, request, driver.models[1].answer(request, driver.now), driver.now)
    assert driver.planner.is_acquiring
    driver.lose()
    assert not driver.planner.is_acquiring
    for arrival in answer.arrivals:  # a decoder that was not cancelled
        buffer_records(driver.planner, arrival, *driver.models[1].decode(arrival), driver.now)
    assert not driver.planner.is_acquiring
    assert offsets(driver.poll(6)) == [0, 1, 2, 3, 4, 5]
