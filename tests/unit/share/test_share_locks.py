"""SharePlanner: lock renewal and failures, by example and in random runs against a model of a broker."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import NetworkError
from headrace.types import AcknowledgeType
from support.harness.share_broker_model import BUSY, LOCK, Model, Offsets, tip
from support.harness.share_planner import T0, SharePlannerDriver, offsets

# -- locks ----------------------------------------------------------------------------------------------------------


def test_locks_of_buffered_records_are_renewed_at_half_time() -> None:
    driver = SharePlannerDriver(Model({0: 10}, batch=10), is_explicit=True)
    driver.poll(5)
    driver.now = driver.planner.next_wake(1, driver.now)
    assert driver.now == 100 + LOCK / 2
    (renewal,) = driver.step()
    assert renewal.fields["is_renew_ack"]
    assert [entry.until for entry in driver.models[1].logs[0]] == [100 + LOCK] * 5 + [100 + 1.5 * LOCK] * 5


def test_renewed_locks_of_returned_records_end_with_max_poll_interval() -> None:
    driver = SharePlannerDriver(Model({0: 10}, batch=10), renews=True, max_poll_interval=100.0)
    driver.poll(10)
    renewed = []
    while (at := driver.planner.next_wake(1, driver.now)) < 1000:
        driver.now = at
        renewed += [driver.now - 100 for request in driver.step() if request.is_renewal]
    assert renewed == [15, 30, 45, 60, 75, 90]


def test_the_renewals_of_a_record_count_from_the_poll_that_returned_it() -> None:
    """Also for the rest of a batch that an earlier poll returned in part."""
    driver = SharePlannerDriver(Model({0: 10}, batch=10), is_explicit=True, renews=True, max_poll_interval=100.0)
    driver.poll(5)
    last: dict[int, float] = {}
    while (at := driver.planner.next_wake(1, driver.now)) < 1000:
        driver.now = at
        if driver.now > 180 and driver.planner.buffer.count:
            assert offsets(driver.poll(5)) == [5, 6, 7, 8, 9]
        for request in driver.step():
            for batch in request.fields["topics"][0]["partitions"][0]["acknowledgement_batches"]:
                last |= dict.fromkeys(range(batch["first_offset"], batch["last_offset"] + 1), driver.now - 100)
    assert [last[offset] for offset in range(10)] == [90] * 5 + [180] * 5


def test_locks_are_renewed_in_a_new_session_after_the_old_one_broke() -> None:
    driver = SharePlannerDriver(Model({0: 10}, batch=10), renews=True)
    driver.poll(10)
    driver.planner.sessions[1].share_session.broken()
    driver.now = driver.planner.next_wake(1, driver.now)
    opening, renewal = driver.step()
    assert (opening.fields["share_session_epoch"], opening.size.records) == (0, 0)
    assert renewal.is_renewal


@pytest.mark.parametrize("renews", [False, True], ids=["buffered", "in hand"])
@pytest.mark.parametrize("trouble", ["partition", "session"])
def test_a_failed_renewal_is_retried_before_the_lock_expires(renews: bool, trouble: str) -> None:
    driver = SharePlannerDriver(Model({0: 10}, batch=10), is_explicit=True, renews=renews)
    driver.poll(10 if renews else 5)
    driver.now = driver.planner.next_wake(1, driver.now)
    model = driver.models[1]
    if trouble == "session":
        model.forgets_session()
    else:
        model.troubles = {0: BUSY}
    driver.step()
    model.troubles = {}
    driver.now = driver.planner.next_wake(1, driver.now)
    assert driver.now < 100 + 0.6 * LOCK
    for _ in range(2):
        driver.step()
    assert {entry.until for entry in model.logs[0][0 if renews else 5 :]} == {driver.now + LOCK}


@pytest.mark.parametrize("renews", [False, True])
def test_a_broker_without_renewals_does_not_wake_the_planner(renews: bool) -> None:
    driver = SharePlannerDriver(Model({0: 10}, batch=10), can_renew=False, renews=renews)
    driver.poll(5)
    driver.now += LOCK / 2
    assert driver.step() == []
    assert driver.planner.next_wake(1, driver.now) > driver.now + LOCK


def test_a_lost_broker_does_not_wake_the_planner() -> None:
    driver = SharePlannerDriver(Model({0: 10}), Model({1: 0}), renews=True)
    driver.planner.lose_session(2, NetworkError("gone"))
    driver.poll(10)
    assert driver.planner.next_wake(2, driver.now) == math.inf


def test_buffered_records_with_an_expired_lock_are_not_returned() -> None:
    driver = SharePlannerDriver(Model({0: 10}, batch=10), can_renew=False, is_explicit=True)
    (records,) = driver.poll(5)
    driver.planner.decide(T0, records.runs(), AcknowledgeType.ACCEPT, driver.now)
    driver.planner.flush()
    driver.step()
    driver.now += LOCK
    (again,) = driver.poll(5)
    assert (again.offsets, again.delivery_count) == ([5, 6, 7, 8, 9], 2)
    assert driver.planner.buffer.expired == 5


# -- failures -------------------------------------------------------------------------------------------------------


def test_a_share_session_forgotten_by_the_broker_is_reopened_without_loss() -> None:
    driver = SharePlannerDriver(Model({0: 20}, batch=10))
    driver.poll(10)
    driver.models[1].forgets_session()
    found = offsets(driver.poll(10))
    assert found == list(range(10, 20))
    driver.planner.accept_all(driver.now)
    driver.planner.flush()
    driver.step()
    assert len(driver.models[1].accepted) == 20
    assert [outcome.error for outcome in driver.planner.outcomes if outcome.error] == []


def test_records_of_a_lost_connection_are_delivered_again() -> None:
    driver = SharePlannerDriver(Model({0: 20}, batch=10), is_explicit=True)
    (records,) = driver.poll(5)
    driver.lose()
    assert driver.planner.buffer.count == 5
    driver.planner.decide(T0, records.runs(), AcknowledgeType.ACCEPT, driver.now)
    (outcome,) = driver.planner.outcomes
    assert isinstance(outcome.error, NetworkError)
    again = driver.poll(10)
    assert offsets(again) == list(range(10))
    assert again[0].delivery_count == 2


def test_a_busy_partition_does_not_delay_the_others_of_its_broker() -> None:
    driver = SharePlannerDriver(Model({0: 10, 1: 10}, batch=10))
    driver.models[1].troubles = {1: BUSY}
    assert offsets(driver.poll(10)) == list(range(10))
    assert driver.planner.sessions[1].not_before <= driver.now
    driver.planner.wait(10, driver.now + 1.0)
    again = driver.plan()
    assert again is not None
    driver.finish(again)
    assert driver.planner.sessions[1].not_before > driver.now, "without other partitions it backs off"


def test_a_lost_connection_ends_a_pending_share_commit() -> None:
    driver = SharePlannerDriver(Model({0: 20}))
    driver.poll(10)
    driver.planner.accept_all(driver.now)
    goals = driver.planner.flush()
    driver.lose()
    assert driver.planner.is_over(goals)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.booleans(), st.integers(1, 3))
def test_a_share_planner_gets_every_record_accepted_once_in_random_runs(
    seed: int, is_strict: bool, is_explicit: bool, brokers: int
) -> None:
    """Random polls, pauses, acknowledgements, forgotten sessions and lost connections. The model records every request
    that a broker would reject."""
    dice = random.Random(seed)
    models = [
        Model(
            {number: dice.randint(0, 40) for number in (2 * node, 2 * node + 1)},
            batch=dice.choice([1, 3, 7]),
            gaps=frozenset(dice.sample(range(40), 6)),
        )
        for node in range(brokers)
    ]
    driver = SharePlannerDriver(*models, can_renew=dice.random() < 0.8, is_strict=is_strict, is_explicit=is_explicit)
    for round in range(3000):
        if not sum(model.left for model in models) and not sum(model.acquired() for model in models):
            break
        calm = round > 60
        limit = dice.choice([1, 4, 20])
        driver.most_acquired = 0
        before = driver.planner.buffer.count
        records = driver.poll(limit)
        assert sum(map(len, records)) <= limit
        if is_strict:
            assert driver.most_acquired + before <= max(limit, before)
        if is_explicit:
            _decide_at_random(driver, records, dice, calm)
        if not calm:
            _disturb(driver, dice)
        driver.now += dice.choice([0.0, 0.01, 0.3, 1.0] if calm else [0.0, 0.01, 0.3, 5.0, LOCK * 0.7, LOCK])
        driver.step()
    accepted = [place for model in models for place in model.accepted]
    assert sorted({*accepted}) == [
        (number, offset)
        for model in models
        for number, log in sorted(model.logs.items())
        for offset in range(len(log))
        if offset not in model.gaps
    ]
    assert len(accepted) == len(set(accepted))
    assert [each for model in models for each in model.violations] == []


def _decide_at_random(driver: SharePlannerDriver, records: list[Offsets], dice: random.Random, calm: bool) -> None:
    found = [acquired for session in driver.planner.sessions.values() for acquired in session.acquired.values()]
    for acquired in found:
        for run in list(acquired.in_hand):
            for offset in run.offsets:
                kind = AcknowledgeType.ACCEPT
                if not calm and dice.random() < 0.2:
                    kind = dice.choice([AcknowledgeType.RELEASE, AcknowledgeType.RENEW])
                driver.planner.decide(acquired.tp, [(offset, offset)], kind, driver.now)
                if kind is AcknowledgeType.RENEW and dice.random() < 0.5:
                    driver.planner.decide(acquired.tp, [(offset, offset)], AcknowledgeType.ACCEPT, driver.now)
    if any(acquired.has_renewals for acquired in found):
        driver.planner.flush()
        driver.step()
        for acquired in found:  # after a failed renewal, polls require an acknowledgement
            for run in list(acquired.in_hand):
                if not run.value.is_renewed:
                    driver.planner.decide(acquired.tp, [(run.first, run.last)], AcknowledgeType.ACCEPT, driver.now)


def _disturb(driver: SharePlannerDriver, dice: random.Random) -> None:
    node = dice.choice(list(driver.models))
    what = dice.random()
    if what < 0.1:
        driver.models[node].forgets_session()
    elif what < 0.2:
        driver.lose(node)
    elif what < 0.3:
        known = [tip(number) for model in driver.models.values() for number in model.logs]
        driver.planner.follow(dice.sample(known, dice.randint(0, len(known))))
        driver.step()
        driver.planner.follow(known)
