"""Members of a group: subscriptions, assignments, listeners, commits, on both group protocols."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Consumer, OffsetAndMetadata, TopicPartition
from headrace.errors import ConfigError, KafkaError, StateError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, numbered_topic, write
from support.harness.consumers import MakeConsumer, poll_until
from support.harness.groups import (
    SESSION,
    WAYS,
    RecordingListener,
    all_of,
    fully_assigned,
    member,
    poll_all,
    stable,
)
from support.harness.waiting import wait_for

PARTITIONS = 4
RECORDS = 25  # per partition


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("groups", PARTITIONS), PARTITIONS, RECORDS)


def test_a_member_alone_reads_everything(make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]) -> None:
    listener, group = RecordingListener(), unique("g")
    consumer = member(make, servers, group, [topic], listener=listener, **way)
    assert consumer.subscription() == {topic}
    assert consumer.assignment() == set()
    assert consumer.group_metadata().generation_id == -1
    records = poll_until(consumer, PARTITIONS * RECORDS)
    assert {(r.partition, r.offset) for r in records} == {
        (partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)
    }
    assert consumer.assignment() == all_of(topic, PARTITIONS)
    me = consumer.group_metadata()
    assert me.group_id == group
    assert me.generation_id > 0
    assert me.member_id
    consumer.close()
    assert listener.kinds() == ["assigned", "revoked"]
    assert listener.events[-1] == ("revoked", all_of(topic, PARTITIONS))


def test_two_members_share_and_a_leaver_s_partitions_move_at_once(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    group, listeners = unique("g"), [RecordingListener(), RecordingListener()]
    first = member(make, servers, group, [topic], listener=listeners[0], **way)
    read = poll_all([first], fully_assigned([first], PARTITIONS))
    second = member(make, servers, group, [topic], listener=listeners[1], **way)
    read += poll_all([first, second], fully_assigned([first, second], PARTITIONS))
    kept = second.assignment()
    first.close()
    read += poll_all([second], fully_assigned([second], PARTITIONS), timeout=SESSION / 2)
    assert kept <= second.assignment()
    read += poll_all([second], lambda: all(second.position(tp) == RECORDS for tp in all_of(topic, PARTITIONS)))
    places = [(r.partition, r.offset) for r in read]
    assert len(places) == len(set(places)) == PARTITIONS * RECORDS, "auto-commit hands over without repeats"
    if way is WAYS["cooperative"] or way is WAYS["consumer"]:
        assert ("revoked", all_of(topic, PARTITIONS)) not in listeners[0].events, "only moved partitions are revoked"
        assert listeners[1].kinds() == ["assigned", "assigned"]


def test_members_of_one_process_do_not_wait_for_their_heartbeats_to_rebalance(
    make: MakeConsumer, servers: str, topic: str
) -> None:
    rarely = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 20_000}
    group, soon = unique("g"), 10.0
    first = member(make, servers, group, [topic], **rarely)
    poll_all([first], fully_assigned([first], PARTITIONS))
    second = member(make, servers, group, [topic], **rarely)
    poll_all([first, second], fully_assigned([first, second], PARTITIONS), timeout=soon)
    second.close()
    poll_all([first], fully_assigned([first], PARTITIONS), timeout=soon)


def test_the_next_member_resumes_at_the_commits_of_the_last(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    group = unique("g")
    consumer = member(make, servers, group, [topic], enable_auto_commit=False, max_poll_records=40, **way)
    seen = poll_until(consumer, 1)
    consumer.commit()
    tp = TopicPartition(topic, seen[-1].partition)
    position = consumer.position(tp)
    assert consumer.committed([tp])[tp] == OffsetAndMetadata(position, "", seen[-1].leader_epoch)
    consumer.poll(1.0)
    consumer.close()
    again = member(make, servers, group, [topic], enable_auto_commit=False, **way)
    rest = poll_until(again, PARTITIONS * RECORDS - len(seen))
    assert len(rest) == PARTITIONS * RECORDS - len(seen)
    assert not {(r.partition, r.offset) for r in seen} & {(r.partition, r.offset) for r in rest}


def test_a_pattern_follows_new_topics(make: MakeConsumer, servers: str, admin: Admin, way: dict[str, Any]) -> None:
    prefix = unique("pattern")
    first = admin.create(f"{prefix}-a")
    write(servers, first, numbered(3))
    consumer = make(
        bootstrap_servers=servers, group_id=unique("g"), auto_offset_reset="earliest", metadata_max_age_ms=300, **way
    )
    consumer.subscribe(pattern=re.compile(f"{prefix}-.*"))
    assert len(poll_until(consumer, 3)) == 3
    second = admin.create(f"{prefix}-b")
    admin.create(f"not-{prefix}-c")
    write(servers, second, numbered(2))
    assert {r.topic for r in poll_until(consumer, 2)} == {second}
    assert consumer.subscription() == {first, second}
    assert consumer.assignment() == all_of(first, 1) | all_of(second, 1)


@pytest.mark.kafka("4.0")
def test_a_pattern_can_be_matched_by_the_coordinator(make_sync: MakeConsumer, servers: str, topic: str) -> None:
    consumer = make_sync(
        bootstrap_servers=servers, group_id=unique("g"), auto_offset_reset="earliest", group_protocol="consumer"
    )
    consumer.subscribe(pattern=f"{topic[:-1]}[{topic[-1]}]")
    assert len(poll_until(consumer, PARTITIONS * RECORDS)) == PARTITIONS * RECORDS
    assert consumer.assignment() == all_of(topic, PARTITIONS)
    assert consumer.subscription() == {topic}
    consumer.subscribe(pattern="(")
    with pytest.raises(KafkaError, match="INVALID_REGULAR_EXPRESSION"):
        poll_until(consumer, 1)
    consumer.subscribe([topic])
    poll_all([consumer], fully_assigned([consumer], PARTITIONS))


@pytest.mark.soak  # the coordinator looks for new topics every ten seconds
@pytest.mark.kafka("4.0")
def test_a_pattern_that_the_coordinator_matches_finds_new_topics(
    make_sync: MakeConsumer, servers: str, admin: Admin
) -> None:
    first = admin.create("matched", 1)
    consumer = make_sync(
        bootstrap_servers=servers, group_id=unique("g"), auto_offset_reset="earliest", group_protocol="consumer"
    )
    consumer.subscribe(pattern=f"{first}.*")
    poll_all([consumer], fully_assigned([consumer], 1))
    second = admin.create("", name=f"{first}-second")
    write(servers, second, numbered(5))
    assert len(poll_until(consumer, 5)) == 5
    assert consumer.subscription() == {first, second}


def test_a_member_gets_partitions_added_to_its_topic(
    make: MakeConsumer, servers: str, admin: Admin, way: dict[str, Any]
) -> None:
    topic = admin.create("grows", 1)
    consumer = member(make, servers, unique("g"), [topic], metadata_max_age_ms=300, **way)
    poll_all([consumer], fully_assigned([consumer], 1))
    admin.add_partitions(topic, 3)
    write(servers, topic, numbered(5, 2))
    assert len(poll_until(consumer, 5)) == 5
    assert consumer.assignment() == all_of(topic, 3)


def test_a_changed_subscription_changes_the_assignment(
    make: MakeConsumer, servers: str, admin: Admin, way: dict[str, Any]
) -> None:
    one, two = admin.create("one", 2), admin.create("two", 1)
    listener = RecordingListener()
    consumer = member(make, servers, unique("g"), [one], listener=listener, **way)
    poll_all([consumer], fully_assigned([consumer], 2))
    consumer.subscribe([one, two], listener=listener)
    poll_all([consumer], fully_assigned([consumer], 3))
    consumer.subscribe([two], listener=listener)
    poll_all([consumer], lambda: consumer.assignment() == all_of(two, 1))
    assert ("revoked", all_of(one, 2)) in listener.events or (
        "revoked",
        all_of(one, 2) | all_of(two, 1),
    ) in listener.events


def test_unsubscribe_leaves_the_group(make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]) -> None:
    group, listener = unique("g"), RecordingListener()
    consumer = member(make, servers, group, [topic], listener=listener, **way)
    poll_all([consumer], fully_assigned([consumer], PARTITIONS))
    identity = consumer.group_metadata()
    consumer.unsubscribe()
    assert consumer.assignment() == consumer.subscription() == set()
    assert listener.kinds() == ["assigned", "revoked"]
    assert consumer.group_metadata() == identity, "brokers would accept a transaction without an identity"
    consumer.assign([(topic, 0)])
    assert consumer.group_metadata().member_id == ""
    consumer.unsubscribe()
    with pytest.raises(StateError, match="nothing is subscribed"):
        consumer.poll(0.0)
    other = member(make, servers, group, [topic], **way)
    poll_all([other], fully_assigned([other], PARTITIONS), timeout=SESSION / 2)
    other.close()
    consumer.assign([TopicPartition(topic, 0)])  # the consumer can be reused, by assignment ...
    assert consumer.position(TopicPartition(topic, 0)) >= 0
    consumer.unsubscribe()
    consumer.subscribe([topic])  # ... or by subscription
    poll_all([consumer], fully_assigned([consumer], PARTITIONS))


def test_a_consumer_has_threads_only_from_the_first_poll_to_unsubscribe(servers: str, topic: str) -> None:
    others = set(threading.enumerate())  # left by earlier tests that interrupt the creation of threads

    def threads() -> set[str]:
        return {thread.name for thread in set(threading.enumerate()) - others if thread.name.startswith("headrace")}

    consumer = Consumer(bootstrap_servers=servers, group_id=unique("g"))
    consumer.subscribe([topic])
    assert threads() == set(), "no thread before the first poll"
    poll_all([consumer], fully_assigned([consumer], PARTITIONS))
    assert threads()
    consumer.unsubscribe()
    wait_for("the end of its threads", lambda: not threads())
    consumer.close()


def test_static_members_come_back_to_their_partitions(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    group = unique("g")
    listener = RecordingListener()
    stays = member(make, servers, group, [topic], group_instance_id="stays", listener=listener, **way)
    goes = member(make, servers, group, [topic], group_instance_id="goes", **way)
    poll_all([stays, goes], stable([stays, goes], PARTITIONS))
    mine, heard = goes.assignment(), len(listener.events)
    goes.close()
    back = member(make, servers, group, [topic], group_instance_id="goes", **way)
    poll_all([back, stays], lambda: back.assignment() == mine)
    assert listener.events[heard:] == [], "the other member does not notice"
    assert back.group_metadata().group_instance_id == "goes"


def test_a_second_member_with_the_same_instance_id_fences_the_first(
    make_sync: MakeConsumer, servers: str, topic: str
) -> None:
    group = unique("g")
    way = WAYS["eager"]
    first = member(make_sync, servers, group, [topic], group_instance_id="me", **way)
    poll_all([first], fully_assigned([first], PARTITIONS))
    second = member(make_sync, servers, group, [topic], group_instance_id="me", **way)
    poll_all([second], fully_assigned([second], PARTITIONS))
    with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
        poll_all([first], lambda: False)
    assert first.poll(0.1).lost == all_of(topic, PARTITIONS), "the poll that raised has not reported them"
    with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
        first.poll(0.1)
    assert first.assignment() == set()


@pytest.mark.kafka("4.0")
def test_with_kip_848_a_second_member_with_the_same_instance_id_is_refused(
    make_sync: MakeConsumer, servers: str, topic: str
) -> None:
    group, way = unique("g"), WAYS["consumer"]
    first = member(make_sync, servers, group, [topic], group_instance_id="me", **way)
    poll_all([first], fully_assigned([first], PARTITIONS))
    second = member(make_sync, servers, group, [topic], group_instance_id="me", **way)
    with pytest.raises(KafkaError, match="UNRELEASED_INSTANCE_ID"):
        poll_all([second], lambda: False)
    first.poll(0.0)
    assert first.assignment() == all_of(topic, PARTITIONS)


# -- wrong use -------------------------------------------------------------------------------------------------------


def test_wrong_uses_of_subscriptions_are_refused(make: MakeConsumer, servers: str) -> None:
    without = make(bootstrap_servers=servers)
    with pytest.raises(ConfigError, match=r"group\.id"):
        without.subscribe(["t"])
    with pytest.raises(ConfigError, match=r"group\.id"):
        without.group_metadata()
    consumer = make(bootstrap_servers=servers, group_id=unique("g"))
    with pytest.raises(TypeError, match="a list of topic names"):
        consumer.subscribe("topic")
    with pytest.raises(ConfigError, match="topics or a pattern"):
        consumer.subscribe()
    with pytest.raises(ConfigError, match="at least one topic"):
        consumer.subscribe([])
    with pytest.raises(ConfigError, match="regular expression"):
        consumer.subscribe(pattern="(")
    with pytest.raises(TypeError, match="RebalanceListener"):
        consumer.subscribe(["t"], listener=object())
    with pytest.raises(StateError, match="has a group to rebalance"):
        consumer.enforce_rebalance()
    consumer.subscribe(["t"])
    with pytest.raises(StateError, match="unsubscribe"):
        consumer.assign([("t", 0)])
    consumer.unsubscribe()
    consumer.assign([("t", 0)])
    with pytest.raises(StateError, match="unsubscribe"):
        consumer.subscribe(["t"])


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"session_timeout_ms": 100, "heartbeat_interval_ms": 50}, "INVALID_SESSION_TIMEOUT"),
        ({"group_protocol": "consumer", "group_remote_assignor": "nobody"}, "UNSUPPORTED_ASSIGNOR"),
    ],
)
def test_a_rejection_by_the_coordinator_reaches_the_caller(
    make: MakeConsumer, servers: str, topic: str, settings: dict[str, Any], error: str
) -> None:
    consumer = member(make, servers, unique("g"), [topic], **settings)
    with pytest.raises(KafkaError, match=error):
        poll_until(consumer, 1)
    with pytest.raises(KafkaError, match=error):
        consumer.poll(0.1)


def test_members_without_a_common_strategy_are_refused(make_sync: MakeConsumer, servers: str, topic: str) -> None:
    group = unique("g")
    first = member(make_sync, servers, group, [topic], **WAYS["eager"])
    poll_all([first], fully_assigned([first], PARTITIONS))
    second = member(make_sync, servers, group, [topic], partition_assignment_strategy="roundrobin")
    with pytest.raises(KafkaError, match="INCONSISTENT_GROUP_PROTOCOL"):
        poll_until(second, 1)


def test_enforce_rebalance_brings_a_new_generation(make: MakeConsumer, servers: str, topic: str) -> None:
    consumer = member(make, servers, unique("g"), [topic], **WAYS["cooperative"])
    poll_all([consumer], fully_assigned([consumer], PARTITIONS))
    generation = consumer.group_metadata().generation_id
    consumer.enforce_rebalance("a test")
    poll_all([consumer], lambda: consumer.group_metadata().generation_id > generation)
    assert consumer.assignment() == all_of(topic, PARTITIONS)


class Backwards:
    """A user's own assignor: the last member gets everything."""

    name = "backwards"
    cooperative = False

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        return b"hello"

    def assign(self, members: Any, partitions: Any) -> dict[str, list[TopicPartition]]:
        assert {each.user_data for each in members.values()} == {b"hello"}
        last = max(members)
        return {
            last: [TopicPartition(topic, n) for topic in members[last].topics for n in range(partitions[topic])],
        }


