"""The models of transactions answer as a broker does: same requests by two producers, same codes, same outcome."""

from __future__ import annotations

import dataclasses
import os
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from headrace import GroupMetadata, LocalBroker, Producer
from headrace.types import TopicPartition
from simulation.writing.brokers import Brokers
from simulation.writing.virtual_loop import virtual_time
from support.brokers.admin import Admin
from support.brokers.topic_contents import oracle_rows
from support.brokers.transaction_versions import broker_with
from support.harness.raw_requests import ModelWire, Wire, asked_by_client
from support.harness.transaction_scripts import SHORT, Script

pytestmark = pytest.mark.kafka("4.3")  # the models are those of this version

TOPIC = "models"
_PARTITIONS = 2  # of each script
_RANDOM = 500 if os.environ.get("SOAK") else 50
_STEPS = 14


@dataclasses.dataclass(frozen=True)
class Plan:
    steps: Sequence[str]
    versions: Mapping[str, int] = dataclasses.field(default_factory=dict)
    timeout_ms: int = 60_000


def _of(text: str, **more: Any) -> Plan:
    return Plan([each.strip() for each in text.split(",")], **more)


# With version 1, partitions and groups are added before.
PLANS = {
    2: [
        _of("A init, A produce 0, A commit, A produce 0, A produce 1, A abort, A produce 1, A commit"),
        _of("A init, A produce 0, B init, B produce 0, A produce 0, A commit, A abort, B produce 1, B commit"),
        # Whose epoch it is does not matter if a transaction is open:
        _of("A init, A produce 0, B init, B produce 0, A reinit, B produce 1, B commit, B abort, B produce 0"),
        _of("A init, B init, A reinit, B produce 0, A reinit, B commit"),
        _of("A init, A reinit, A forget, A reinit, A produce 0, A commit"),
        _of("A init, A reinit, A forget, A reinit, A produce 0, A forget, A reinit, A commit"),
        _of("A init, A produce 0, A reinit, A produce 0, A commit"),
        _of("A init, A commit, A abort, A abort, A commit"),
        _of("A init, A produce 0, A commit, A forget, A commit, A forget, A abort, A produce 0"),
        _of("A init, A produce 0, A abort, A forget, A abort, A forget, A commit, A produce 0"),
        _of("A init, A produce 0, A commit, A forget, B init, A commit, A abort, B commit"),
        _of("A init, A offsets, A commit, A offsets, A abort, A produce 0, A offsets, B init, A offsets, A commit"),
        _of("A init, A produce 0, A commit, A late 0, A commit, A forget, A late 0"),
        _of("A init, A produce 0, A expire, A produce 0, A abort, A produce 0, A commit", timeout_ms=SHORT),
        _of("A init, A produce 0, A expire, A commit, A reinit, A produce 0, A commit", timeout_ms=SHORT),
        _of("A init, A offsets, A expire, A offsets, A abort, A offsets, A commit", timeout_ms=SHORT),
        _of("A reinit, A init, B reinit, A produce 0, B produce 0, B commit, A commit"),
        # A successor with version 1.
        _of("A init, A produce 0, B init, B add 0, B produce 0, A abort, B commit, A abort", versions={"B": 1}),
        _of("A init, A add 0, A produce 0, A commit, A reinit, A produce 0, A commit", versions={"A": 1}),
        _of("A init, A add 0, A produce 0, A commit, B init, B produce 0, A reinit, B commit", versions={"A": 1}),
        _of("A init, A other, A produce 0, A offsets, A commit, A abort, A reinit"),
    ],
    1: [
        _of("A init, A add 0, A produce 0, A commit, A add 0, A add 1, A produce 0, A produce 1, A abort, A commit"),
        _of("A init, A produce 0, A add 0, A produce 0, A produce 1, A commit, A produce 0"),
        _of("A init, A add 0, A produce 0, B init, A add 0, A produce 0, A commit, A abort, B add 0, B produce 0"),
        _of("A init, A other, A add 0, A produce 0, A group, A offsets, A commit, A abort, A reinit"),
        _of("A init, A add 0, A produce 0, B init, B add 0, B produce 0, A reinit, B produce 0, B commit, B abort"),
        _of("A init, A add 0, A produce 0, A abort, B init, B add 0, B produce 0, A reinit, B commit"),
        _of("A init, B init, A reinit, A abort, B add 0, A group, B produce 0, B commit, B commit, B abort"),
        _of("A init, A reinit, A forget, A reinit, A forget, A add 0, A reinit, A add 0, A produce 0, A commit"),
        _of("A init, A add 0, A produce 0, A abort, A reinit, A late 0, A add 0, A produce 0, A commit"),
        _of("A init, A commit, A abort, A add 0, A commit, A abort, A commit"),
        _of("A init, A offsets, A group, A offsets, A commit, A group, A offsets, A abort, A group, B init, A offsets"),
        _of("A init, A add 0, A produce 0, A expire, A add 0, A produce 0, A abort, A reinit", timeout_ms=SHORT),
        _of("A init, A add 0, A produce 0, A expire, A commit, A reinit, B init, A group", timeout_ms=SHORT),
        _of("A reinit, A init, B reinit, B add 0, B group, B commit, B produce 0, A commit"),
    ],
}
_WORDS = {
    1: ["init", "reinit", "add 0", "add 1", "produce 0", "produce 1", "late 0", "group", "offsets", "commit", "abort"],
    2: ["init", "reinit", "produce 0", "produce 1", "late 0", "offsets", "commit", "abort"],
}


