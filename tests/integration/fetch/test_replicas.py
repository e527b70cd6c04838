"""Fetching from the closest replica (KIP-392)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace import LocalBroker, TopicPartition
from support.brokers.admin import Admin
from support.brokers.produce import numbered, write
from support.harness.consumers import AnyConsumer, MakeConsumer, assigned, poll_until, read_rows
from support.harness.waiting import wait_for

COUNT = 20_000
SESSION = 3.5
"""Seconds, a little less than the session timeout of a paused broker."""


@pytest.fixture(scope="module")
def topic(cluster: LocalBroker, cluster_admin: Admin) -> str:
    """A topic led by broker 1 in rack a and followed by broker 2 in rack b. The follower has the high watermark."""
    topic = cluster_admin.create("closest", replicas=[[1, 2]])
    write(cluster.bootstrap_servers, topic, numbered(COUNT, size=1000), acks="all")
    return topic


def near_b(make: MakeConsumer, cluster: LocalBroker, topic: str, **settings: Any) -> AnyConsumer:
    return assigned(make, cluster.bootstrap_servers, topic, client_rack="b", queued_max_bytes=500_000, **settings)


def preferred(consumer: AnyConsumer, topic: str) -> int | None:
    inner: Any = getattr(consumer, "_consumer", consumer)
    found = inner._parts.buffer.assignment.get(TopicPartition(topic, 0)).preferred
    return None if found is None else int(found.node)


def led_by_the_first(cluster_admin: Admin, topic: str) -> None:
    """Restore the original leader."""
    cluster_admin.wait_in_sync(topic, 2)
    if cluster_admin.leader(topic) != 1:
        cluster_admin.elect_preferred(topic)
        wait_for("broker 1 as the leader", lambda: cluster_admin.leader(topic) == 1)


def reading_from_the_follower(make: MakeConsumer, cluster: LocalBroker, topic: str) -> tuple[AnyConsumer, list[int]]:
    """A consumer that reads from the follower, and the offsets it has read so far."""
    consumer = near_b(make, cluster, topic)
    offsets = [record.offset for record in poll_until(consumer, 1)]
    while preferred(consumer, topic) is None:
        offsets += [record.offset for record in poll_until(consumer, 1)]
    assert preferred(consumer, topic) == 2
    return consumer, offsets


def test_the_closest_follower_is_read_while_the_leader_is_paused(
    make: MakeConsumer, topic: str, whole_cluster: LocalBroker, cluster_admin: Admin
) -> None:
    tp = TopicPartition(topic, 0)
    led_by_the_first(cluster_admin, topic)
    assert len(read_rows(near_b(make, whole_cluster, topic), [tp])) == COUNT

    def is_read_meanwhile() -> bool:
        """False if it took so long that the leader's session expired and the follower became the leader."""
        led_by_the_first(cluster_admin, topic)
        consumer, offsets = reading_from_the_follower(make, whole_cluster, topic)
        assert len(offsets) < COUNT // 2
        whole_cluster.pause(1)  # until its session expires, only the follower can respond
        began = time.monotonic()
        try:
            offsets += [record.offset for record in poll_until(consumer, COUNT - len(offsets))]
        finally:
            took = time.monotonic() - began
            whole_cluster.resume(1)
        assert offsets == list(range(COUNT))
        return took < SESSION

    assert any(is_read_meanwhile() for _ in range(4))


def test_one_partition_is_read_from_the_follower_and_another_from_the_leader(
    make: MakeConsumer, cluster: LocalBroker, cluster_admin: Admin
) -> None:
    """One response of the leader of both partitions has records of one and refers to the follower for the other."""
    topic = cluster_admin.create("both", replicas=[[1, 2], [1, 3]])
    for partition in (0, 1):
        write(cluster.bootstrap_servers, topic, numbered(1000, partition), acks="all")
    consumer = assigned(make, cluster.bootstrap_servers, topic, 2, client_rack="b")
    began = time.monotonic()
    assert len(read_rows(consumer, consumer.assignment())) == 2000
    assert time.monotonic() - began < 30
    assert preferred(consumer, topic) == 2


def test_without_client_rack_the_leader_is_read(make: MakeConsumer, topic: str, cluster: LocalBroker) -> None:
    consumer = assigned(make, cluster.bootstrap_servers, topic)
    poll_until(consumer, COUNT)
    assert preferred(consumer, topic) is None


def test_the_leader_is_read_when_the_follower_is_killed(
    make: MakeConsumer, topic: str, whole_cluster: LocalBroker, cluster_admin: Admin
) -> None:
    led_by_the_first(cluster_admin, topic)
    consumer, offsets = reading_from_the_follower(make, whole_cluster, topic)
    whole_cluster.kill(2)
    began = time.monotonic()
    offsets += [record.offset for record in poll_until(consumer, COUNT - len(offsets))]
    assert time.monotonic() - began < 40
    assert offsets == list(range(COUNT))
    assert preferred(consumer, topic) != 2
