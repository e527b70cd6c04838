"""Three brokers that die, restart or hand over leadership, without any effect for the user."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from headrace import LocalBroker, OffsetAndMetadata, TopicPartition
from headrace.errors import LogTruncationError
from support.brokers.admin import Admin, unique
from support.brokers.java_producer import performance_producer
from support.brokers.produce import Outgoing, Writer, numbered, write
from support.harness.consumers import AnyConsumer, MakeConsumer, assigned, poll_until
from support.harness.waiting import wait_for

pytestmark = pytest.mark.timeout(300)

PARTITIONS = 3
MILLION = 1_000_000


class Reading:
    """Collects the values of a consumer. Each offset must be the next of its partition."""

    def __init__(self, consumer: AnyConsumer, timeout: float = 150.0) -> None:
        self.next = dict.fromkeys(consumer.assignment(), 0)
        self.values: list[int] = []
        self._consumer = consumer
        self._deadline = time.monotonic() + timeout

    def poll_until(self, count: int) -> None:
        while len(self.values) < count:
            assert time.monotonic() < self._deadline, self.next
            records = self._consumer.poll(1.0)
            for tp in records.partitions:
                own = records[tp]
                first = self.next[tp]
                self.next[tp] += len(own)
                assert [record.offset for record in own] == list(range(first, self.next[tp]))
            self.values += [int(record.value) for record in records]


@pytest.fixture(scope="module")
def million(cluster: LocalBroker, cluster_admin: Admin) -> str:
    topic = cluster_admin.create("million", PARTITIONS, replication=3)
    properties = ["acks=all", "linger.ms=10", "batch.size=100000"]
    performance_producer(cluster.bootstrap_servers, topic, MILLION, properties, "--payload-monotonic").finish()
    assert sum(cluster_admin.bounds(topic, number)[1] for number in range(PARTITIONS)) == MILLION
    return topic


def test_a_leader_killed_during_a_million_records_costs_no_record(
    make_sync: MakeConsumer, million: str, whole_cluster: LocalBroker, cluster_admin: Admin
) -> None:
    servers = whole_cluster.bootstrap_servers
    consumer = assigned(make_sync, servers, million, PARTITIONS, max_poll_records=5000, queued_max_bytes=2**20)
    reading = Reading(consumer)
    reading.poll_until(300_000)
    cluster_admin.wait_in_sync(million, 3, PARTITIONS)
    leader = cluster_admin.leader(million)
    whole_cluster.kill(leader)
    reading.poll_until(MILLION)
    assert sorted(reading.values) == list(range(MILLION))
    assert {tp: consumer.position(tp) for tp in reading.next} == reading.next
    assert consumer.end_offsets(reading.next) == reading.next
    assert cluster_admin.leader(million) != leader


@pytest.mark.soak
def test_a_rolling_restart_while_records_are_written_loses_nothing(
    make_async: MakeConsumer, whole_cluster: LocalBroker, cluster_admin: Admin
) -> None:
    """Every broker is stopped properly and restarted on its port. No record is lost, duplicated or out of order."""
    topic = cluster_admin.create("rolling", replication=3, min_insync_replicas=2)
    servers = whole_cluster.bootstrap_servers
    written = 0
    done = threading.Event()

    def keep_writing() -> None:
        nonlocal written
        writer = Writer(servers, enable_idempotence=True, acks="all")
        while not done.is_set():
            writer.send(topic, numbered(50, start=written))
            writer.flush()
            written += 50
            done.wait(0.02)

    def restart_all() -> None:
        try:
            for broker in whole_cluster.brokers:
                whole_cluster.restart(broker)
                cluster_admin.wait_in_sync(topic, 3)
            wait_for("enough records", lambda: written > 500)
        finally:
            done.set()

    consumer = assigned(make_async, servers, topic)
    writing, restarting = threading.Thread(target=keep_writing), threading.Thread(target=restart_all)
    writing.start()
    restarting.start()
    values: list[int] = []
    deadline = time.monotonic() + 90
    while not done.is_set() or writing.is_alive() or len(values) < written:
        assert time.monotonic() < deadline, (len(values), written)
        values += [int(record.value or b"") for record in consumer.poll(0.5)]
    restarting.join()
    writing.join()
    assert values == list(range(written))


@pytest.mark.soak
def test_an_election_is_followed_by_the_leader_hint_of_a_fetch_response(
    make_sync: MakeConsumer,
    million: str,
    whole_cluster: LocalBroker,
    cluster_admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old leader still runs after the election, and its response names the new leader (KIP-951)."""
    servers = whole_cluster.bootstrap_servers
    preferred = cluster_admin.replicas(million)[0]
    if cluster_admin.leader(million) == preferred:
        whole_cluster.restart(preferred)
    cluster_admin.wait_in_sync(million, 3)
    before = cluster_admin.leader(million)
    assert before != preferred
    consumer = assigned(make_sync, servers, million)
    consumer.seek_to_end()
    end = consumer.position((million, 0))
    assert len(consumer.poll(0.2)) == 0
    view = consumer._parts.buffer.cluster
    news: list[int] = []
    take_hint = view.hint

    def note_hint(tp: TopicPartition, leader: Any, nodes: Any) -> bool:
        is_news: bool = take_hint(tp, leader, nodes)
        if is_news:
            news.append(leader.node)
        return is_news

    monkeypatch.setattr(view, "hint", note_hint)
    cluster_admin.elect_preferred(million)
    wait_for("the election", lambda: cluster_admin.leader(million) == preferred)
    write(servers, million, numbered(10))
    began = time.monotonic()
    assert [record.offset for record in poll_until(consumer, 10)] == list(range(end, end + 10))
    assert time.monotonic() - began < 20
    assert news == [preferred]