def _random(seed: int, version: int) -> Plan:
    """Producers of both versions, if the cluster has both."""
    dice = random.Random(seed)
    versions = {who: dice.choice((1, 2)) if version == 2 and dice.random() < 0.3 else version for who in "AB"}
    steps = ["A init"]
    while len(steps) < _STEPS:
        who = dice.choice("AB")
        if not any(each.startswith(who) for each in steps):
            steps.append(f"{who} init")
        steps.append(f"{who} {dice.choice([*_WORDS[versions[who]], *_WORDS[versions[who]][2:], 'forget'])}")
    return Plan(steps, versions)


def _plans(version: int) -> list[Plan]:
    return [*PLANS[version], *(_random(seed, version) for seed in range(_RANDOM))]


async def _run(wire: Wire, topic_id: Any, version: int) -> list[list[str]]:
    results = []
    for number, plan in enumerate(_plans(version)):
        places = [TopicPartition(TOPIC, number * _PARTITIONS + each) for each in range(_PARTITIONS)]
        name = f"script-{number}"
        script = Script(wire, name, places, topic_id, version, plan.versions, plan.timeout_ms)
        results.append(await script.run(plan.steps))
    return results


# -- the broker --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, 1])
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def broker(version: int) -> Iterator[LocalBroker]:
    with broker_with(version) as broker:
        yield broker


def _by_broker(servers: str, version: int) -> tuple[list[list[str]], Mapping[int, list[bytes | None]]]:
    count = len(_plans(version)) * _PARTITIONS
    admin = Admin(servers)
    try:
        admin.create("", count, name=TOPIC, retention_ms=-1)  # the timestamps of the records are old
    finally:
        admin.close()

    # Creates the topics of both coordinators.
    with Producer(bootstrap_servers=servers, transactional_id="any") as first, first.transaction():
        first.send_offsets({(TOPIC, 0): 1}, GroupMetadata("any"))

    results = asked_by_client(servers, TOPIC, lambda wire, topic_id: _run(wire, topic_id, version))
    visible = defaultdict(list)
    for row in oracle_rows(servers, TOPIC, count, isolation="read_committed"):
        visible[row.partition].append(row.value)
    return results, visible


# -- the models --------------------------------------------------------------------------------------------------------


def _by_model(version: int) -> tuple[list[list[str]], Mapping[int, list[bytes]]]:
    count = len(_plans(version)) * _PARTITIONS
    with virtual_time(1) as loop:

        async def main() -> tuple[list[list[str]], Mapping[int, list[bytes]]]:
            brokers = Brokers(random.Random(1), {TOPIC: count}, version)
            brokers.transactions.largest_epoch = 2**15 - 2
            brokers.transactions.may_mix_versions = True
            results = await _run(ModelWire(brokers), brokers.ids[TOPIC], version)
            return results, {tp.partition: each.log.committed() for tp, each in brokers.partitions.items()}

        return loop.run(main())


def test_the_simulated_brokers_answer_as_a_broker_does(broker: LocalBroker, version: int) -> None:
    expected, visible = _by_broker(broker.bootstrap_servers, version)
    found, committed = _by_model(version)
    different = []
    for number, (real, modelled) in enumerate(zip(expected, found, strict=True)):
        if real != modelled:
            at = next(i for i, (one, other) in enumerate(zip(real, modelled, strict=True)) if one != other)
            what = f"the broker: {real[at]}\n    the model:  {modelled[at]}"
            different.append(f"script {number}: {real[:at]}\n    {what}")
        for partition in range(number * _PARTITIONS, (number + 1) * _PARTITIONS):
            if visible.get(partition, []) != committed[partition] and real == modelled:
                what = f"the broker: {visible.get(partition)}\n    the model:  {committed[partition]}"
                different.append(f"script {number}, partition {partition}: {real}\n    {what}")
    assert not different, f"{len(different)} differ:\n" + "\n".join(different[:10])
