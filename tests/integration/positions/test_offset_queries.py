"""Offset and topic queries, and metrics."""

from __future__ import annotations

import json

import pytest

from headrace import LocalBroker, OffsetAndTimestamp, TopicPartition, Watermarks
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, numbered, write
from support.harness.consumers import MakeConsumer, assigned, poll_until

TIMES = (1_600_000_000_000, 1_600_000_001_000, 1_600_000_000_500, 1_600_000_009_000)


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    """Partition 0 starts at 4 and ends at 10, partition 1 has records at given times, partition 2 is empty."""
    topic = admin.create("questions", 3, retention_ms=-1)
    write(servers, topic, numbered(10))
    admin.delete_records(topic, before=4)
    write(servers, topic, [Outgoing(b"", partition=1, timestamp=at) for at in TIMES])
    return topic


def test_beginning_and_end_offsets_are_those_of_the_log(make: MakeConsumer, topic: str, servers: str) -> None:
    consumer = make(bootstrap_servers=servers)
    first, second, third = partitions = [TopicPartition(topic, number) for number in range(3)]
    assert consumer.beginning_offsets(partitions) == {first: 4, second: 0, third: 0}
    assert consumer.end_offsets(partitions) == {first: 10, second: 4, third: 0}
    assert consumer.watermarks(first) == Watermarks(4, 10)
    assert consumer.watermarks((topic, 2)) == Watermarks(0, 0)
    assert consumer.beginning_offsets([]) == {}


def test_offsets_for_times_are_the_first_at_or_after_them(make: MakeConsumer, topic: str, servers: str) -> None:
    consumer = make(bootstrap_servers=servers)
    tp, empty = TopicPartition(topic, 1), TopicPartition(topic, 2)

    def at(time: int) -> tuple[int, int] | None:
        found: OffsetAndTimestamp | None = consumer.offsets_for_times({tp: time})[tp]
        return None if found is None else (found.offset, found.timestamp)

    assert at(0) == (0, TIMES[0])
    assert at(TIMES[0]) == (0, TIMES[0])
    assert at(TIMES[0] + 1) == (1, TIMES[1]), "the first record in the log, not the closest in time"
    assert at(TIMES[1] + 1) == (3, TIMES[3])
    assert at(TIMES[3] + 1) is None
    assert consumer.offsets_for_times({tp: 0, empty: 0})[empty] is None
    with pytest.raises(ValueError, match="negative"):
        consumer.offsets_for_times({tp: -1})


def test_topics_are_listed_with_their_partitions(
    make: MakeConsumer, topic: str, kafka_broker: LocalBroker, servers: str
) -> None:
    consumer = make(bootstrap_servers=servers)
    found = consumer.list_topics()
    assert [info.partition for info in found[topic]] == [0, 1, 2]
    assert found[topic] == consumer.partitions_for_topic(topic)
    info = found[topic][1]
    assert info.topic == topic
    assert info.leader is not None
    assert f"{info.leader.host}:{info.leader.port}" == kafka_broker.address(info.leader.id)
    assert info.replicas == info.in_sync_replicas == (info.leader.id,)
    assert info.offline_replicas == ()


def test_a_topic_that_does_not_exist_has_no_partitions(make: MakeConsumer, servers: str) -> None:
    missing = unique("missing")
    consumer = make(bootstrap_servers=servers, allow_auto_create_topics=False)
    assert consumer.partitions_for_topic(missing) == []
    assert missing not in consumer.list_topics()


def test_metrics_count_polls_fetches_and_returned_records(make: MakeConsumer, topic: str, servers: str) -> None:
    consumer = assigned(make, servers, topic, 2)
    records = poll_until(consumer, 10)
    metrics = consumer.metrics()
    assert json.loads(json.dumps(metrics)) == metrics
    assert metrics["records_returned"] == len(records) == 10
    assert metrics["polls"] >= 1
    assert metrics["fetches"] >= 1
    assert metrics["bytes_fetched"] > 0
    assert metrics["connections"] >= 1
    assert metrics["partitions"][f"{topic}-0"]["position"] == 10
    assert metrics["partitions"][f"{topic}-0"]["lag"] == 0
    assert metrics["partitions"][f"{topic}-0"]["phase"] == "ready"
