"""Start offsets and settings of share groups, as `kafka-share-groups` and `kafka-configs` show and set them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Admin, TopicPartition
from headrace.errors import ConfigError, GroupNotEmptyError, KafkaError, PartialFailureError
from support.brokers import share_groups_tool
from support.brokers.admin import Admin as Broker
from support.brokers.admin import unique
from support.brokers.java_tool import java_tool
from support.brokers.produce import numbered, write
from support.harness.waiting import wait_for

END = 20


@pytest.fixture
def ours(servers: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=servers) as admin:
        yield admin


@pytest.fixture
def topic(admin: Broker, servers: str) -> str:
    name = admin.create("queue", 2)
    for number in (0, 1):
        write(servers, name, numbered(END, number))
    return name


def take(make_sync_share: Any, servers: str, group: str, topic: str, count: int) -> list[tuple[int, int]]:
    """The records that a new member gets and accepts."""
    consumer = make_sync_share(bootstrap_servers=servers, group_id=group, topics=[topic])
    found: list[tuple[int, int]] = []
    while len(found) < count:
        found += [(each.partition, each.offset) for each in consumer.poll(1.0)]
    consumer.commit()
    consumer.close()
    return sorted(found)


def test_settings_of_a_group_are_those_that_kafka_configs_shows(ours: Admin, servers: str) -> None:
    group = unique("configured")
    assert ours.group_config(group)["share.auto.offset.reset"].value == "latest"
    changes = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": 20_000}
    ours.alter_group_config(group, changes)
    found = ours.group_config(group)
    assert (found["share.auto.offset.reset"].value, found["share.auto.offset.reset"].is_default) == ("earliest", False)
    assert found["share.record.lock.duration.ms"].value == "20000"
    assert found["share.delivery.count.limit"].is_default
    tool = java_tool("ConfigCommand").copy()
    tool[-1] = "kafka.admin.ConfigCommand"  # not among the tools
    where = ["--bootstrap-server", servers, "--entity-type", "groups", "--entity-name", group, "--describe"]
    shown = subprocess.run([*tool, *where], capture_output=True, text=True, timeout=90, check=True).stdout
    assert "share.auto.offset.reset=earliest" in shown
    assert "share.record.lock.duration.ms=20000" in shown
    ours.alter_group_config(group, {"share.auto.offset.reset": None})
    found = ours.group_config(group)
    assert (found["share.auto.offset.reset"].value, found["share.auto.offset.reset"].is_default) == ("latest", True)
    assert found["share.record.lock.duration.ms"].value == "20000"


@pytest.mark.parametrize("changes", [{"share.auto.offset.reset": "sideways"}, {"no.such.setting": "1"}])
def test_settings_that_brokers_do_not_accept_are_refused_as_a_whole(ours: Admin, changes: dict[str, str]) -> None:
    group = unique("refused")
    with pytest.raises(KafkaError, match=r"INVALID_CONFIG|INVALID_REQUEST") as caught:
        ours.alter_group_config(group, {"share.record.lock.duration.ms": 20_000, **changes})
    assert next(iter(changes)) in str(caught.value)
    assert ours.group_config(group)["share.record.lock.duration.ms"].is_default


def test_a_share_group_is_moved_like_kafka_share_groups_does(
    ours: Admin, servers: str, topic: str, make_sync_share: Any
) -> None:
    group = unique("share")
    ours.alter_group_config(group, {"share.auto.offset.reset": "earliest"})
    everything = [(number, at) for number in (0, 1) for at in range(END)]
    assert take(make_sync_share, servers, group, topic, 2 * END) == everything
    with pytest.raises(ConfigError, match="has no position to move by records"):
        ours.plan_reset(group, "-5")
    plan = ours.plan_reset(group, END - 5)
    assert {each.partition: each.new for each in plan.changes} == {(topic, number): END - 5 for number in (0, 1)}
    ours.apply_reset(plan)
    shown = share_groups_tool.describe(servers, group)
    assert {(row["TOPIC"], int(row["PARTITION"])): int(row["START-OFFSET"]) for row in shown} == {
        (topic, 0): END - 5,
        (topic, 1): END - 5,
    }
    ours.apply_reset(ours.plan_reset(group, "earliest", topics=[(topic, 1)]))
    assert {tp: each.start for tp, each in ours.share_offsets(group).items()} == {(topic, 0): END - 5, (topic, 1): 0}
    assert take(make_sync_share, servers, group, topic, END + 5) == [
        *((0, at) for at in range(END - 5, END)),
        *((1, at) for at in range(END)),
    ]
    ours.delete_share_offsets(group, [topic])
    assert ours.share_offsets(group) == {}
    assert ours.delete_group(group) == (group,)
    assert ours.describe_group(group) is None


def test_a_plan_is_refused_if_the_topic_of_a_share_group_was_recreated_since(
    ours: Admin, admin: Broker, servers: str, topic: str, make_sync_share: Any
) -> None:
    """The other topics are moved. The group has no offset of this one, so only the id of the topic says it."""
    group, name = unique("recreated"), admin.create("short-lived")
    write(servers, name, numbered(5))
    ours.alter_group_config(group, {"share.auto.offset.reset": "earliest"})
    take(make_sync_share, servers, group, topic, 2 * END)
    plan = ours.plan_reset(group, "latest", topics=[name, TopicPartition(topic, 0)])
    admin.delete(name)
    wait_for("the end of the topic", lambda: not admin.is_there(name))
    admin.recreate(name)
    with pytest.raises(PartialFailureError, match="the topic was deleted and recreated meanwhile") as caught:
        ours.apply_reset(plan)
    assert (set(caught.value.errors), caught.value.done) == ({(name, 0)}, {(topic, 0)})
    found = ours.share_offsets(group)
    assert found[TopicPartition(topic, 0)].start == END
    assert TopicPartition(name, 0) not in found


def test_start_offsets_of_a_missing_partition_are_refused_and_the_others_are_set(
    ours: Admin, servers: str, topic: str, make_sync_share: Any
) -> None:
    group, there, missing = unique("partly"), TopicPartition(topic, 0), TopicPartition(topic, 9)
    ours.alter_group_config(group, {"share.auto.offset.reset": "earliest"})
    take(make_sync_share, servers, group, topic, 2 * END)
    with pytest.raises(PartialFailureError, match=rf"1 of 2 failed: {missing} .*The others are done") as caught:
        ours.alter_share_offsets(group, {there: 7, missing: 7})
    assert caught.value.done == {there}
    error = caught.value.errors[missing]
    assert isinstance(error, KafkaError)
    assert error.name == "UNKNOWN_TOPIC_OR_PARTITION"
    assert ours.share_offsets(group)[there].start == 7


def test_a_share_group_with_members_is_refused_and_they_are_named(
    ours: Admin, servers: str, topic: str, make_sync_share: Any
) -> None:
    group = unique("busy")
    consumer = make_sync_share(bootstrap_servers=servers, group_id=group, topics=[topic], client_id="the-mailer")
    while (described := ours.describe_group(group)) is None or not described.members:
        consumer.poll(0.1)
    for change in (
        lambda: ours.plan_reset(group, "earliest"),
        lambda: ours.alter_share_offsets(group, {TopicPartition(topic, 0): 0}),
        lambda: ours.delete_share_offsets(group, [topic]),
        lambda: ours.delete_group(group),
    ):
        with pytest.raises(GroupNotEmptyError, match=r"it has 1 member: the-mailer at 127\.0\.0\.1 \("):
            change()


def test_what_a_share_group_does_not_have_is_named(ours: Admin, servers: str, topic: str) -> None:
    group = unique("nobody")
    with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
        ours.delete_share_offsets(group, [topic], timeout=5)
