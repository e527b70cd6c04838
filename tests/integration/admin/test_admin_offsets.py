"""Offsets that `Admin` sets are those that Kafka's own commands set and show."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from headrace import Admin, GroupMetadata, OffsetAndMetadata, Producer, TopicPartition
from headrace.admin import ResetPlan
from headrace.errors import GroupNotEmptyError, HeadraceError, KafkaError, PartialFailureError, StateError
from support.brokers import consumer_groups_tool
from support.brokers.admin import Admin as Broker
from support.brokers.admin import unique
from support.brokers.produce import Outgoing, numbered, write
from support.harness.consumers import MakeConsumer, poll_until
from support.harness.groups import WAYS
from support.harness.waiting import wait_for

HOUR = 3_600_000
END = 20


@pytest.fixture(scope="module")
def now() -> int:
    return round(time.time() * 1000)


@pytest.fixture(scope="module")
def topic(admin: Broker, servers: str, now: int) -> str:
    """Two partitions of 20 records: one each minute until now, the first five of partition 0 deleted."""
    name = admin.create("moved", 2)
    for number in (0, 1):
        write(
            servers,
            name,
            [Outgoing(b"x", partition=number, timestamp=now - (END - at) * 60_000) for at in range(END)],
        )
    admin.delete_records(name, 5)
    return name


@pytest.fixture
def ours(servers: str) -> Any:
    with Admin(bootstrap_servers=servers) as admin:
        yield admin


def offsets(found: dict[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, int]:
    return {tp: each.offset for tp, each in found.items()}


def moved(plan: ResetPlan) -> dict[Any, int | None]:
    return {each.partition: each.new for each in plan.changes}


@pytest.mark.parametrize(
    ("to", "theirs"),
    [
        ("earliest", ["--to-earliest"]),
        (3, ["--to-offset", "3"]),  # deleted from partition 0
        ("1000", ["--to-offset", "1000"]),
        ("+4", ["--shift-by", "4"]),
        ("-10m", ["--by-duration", "PT10M"]),
    ],
)
def test_a_reset_sets_the_offsets_that_kafka_consumer_groups_sets(
    servers: str, ours: Admin, topic: str, to: str | int, theirs: list[str]
) -> None:
    group, other = unique("moved"), unique("moved")
    start = {TopicPartition(topic, 0): 9, TopicPartition(topic, 1): 11}
    for name in (group, other):
        ours.alter_offsets(name, start)
    expected = consumer_groups_tool.reset_offsets(servers, other, topic, *theirs)
    plan = ours.plan_reset(group, to, topics=[topic])
    assert moved(plan) == expected
    assert offsets(ours.committed(group)) == start  # a plan changes nothing
    ours.apply_reset(plan)
    assert ours.committed(group) == ours.committed(other)


def test_without_topics_all_committed_partitions_are_moved(
    servers: str, ours: Admin, admin: Broker, topic: str
) -> None:
    group, second = unique("all"), admin.create("second", 2)
    ours.alter_offsets(group, {TopicPartition(topic, 1): 11, TopicPartition(second, 0): 0})
    plan = ours.plan_reset(group, "latest")
    assert moved(plan) == {(topic, 1): END, (second, 0): 0}
    ours.apply_reset(plan)
    assert consumer_groups_tool.committed_offsets(servers, group) == {(topic, 1): END, (second, 0): 0}


@pytest.mark.parametrize("way", ["eager", "consumer"], indirect=True)
def test_a_group_with_members_is_refused_and_they_are_named(
    way: dict[str, Any], ours: Admin, servers: str, make_sync: MakeConsumer, topic: str
) -> None:
    group = unique("busy")
    settings = {"bootstrap_servers": servers, "group_id": group, "auto_offset_reset": "earliest", **way}
    ours.alter_offsets(group, {TopicPartition(topic, 0): 9})
    planned_before = ours.plan_reset(group, "earliest")
    consumer = make_sync(**settings, client_id="the-biller", enable_auto_commit=False)
    consumer.subscribe([topic])
    poll_until(consumer, 1)
    tp = TopicPartition(topic, 0)
    for change in (
        lambda: ours.plan_reset(group, "earliest"),
        lambda: ours.apply_reset(planned_before),  # a member has joined since
        lambda: ours.alter_offsets(group, {tp: 7}),
        lambda: ours.delete_group(group),
    ):
        with pytest.raises(GroupNotEmptyError, match=r"it has 1 member: the-biller at 127\.0\.0\.1 \(") as caught:
            change()
        (member,) = caught.value.members
        assert member.client_id == "the-biller"
        assert member.member_id in str(caught.value)
        assert caught.value.retriable is False
    with pytest.raises(KafkaError, match="a member of the group is subscribed to the topic"):
        ours.delete_offsets(group, [tp])
    assert offsets(ours.committed(group))[tp] == 9
    consumer.close()
    ours.apply_reset(planned_before)
    assert offsets(ours.committed(group))[tp] == 5


def test_a_plan_is_refused_if_the_group_has_committed_since(ours: Admin, topic: str) -> None:
    group, tp = unique("raced"), TopicPartition(topic, 1)
    ours.alter_offsets(group, {tp: 9})
    plan = ours.plan_reset(group, "earliest")
    ours.alter_offsets(group, {tp: 12})
    with pytest.raises(StateError, match=rf"the offset of {tp} in group '{group}' has changed from 9 to 12"):
        ours.apply_reset(plan)
    assert offsets(ours.committed(group)) == {tp: 12}


def test_a_plan_is_refused_if_the_topic_was_recreated_since(ours: Admin, admin: Broker, servers: str) -> None:
    """An offset of the deleted topic would skip records of the new one."""
    group, name = unique("recreated"), admin.create("short-lived")
    write(servers, name, numbered(5))
    tp = TopicPartition(name, 0)
    plan = ours.plan_reset(group, "latest", topics=[name, tp], create=True)
    admin.delete(name)
    wait_for("the end of the topic", lambda: not admin.is_there(name))
    with pytest.raises(KafkaError, match="the topic does not exist"):
        ours.apply_reset(plan)
    admin.recreate(name)
    with pytest.raises(KafkaError, match="the topic was deleted and recreated"):
        ours.apply_reset(plan)
    assert ours.committed(group) == {}


def test_offsets_of_a_deleted_topic_stay_as_they_are(ours: Admin, admin: Broker, servers: str, topic: str) -> None:
    group, name = unique("deleted"), admin.create("short-lived")
    ours.alter_offsets(group, {TopicPartition(name, 0): 0, TopicPartition(topic, 1): 3})
    admin.delete(name)
    wait_for("the end of the topic", lambda: not admin.is_there(name))
    plan = ours.plan_reset(group, "latest")
    # The coordinator deletes its offset a moment later.
    assert {tp: new for tp, new in moved(plan).items() if new is not None} == {(topic, 1): END}
    assert {each.note for each in plan.changes} <= {"", "the topic does not exist"}
    with pytest.raises(KafkaError, match=f"there is no topic {name}"):
        ours.plan_reset(group, "latest", topics=[name])


def test_what_does_not_exist_is_named(ours: Admin, topic: str) -> None:
    group = unique("nobody")
    with pytest.raises(KafkaError, match="there is no such group") as caught:
        ours.plan_reset(group, "earliest", topics=[topic])
    assert caught.value.name == "GROUP_ID_NOT_FOUND"
    with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
        ours.delete_group(group)
    with pytest.raises(KafkaError, match=f"there is no partition {topic}-9"):
        ours.plan_reset(group, "earliest", topics=[(topic, 9)], create=True)
    began = time.monotonic()
    with pytest.raises(KafkaError, match="the topic has no such partition"):
        ours.alter_offsets(group, {TopicPartition(topic, 9): 1})
    with pytest.raises(KafkaError, match="the topic does not exist"):
        ours.alter_offsets(group, {TopicPartition("no-such-topic", 0): 1})
    assert time.monotonic() - began < 25, "default.api.timeout.ms is a minute"
    assert ours.describe_group(group) is None
    assert ours.committed(group) == {}


def test_a_change_that_works_for_some_partitions_says_which_failed_and_why(ours: Admin, topic: str) -> None:
    group, there = unique("partly"), TopicPartition(topic, 1)
    missing = [TopicPartition(topic, 7), TopicPartition("no-such-topic", 0)]
    too_long = TopicPartition(topic, 0)
    with pytest.raises(PartialFailureError, match=r"3 of 4 failed: .*The others are done") as caught:
        ours.alter_offsets(group, {there: 4, too_long: OffsetAndMetadata(5, "x" * 5000)} | dict.fromkeys(missing, 1))
    assert caught.value.done == {there}
    assert {tp: error.name for tp, error in caught.value.errors.items() if isinstance(error, KafkaError)} == {
        missing[0]: "UNKNOWN_TOPIC_OR_PARTITION",
        missing[1]: "UNKNOWN_TOPIC_OR_PARTITION",
        too_long: "OFFSET_METADATA_TOO_LARGE",
    }
    assert offsets(ours.committed(group)) == {there: 4}


def test_deleted_offsets_and_groups_are_gone_for_kafka_consumer_groups_too(
    ours: Admin, servers: str, topic: str
) -> None:
    group = unique("gone")
    both = {TopicPartition(topic, 0): 9, TopicPartition(topic, 1): 11}
    ours.alter_offsets(group, both)
    ours.delete_offsets(group, [TopicPartition(topic, 0)])
    assert consumer_groups_tool.committed_offsets(servers, group) == {(topic, 1): 11}
    assert ours.delete_group(group) == (group,)
    assert ours.describe_group(group) is None
    ours.alter_offsets(group, both)
    ours.delete_offsets(group, both)
    with pytest.raises(HeadraceError, match="has no committed offsets"):
        ours.plan_reset(group, "earliest")


def test_a_consumer_group_of_kip_848_is_moved_and_deleted(
    ours: Admin, servers: str, make_sync: MakeConsumer, topic: str
) -> None:
    group = unique("new-protocol")
    settings = {"bootstrap_servers": servers, "group_id": group, "auto_offset_reset": "earliest", **WAYS["consumer"]}
    consumer = make_sync(**settings)
    consumer.subscribe([topic])
    poll_until(consumer, 2 * END - 5)
    consumer.close()
    described = ours.describe_group(group)
    assert described is not None
    assert (described.listing.kind, described.members) == ("consumer", ())
    ours.apply_reset(ours.plan_reset(group, "-3"))
    again = make_sync(**settings)
    again.subscribe([topic])
    assert sorted((each.partition, each.offset) for each in poll_until(again, 6)) == [
        (number, at) for number in (0, 1) for at in (17, 18, 19)
    ]
    again.close()
    assert ours.delete_group(group) == (group,)


def test_a_reset_waits_for_a_transaction_that_is_about_to_commit_offsets(ours: Admin, servers: str, topic: str) -> None:
    """Its offsets would replace those of the reset."""
    group, tp = unique("pending"), TopicPartition(topic, 1)
    ours.alter_offsets(group, {tp: 9})
    with Producer(bootstrap_servers=servers, transactional_id=unique("tx")) as producer:
        producer.begin()
        producer.send_offsets({tp: 12}, GroupMetadata(group))
        with pytest.raises(TimeoutError, match="UNSTABLE_OFFSET_COMMIT"):
            ours.plan_reset(group, "latest", timeout=0.5)
        producer.commit()
    assert [each.current for each in ours.plan_reset(group, "latest").changes] == [12]


def test_threads_share_an_admin(ours: Admin, topic: str) -> None:
    found: list[int] = []

    def ask() -> None:
        found.append(len(ours.topics([topic])[topic].partitions))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert found == [2] * 8


def test_topics_are_made_described_and_deleted(ours: Admin, admin: Broker) -> None:
    name = unique("made")
    ours.create_topic(name, 3, settings={"retention.ms": "1000"})
    wait_for("the topic", lambda: admin.is_there(name))
    assert len(ours.topics([name])[name].partitions) == 3
    assert len(ours.cluster_id()) > 10
    with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
        ours.create_topic(name)
    assert set(ours.bounds([(name, 0), (name, 9)])) == {(name, 0)}
    ours.delete_topic(name)
    wait_for("its end", lambda: not admin.is_there(name))
    assert ours.topics([name]) == {}
