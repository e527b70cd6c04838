"""Killed brokers, dropped connections and lost responses: no record is lost, duplicated or out of order."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import LocalBroker
from support.brokers.admin import Admin
from support.brokers.faulty_proxy import FaultyProxy, redirecting
from support.brokers.topic_contents import oracle_rows
from support.harness.producers import MakeProducer
from support.harness.waiting import Rounds, wait_for

pytestmark = pytest.mark.timeout(2400 if os.environ.get("SOAK") else 240)

PARTITIONS = 3
ROUNDS = 20 if os.environ.get("SOAK") else 2
RECORDS = 50_000  # in each round
FAULTY_RECORDS = 500_000 if os.environ.get("SOAK") else 30_000


class NumberedSending:
    """Sends numbers to the partitions in turn, then compares deliveries and logs with them."""

    def __init__(self, producer: Any, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._deliveries: list[Any] = []

    @property
    def count(self) -> int:
        return len(self._deliveries)

    def send(self, count: int) -> None:
        for number in range(self.count, self.count + count):
            self._deliveries.append(self._producer.send(self._topic, b"%d" % number, partition=number % PARTITIONS))

    def check(self, servers: str) -> None:
        self._producer.flush(timeout=120)
        rows = oracle_rows(servers, self._topic, PARTITIONS)
        for partition in range(PARTITIONS):
            values = [int(each.value or b"") for each in rows if each.partition == partition]
            assert values == list(range(partition, self.count, PARTITIONS)), "lost, duplicated or out of order"
        places = [(each.partition, each.offset) for each in self._deliveries]
        assert places == [(number % PARTITIONS, number // PARTITIONS) for number in range(self.count)]


def send_during(sending: NumberedSending, fault: Callable[[], object]) -> None:
    """Sends before the fault, and until it has happened, however fast the machine is."""
    happening = threading.Timer(0.05, fault)
    happening.start()
    sending.send(RECORDS)
    while happening.is_alive():
        sending.send(RECORDS // 10)


def test_leaders_that_are_killed_and_restarted_cost_no_record_and_no_order(
    make_sync_producer: MakeProducer, whole_cluster: LocalBroker, cluster_admin: Admin
) -> None:
    topic = cluster_admin.create("killed", PARTITIONS, replication=3, min_insync_replicas=2)
    servers = whole_cluster.bootstrap_servers
    sending = NumberedSending(make_sync_producer(bootstrap_servers=servers, linger_ms=2), topic)
    sending.send(1)
    for round_number in range(ROUNDS):
        cluster_admin.wait_in_sync(topic, 3, PARTITIONS)
        leader = cluster_admin.leader(topic, round_number % PARTITIONS)
        send_during(sending, lambda leader=leader: whole_cluster.kill(leader))
        sending.send(RECORDS // 10)
        whole_cluster.restart(leader)
    sending.check(servers)


def test_a_leader_that_stays_dead_is_replaced_for_all_batches(
    make_sync_producer: MakeProducer, whole_cluster: LocalBroker, cluster_admin: Admin
) -> None:
    """Requests are small, so that batches always wait for the next request to the dead broker."""
    topic = cluster_admin.create("dead", PARTITIONS, replicas=[[1, 2, 3]] * PARTITIONS, min_insync_replicas=2)
    producer = make_sync_producer(
        bootstrap_servers=whole_cluster.bootstrap_servers, batch_size=20_000, max_request_size=40_000, linger_ms=50
    )
    sending = NumberedSending(producer, topic)
    sending.send(1)
    cluster_admin.wait_in_sync(topic, 3, PARTITIONS)
    leader = cluster_admin.leader(topic)
    send_during(sending, lambda: whole_cluster.kill(leader))
    sending.check(whole_cluster.bootstrap_servers)


@contextlib.contextmanager
def faulty(
    servers: str, patch: pytest.MonkeyPatch, *, seed: int = 1, cut: float = 0.02, swallow: float = 0.01
) -> Iterator[list[FaultyProxy]]:
    with contextlib.ExitStack() as stack:
        proxies = [
            stack.enter_context(FaultyProxy(target, seed + at, cut=cut, swallow=swallow, delay=0.2))
            for at, target in enumerate(servers.split(","))
        ]
        ports = {
            int(target.rsplit(":", 1)[1]): proxy.port for target, proxy in zip(servers.split(","), proxies, strict=True)
        }
        stack.enter_context(redirecting(ports, patch))
        yield proxies


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_in_flight_requests_per_connection": 1}, {"batch_size": 2000, "compression_type": "zstd"}],
    ids=["defaults", "one in flight", "small compressed batches"],
)
def test_cut_connections_and_lost_answers_cost_no_record_and_no_order(
    make_sync_producer: MakeProducer,
    servers: str,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    topic = admin.create("cut", PARTITIONS)
    quick = {"request_timeout_ms": 500, "retry_backoff_ms": 10, "reconnect_backoff_ms": 10}
    with faulty(servers, monkeypatch) as (proxy,):
        producer = make_sync_producer(bootstrap_servers=servers, linger_ms=1, **quick, **settings)
        sending = NumberedSending(producer, topic)
        deadline = time.monotonic() + 100
        while sending.count < FAULTY_RECORDS or proxy.faults < 20:
            assert time.monotonic() < deadline
            sending.send(FAULTY_RECORDS // 20)
            wait_for("some of the records", lambda: producer.metrics()["batches_pending"] < 20)
        proxy.is_calm = True
        sending.check(servers)


def test_without_idempotence_no_record_is_lost_by_cut_connections(
    make_sync_producer: MakeProducer, servers: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records may be duplicated."""
    topic = admin.create("at-least-once", PARTITIONS)
    quick = {"request_timeout_ms": 500, "retry_backoff_ms": 10, "reconnect_backoff_ms": 10}
    with faulty(servers, monkeypatch, seed=7) as (proxy,):
        producer = make_sync_producer(bootstrap_servers=servers, enable_idempotence=False, acks=1, **quick)
        rounds = Rounds("faults", 5, at_least=10_000)
        for number in rounds:
            rounds.met = proxy.faults
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
            if number % 500 == 0:
                producer.flush(timeout=60)
        proxy.is_calm = True
        producer.flush(timeout=60)
    rows = oracle_rows(servers, topic, PARTITIONS)
    assert {int(each.value or b"") for each in rows} == set(range(number + 1))
