"""Faults around a share consumer: killed consumers and brokers, new leaders, lost sessions."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from headrace import Consumer, LocalBroker, TopicPartition
from headrace.errors import HeadraceError
from support.brokers.admin import Admin
from support.brokers.produce import Writer, numbered
from support.harness.share_consumers import MakeShareConsumer, offsets, poll_nothing, poll_some, put, share_group
from support.harness.waiting import wait_for

TESTS = Path(__file__).parents[2]


def test_records_of_a_killed_share_consumer_are_delivered_to_another(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    """When the connection ends, the broker releases the records, long before the locks expire."""
    topic, group = admin.create("killed"), share_group(servers)
    put(servers, topic, numbered(10))
    command = [sys.executable, "-m", "support.programs.share_holder", servers, group, topic]
    with subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline().split() == [str(number) for number in range(10)]
            other = make_sync_share(bootstrap_servers=servers, group_id=group, topics=[topic])
            poll_nothing(other, 0.7)
        finally:
            holder.kill()
    began = time.monotonic()
    again = poll_some(other)
    assert time.monotonic() - began < 25
    assert [(record.offset, record.delivery_count) for record in again] == [(number, 2) for number in range(10)]
    assert list(other.commit().values()) == [None]


def test_a_share_session_with_a_wrong_epoch_is_reopened_without_loss(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    """The locks stay while the connection is open: no record is lost or repeated."""
    topic = admin.create("step")
    put(servers, topic, numbered(20))
    consumer = make_sync_share(
        bootstrap_servers=servers,
        group_id=share_group(servers),
        max_poll_records=10,
        share_acquire_mode="record_limit",
        topics=[topic],
    )
    assert offsets(poll_some(consumer)) == list(range(10))
    (session,) = consumer._parts.buffer.planner.sessions.values()
    session.share_session._epoch += 7
    assert offsets(poll_some(consumer)) == list(range(10, 20))
    assert list(consumer.commit().values()) == [None]
    numbers = consumer.metrics()
    assert (numbers["acknowledged"], numbers["refused"]) == (20, 0)


def test_a_broken_connection_is_reported_to_the_acknowledgement_callback(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    topic = admin.create("broken")
    put(servers, topic, numbered(10))
    consumer = make_sync_share(bootstrap_servers=servers, group_id=share_group(servers), topics=[topic])
    heard: list[tuple[Any, HeadraceError | None]] = []
    consumer.set_acknowledgement_commit_callback(lambda offsets, error: heard.append((offsets, error)))
    poll_some(consumer)
    (stream,) = consumer._parts.lifecycle.runtime.sessions._streams.values()
    consumer._portal.call(stream._connection.close)
    again = poll_some(consumer)
    assert {record.delivery_count for record in again} == {2}
    assert [(sorted(map(str, offsets)), error is None) for offsets, error in heard] == [([f"{topic}-0"], False)]
    assert list(consumer.commit().values()) == [heard[0][1]], "one of the records that were sent before this commit"
    assert consumer.commit() == {}


class Worker:
    """A share consumer on a thread that accepts all its records."""

    def __init__(self, consumer: Any) -> None:
        self.seen: set[int] = set()
        self._consumer = consumer
        self._stop = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self.seen |= {int(record.value) for record in self._consumer.poll(0.3)}
            self._consumer.commit(timeout=60)
        except BaseException as problem:  # noqa: BLE001 - the test reports it
            self._problem = problem

    def end(self) -> None:
        self._stop.set()
        self._thread.join(90)
        assert self._problem is None, self._problem


def _leader(address: str, tp: TopicPartition) -> int | None:
    """The leader of the partition, according to the broker at this address."""
    with Consumer(bootstrap_servers=address) as consumer:
        leader = consumer.partitions_for_topic(tp.topic)[tp.partition].leader
        return None if leader is None else leader.id


def test_a_share_group_loses_nothing_when_a_leader_is_killed_and_restarted(
    make_sync_share: MakeShareConsumer, whole_cluster: LocalBroker, cluster_admin: Admin
) -> None:
    """Leaders, coordinators and locks move; members continue, and every record is delivered. When the old leader takes
    over again, it rejects acknowledgements of acquired records and delivers those records again."""
    servers = whole_cluster.bootstrap_servers
    topic = cluster_admin.create("survivors", replicas=[[1, 2, 3], [2, 3, 1], [3, 1, 2]], min_insync_replicas=1)
    group = share_group(servers, share_delivery_count_limit=10)
    settings = {"bootstrap_servers": servers, "group_id": group, "topics": [topic], "max_poll_records": 50}
    settings["request_timeout_ms"] = 6000
    workers = [
        Worker(make_sync_share(**settings, share_acquire_mode=mode)) for mode in ("batch_optimized", "record_limit")
    ]
    written = 0

    def write_some(count: int) -> None:
        nonlocal written
        writer = Writer(servers, acks="all", enable_idempotence=True)
        for number in range(written, written + count):
            writer.send(topic, numbered(1, partition=number % 3, start=number))
        writer.flush()
        written += count

    def unseen() -> set[int]:
        return set(range(written)) - workers[0].seen - workers[1].seen

    try:
        write_some(600)
        wait_for("some are delivered", lambda: len(unseen()) < 300)
        whole_cluster.kill(1)
        write_some(600)
        wait_for("all are delivered without one broker", lambda: not unseen(), 60)
        whole_cluster.restart(1)
        write_some(300)
        wait_for("all are delivered", lambda: not unseen(), 60)
    finally:
        for worker in workers:
            worker.end()

    cluster_admin.wait_in_sync(topic, 3, 3)
    moved = TopicPartition(topic, 0)
    assert cluster_admin.leader(topic) != 1
    consumer = make_sync_share(bootstrap_servers=servers, group_id=share_group(servers), topics=[topic])
    while moved not in (records := poll_some(consumer)).partitions:
        pass
    held = offsets(records[moved])
    cluster_admin.elect_preferred(topic, 3)
    for broker in whole_cluster.brokers:  # the previous leader must know it, too
        wait_for("the election", lambda broker=broker: _leader(whole_cluster.address(broker), moved) == 1)
    assert consumer.commit()[moved] is not None
    again: list[int] = []
    while len(again) < len(held):
        while moved not in (records := poll_some(consumer)).partitions:
            pass
        again += offsets(records[moved])
    assert again[: len(held)] == held
    assert consumer.commit()[moved] is None
