"""Three brokers, of which one dies or all restart in turn, while groups consume new records."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable

import pytest

from headrace import LocalBroker
from support.brokers.admin import Admin
from support.ledgers.commit_history import OFFSETS_TOPIC, names_on
from support.members.events import milliseconds
from support.members.group_trial import WAYS, GroupTrial, at_once
from support.members.processes import Peer
from support.members.random_faults import RandomFaults

PARTITIONS = 6
OFFSETS_PARTITIONS = 8
"""The number that LocalBroker sets."""
SESSION = 45.0
"""Kafka's default: longer than a broker failover or a held assignor takes."""
ROUNDS = int(os.environ.get("ROUNDS", "0"))
SEED = int(os.environ.get("SEED", "1"))
_PATIENCE = 150.0
_LONG = 180.0


@pytest.mark.timeout(400)
def test_groups_lose_nothing_when_their_coordinator_is_killed(whole_cluster: LocalBroker, cluster_admin: Admin) -> None:
    """Some groups are stable; in others a rebalance is in progress: a busy member delays a newcomer, or the leader has
    the list of members and has not sent the assignment yet.

    Each group becomes stable with its members. Members of stable groups do not notice the failover.
    """

    def rests(trial: GroupTrial) -> None:
        members = trial.start_all("first", "second")
        before = milliseconds()
        coordinator_dies()
        comes_to_rest(trial, members)
        assert trial.changes_since(before) == []
        trial.finish(*members)
        assert trial.ledger.refused == []
        assert trial.ledger.repeats() == []

    def joins(trial: GroupTrial, state: str) -> None:
        first, second = trial.start_all("first", "second")
        trial.hold(first)
        third = trial.start("third")
        trial.wait_state(state)
        coordinator_dies()
        trial.release(first)
        comes_to_rest(trial, [first, second, third])
        trial.finish(first, second, third)

    def assigns(trial: GroupTrial) -> None:
        members = trial.start_all("first", "second")
        trial.hold_assigning(members)
        third = trial.start("third")
        trial.wait_assigning(members)
        trial.wait_state("COMPLETING_REBALANCING")
        coordinator_dies()
        trial.release(*members)
        comes_to_rest(trial, [*members, third])
        trial.finish(*members, third)

    def comes_to_rest(trial: GroupTrial, members: list[Peer]) -> None:
        trial.wait_flowing(members)
        trial.wait_state("STABLE", members)

    def kill_coordinator() -> None:
        whole_cluster.kill(cluster_admin.leader(OFFSETS_TOPIC, 0))
        killed.set()

    def coordinator_dies() -> None:
        all_ready.wait(_PATIENCE)
        assert killed.wait(_PATIENCE)

    scenarios: list[tuple[str, Callable[[GroupTrial], None]]] = [
        *((way, rests) for way in WAYS),
        ("eager", assigns),
        ("cooperative", functools.partial(joins, state="PREPARING_REBALANCING")),
        # librdkafka has no name for the state, which is RECONCILING.
        ("consumer", functools.partial(joins, state="UNKNOWN")),
    ]
    names = names_on(0, OFFSETS_PARTITIONS, "failover")
    all_ready = threading.Barrier(len(scenarios), kill_coordinator)
    killed = threading.Event()
    play(
        (GroupTrial(cluster_admin, way, PARTITIONS, session=SESSION, replication=3, group=next(names)), scenario)
        for way, scenario in scenarios
    )


def play(
    scenarios: Iterable[tuple[GroupTrial, Callable[[GroupTrial], None]]], others: Iterable[Callable[[], None]] = ()
) -> None:
    """Run all scenarios at once, and `others` with them."""

    def run(trial: GroupTrial, scenario: Callable[[GroupTrial], None]) -> None:
        with trial:
            scenario(trial)

    groups = {trial.topic: functools.partial(run, trial, scenario) for trial, scenario in scenarios}
    at_once(groups | {other.__name__: other for other in others})


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_members_do_not_notice_a_rolling_restart(whole_cluster: LocalBroker, cluster_admin: Admin) -> None:
    """Every broker is stopped properly and restarted, including coordinators. No member notices."""
    trials = [GroupTrial(cluster_admin, way, PARTITIONS, session=SESSION, replication=3) for way in WAYS]
    running = threading.Barrier(len(trials) + 1)
    over = threading.Event()

    def reads(trial: GroupTrial) -> None:
        members = [trial.start("sync"), trial.start("async", "async_member")]
        trial.wait_flowing(members)
        before = milliseconds()
        running.wait(_PATIENCE)
        assert over.wait(_LONG)
        trial.wait_flowing(members)
        trial.wait_state("STABLE", members)
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

    play([(trial, reads) for trial in trials], [restarts])


@pytest.mark.skipif(not ROUNDS, reason="takes long: set ROUNDS, and SEED for other faults")
@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_groups_lose_nothing_by_random_faults(whole_cluster: LocalBroker, cluster_admin: Admin) -> None:
    """Members and brokers are killed, paused, stopped and restarted."""
    with RandomFaults(whole_cluster, cluster_admin, PARTITIONS, SEED) as faults:
        for number in range(1, ROUNDS + 1):
            faults.play_round(number)
        faults.finish()
