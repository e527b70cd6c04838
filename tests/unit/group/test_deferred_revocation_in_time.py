"""KIP-983 in virtual time, with the real Rebalancer, FetchBuffer and members: random rebalances, pauses and delays.

After every poll
- a partition is in at most one of the lists, and partitions with a pending revoke are still owned;
- no records are returned from a partition with a pending revoke, nor from a revoked or lost one;
- every requested revoke ends in time;
- revoked partitions were committed before, and only partitions delayed for too long are lost.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as E

from headrace import RebalanceListener, TopicPartition
from headrace._aio.fetch.buffer import FetchBuffer
from headrace._aio.group import rebalance as group_module
from headrace._aio.group.rebalance import Rebalancer
from headrace._aio.group.steps import perform
from headrace._machines.group.actions import Partitions, Send
from headrace._protocol.group_data import write_assignment
from headrace._protocol.messages import CONSUMER_GROUP_HEARTBEAT, HEARTBEAT, JOIN_GROUP
from headrace.config.consumer import ConsumerConfig
from headrace.errors import KafkaError
from simulation import wire
from support.harness.same_loop import SameLoop

INTERVAL = 300.0  # max.poll.interval.ms
HEARTBEAT_INTERVAL = 3.0
POLLS_EVERY = 20.0
KINDS = {
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "epoch": {"group.protocol": "consumer"},
}
ALL = frozenset(TopicPartition("t", number) for number in range(4))
TOPIC = uuid.UUID(int=1)


class ListenerCalls(RebalanceListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, Partitions]] = []

    def on_partitions_revoked(self, partitions: Any) -> None:
        self.events.append(("revoked", partitions))

    def on_partitions_lost(self, partitions: Any) -> None:
        self.events.append(("lost", partitions))


class GroupDriver:
    """One member with a polling user, and a coordinator that assigns `target` to it."""

    def __init__(
        self,
        kind: str,
        config: dict[str, str] | None = None,
        *,
        heartbeat_interval: float = HEARTBEAT_INTERVAL,
        polls_every: float = POLLS_EVERY,
    ) -> None:
        self.now = 1000.0
        self._heartbeat_interval = heartbeat_interval
        self._polls_every = polls_every
        self.kind = kind
        self.listener = ListenerCalls()
        self.target: Partitions = ALL
        self.asked: dict[TopicPartition, float] = {}  # since when each is on a list
        self.late: Partitions = frozenset()  # were on a list for nearly as long as the group waits
        self._generation = 1
        self._knows_target = True  # the member knows the target
        self._began = self.now  # start of the rebalance to the target
        self.assigned_at = self.now
        config = {"bootstrap.servers": "x:1", "group.id": "g", **KINDS[kind], **(config or {})}
        parsed = ConsumerConfig.parse(config)
        self.buffer = FetchBuffer(parsed)
        self.group = Rebalancer(parsed, self.buffer, self._commit, self._commit, lambda gone: None)
        self.group.subscribe(["t"], None, self.listener)
        self.member = self.group.member
        if kind == "epoch":
            self.member.update_topic_names({TOPIC: "t"})  # type: ignore[union-attr]

    async def _commit(self, partitions: Partitions) -> None:
        self.listener.events.append(("committed", partitions))

    # -- the coordinator ---------------------------------------------------------------------------------------------

    def rebalance(self, target: Partitions) -> None:
        self.target, self._knows_target, self._began = target, False, self.now

    def serve(self) -> None:
        """Respond to the requests that the member sends now."""
        for _ in range(20):
            actions = [each for each in self.member.tick(self.now) if isinstance(each, Send)]
            if not actions:
                return
            for action in actions:
                self.member.answered(action, wire.answer(action.api, self._answer(action)), self.now)
        raise AssertionError("the member never stops sending requests")

    def _answer(self, action: Send) -> dict[str, Any]:
        if action.api is CONSUMER_GROUP_HEARTBEAT:
            return self._epoch_answer()
        if action.api is HEARTBEAT:
            return {} if self._knows_target else {"error_code": E.rebalance_in_progress}
        if action.api is JOIN_GROUP:
            if not action.fields["member_id"]:
                return {"error_code": E.member_id_required, "member_id": "m"}
            if not self._knows_target:
                self._generation += 1
            self._knows_target = True
            return {
                "generation_id": self._generation,
                "protocol_name": next(iter(self.group.assignors)),
                "leader": "other",
                "member_id": "m",
            }
        if self.member.owned - self.target:
            self.assigned_at = self.now
        return {"assignment": write_assignment(sorted(self.target))}

    def _epoch_answer(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "member_epoch": self._generation,
            "heartbeat_interval": self._heartbeat_interval * 1000,
        }
        if not self._knows_target or self._generation == 1:
            self._generation += 1
            self._knows_target = True
            numbers = [tp.partition for tp in sorted(self.target)]
            fields["member_epoch"] = self._generation
            fields["assignment"] = {"topic_partitions": [{"topic_id": TOPIC, "partitions": numbers}] if numbers else []}
        return fields

    # -- the user ----------------------------------------------------------------------------------------------------

    def poll_for(self, seconds: float, delayed: Partitions = frozenset()) -> None:
        """Poll regularly for `seconds`, delay revokes of `delayed`, and send heartbeats in between."""
        until = self.now + seconds
        poll_at = self.now
        while self.now < until:
            if self.now >= poll_at:
                self.poll()
                self.group.delay(delayed)
                self.check()
                poll_at = self.now + self._polls_every
            self.serve()
            self.now += self._heartbeat_interval

    def poll(self, *, raises: bool = False) -> None:
        self.group.poll_begins()
        for begins in (True, False):
            if (steps := self.group.reconcile(begins=begins)) is not None:
                asyncio.run(perform(steps, SameLoop()))
        self.group.poll_ends()
        if not raises:  # a poll that returns reports them
            self.group.reported, self.group.reported_lost = self.group.revocations.next, self.group.revocations.lost
        self.serve()

    def work(self, seconds: float) -> None:
        """Spend `seconds` outside of poll(), with heartbeats."""
        until = self.now + seconds
        while self.now < until:
            self.serve()
            self.now = min(until, self.now + self._heartbeat_interval)
        self.serve()

    def check(self) -> None:
        lists = self.group.revocations
        assert not lists.next & lists.thereafter
        assert not lists.lost & lists.pending
        assert lists.pending <= self.member.owned
        handed_out = {state.tp for state in self.buffer.assignment if not state.blocked_by}
        assert handed_out == self.member.owned - lists.pending
        self.asked = {tp: self.asked.get(tp, self.now) for tp in lists.pending}
        patience = INTERVAL - 2.0 - HEARTBEAT_INTERVAL - POLLS_EVERY
        self.late |= {tp for tp, since in self.asked.items() if self.now - since >= patience - POLLS_EVERY}
        assert all(self.now - since < INTERVAL for since in self.asked.values()), "a revoke did not end in time"
        for at, (what, partitions) in enumerate(self.listener.events):
            if what == "lost":
                assert partitions <= self.late
            elif what == "revoked":
                assert ("committed", partitions) in self.listener.events[:at]
        self.listener.events.clear()
        self.late &= lists.pending


targets = st.sets(st.sampled_from(sorted(ALL))).map(frozenset)
steps = st.lists(
    st.tuples(st.sampled_from([3.0, 30.0, 200.0, 400.0, 1000.0]), targets, targets), min_size=1, max_size=6
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None)
@given(steps)
@example([(1000.0, frozenset(), frozenset()), (30.0, ALL, frozenset())])
@example([(30.0, frozenset(), ALL), (400.0, ALL, ALL), (30.0, ALL, frozenset())])
def test_delayed_revokes_end_in_time_and_no_others_are_lost(
    kind: str, steps: list[tuple[float, Partitions, Partitions]]
) -> None:
    driver = GroupDriver(kind)
    with mock.patch.object(group_module.time, "monotonic", side_effect=lambda: driver.now):
        driver.poll_for(30)
        assert driver.member.owned == ALL
        for seconds, target, delayed in steps:
            driver.poll_for(seconds, delayed)
            driver.rebalance(target)
        driver.poll_for(60)
        driver.poll_for(60)
        assert driver.member.owned == driver.target
        assert not driver.group.revocations.pending


def test_the_deadline_of_a_delayed_revoke_counts_from_the_last_stable_heartbeat() -> None:
    driver = GroupDriver("eager")
    with mock.patch.object(group_module.time, "monotonic", side_effect=lambda: driver.now):
        driver.poll_for(400)
        last_heartbeat = driver.now - HEARTBEAT_INTERVAL
        driver.rebalance(frozenset())
        driver.serve()
        driver.now += 100
        driver.poll()
        driver.group.delay(ALL)
        assert driver.group.revocations.next_deadline == last_heartbeat + INTERVAL - 1


@pytest.mark.parametrize("part", [0.4, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(st.floats(0, 1), st.integers(1, 4))
def test_a_user_who_delays_no_revoke_has_all_of_max_poll_interval(
    kind: str, static: bool, part: float, moment: float, polls_before: int
) -> None:
    """KIP-62 with KIP-983: the user works for nearly max.poll.interval.ms after each poll, and a rebalance comes at a
    random moment. The group waits for the interval after its request; the revoke must complete by then, in order."""
    interval = 12.0  # short, so that the time reserved for reporting the revoke is a large part of it
    config = {"max.poll.interval.ms": "12000"}
    if kind != "epoch":
        config |= {"heartbeat.interval.ms": "300", "session.timeout.ms": "6000"}
    if static:
        config["group.instance.id"] = "i"
    driver = GroupDriver(kind, config, heartbeat_interval=0.3, polls_every=3.0)
    work = part * interval
    with mock.patch.object(group_module.time, "monotonic", side_effect=lambda: driver.now):
        driver.poll_for(30)
        assert driver.member.owned == ALL
        for _ in range(polls_before):
            driver.poll()
            driver.work(work)
        driver.poll()
        driver.work(moment * work)
        gone = frozenset({TopicPartition("t", 0)})
        driver.rebalance(ALL - gone)
        asked = driver.now
        driver.work((1 - moment) * work)
        driver.poll()
        while gone & driver.member.owned:
            if not driver.group.has_requests:  # otherwise the poll returned at once without records
                driver.work(work)
            driver.poll()
        # A cooperative member joins at once with all its partitions; the assignment it gets is the revoke request.
        asked = max(asked, driver.assigned_at) if kind == "cooperative" else asked
        assert driver.now - asked < interval, "the group would have fenced this member"
        events = [event for event in driver.listener.events if event[0] != "committed"]
        assert events == [("revoked", ALL if kind == "eager" else gone)], "nothing is lost"
        assert all(("committed", partitions) in driver.listener.events for _, partitions in events)


@pytest.mark.parametrize("kind", KINDS)
def test_a_poll_that_raises_reports_no_revoke(kind: str) -> None:
    """Whatever it raises (for example a damaged record of another partition): the next poll must not revoke
    partitions whose revoke was not reported yet, since the user may be processing their records."""
    driver = GroupDriver(kind)
    with mock.patch.object(group_module.time, "monotonic", side_effect=lambda: driver.now):
        driver.poll_for(30)
        del driver.listener.events[:]
        driver.rebalance(frozenset())
        driver.work(2 * HEARTBEAT_INTERVAL)
        if kind == "cooperative":
            driver.poll()  # it joins with all its partitions
        driver.poll(raises=True)
        assert driver.group.revocations.next == ALL
        for _ in range(2):
            driver.poll(raises=True)
            assert driver.member.owned == ALL
            assert driver.group.has_requests, "the next poll reports it at once"
        driver.poll()
        assert driver.member.owned == ALL
        assert driver.group.delay(ALL), "in time"
        driver.poll(raises=True)
        driver.poll()
        assert driver.member.owned == ALL, "a delayed partition is not revoked by the poll after one that raised"
        driver.poll()
        assert ("revoked", ALL) in driver.listener.events


def lose_membership(driver: GroupDriver) -> None:
    """The coordinator has removed this eager member."""
    (heartbeat,) = driver.member.tick(driver.now + HEARTBEAT_INTERVAL)
    assert isinstance(heartbeat, Send)
    driver.member.answered(heartbeat, wire.answer(HEARTBEAT, {"error_code": E.unknown_member_id}), driver.now)


def test_a_revoke_cannot_be_delayed_after_the_membership_was_lost() -> None:
    driver = GroupDriver("eager")
    with mock.patch.object(group_module.time, "monotonic", side_effect=lambda: driver.now):
        driver.poll_for(30)
        assert driver.group.delay(ALL)
        lose_membership(driver)
        assert not driver.group.delay(ALL)


def test_losses_are_kept_until_a_poll_has_reported_them() -> None:
    """Whatever the polls raise that learn of them. The partitions may be assigned again meanwhile."""
    driver = GroupDriver("eager")
    lists = driver.group.revocations
    with mock.patch.object(group_module.time, "monotonic", side_effect=lambda: driver.now):
        driver.poll_for(30)
        lose_membership(driver)
        for _ in range(3):
            driver.poll(raises=True)
            assert lists.lost == ALL
            assert driver.group.has_news, "the poll returns at once, also without records"
            driver.work(2 * HEARTBEAT_INTERVAL)
        assert driver.member.owned == ALL, "assigned again"
        driver.poll()
        assert lists.lost == ALL
        driver.poll()
        assert (lists.lost, driver.group.has_news) == (frozenset(), False)
        lose_membership(driver)
        driver.poll()
        assert lists.lost == ALL, "a second loss is another one"


def test_the_failure_of_a_membership_stays_until_subscribe() -> None:
    """Matching new metadata against a pattern is no new subscription."""
    driver = GroupDriver("eager")
    driver.group.subscribe(None, "t.*", driver.listener)
    driver.member._fail(KafkaError(82, "FENCED_INSTANCE_ID", False, "another has its place"))
    driver.group.follow(driver.buffer.cluster)
    assert driver.member.failure is not None
    driver.group.subscribe(None, "t.*", driver.listener)
    assert driver.member.failure is None


@pytest.mark.parametrize(("kind", "absence"), [("eager", 45.0), ("cooperative", 45.0), ("epoch", 10.0)])
def test_the_longest_absence_is_at_least_the_classic_session_timeout(kind: str, absence: float) -> None:
    """A classic member has at least its session timeout; KIP-848 members have no such setting."""
    config = ConsumerConfig.parse(
        {"bootstrap.servers": "x:1", "group.id": "g", "max.poll.interval.ms": 10_000, **KINDS[kind]}
    )

    async def nothing(partitions: Partitions) -> None: ...

    group = Rebalancer(config, FetchBuffer(config), nothing, nothing, lambda gone: None)
    assert group.longest_absence == absence
    group.member.poll_begins()
    group.member.poll_ends(100.0)
    assert group.member._clock.deadline == 100.0 + absence
