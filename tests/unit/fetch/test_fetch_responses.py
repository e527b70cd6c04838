"""FetchPlanner: how each fetch response is handled."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from headrace._machines.cluster import Leader, TopicIdPartition
from headrace._machines.fetch.partition import OutOfRange, Phase, Position, PreferredReplica
from headrace._machines.fetch.session import PartitionRequest
from headrace.errors import KafkaError
from headrace.types import Node
from support.harness.fetch_planner import KB, TOPIC, FetchPlannerDriver, data
from support.harness.machine_inputs import metadata, partition, topic


def test_arrived_records_are_decoded_while_the_next_offset_is_fetched() -> None:
    driver = FetchPlannerDriver([1])
    plan = driver.plan()
    aborted = [{"producer_id": 7, "first_offset": 3}]
    ((asked, item),), stale, _ = driver.answered(plan, data(records=b"x" * 99, aborted_transactions=aborted))
    assert not stale
    arrival = driver.fetching.arrived(asked, item, next_offset=12)
    assert (arrival.tp, arrival.offset, arrival.next_offset) == (driver.partitions[0], 0, 12)
    assert (arrival.records, arrival.aborted) == (b"x" * 99, ((7, 3),))
    assert (arrival.room, driver.state().undecoded, driver.state().fetch_offset) == (3 * 99, 3 * 99, 12)
    assert driver.plan().wants[TopicIdPartition(TOPIC, 0)].offset == 12


@pytest.mark.parametrize(("level", "lag"), [("read_uncommitted", 50), ("read_committed", 40)])
def test_the_lag_uses_the_readable_end_of_a_response(level: str, lag: int) -> None:
    driver = FetchPlannerDriver([1], isolation_level=level)
    driver.answered(driver.plan(), data())
    assert driver.state().lag == lag


@pytest.mark.parametrize("records", [None, b""], ids=["null", "empty"])
def test_a_response_without_records_has_nothing_to_decode(records: bytes | None) -> None:
    driver = FetchPlannerDriver([1])
    assert driver.answered(driver.plan(), data(records=records))[:2] == ([], False)


def test_a_preferred_read_replica_is_fetched_from() -> None:
    now = 10.0
    driver = FetchPlannerDriver([1], metadata_max_age_ms=60_000)
    assert driver.answered(driver.plan(now=now), data(preferred_read_replica=2), now=now) == ([], False, True)
    assert driver.asked(1, now) == []
    assert 2 in driver.fetching.nodes(now)
    assert driver.asked(2, now) == [0]


@pytest.mark.parametrize("why", ["too old", "offline", "broken connection"])
def test_an_expired_or_failed_replica_is_replaced_by_the_leader(why: str) -> None:
    driver = FetchPlannerDriver([1])
    driver.state().preferred = PreferredReplica(2, 60.0)
    if why == "offline":
        driver.cluster.apply(metadata(topic(partition(0, leader=1, offline=(2,)))))
    elif why == "broken connection":
        driver.fetching.failed(driver.plan(2))
    assert driver.asked(1, now=60.0 if why == "too old" else 0.0) == [0]


def test_out_of_range_from_a_follower_is_checked_with_the_leader() -> None:
    driver = FetchPlannerDriver([1])
    driver.state().preferred = PreferredReplica(2, 60.0)
    plan = driver.plan(2)
    assert driver.answered(plan, data(code=ErrorCode.offset_out_of_range)) == ([], False, True)
    assert (driver.state().fault, driver.asked(1)) == (None, [0])


def test_out_of_range_from_an_expired_follower_is_no_fault() -> None:
    driver = FetchPlannerDriver([1])
    driver.state().preferred = PreferredReplica(2, 60.0)
    plan = driver.plan(2)
    driver.state().preferred = None  # as after any look at it
    driver.answered(plan, data(code=ErrorCode.offset_out_of_range), now=99.0)
    assert driver.state().fault is None


def test_out_of_range_from_the_leader_is_a_fault() -> None:
    driver = FetchPlannerDriver([1])
    assert driver.answered(driver.plan(), data(code=ErrorCode.offset_out_of_range))[:2] == ([], False)
    assert driver.state().fault == OutOfRange(0)
    assert driver.fetching.was_refused
    assert driver.asked() == []


REFRESH = [
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.replica_not_available,
    ErrorCode.kafka_storage_error,
    ErrorCode.offset_not_available,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.inconsistent_topic_id,
]


@pytest.mark.parametrize(
    ("code", "stale"),
    [(code, True) for code in REFRESH]
    + [(ErrorCode.unknown_leader_epoch, False), (ErrorCode.unknown_server_error, False)],
)
def test_retriable_fetch_errors_back_off_their_partition_only(code: ErrorCode, stale: bool) -> None:
    driver = FetchPlannerDriver([1, 1], retry_backoff_ms=100)
    plan = driver.plan(now=5.0)
    assert driver.answered(plan, data(code=code), data(1), now=5.0)[:2] == ([], stale)
    assert driver.state().fault is None
    assert driver.asked(now=5.0) == [1], "the other partition is still fetched"
    assert driver.asked(now=5.1) == [0]


def test_repeated_fetch_errors_back_off_exponentially() -> None:
    driver = FetchPlannerDriver([1], retry_backoff_ms=100, retry_backoff_max_ms=1000)
    now, pauses = 0.0, []
    for _ in range(6):
        driver.answered(driver.plan(now=now), data(code=ErrorCode.kafka_storage_error), now=now)
        pauses.append(round(driver.state().backoff_until - now, 3))
        now = driver.state().backoff_until
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    driver.answered(driver.plan(now=now), data(), now=now)
    assert driver.state().failures == 0


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (ErrorCode.topic_authorization_failed, "TOPIC_AUTHORIZATION_FAILED"),
        (ErrorCode.corrupt_message, "CORRUPT_MESSAGE"),
        (999, "UNKNOWN_ERROR_999"),
    ],
)
def test_fatal_fetch_errors_are_faults_of_the_partition(code: int, name: str) -> None:
    driver = FetchPlannerDriver([1])
    assert driver.answered(driver.plan(), data(code=code), now=3.0)[:2] == ([], False)
    error = driver.state().fault
    assert isinstance(error, KafkaError)
    assert (error.code, error.name) == (code, name)
    assert f"Fetch of t-0 at offset 0: {name} ({int(code)})" in str(error)
    assert driver.state().backoff_until > 3.0


@pytest.mark.parametrize("code", [ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch])
def test_a_leader_hint_is_followed_at_once(code: ErrorCode) -> None:
    driver = FetchPlannerDriver([1])
    hint = {"leader_id": 7, "leader_epoch": 6}
    endpoints = [{"node_id": 7, "host": "b7", "port": 1, "rack": None}]
    found = driver.answered(driver.plan(), data(code=code, current_leader=hint), node_endpoints=endpoints)
    assert found == ([], True, True)
    assert driver.cluster.leader(driver.partitions[0]) == Leader(7, 6)
    assert driver.cluster.brokers[7] == Node(7, "b7", 1)
    assert driver.plan(7).wants == {TopicIdPartition(TOPIC, 0): PartitionRequest(0, 6, 100 * KB)}


@pytest.mark.parametrize(
    "hint",
    [
        pytest.param({"leader_id": -1, "leader_epoch": 9}, id="no leader"),
        pytest.param({"leader_id": 2, "leader_epoch": 5}, id="the known epoch"),
        pytest.param({"leader_id": 9, "leader_epoch": 9}, id="an unknown broker"),
    ],
)
def test_a_useless_leader_hint_backs_off(hint: dict[str, int]) -> None:
    driver = FetchPlannerDriver([1])
    driver.answered(driver.plan(), data(code=ErrorCode.not_leader_or_follower, current_leader=hint))
    assert driver.asked() == []
    assert driver.asked(now=1.0) == [0]


def test_a_leader_hint_with_a_new_epoch_validates_the_position() -> None:
    driver = FetchPlannerDriver([1])
    driver.state().fetch_epoch = 5
    hint = {"leader_id": 2, "leader_epoch": 6}
    driver.answered(driver.plan(), data(code=ErrorCode.fenced_leader_epoch, current_leader=hint))
    assert (driver.state().phase, driver.asked(2)) == (Phase.VALIDATE, [])


@pytest.mark.parametrize("code", [0, ErrorCode.offset_out_of_range, ErrorCode.topic_authorization_failed])
def test_a_fetch_response_from_before_a_seek_is_dropped(code: int) -> None:
    driver = FetchPlannerDriver([1])
    plan = driver.plan()
    driver.state().seek(Position(33))
    assert driver.answered(plan, data(code=code, records=b"x"))[:2] == ([], False)
    assert (driver.state().fault, driver.state().fetch_offset, driver.state().readable_end) == (None, 33, -1)
    assert driver.asked() == [0]


def test_responses_for_unassigned_or_unrequested_partitions_are_ignored() -> None:
    driver = FetchPlannerDriver([1, 1])
    plan = driver.plan()
    driver.assignment.assign([driver.partitions[1]])
    (arrival,), *_ = driver.answered(plan, data(0, records=b"x"), data(1, records=b"x"), data(2, records=b"x"))
    assert arrival[0].tp == driver.partitions[1]


def test_a_partition_twice_in_one_response_counts_once() -> None:
    driver = FetchPlannerDriver([1])
    arrivals, *_ = driver.answered(driver.plan(), data(records=b"x"), data(records=b"y"))
    assert [item.records for _, item in arrivals] == [b"x"]


def test_a_new_leader_is_fetched_from_before_the_old_one_has_responded() -> None:
    """The old leader may be down: its fetch ends only at its deadline."""
    driver = FetchPlannerDriver([1])
    old = driver.plan(1)
    driver.cluster.apply(metadata(topic(partition(0, leader=2, epoch=6))))
    driver.assignment.follow(driver.cluster)
    new = driver.plan(2)
    ((asked, item),), _, _ = driver.answered(new, data(records=b"new"))
    driver.fetching.arrived(asked, item, next_offset=12)
    assert driver.answered(old, data(records=b"old"))[:2] == ([], False), "the new leader responded first"
    assert (driver.state().fetch_offset, driver.fetching._reserved) == (12, 0)


def test_a_late_response_of_the_old_leader_is_used_if_it_comes_first() -> None:
    driver = FetchPlannerDriver([1])
    old = driver.plan(1)
    driver.cluster.apply(metadata(topic(partition(0, leader=2, epoch=6))))
    driver.assignment.follow(driver.cluster)
    new = driver.plan(2)
    ((asked, item),), _, _ = driver.answered(old, data(records=b"old"))
    driver.fetching.arrived(asked, item, next_offset=12)
    assert driver.answered(new, data(records=b"new"))[:2] == ([], False)


def test_partitions_of_a_failed_fetch_are_fetched_again() -> None:
    driver = FetchPlannerDriver([1, 1])
    plan = driver.plan()
    driver.state(1).seek(Position(5))
    second = driver.plan()
    assert list(second.wants) == [TopicIdPartition(TOPIC, 1)]
    driver.fetching.failed(plan)
    assert driver.asked() == [0], "partition 1 is already in flight with a new position version"
