"""A share consumer with a broker: records of polls, their acknowledgements, and close()."""

from __future__ import annotations

import threading
import time

import pytest

from headrace import TopicPartition
from headrace.errors import ClosedError, ConfigError, KafkaError, StateError, WakeupError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered
from support.harness.share_consumers import MakeShareConsumer, offsets, poll_nothing, poll_some, put, share_group
from support.harness.waiting import wait_for

pytestmark = pytest.mark.kafka("4.2")


def test_a_share_consumer_reads_all_records_once_and_polls_accept_them(
    make_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    topic = admin.create("queue", 2)
    for number in range(2):
        put(servers, topic, numbered(1000, partition=number))
    group = share_group(servers)
    consumer = make_share(bootstrap_servers=servers, group_id=group, max_poll_records=300, topics=[topic])
    assert consumer.subscription() == {topic}
    assert consumer.acquisition_lock_timeout() is None
    found = []
    while len(found) < 2000:
        records = poll_some(consumer)
        assert len(records) <= 300
        assert {record.delivery_count for record in records} == {1}
        found += [(record.partition, int(record.value or b"")) for record in records]
    assert sorted(found) == [(number, value) for number in range(2) for value in range(1000)]
    assert set(consumer.commit().values()) == {None}
    assert consumer.acquisition_lock_timeout() == 30.0
    numbers = consumer.metrics()
    assert (numbers["acknowledged"], numbers["refused"], numbers["in_hand"]) == (2000, 0, 0)
    consumer.close()
    successor = make_share(bootstrap_servers=servers, group_id=group, topics=[topic])
    poll_nothing(successor, 1.5)


def test_share_records_not_accepted_at_close_are_delivered_again(
    make_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    topic = admin.create("again")
    put(servers, topic, numbered(10))
    group = share_group(servers)
    first = make_share(bootstrap_servers=servers, group_id=group, max_poll_records=4, topics=[topic])
    assert offsets(poll_some(first)) == [0, 1, 2, 3]
    assert offsets(poll_some(first)) == [4, 5, 6, 7]
    first.close()
    second = make_share(bootstrap_servers=servers, group_id=group, topics=[topic])
    again = poll_some(second)
    assert offsets(again) == [4, 5, 6, 7, 8, 9], "the second poll accepted the first four"
    assert {record.delivery_count for record in again} == {2}, "the whole batch was acquired before"
    assert second.commit() == {TopicPartition(topic, 0): None}
    assert second.commit() == {}


def test_two_members_of_a_share_group_read_from_one_partition(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    topic = admin.create("shared")
    group = share_group(servers)
    settings = {"bootstrap_servers": servers, "group_id": group, "max_poll_records": 10, "topics": [topic]}
    members = [make_sync_share(**settings) for _ in range(2)]
    for member in members:
        wait_for("its partition", lambda member=member: not member.poll(0.1) and member.metrics()["partitions"])
    for number in range(40):
        put(servers, topic, numbered(5, start=5 * number))
    found: list[list[int]] = [[], []]
    deadline = time.monotonic() + 60
    while sum(map(len, found)) < 200:
        assert time.monotonic() < deadline, found
        for member, own in zip(members, found, strict=True):
            own += offsets(member.poll(0.2))
    assert sorted(found[0] + found[1]) == list(range(200))
    assert all(found), "both have some"


def test_a_new_share_group_starts_at_the_end_of_the_log(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    topic = admin.create("late")
    put(servers, topic, numbered(10))
    consumer = make_sync_share(bootstrap_servers=servers, group_id=unique("latest"), topics=[topic])
    wait_for("its partition", lambda: not consumer.poll(0.1) and consumer.metrics()["partitions"])
    poll_nothing(consumer, 0.5)
    # The broker decides the start offset at the first fetch, which may come later.
    found: list[int] = []
    deadline = time.monotonic() + 60
    while not found:
        assert time.monotonic() < deadline
        put(servers, topic, numbered(3, start=10))
        found = offsets(consumer.poll(1.0))
    assert found[0] >= 10
    assert found == list(range(found[0], found[0] + len(found)))


def test_a_share_iteration_keeps_records_it_did_not_return(
    make_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    topic = admin.create("iterated")
    put(servers, topic, numbered(10))
    consumer = make_share(bootstrap_servers=servers, group_id=share_group(servers), topics=[topic])
    for record in consumer:
        if record.offset == 3:
            break
    rest = poll_some(consumer)
    assert offsets(rest) == [4, 5, 6, 7, 8, 9]
    assert {record.delivery_count for record in rest} == {1}
    assert consumer.commit() == {TopicPartition(topic, 0): None}
    assert consumer.metrics()["acknowledged"] == 10


def test_a_share_subscription_can_be_changed_and_dropped(
    make_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    one, two = admin.create("one"), admin.create("two")
    for topic in (one, two):
        put(servers, topic, numbered(5))
    consumer = make_share(bootstrap_servers=servers, group_id=share_group(servers), topics=[one])
    assert {record.topic for record in poll_some(consumer)} == {one}
    consumer.subscribe([two])
    assert {record.topic for record in poll_some(consumer)} == {two}
    consumer.commit()
    consumer.unsubscribe()
    assert consumer.subscription() == set()
    with pytest.raises(StateError, match="nothing is subscribed"):
        consumer.poll(0)
    put(servers, one, numbered(5, start=5))
    consumer.subscribe([one, two])
    assert offsets(poll_some(consumer)) == [5, 6, 7, 8, 9]


def test_wakeup_ends_a_waiting_share_poll_and_close_is_quick(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    topic = admin.create("woken")
    consumer = make_sync_share(bootstrap_servers=servers, group_id=share_group(servers), topics=[topic])
    waker = threading.Timer(0.3, consumer.wakeup)
    waker.start()
    with pytest.raises(WakeupError):
        consumer.poll(60)
    waker.join()
    consumer.poll(0.1)
    began = time.monotonic()
    consumer.close()
    consumer.close()
    assert time.monotonic() - began < 10
    with pytest.raises(ClosedError):
        consumer.poll(0)


def test_a_share_consumer_refuses_a_consumer_group(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    from headrace import Consumer

    topic, group = admin.create("kinds"), unique("consumers")
    with Consumer(bootstrap_servers=servers, group_id=group, group_protocol="consumer") as other:
        other.subscribe([topic])
        wait_for("its partition", lambda: not other.poll(0.1) and other.assignment())
        consumer = make_sync_share(bootstrap_servers=servers, group_id=group, topics=[topic])
        with pytest.raises(KafkaError, match="not a share group"):
            consumer.poll(60)


def test_settings_that_contradict_a_share_group_are_refused() -> None:
    from headrace import ShareConsumer

    with pytest.raises(ConfigError, match=r"share\.auto\.offset\.reset"):
        ShareConsumer(bootstrap_servers="b:1", group_id="g", auto_offset_reset="earliest")
    with pytest.raises(ConfigError, match=r"group\.id is missing"):
        ShareConsumer(bootstrap_servers="b:1")
