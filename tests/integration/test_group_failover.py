"""Three brokers, of which one dies or all restart in turn, and groups that read while records are written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from headrace import LocalBroker
from support.admin import Admin
from support.chaos_monkey import ChaosMonkey
from support.commit_history import OFFSETS_TOPIC, names_on
from support.group_events import milliseconds
from support.group_trial import WAYS, GroupTrial, at_once
from support.peer_process import Peer
from support.waiting import wait_for

PARTITIONS = 6
OFFSETS_PARTITIONS = 8
"""As the local broker chooses them."""
SESSION = 15.0
ROUNDS = int(os.environ.get("ROUNDS", "0"))
SEED = int(os.environ.get("SEED", "1"))
_PATIENCE = 60.0
_LONG = 180.0


class Death:
    """Of the broker that coordinates all of the groups. It happens when all of them are ready for it."""

    def __init__(self, groups: int) -> None:
        self.names = names_on(0, OFFSETS_PARTITIONS, "failover")
        self.ready = threading.Barrier(groups + 1)
        self.over = threading.Event()

    def is_awaited(self) -> None:
        self.ready.wait(_PATIENCE)
        assert self.over.wait(_PATIENCE)


def test_the_coordinator_is_killed(whole_cluster: LocalBroker, cluster_admin: Admin) -> None:
    """While some groups are at rest, and in others a rebalance is in progress: a member is asked for by a newcomer and
    busy; the leader of a group has heard of all who joined and not yet said who gets what.

    Each group comes to rest with its members. Who was at rest hears nothing of it.
    """

    def prepared(way: str) -> GroupTrial:
        return GroupTrial(cluster_admin, way, PARTITIONS, session=SESSION, replication=3, group=next(death.names))

    def rests(way: str) -> None:
        with prepared(way) as trial:
            members = trial.start_all("first", "second")
            before = milliseconds()
            death.is_awaited()
            comes_to_rest(trial, members)
            assert trial.changes_since(before) == []
            trial.finish(*members)
            assert trial.ledger.refused == []
            assert trial.ledger.repeats() == []

    def joins(way: str, state: str) -> None:
        with prepared(way) as trial:
            first, second = trial.start_all("first", "second")
            trial.hold(first)
            third = trial.start("third")
            wait_for("a rebalance", lambda: trial.described()[0] == state)
            death.is_awaited()
            trial.release(first)
            comes_to_rest(trial, [first, second, third])
            trial.finish(first, second, third)

    def assigns(way: str) -> None:
        with prepared(way) as trial:
            members = trial.start_all("first", "second")
            trial.hold_assigning(members)
            third = trial.start("third")
            trial.wait_assigning(members)
            wait_for("the end of joining", lambda: trial.described()[0] == "COMPLETING_REBALANCING")
            death.is_awaited()
            trial.release(*members)
            comes_to_rest(trial, [*members, third])
            trial.finish(*members, third)

    def comes_to_rest(trial: GroupTrial, members: list[Peer]) -> None:
        trial.wait_flowing(members)
        assert trial.described() == ("STABLE", {member.name for member in members})

    def dies() -> None:
        try:
            death.ready.wait(_PATIENCE)
        finally:
            coordinator = cluster_admin.leader(OFFSETS_TOPIC, 0)
            whole_cluster.kill(coordinator)
            death.over.set()

    scenarios: dict[str, Callable[[], None]] = {
        **{f"{way}, at rest": lambda way=way: rests(way) for way in WAYS},  # type: ignore[misc]
        "eager, assigning": lambda: assigns("eager"),
        "cooperative, joining": lambda: joins("cooperative", "PREPARING_REBALANCING"),
        # librdkafka has no name for the state, which is RECONCILING.
        "consumer, reconciling": lambda: joins("consumer", "UNKNOWN"),
    }
    death = Death(len(scenarios))
    at_once({**scenarios, "the coordinator": dies})


@pytest.mark.timeout(240)
def test_a_rolling_restart(whole_cluster: LocalBroker, cluster_admin: Admin) -> None:
    """Every broker stops in order and comes back, the coordinators among them. No member notices."""
    trials = [GroupTrial(cluster_admin, way, PARTITIONS, session=SESSION, replication=3) for way in WAYS]
    running = threading.Barrier(len(trials) + 1)
    over = threading.Event()

    def reads(trial: GroupTrial) -> None:
        with trial:
            members = [trial.start("sync"), trial.start("async", "async_member")]
            trial.wait_flowing(members)
            before = milliseconds()
            running.wait(_PATIENCE)
            assert over.wait(_LONG)
            trial.wait_flowing(members)
            assert trial.described() == ("STABLE", {"sync", "async"})
            assert trial.changes_since(before) == []
            trial.finish(*members)
            assert trial.ledger.refused == []
            assert trial.ledger.repeats() == []

    def restarts() -> None:
        running.wait(_PATIENCE)
        try:
            for broker in whole_cluster.brokers:
                whole_cluster.restart(broker)
                for trial in trials:
                    cluster_admin.wait_in_sync(trial.topic, 3, PARTITIONS)
                cluster_admin.wait_in_sync(OFFSETS_TOPIC, 3, OFFSETS_PARTITIONS)
        finally:
            over.set()

    at_once({**{trial.group: lambda trial=trial: reads(trial) for trial in trials}, "restarts": restarts})  # type: ignore[misc]


@pytest.mark.skipif(not ROUNDS, reason="takes long: set ROUNDS, and SEED for other choices")
@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_faults_by_chance(whole_cluster: LocalBroker, cluster_admin: Admin) -> None:
    """Members and brokers are killed, paused, stopped and started again."""
    with ChaosMonkey(whole_cluster, cluster_admin, PARTITIONS, SEED) as monkey:
        for number in range(1, ROUNDS + 1):
            monkey.play_round(number)
        monkey.finish()
