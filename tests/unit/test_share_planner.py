"""What a share consumer asks of its brokers: tables, and runs at random against a model of a broker."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.acknowledge import AcknowledgeType
from headrace.errors import NetworkError, StateError
from headrace.machines.backoff import Backoff
from headrace.machines.share_answers import answered, arrived
from headrace.machines.share_place import ShareRequest, ShareTerms
from headrace.machines.share_planner import Planner
from headrace.protocol.messages import SHARE_ACKNOWLEDGE, SHARE_FETCH
from headrace.types import TopicPartition
from support.machines import cluster_of, partition, topic
from support.share_model import BUSY, LOCK, TOPIC, Model, Offsets, slot

T0 = TopicPartition("t", 0)


class Desk:
    """A planner, one or two brokers, and the time."""

    def __init__(self, *models: Model, can_renew: bool = True, **terms: Any) -> None:
        self.now = 100.0
        self.can_renew = can_renew
        self.models = dict(enumerate(models, 1))
        partitions = [partition(number, leader=node) for node, model in self.models.items() for number in model.logs]
        cluster = cluster_of(topic(*partitions, id=TOPIC), brokers=(1, 2, 3))
        self.planner = Planner(ShareTerms("g", "m", **terms), cluster, Backoff(100, 1000), lambda: 0.5)
        self.planner.topics = frozenset({"t"})
        self.planner.follow(slot(number) for model in models for number in model.logs)
        for node in self.models:
            self.planner.connected(node, can_renew=self.can_renew)
        self.requests: list[ShareRequest] = []
        self.most_acquired = 0

    def plan(self, node: int = 1) -> ShareRequest | None:
        return self.planner.plan(node, self.now)

    def finish(self, request: ShareRequest) -> None:
        model = self.models[request.node]
        answer = answered(self.planner, request, model.answer(request, self.now), self.now)
        got = sum(last - first + 1 for each in answer.arrivals for first, last, _ in each.acquired)
        self.most_acquired = max(self.most_acquired, got)
        for arrival in answer.arrivals:
            arrived(self.planner, arrival, *model.decode(arrival), self.now)

    def step(self) -> list[ShareRequest]:
        """All that is to be sent now, to all brokers at the same time, and the answers."""
        sent = []
        while round := [request for node in self.models if (request := self.planner.plan(node, self.now))]:
            sent += round
            for request in round:
                self.finish(request)
            if self.planner.stock.count:
                break
            self.now += max(request.ask.wait for request in round)
        else:
            for node in self.models:
                assert self.planner.next_wake(node, self.now) > self.now, "nothing to send, and no rest either"
        self.requests += sent
        return sent

    def poll(self, limit: int = 10, wait: float = 1.0) -> list[Offsets]:
        self.planner.poll_begins(self.now)
        for _ in range(20):
            records = self.planner.take(limit, self.now)
            if records:
                break
            self.planner.wait(limit, self.now + wait)
            if not self.step():
                break
        self.planner.poll_ends()
        return records  # type: ignore[return-value]  # the model makes no others

    def lose(self, node: int = 1) -> None:
        self.models[node].disconnected()
        self.planner.lost(node, NetworkError("gone"))
        self.planner.connected(node, can_renew=self.can_renew)


def offsets(records: list[Offsets]) -> list[int]:
    return [offset for each in records for offset in each.offsets]


# -- fetches -----------------------------------------------------------------------------------------------------


def test_nothing_is_asked_before_a_poll_waits() -> None:
    desk = Desk(Model({0: 10}))
    assert desk.plan() is None
    desk.planner.wait(7, desk.now + 0.25)
    request = desk.plan()
    assert request is not None
    assert request.api is SHARE_FETCH
    wanted = {"share_session_epoch": 0, "max_records": 7, "batch_size": 7, "max_wait": 250, "share_acquire_mode": 0}
    assert {name: request.fields[name] for name in wanted} == wanted
    assert desk.plan() is None, "one at a time"


def test_a_poll_that_does_not_wait_has_each_broker_asked_once() -> None:
    desk = Desk(Model({0: 10}), Model({1: 10}))
    desk.planner.nudge(7)
    assert [(request.node, request.fields["max_wait"]) for request in desk.step()] == [(1, 0), (2, 0)]
    assert [(request.node, request.fields["max_wait"]) for request in desk.step()] == [], "something is in stock"
    strict = Desk(Model({0: 0}), Model({1: 0}), is_strict=True)
    strict.planner.nudge(7)
    assert [request.node for request in strict.step()] == [1]
    strict.planner.nudge(7)
    assert [request.node for request in strict.step()] == [2]


def test_a_fetch_does_not_outlast_the_poll_nor_the_setting() -> None:
    desk = Desk(Model({0: 10}), max_wait=0.5)
    desk.planner.wait(7, desk.now + 60)
    request = desk.plan()
    assert request is not None
    assert request.fields["max_wait"] == 500


def test_polls_return_no_more_than_their_limit_and_the_rest_waits() -> None:
    desk = Desk(Model({0: 15}))
    assert offsets(desk.poll(6)) == [0, 1, 2, 3, 4, 5]
    assert desk.planner.stock.count == 4
    assert offsets(desk.poll(6)) == [6, 7, 8, 9]
    assert len(desk.requests) == 1, "no fetch for what is in stock"
    assert offsets(desk.poll(6)) == [10, 11, 12, 13, 14]
    assert desk.models[1].accepted == [(0, offset) for offset in range(10)]


def test_in_record_limit_exactly_so_many_are_acquired() -> None:
    desk = Desk(Model({0: 15}), is_strict=True)
    assert [offsets(desk.poll(6)) for _ in range(3)] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9, 10, 11],
        [12, 13, 14],
    ]
    assert desk.most_acquired == 6


def test_a_quick_user_is_fetched_ahead_for() -> None:
    """What it takes in 50 ms, but at most twice as much as the time before; in time before everything is worked off."""
    desk = Desk(Model({0: 1000}, batch=10))
    desk.poll(10)
    assert desk.step() == [], "nobody knows yet how quick"
    fetches = []
    for _ in range(16):
        desk.now += 0.01
        desk.poll(10)
        fetches += [(request.ask.records, request.ask.wait) for request in desk.step() if request.ask.records]
    assert [request.ask.records for request in desk.requests if request.ask.records][:2] == [10, 20]
    assert fetches == [(40, 0.0), *[(50, 0.0)] * 3]
    assert desk.planner.stock.count > 0
    for _ in range(5):
        desk.now += 5.0
        desk.poll(10)
        assert [request for request in desk.step() if request.ask.records] == [], "not so quick any more"


def test_one_quick_poll_does_not_make_a_quick_user() -> None:
    desk = Desk(Model({0: 1000}, batch=10))
    for pause in (0.2, 0.001, 0.2, 0.001):
        desk.poll(10)
        desk.now += pause
    assert max(request.ask.records for request in desk.requests) == 10


def test_a_poll_that_has_got_something_waits_no_longer() -> None:
    desk = Desk(Model({0: 10, 1: 10}, batch=10))
    desk.planner.poll_begins(desk.now)
    desk.planner.wait(20, desk.now + 1.0)
    desk.step()
    assert desk.planner.take(20, desk.now)
    assert desk.plan() is None, "though it has not returned yet"


def test_full_partitions_are_acknowledged_before_they_are_fetched_from() -> None:
    """A fetch gets nothing of what is given back with it, and a broker locks 2,000 records of a partition."""
    desk = Desk(Model({0: 4000, 1: 4000}, batch=100))
    desk.poll(4000)
    desk.poll(10)
    assert [request.api for request in desk.requests] == [SHARE_FETCH, SHARE_ACKNOWLEDGE, SHARE_FETCH]


@pytest.mark.parametrize(("limit", "requests"), [(1000, [SHARE_FETCH]), (1001, [SHARE_ACKNOWLEDGE, SHARE_FETCH])])
def test_in_record_limit_only_when_the_next_poll_s_worth_has_no_room_beside_them(
    limit: int, requests: list[Any]
) -> None:
    desk = Desk(Model({0: 5000, 1: 5000}), is_strict=True)
    assert len(offsets(desk.poll(limit))) == limit
    desk.requests.clear()
    assert len(offsets(desk.poll(limit))) == limit
    assert [request.api for request in desk.requests] == requests


def test_a_slow_user_is_not_fetched_ahead_for() -> None:
    slow = Desk(Model({0: 1000}, batch=10))
    for _ in range(3):
        slow.poll(10)
        slow.now += 5.0
        assert [request for request in slow.step() if request.ask.records] == []
    assert {request.ask.records for request in slow.requests} == {10}


def test_nor_where_there_is_little() -> None:
    desk = Desk(Model({0: 4}, batch=1))
    for _ in range(2):
        desk.poll(10)
        desk.now += 0.001
        assert [request for request in desk.step() if request.ask.records] == []


def test_nothing_is_fetched_ahead_in_record_limit() -> None:
    desk = Desk(Model({0: 1000}, batch=10), is_strict=True)
    for _ in range(3):
        desk.poll(10)
        desk.now += 0.001
        assert [request for request in desk.step() if request.ask.records] == []


def test_in_record_limit_brokers_are_asked_in_turn() -> None:
    desk = Desk(Model({0: 0}), Model({1: 4}), is_strict=True)
    desk.planner.poll_begins(desk.now)
    desk.planner.wait(10, desk.now + 1.0)
    first = desk.plan(1)
    assert first is not None
    assert first.fields["max_wait"] == 0, "each is looked at before one is waited for"
    assert desk.plan(2) is None
    desk.finish(first)
    assert desk.plan(1) is None
    second = desk.plan(2)
    assert second is not None
    desk.finish(second)
    assert desk.planner.stock.count == 4
    assert desk.plan(1) is None


def test_in_record_limit_nothing_is_asked_for_while_an_answer_is_being_decoded() -> None:
    desk = Desk(Model({0: 4}), Model({1: 4}), is_strict=True)
    desk.planner.poll_begins(desk.now)
    desk.planner.wait(4, desk.now + 1.0)
    first = desk.plan(1)
    assert first is not None
    (arrival,) = answered(desk.planner, first, desk.models[1].answer(first, desk.now), desk.now).arrivals
    assert desk.plan(2) is None
    arrived(desk.planner, arrival, [], [(0, 3)], desk.now)
    assert desk.plan(2) is not None, "there was no record in it"


# -- acknowledgements ----------------------------------------------------------------------------------------------


def test_acknowledgements_go_with_the_next_fetch() -> None:
    desk = Desk(Model({0: 20}))
    desk.poll(10)
    desk.poll(10)
    (fetch,) = (request for request in desk.requests if request.acknowledged)
    assert fetch.api is SHARE_FETCH
    assert desk.models[1].accepted == [(0, offset) for offset in range(10)]


def test_or_by_themselves_when_no_fetch_comes() -> None:
    desk = Desk(Model({0: 10}), is_explicit=True)
    (records,) = desk.poll(10)
    desk.planner.decide(T0, records.runs(), AcknowledgeType.ACCEPT, desk.now)
    assert desk.step() == []
    desk.now = desk.planner.next_wake(1, desk.now)
    assert [request.api for request in desk.step()] == [SHARE_ACKNOWLEDGE]
    assert desk.planner.next_wake(1, desk.now) > desk.now + 10


def test_or_at_once_when_somebody_waits() -> None:
    desk = Desk(Model({0: 10}))
    desk.poll(10)
    desk.planner.accept_all(desk.now)
    goals = desk.planner.hurry()
    assert not desk.planner.is_over(goals)
    desk.step()
    assert desk.planner.is_over(goals)
    assert desk.planner.hurry() == {}
    assert [outcome.error for outcome in desk.planner.outcomes] == [None]


def test_explicit_polls_want_everything_acknowledged() -> None:
    desk = Desk(Model({0: 10}), is_explicit=True)
    desk.poll(10)
    desk.planner.decide(T0, [(0, 8)], AcknowledgeType.ACCEPT, desk.now)
    with pytest.raises(StateError, match="offset 9 of t-0"):
        desk.planner.poll_begins(desk.now)
    desk.planner.decide(T0, [(9, 9)], AcknowledgeType.RENEW, desk.now)
    desk.planner.poll_begins(desk.now)
    renewal = desk.plan()
    desk.planner.poll_begins(desk.now)
    assert renewal is not None
    assert renewal.is_renewal, "whether that is still to be sent, or under way"
    desk.finish(renewal)
    desk.planner.poll_begins(desk.now)
    assert desk.planner.in_hand == 1, "a renewed one stays in hand"
    desk.planner.decide(T0, [(9, 9)], AcknowledgeType.ACCEPT, desk.now)
    with pytest.raises(StateError, match="1 of the offsets 9 to 10"):
        desk.planner.decide(T0, [(9, 10)], AcknowledgeType.ACCEPT, desk.now)


@pytest.mark.parametrize("session", ["open", "forgotten"])
def test_all_that_is_decided_is_acknowledged_before_the_session_is_closed(session: str) -> None:
    """The broker refuses all of a request for one lock that has ended: what that leaves over is sent once more."""
    desk = Desk(Model({0: 15}, batch=15), is_explicit=True)
    for _ in range(3):
        (records,) = desk.poll(5)
        desk.planner.decide(T0, records.runs(), AcknowledgeType.ACCEPT, desk.now)
    desk.models[1].logs[0][7].state = "available"
    if session == "forgotten":
        desk.models[1].forgets_session()
    sent = []
    while (request := desk.planner.parting(1, desk.now)) is not None:
        sent.append(request)
        desk.finish(request)
        if request.is_last:
            break
    assert [request.is_last for request in sent].index(True) == len(sent) - 1
    assert len(sent) == {"open": 5, "forgotten": 7}[session]
    assert sorted(desk.models[1].accepted) == [(0, offset) for offset in range(15) if not 5 <= offset < 10]
    assert [outcome.error is None for outcome in desk.planner.outcomes].count(False) == 1
    assert desk.models[1].complaints == []


def test_of_partitions_that_are_not_assigned_any_more_by_itself() -> None:
    desk = Desk(Model({0: 10, 1: 10}))
    desk.poll(10)
    desk.planner.follow([slot(1)])
    desk.poll(10)
    assert [request.api for request in desk.requests] == [SHARE_FETCH, SHARE_ACKNOWLEDGE, SHARE_FETCH]
    assert desk.models[1].session == {1}
    assert len(desk.models[1].accepted) == 10


# -- locks ----------------------------------------------------------------------------------------------------------


def test_what_is_in_stock_is_renewed_at_half_time() -> None:
    desk = Desk(Model({0: 10}, batch=10), is_explicit=True)
    desk.poll(5)
    desk.now = desk.planner.next_wake(1, desk.now)
    assert desk.now == 100 + LOCK / 2
    (renewal,) = desk.step()
    assert renewal.fields["is_renew_ack"]
    assert [entry.until for entry in desk.models[1].logs[0]] == [100 + LOCK] * 5 + [100 + 1.5 * LOCK] * 5


def test_what_is_in_hand_only_if_the_user_wants_it_and_not_for_ever() -> None:
    desk = Desk(Model({0: 10}, batch=10), renews=True, max_poll_interval=100.0)
    desk.poll(10)
    renewed = []
    while (at := desk.planner.next_wake(1, desk.now)) < 1000:
        desk.now = at
        renewed += [desk.now - 100 for request in desk.step() if request.is_renewal]
    assert renewed == [15, 30, 45, 60, 75, 90]


def test_the_user_s_time_for_a_record_begins_with_the_poll_that_returned_it() -> None:
    """Also for the rest of a batch of which an earlier poll returned a part."""
    desk = Desk(Model({0: 10}, batch=10), is_explicit=True, renews=True, max_poll_interval=100.0)
    desk.poll(5)
    last: dict[int, float] = {}
    while (at := desk.planner.next_wake(1, desk.now)) < 1000:
        desk.now = at
        if desk.now > 180 and desk.planner.stock.count:
            assert offsets(desk.poll(5)) == [5, 6, 7, 8, 9]
        for request in desk.step():
            for batch in request.fields["topics"][0]["partitions"][0]["acknowledgement_batches"]:
                last |= dict.fromkeys(range(batch["first_offset"], batch["last_offset"] + 1), desk.now - 100)
    assert [last[offset] for offset in range(10)] == [90] * 5 + [180] * 5


def test_the_locks_of_a_session_that_was_closed_are_renewed_in_a_new_one() -> None:
    desk = Desk(Model({0: 10}, batch=10), renews=True)
    desk.poll(10)
    desk.planner.places[1].session.broken()
    desk.now = desk.planner.next_wake(1, desk.now)
    opening, renewal = desk.step()
    assert (opening.fields["share_session_epoch"], opening.ask.records) == (0, 0)
    assert renewal.is_renewal


@pytest.mark.parametrize("renews", [False, True], ids=["in stock", "in hand"])
@pytest.mark.parametrize("trouble", ["partition", "session"])
def test_a_renewal_that_fails_is_tried_again_before_the_lock_ends(renews: bool, trouble: str) -> None:
    desk = Desk(Model({0: 10}, batch=10), is_explicit=True, renews=renews)
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
def test_a_broker_that_cannot_renew_is_not_looked_at_all_the_time(renews: bool) -> None:
    desk = Desk(Model({0: 10}, batch=10), can_renew=False, renews=renews)
    desk.poll(5)
    desk.now += LOCK / 2
    assert desk.step() == []
    assert desk.planner.next_wake(1, desk.now) > desk.now + LOCK


def test_nor_is_one_that_is_gone() -> None:
    desk = Desk(Model({0: 10}), Model({1: 0}), renews=True)
    desk.planner.lost(2, NetworkError("gone"))
    desk.poll(10)
    assert desk.planner.next_wake(2, desk.now) == math.inf


def test_records_whose_lock_has_ended_are_not_handed_out() -> None:
    desk = Desk(Model({0: 10}, batch=10), can_renew=False, is_explicit=True)
    (records,) = desk.poll(5)
    desk.planner.decide(T0, records.runs(), AcknowledgeType.ACCEPT, desk.now)
    desk.planner.hurry()
    desk.step()
    desk.now += LOCK
    (again,) = desk.poll(5)
    assert (again.offsets, again.delivery_count) == ([5, 6, 7, 8, 9], 2)
    assert desk.planner.stock.expired == 5


# -- trouble --------------------------------------------------------------------------------------------------------


def test_a_forgotten_session_is_opened_again_and_nothing_is_lost() -> None:
    desk = Desk(Model({0: 20}, batch=10))
    desk.poll(10)
    desk.models[1].forgets_session()
    found = offsets(desk.poll(10))
    assert found == list(range(10, 20))
    desk.planner.accept_all(desk.now)
    desk.planner.hurry()
    desk.step()
    assert len(desk.models[1].accepted) == 20
    assert [outcome.error for outcome in desk.planner.outcomes if outcome.error] == []


def test_a_lost_connection_takes_everything_with_it() -> None:
    desk = Desk(Model({0: 20}, batch=10), is_explicit=True)
    (records,) = desk.poll(5)
    desk.lose()
    assert desk.planner.stock.count == 5
    desk.planner.decide(T0, records.runs(), AcknowledgeType.ACCEPT, desk.now)
    (outcome,) = desk.planner.outcomes
    assert isinstance(outcome.error, NetworkError)
    again = desk.poll(10)
    assert offsets(again) == list(range(10))
    assert again[0].delivery_count == 2


def test_a_partition_that_cannot_be_read_does_not_hold_up_the_others_of_its_broker() -> None:
    desk = Desk(Model({0: 10, 1: 10}, batch=10))
    desk.models[1].troubles = {1: BUSY}
    assert offsets(desk.poll(10)) == list(range(10))
    assert desk.planner.places[1].not_before <= desk.now
    desk.planner.wait(10, desk.now + 1.0)
    again = desk.plan()
    assert again is not None
    desk.finish(again)
    assert desk.planner.places[1].not_before > desk.now, "but it is not asked for all the time"


def test_commits_hear_of_a_lost_connection() -> None:
    desk = Desk(Model({0: 20}))
    desk.poll(10)
    desk.planner.accept_all(desk.now)
    goals = desk.planner.hurry()
    desk.lose()
    assert desk.planner.is_over(goals)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.booleans(), st.integers(1, 3))
def test_whatever_happens_every_record_is_accepted(seed: int, is_strict: bool, is_explicit: bool, brokers: int) -> None:
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
    desk = Desk(*models, can_renew=dice.random() < 0.8, is_strict=is_strict, is_explicit=is_explicit)
    for round in range(3000):
        if not sum(model.left for model in models) and not sum(model.acquired() for model in models):
            break
        calm = round > 60
        limit = dice.choice([1, 4, 20])
        desk.most_acquired = 0
        before = desk.planner.stock.count
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


def _decide_at_random(desk: Desk, records: list[Offsets], dice: random.Random, calm: bool) -> None:
    holdings = [holding for place in desk.planner.places.values() for holding in place.holdings.values()]
    for holding in holdings:
        for run in list(holding.in_hand):
            for offset in run.offsets:
                kind = AcknowledgeType.ACCEPT
                if not calm and dice.random() < 0.2:
                    kind = dice.choice([AcknowledgeType.RELEASE, AcknowledgeType.RENEW])
                desk.planner.decide(holding.tp, [(offset, offset)], kind, desk.now)
                if kind is AcknowledgeType.RENEW and dice.random() < 0.5:
                    desk.planner.decide(holding.tp, [(offset, offset)], AcknowledgeType.ACCEPT, desk.now)
    if any(holding.has_renewals for holding in holdings):
        desk.planner.hurry()
        desk.step()
        for holding in holdings:  # polls want it decided, if the renewal failed
            for run in list(holding.in_hand):
                if not run.value.is_renewed:
                    desk.planner.decide(holding.tp, [(run.first, run.last)], AcknowledgeType.ACCEPT, desk.now)


def _disturb(desk: Desk, dice: random.Random) -> None:
    node = dice.choice(list(desk.models))
    what = dice.random()
    if what < 0.1:
        desk.models[node].forgets_session()
    elif what < 0.2:
        desk.lose(node)
    elif what < 0.3:
        known = [slot(number) for model in desk.models.values() for number in model.logs]
        desk.planner.follow(dice.sample(known, dice.randint(0, len(known))))
        desk.step()
        desk.planner.follow(known)
