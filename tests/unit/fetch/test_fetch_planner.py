"""FetchPlanner: which partitions are fetched from which broker."""

from __future__ import annotations

from typing import Any

import pytest

from headrace._machines.cluster import TopicIdPartition
from headrace._machines.fetch.partition import OutOfRange, Phase
from headrace._machines.fetch.session import PartitionRequest
from headrace._machines.fetch.standing_fetch import InFlightPartition, StandingFetch
from support.harness.fetch_planner import KB, TOPIC, FetchPlannerDriver, data, feed
from support.harness.machine_inputs import metadata, partition, topic


def test_each_broker_is_asked_for_the_partitions_it_leads() -> None:
    driver = FetchPlannerDriver([1, 2, 1])
    assert driver.fetching.nodes(0.0) == {1, 2}
    plan = driver.plan(1)
    assert plan.wants == {
        TopicIdPartition(TOPIC, 0): PartitionRequest(0, 5, 100 * KB),
        TopicIdPartition(TOPIC, 2): PartitionRequest(0, 5, 100 * KB),
    }
    assert plan.asked[TopicIdPartition(TOPIC, 2)] == InFlightPartition(
        driver.partitions[2], driver.state(2).position_version, 0
    )
    assert driver.asked(2) == [1]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda state: setattr(state, "phase", Phase.VALIDATE), id="not ready"),
        pytest.param(lambda state: state.take_off(StandingFetch(1, keeps=True)), id="in flight"),
        pytest.param(lambda state: setattr(state, "paused", True), id="paused"),
        pytest.param(lambda state: setattr(state, "fault", OutOfRange(0)), id="at fault"),
        pytest.param(lambda state: setattr(state, "topic_id", None), id="of an unknown topic"),
        pytest.param(lambda state: setattr(state, "backoff_until", 1.0), id="waiting out a backoff"),
        pytest.param(lambda state: feed(state, 200 * KB), id="well filled"),
        pytest.param(lambda state: state.arrived(200 * KB, 1), id="being decoded"),
    ],
)
def test_partitions_that_need_no_records_are_not_fetched(change: Any) -> None:
    driver = FetchPlannerDriver([1, 1])
    change(driver.state(0))
    assert driver.asked() == [1], "the other partition is not affected"


def test_a_partition_is_fetched_when_its_backoff_ends() -> None:
    driver = FetchPlannerDriver([1])
    driver.state().backoff_until = 1.5
    assert driver.asked(now=1.0) == []
    assert driver.fetching.next_wake(1.0) == 1.5
    assert driver.asked(now=1.5) == [0]
    assert driver.fetching.next_wake(1.5) is None


def test_a_partition_that_nobody_leads_is_not_fetched() -> None:
    driver = FetchPlannerDriver([1])
    driver.cluster.apply(metadata(topic(partition(0, leader=-1, epoch=6)), brokers=(1,)))
    driver.assignment.follow(driver.cluster)
    assert driver.fetching.nodes(0.0) == set()
    assert driver.asked() == []


def test_the_partition_that_waited_longest_is_fetched_first() -> None:
    driver = FetchPlannerDriver([1, 1, 1])
    plan = driver.plan()
    driver.answered(plan, data(1, records=b"x"), data(0, records=b"x"))
    assert driver.asked() == [2, 1, 0]


def test_a_partition_in_flight_is_not_fetched_again() -> None:
    driver = FetchPlannerDriver([1])
    plan = driver.plan()
    assert driver.asked() == []
    driver.answered(plan)
    assert driver.asked() == [0], "a response without the partition means nothing changed"


def test_a_fetch_plan_is_parked_unless_a_partition_has_known_records() -> None:
    driver = FetchPlannerDriver([1, 1])
    plan = driver.plan()
    assert plan.parked, "the log end is unknown"
    driver.answered(plan, data(0))
    plan = driver.plan()
    assert not plan.parked, "partition 0 is at offset 0 of 50"
    ((asked, item),), *_ = driver.answered(plan, data(0, records=b"x"))
    driver.fetching.arrived(asked, item, next_offset=50)
    assert driver.plan().parked, "these were the last"
