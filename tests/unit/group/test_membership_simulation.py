"""The membership machines in virtual time, short form. Long form: `PYTHONPATH=tests python -m simulation`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace._machines.group.classic import ClassicMember
from headrace._machines.group.consumer_protocol import ConsumerProtocolMember
from headrace._machines.group.heartbeat_timer import HeartbeatTimer
from simulation.chaos import Chaos, run
from simulation.world import Scenario, Violation

KINDS = ["eager", "cooperative", "epoch"]
SEEDS = 70
TESTS = Path(__file__).parents[2]

_collect_fields = ConsumerProtocolMember._collect_fields


@pytest.mark.parametrize("kind", KINDS)
def test_simulated_small_groups_keep_all_invariants(kind: str) -> None:
    for seed in range(SEEDS):
        run(Scenario(kind, seed, members=5, disturbances=20, through_bytes=seed % 8 == 0))


def test_a_simulated_group_of_a_thousand_members_keeps_all_invariants() -> None:
    outcome = run(Scenario("cooperative", 0, members=1000, disturbances=3))
    assert outcome.takes >= 1000


def test_a_simulated_run_is_a_function_of_its_seed() -> None:
    """Also in another process, where sets of strings have another order."""
    program = f"from simulation.chaos import *; print([run(Scenario(kind, 3, 6, 10)) for kind in {KINDS}])"
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": "1"}
    elsewhere = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=100, check=True
    )
    assert elsewhere.stdout.strip() == str([run(Scenario(kind, 3, 6, 10)) for kind in KINDS])


# -- injected mistakes: the simulation must find each of them --------------------------------------------------------


def keeps_its_partitions(self: ClassicMember) -> frozenset[Any]:
    return frozenset()


def acknowledges_too_soon(self: ConsumerProtocolMember) -> dict[str, Any]:
    said = _collect_fields(self)
    wanted = [
        (topic, tuple(number for number in numbers if (topic, number) in self._target))
        for topic, numbers in said["topic_partitions"]
    ]
    return {**said, "topic_partitions": tuple(wanted)}


def never_pauses(self: Any) -> float:
    return 0.0


def does_not_look_at_topics(self: ClassicMember, layout: Any) -> None:
    return


@pytest.mark.parametrize(
    ("kind", "member", "method", "mistake", "violation"),
    [
        ("eager", ClassicMember, "_to_revoke_before_join", keeps_its_partitions, "which"),
        ("epoch", ConsumerProtocolMember, "_collect_fields", acknowledges_too_soon, "which"),
        ("eager", ClassicMember, "_pause", never_pauses, "requests in"),
        ("epoch", HeartbeatTimer, "_pause", never_pauses, "requests in"),
        ("cooperative", ClassicMember, "update_partition_counts", does_not_look_at_topics, "held by nobody"),
    ],
)
def test_the_simulation_finds_an_injected_mistake(
    kind: str, member: type[Any], method: str, mistake: Any, violation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, method, mistake)
    with pytest.raises(Violation) as caught:  # noqa: PT012 - one of these seeds has to hit it
        for seed in range(300):
            run(Scenario(kind, seed))
    assert violation in str(caught.value)
    assert f"again: PYTHONPATH=tests python -m simulation {kind} --first" in str(caught.value)


def test_a_violation_in_the_simulation_says_how_to_see_it_again() -> None:
    chaos = Chaos(Scenario("epoch", 5))
    chaos.run()
    with pytest.raises(Violation) as caught:
        chaos.world.violated("an invariant broke")
    lines = str(caught.value).splitlines()
    assert lines[0] == lines[-2] == "an invariant broke"
    assert lines[-1] == (
        "again: PYTHONPATH=tests python -m simulation epoch --first 5 --seeds 1 --members 6 --disturbances 25"
    )
    assert any("sends ConsumerGroupHeartbeat" in line for line in lines)
