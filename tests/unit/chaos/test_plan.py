"""Plans of faults: a seed always gives the same one, and a failing one shrinks to what makes it fail."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import pairwise

import pytest

from chaos.plan import (
    CALM,
    EXTRAS,
    KINDS,
    MOVING,
    SPARK_FAULTS,
    SPARK_KINDS,
    Fault,
    Plan,
    all_clients,
    clients_of,
    few_clients,
    make_plan,
    moving_clients,
    plan_of,
    spark_clients,
)
from chaos.shrink import reduce_items, shrink


def test_a_seed_gives_the_same_plan_and_another_seed_another_one() -> None:
    first, second, other = (make_plan(seed, 300, all_clients()) for seed in (7, 7, 8))
    assert first == second
    assert first.faults != other.faults
    assert plan_of(first.to_json()) == first


def test_an_hour_has_every_kind_of_fault_often_several_at_a_time() -> None:
    plan = make_plan(1, 3600, all_clients())
    kinds = Counter(fault.kind for fault in plan.faults)
    assert set(kinds) == set(KINDS)
    assert all(CALM <= fault.at < 3600 for fault in plan.faults)
    starts = Counter(fault.at for fault in plan.faults)
    assert sum(count > 1 for count in starts.values()) > 50


def test_only_one_broker_is_down_at_a_time() -> None:
    for seed in range(20):
        plan = make_plan(seed, 1000, few_clients(), extras=("disks",))
        faults = [each for each in plan.faults if each.target.startswith("broker-")]
        for before, after in pairwise(faults):
            assert after.at >= before.at + before.lasts + 10


def test_a_client_is_not_hit_again_before_it_is_back() -> None:
    for seed in range(20):
        back: dict[str, float] = {}
        for fault in make_plan(seed, 1000, all_clients()).faults:
            if fault.kind in ("kill_client", "pause_client"):
                assert fault.at >= back.get(fault.target, 0.0)
                back[fault.target] = fault.at + fault.lasts


def test_seeds_choose_spark_queries_with_what_they_need() -> None:
    found = [spark_clients(seed, 1) for seed in range(60)]
    assert {client.kind for clients in found for client in clients if client.is_spark} == set(SPARK_KINDS)
    for clients in found:
        kinds = {client.kind for client in clients}
        assert ("spark_member" in kinds) == ("spark_peer" in kinds)
        assert ("spark_typed" in kinds) == ("idempotent" in kinds)
    assert len({client.kind for client in spark_clients(1, 2) if client.is_spark}) == 2


def test_drivers_are_hit_by_faults_of_their_own_and_get_time_to_start() -> None:
    clients = all_clients() + spark_clients(4, 2)
    drivers = {client.name for client in clients if client.is_spark}
    plan = make_plan(4, 3600, clients)
    assert set(SPARK_FAULTS) <= {fault.kind for fault in plan.faults}
    for fault in plan.faults:
        assert (fault.kind in SPARK_FAULTS) <= (fault.target in drivers)
        assert fault.kind != "kill_client" or fault.target not in drivers
    for driver in drivers:
        kills = [fault.at for fault in plan.faults if fault.target == driver and fault.kind == "kill_driver"]
        assert all(after - before >= 80 for before, after in pairwise([0.0, *kills]))


def test_a_plan_with_a_pace_of_zero_has_no_faults() -> None:
    plan = make_plan(7, 3600, all_clients(), 0.0, tuple(EXTRAS))
    assert plan.faults == ()
    assert plan.clients == all_clients()


def test_a_plan_has_other_faults_only_if_they_are_wanted() -> None:
    plain = {fault.kind for fault in make_plan(1, 3600, all_clients()).faults}
    wanted = {fault.kind for fault in make_plan(1, 3600, all_clients(), extras=tuple(EXTRAS)).faults}
    assert wanted - plain == {kind for kinds in EXTRAS.values() for kind in kinds}
    moving = {moving_clients(seed)[1].kind: moving_clients(seed) for seed in range(20)}
    moving["unclean"] = clients_of("unclean")
    assert set(moving) == set(MOVING)
    for kind, clients in moving.items():
        faults = make_plan(1, 3600, all_clients() + clients).faults
        kinds = {fault.kind for fault in faults}
        assert ("recreate_topic" in kinds) == (kind == "recreated")
        assert ("unclean_election" in kinds) == (kind == "unclean")


# -- shrinking --------------------------------------------------------------------------------------------------------

PLAN = make_plan(3, 600, all_clients())


def test_a_plan_shrinks_to_the_two_faults_that_make_it_fail() -> None:
    guilty = {PLAN.faults[2], PLAN.faults[11]}
    tried: list[Plan] = []

    def fails(plan: Plan) -> bool:
        tried.append(plan)
        return guilty <= set(plan.faults)

    found = shrink(PLAN, fails)
    assert set(found.faults) == guilty
    assert found.seconds < 600
    assert {fault.target for fault in guilty} & {client.name for client in PLAN.clients} <= {
        client.name for client in found.clients
    }
    assert len(found.clients) < len(PLAN.clients)
    assert len(tried) < 150


def test_a_plan_that_fails_without_faults_loses_all_of_them() -> None:
    found = shrink(PLAN, lambda plan: any(client.kind == "lanes" for client in plan.clients))
    assert found.faults == ()
    assert {client.kind for client in found.clients if not client.is_producer} == {"lanes"}
    assert any(client.is_producer for client in found.clients)


def test_a_plan_that_fails_by_chance_stays_as_it_is() -> None:
    assert shrink(PLAN, lambda _: False) == PLAN


def test_shrinking_ends_in_time() -> None:
    tried: list[Plan] = []
    assert shrink(PLAN, lambda plan: not tried.append(plan), within=0.0) == PLAN  # type: ignore[func-returns-value]
    assert tried == []


@pytest.mark.parametrize("guilty", [{0}, {9}, {0, 9}, {3, 4, 5}, set(range(10))])
def test_delta_debugging_finds_exactly_what_is_needed(guilty: set[int]) -> None:
    assert set(reduce_items(range(10), lambda kept: guilty <= set(kept))) == guilty


def test_a_fault_is_kept_as_it_is() -> None:
    fault = Fault(9.5, "kill_client", "eager-1", 2.0)
    plan = dataclasses.replace(PLAN, faults=(fault,))
    assert plan_of(plan.to_json()).faults == (fault,)