def test_commits_succeed_after_the_coordinator_was_killed(
    make_sync: MakeConsumer, whole_cluster: LocalBroker, cluster_admin: Admin
) -> None:
    servers = whole_cluster.bootstrap_servers
    topic, group = cluster_admin.create("coordinated", replication=3), unique("g")
    tp = TopicPartition(topic, 0)
    write(servers, topic, numbered(10))
    consumer = assigned(make_sync, servers, topic, group_id=group, enable_auto_commit=False)
    poll_until(consumer, 10)
    consumer.commit({tp: 5})
    whole_cluster.kill(cluster_admin.coordinator(group))
    consumer.commit({tp: OffsetAndMetadata(7, "after")}, timeout=60)
    assert consumer.committed([tp], timeout=60) == {tp: OffsetAndMetadata(7, "after")}


@pytest.mark.soak
def test_consuming_resumes_after_all_brokers_were_killed_and_restarted(
    make_async: MakeConsumer, whole_cluster: LocalBroker, cluster_admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    servers = whole_cluster.bootstrap_servers
    topic, group = cluster_admin.create("blackout", replication=3), unique("g")
    tp = TopicPartition(topic, 0)
    write(servers, topic, numbered(10))
    consumer = assigned(make_async, servers, topic, group_id=group, auto_commit_interval_ms=0)
    poll_until(consumer, 10)
    for broker in whole_cluster.brokers:
        whole_cluster.kill(broker)
    for _ in range(10):
        assert len(consumer.poll(0.1)) == 0, "no records and no error without brokers"
    whole_cluster.restart(*whole_cluster.brokers)
    write(servers, topic, numbered(10, start=10))
    assert [record.offset for record in poll_until(consumer, 10)] == list(range(10, 20))
    consumer.close(timeout=60)
    watcher = make_async(bootstrap_servers=servers, group_id=group)
    found = watcher.committed([tp])[tp]
    assert found is not None
    assert found.offset == 20, "a failed auto-commit is repeated"


# -- truncation -----------------------------------------------------------------------------------------------


@pytest.fixture
def truncation(whole_cluster: LocalBroker, cluster_admin: Admin) -> tuple[str, Truncation]:
    topic = cluster_admin.create(
        "truncated",
        replicas=[[1, 2]],
        min_insync_replicas=1,
        unclean_leader_election_enable="true",
    )
    return topic, Truncation(whole_cluster, cluster_admin, topic)


class Truncation:
    """Broker 1 has 150 records, broker 2 only the first 100. Then an unclean election makes broker 2 the leader."""

    def __init__(self, cluster: LocalBroker, admin: Admin, topic: str) -> None:
        self._cluster, self._admin, self._topic = cluster, admin, topic

    def prepare(self) -> None:
        servers = self._cluster.bootstrap_servers
        write(servers, self._topic, numbered(100), acks="all")
        self._cluster.kill(2)
        self._admin.wait_in_sync(self._topic, 1)
        write(servers, self._topic, numbered(50, start=100), acks="all")

    def happen(self) -> None:
        self._cluster.kill(1)
        self._cluster.restart(2)
        wait_for("the unclean election", lambda: self._admin.leader(self._topic) == 2, 60)
        write(self._cluster.bootstrap_servers, self._topic, [Outgoing(b"%d" % n) for n in range(1000, 1020)])


def test_an_unclean_election_is_detected_by_each_reset_policy(
    make_sync: MakeConsumer, truncation: tuple[str, Truncation], whole_cluster: LocalBroker
) -> None:
    topic, event = truncation
    tp = TopicPartition(topic, 0)
    event.prepare()
    strict = assigned(make_sync, whole_cluster.bootstrap_servers, topic, auto_offset_reset="none")
    strict.seek(tp, 0)
    lenient = assigned(make_sync, whole_cluster.bootstrap_servers, topic, auto_offset_reset="earliest")
    ahead = assigned(make_sync, whole_cluster.bootstrap_servers, topic, max_poll_records=50)
    assert len(poll_until(strict, 150)) == len(poll_until(lenient, 150)) == 150
    assert len(poll_until(ahead, 50)) == 50, "the rest is buffered"
    event.happen()

    # With a reset policy, consumption resumes where the logs diverge.
    assert [int(record.value or b"") for record in poll_until(lenient, 20)] == list(range(1000, 1020))
    assert lenient.position(tp) == 120
    deadline = time.monotonic() + 60
    with pytest.raises(LogTruncationError, match="truncated") as caught:  # noqa: PT012 - any of the polls may raise
        while time.monotonic() < deadline:
            strict.poll(1.0)
    assert caught.value.divergence == {tp: 100}
    strict.seek(tp, 100)
    assert [int(record.value or b"") for record in poll_until(strict, 20)] == list(range(1000, 1020))

    # The returned records still exist, so only buffered records are replaced.
    wait_for("the buffer to be replaced", lambda: ahead.metrics()["buffered_records"] == 70)
    rest = [int(record.value or b"") for record in poll_until(ahead, 70)]
    assert rest == [*range(50, 100), *range(1000, 1020)]
