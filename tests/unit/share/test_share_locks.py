"""What a share consumer does for its locks, and in trouble: tables, and runs at random against a model of a broker."""

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
    desk = SharePlannerDriver(Model({0: 10}, batch=10), is_explicit=True)
    desk.poll(5)
    desk.now = desk.planner.next_wake(1, desk.now)
    assert desk.now == 100 + LOCK / 2
    (renewal,) = desk.step()
    assert renewal.fields["is_renew_ack"]
    assert [entry.until for entry in desk.models[1].logs[0]] == [100 + LOCK] * 5 + [100 + 1.5 * LOCK] * 5


def test_renewed_locks_of_returned_records_end_with_max_poll_interval() -> None:
    desk = SharePlannerDriver(Model({0: 10}, batch=10), renews=True, max_poll_interval=100.0)
    desk.poll(10)
    renewed = []
    while (at := desk.planner.next_wake(1, desk.now)) < 1000:
        desk.now = at
        renewed += [desk.now - 100 for request in desk.step() if request.is_renewal]
    assert renewed == [15, 30, 45, 60, 75, 90]


def test_the_renewals_of_a_record_count_from_the_poll_that_returned_it() -> None:
    """Also for the rest of a batch of which an earlier poll returned a part."""
    desk = SharePlannerDriver(Model({0: 10}, batch=10), is_explicit=True, renews=True, max_poll_interval=100.0)
    desk.poll(5)
    last: dict[int, float] = {}
    while (at := desk.planner.next_wake(1, desk.now)) < 1000:
        desk.now = at
        if desk.now > 180 and desk.planner.buffer.count:
            assert offsets(desk.poll(5)) == [5, 6, 7, 8, 9]
        for request in desk.step():
            for batch in request.fields["topics"][0]["partitions"][0]["acknowledgement_batches"]:
                last |= dict.fromkeys(range(batch["first_offset"], batch["last_offset"] + 1), desk.now - 100)
    assert [last[offset] for offset in range(10)] == [90] * 5 + [180] * 5


def test_locks_are_renewed_in_a_new_session_after_the_old_one_broke() -> None:
    desk = SharePlannerDriver(Model({0: 10}, batch=10), renews=True)
    desk.poll(10)
    desk.planner.sessions[1].share_session.broken()
    desk.now = desk.planner.next_wake(1, desk.now)
    opening, renewal = desk.step()
    assert (opening.fields["share_session_epoch"], opening.size.records) == (0, 0)
    assert renewal.is_renewal


@pytest.mark.parametrize("renews", [False, True], ids=["in stock", "in hand"])
@pytest.mark.parametrize("trouble", ["partition", "session"])
def test_a_failed_renewal_is_retried_before_the_lock_expires(renews: bool, trouble: str) -> None:
    desk = SharePlannerDriver(Model({0: 10}, batch=10), is_explicit=True, renews=renews)
    desk.poll(10 if renews else 5)
    desk.now = desk.planner.next_wake(1, desk.now)
    model = desk.models[1]
    if trouble == "session":
        model.forgets_session()
    else:
        model.troubles = {0: BUSY}
    desk.step()
    model.troubles = {}
    desk.now = desk.planner.next_wake(1, desk.now)
    assert desk.now < 100 + 0.6 * LOCK
    for _ in range(2):
        desk.step()
    assert {entry.until for entry in model.logs[0][0 if renews else 5 :]} == {desk.now + LOCK}


@pytest.mark.parametrize("renews", [False, True])
def test_a_broker_without_renewals_does_not_wake_the_planner(renews: bool) -> None:
    desk = SharePlannerDriver(Model({0: 10}, batch=10), can_renew=False, renews=renews)
    desk.poll(5)
    desk.now += LOCK / 2
    assert desk.step() == []
    assert desk.planner.next_wake(1, desk.now) > desk.now + LOCK


def test_a_lost_broker_does_not_wake_the_planner() -> None:
    desk = SharePlannerDriver(Model({0: 10}), Model({1: 0}), renews=True)
    desk.planner.lose_session(2, NetworkError("gone"))
    desk.poll(10)
    assert desk.planner.next_wake(2, desk.now) == math.inf


def test_buffered_records_with_an_expired_lock_are_not_returned() -> None:
    desk = SharePlannerDriver(Model({0: 10}, batch=10), can_renew=False, is_explicit=True)
    (records,) = desk.poll(5)
    desk.planner.decide(T0, records.runs(), AcknowledgeType.ACCEPT, desk.now)
    desk.planner.flush()
    desk.step()
    desk.now += LOCK
    (again,) = desk.poll(5)
    assert (again.offsets, again.delivery_count) == ([5, 6, 7, 8, 9], 2)
    assert desk.planner.buffer.expired == 5


# -- trouble --------------------------------------------------------------------------------------------------------


def test_a_share_session_forgotten_by_the_broker_is_reopened_without_loss() -> None:
    desk = SharePlannerDriver(Model({0: 20}, batch=10))
    desk.poll(10)
    desk.models[1].forgets_session()
    found = offsets(desk.poll(10))
    assert found == list(range(10, 20))
    desk.planner.accept_all(desk.now)
    desk.planner.flush()
    desk.step()
    assert len(desk.models[1].accepted) == 20
    assert [outcome.error for outcome in desk.planner.outcomes if outcome.error] == []