def test_an_assignor_of_the_user_computes_the_assignment(make_sync: MakeConsumer, servers: str, topic: str) -> None:
    group = unique("g")
    way = {**WAYS["eager"], "partition_assignment_strategy": [Backwards()]}
    members = [member(make_sync, servers, group, [topic], **way) for _ in range(2)]

    def settled() -> bool:
        ids = [each.group_metadata().member_id for each in members]
        last = members[ids.index(max(ids))]
        return (
            all(ids)
            and last.assignment() == all_of(topic, PARTITIONS)
            and sum(len(each.assignment()) for each in members) == 4
        )

    poll_all(members, settled)


def test_an_assignor_that_raises_is_retried(make_sync: MakeConsumer, servers: str, topic: str) -> None:
    class Moody(Backwards):
        tries = 0

        def assign(self, members: Any, partitions: Any) -> dict[str, list[TopicPartition]]:
            self.tries += 1
            if self.tries == 1:
                raise ZeroDivisionError("not today")
            return super().assign(members, partitions)

    way = {**WAYS["eager"], "partition_assignment_strategy": [Moody()]}
    consumer = member(make_sync, servers, unique("g"), [topic], **way)
    with pytest.raises(StateError, match="not today"):
        poll_until(consumer, 1)
    poll_all([consumer], fully_assigned([consumer], PARTITIONS))


def test_subscribing_to_a_missing_topic_creates_it(make: MakeConsumer, servers: str, way: dict[str, Any]) -> None:
    topic = unique("created")
    consumer = member(make, servers, unique("g"), [topic], metadata_max_age_ms=500, **way)
    poll_all([consumer], lambda: bool(consumer.assignment()))
    assert consumer.assignment() == {TopicPartition(topic, 0)}


def test_without_allow_auto_create_topics_subscribing_creates_no_topic(make_sync: MakeConsumer, servers: str) -> None:
    topic = unique("absent")
    consumer = member(
        make_sync,
        servers,
        unique("g"),
        [topic],
        allow_auto_create_topics=False,
        metadata_max_age_ms=100,
        **WAYS["eager"],
    )
    poll_all([consumer], lambda: consumer.group_metadata().generation_id > 0)
    assert topic not in consumer.list_topics()


@pytest.fixture(autouse=True)
def _no_stray_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No background task crashes."""
    yield
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