def test_records_of_a_lost_connection_are_delivered_again() -> None:
    desk = SharePlannerDriver(Model({0: 20}, batch=10), is_explicit=True)
    (records,) = desk.poll(5)
    desk.lose()
    assert desk.planner.buffer.count == 5
    desk.planner.decide(T0, records.runs(), AcknowledgeType.ACCEPT, desk.now)
    (outcome,) = desk.planner.outcomes
    assert isinstance(outcome.error, NetworkError)
    again = desk.poll(10)
    assert offsets(again) == list(range(10))
    assert again[0].delivery_count == 2


def test_a_busy_partition_does_not_delay_the_others_of_its_broker() -> None:
    desk = SharePlannerDriver(Model({0: 10, 1: 10}, batch=10))
    desk.models[1].troubles = {1: BUSY}
    assert offsets(desk.poll(10)) == list(range(10))
    assert desk.planner.sessions[1].not_before <= desk.now
    desk.planner.wait(10, desk.now + 1.0)
    again = desk.plan()
    assert again is not None
    desk.finish(again)
    assert desk.planner.sessions[1].not_before > desk.now, "but it is not asked for all the time"


def test_a_lost_connection_ends_a_pending_share_commit() -> None:
    desk = SharePlannerDriver(Model({0: 20}))
    desk.poll(10)
    desk.planner.accept_all(desk.now)
    goals = desk.planner.flush()
    desk.lose()
    assert desk.planner.is_over(goals)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.booleans(), st.integers(1, 3))
def test_a_share_planner_gets_every_record_accepted_once_in_random_runs(
    seed: int, is_strict: bool, is_explicit: bool, brokers: int
) -> None:
    """Polls, pauses, decisions, forgotten sessions and lost connections at random. The model complains of every request
    that a broker would not have liked."""
    dice = random.Random(seed)
    models = [
        Model(
            {number: dice.randint(0, 40) for number in (2 * node, 2 * node + 1)},
            batch=dice.choice([1, 3, 7]),
            gaps=frozenset(dice.sample(range(40), 6)),
        )
        for node in range(brokers)
    ]
    desk = SharePlannerDriver(*models, can_renew=dice.random() < 0.8, is_strict=is_strict, is_explicit=is_explicit)
    for round in range(3000):
        if not sum(model.left for model in models) and not sum(model.acquired() for model in models):
            break
        calm = round > 60
        limit = dice.choice([1, 4, 20])
        desk.most_acquired = 0
        before = desk.planner.buffer.count
        records = desk.poll(limit)
        assert sum(map(len, records)) <= limit
        if is_strict:
            assert desk.most_acquired + before <= max(limit, before)
        if is_explicit:
            _decide_at_random(desk, records, dice, calm)
        if not calm:
            _disturb(desk, dice)
        desk.now += dice.choice([0.0, 0.01, 0.3, 1.0] if calm else [0.0, 0.01, 0.3, 5.0, LOCK * 0.7, LOCK])
        desk.step()
    accepted = [place for model in models for place in model.accepted]
    assert sorted({*accepted}) == [
        (number, offset)
        for model in models
        for number, log in sorted(model.logs.items())
        for offset in range(len(log))
        if offset not in model.gaps
    ]
    assert len(accepted) == len(set(accepted))
    assert [each for model in models for each in model.complaints] == []


def _decide_at_random(desk: SharePlannerDriver, records: list[Offsets], dice: random.Random, calm: bool) -> None:
    found = [acquired for session in desk.planner.sessions.values() for acquired in session.acquired.values()]
    for acquired in found:
        for run in list(acquired.in_hand):
            for offset in run.offsets:
                kind = AcknowledgeType.ACCEPT
                if not calm and dice.random() < 0.2:
                    kind = dice.choice([AcknowledgeType.RELEASE, AcknowledgeType.RENEW])
                desk.planner.decide(acquired.tp, [(offset, offset)], kind, desk.now)
                if kind is AcknowledgeType.RENEW and dice.random() < 0.5:
                    desk.planner.decide(acquired.tp, [(offset, offset)], AcknowledgeType.ACCEPT, desk.now)
    if any(acquired.has_renewals for acquired in found):
        desk.planner.flush()
        desk.step()
        for acquired in found:  # polls want it decided, if the renewal failed
            for run in list(acquired.in_hand):
                if not run.value.is_renewed:
                    desk.planner.decide(acquired.tp, [(run.first, run.last)], AcknowledgeType.ACCEPT, desk.now)


def _disturb(desk: SharePlannerDriver, dice: random.Random) -> None:
    node = dice.choice(list(desk.models))
    what = dice.random()
    if what < 0.1:
        desk.models[node].forgets_session()
    elif what < 0.2:
        desk.lose(node)
    elif what < 0.3:
        known = [tip(number) for model in desk.models.values() for number in model.logs]
        desk.planner.follow(dice.sample(known, dice.randint(0, len(known))))
        desk.step()
        desk.planner.follow(known)
