"""Unusual settings: all records are delivered, and send() waits for buffer memory and resumes."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from support.brokers.admin import Admin
from support.brokers.produce import Outgoing, write
from support.brokers.topic_contents import oracle_rows
from support.harness.producers import MakeProducer

pytestmark = pytest.mark.timeout(120)

PARTITIONS = 3
RECORDS = 6_000
THREADS = 4

SETTINGS: dict[str, dict[str, Any]] = {
    "acks=0": {"acks": 0},
    "acks=1": {"acks": 1},
    "without idempotence": {"enable_idempotence": False},
    "one in flight": {"max_in_flight_requests_per_connection": 1},
    "no linger": {"linger_ms": 0},
    "long linger": {"linger_ms": 60_000},
    "no batches": {"batch_size": 0},
    "large batches": {"batch_size": 1_000_000},
    "tiny memory": {"buffer_memory": 1000},
    "tiny memory, long linger": {"buffer_memory": 1000, "linger_ms": 60_000},
    "small requests": {"max_request_size": 400, "batch_size": 200},
}


def written_topic(admin: Admin, servers: str) -> str:
    """A topic with one record in each partition. For a moment after its creation, a broker rejects records. With acks=0
    they would be lost, and without idempotence they could be out of order."""
    topic = admin.create("settings", PARTITIONS)
    write(servers, topic, [Outgoing(b"-1", partition=number) for number in range(PARTITIONS)])
    return topic


@pytest.mark.parametrize("name", list(SETTINGS))
def test_all_records_are_delivered_in_order(make_producer: MakeProducer, servers: str, admin: Admin, name: str) -> None:
    topic = written_topic(admin, servers)
    producer = make_producer(bootstrap_servers=servers, **SETTINGS[name])
    count = RECORDS if "tiny" not in name and name != "no batches" else RECORDS // 4
    for number in range(count):
        producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
    producer.flush(timeout=60)
    for partition in range(PARTITIONS):
        admin.wait_end(topic, 1 + count // PARTITIONS, partition)  # with acks=0 the broker may still be writing
    rows = oracle_rows(servers, topic, PARTITIONS)
    for partition in range(PARTITIONS):
        values = [int(each.value or b"") for each in rows if each.partition == partition]
        assert values[1:] == list(range(partition, count, PARTITIONS))
    assert producer.metrics()["buffered_bytes"] == 0
    assert producer.metrics()["records_delivered"] == count


def test_deliveries_with_acks_0_have_no_offset(make_producer: MakeProducer, servers: str, admin: Admin) -> None:
    topic = written_topic(admin, servers)
    producer = make_producer(bootstrap_servers=servers, acks=0)
    delivery = producer.send(topic, b"x", partition=0)
    assert delivery.result(60).offset is None
    assert delivery.is_done
    admin.wait_end(topic, 2)


@pytest.mark.parametrize("name", ["tiny memory", "no linger", "long linger"])
def test_threads_that_send_at_the_same_time_keep_their_order(
    make_sync_producer: MakeProducer, servers: str, admin: Admin, name: str
) -> None:
    topic = admin.create("threads", PARTITIONS)
    producer = make_sync_producer(bootstrap_servers=servers, **SETTINGS[name])
    most = 0

    def send(thread: int) -> None:
        nonlocal most
        for number in range(RECORDS // 10):
            producer.send(topic, b"%d %d" % (thread, number), b"%d" % (number % 5))
            most = max(most, producer.metrics()["buffered_bytes"])

    threads = [threading.Thread(target=send, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "send() hangs"
    producer.flush(timeout=60)
    rows = oracle_rows(servers, topic, PARTITIONS)
    assert len(rows) == THREADS * (RECORDS // 10)
    for partition in range(PARTITIONS):
        for thread in range(THREADS):
            own = [each.value or b"" for each in rows if each.partition == partition]
            numbers = [int(value.split()[1]) for value in own if value.startswith(b"%d " % thread)]
            assert numbers == sorted(set(numbers))
    assert most <= SETTINGS[name].get("buffer_memory", 2**25)


def test_records_for_many_new_topics_wait_for_metadata_without_pauses(
    make_sync_producer: MakeProducer, servers: str, admin: Admin
) -> None:
    topics = [admin.create("new") for _ in range(30)]
    producer = make_sync_producer(bootstrap_servers=servers, retry_backoff_ms=1000)
    began = time.monotonic()
    for topic in topics:
        producer.send(topic, b"")
    assert time.monotonic() - began < 20
    producer.flush(timeout=60)


def test_a_batch_waits_for_linger_ms_unless_somebody_flushes(
    make_producer: MakeProducer, servers: str, admin: Admin
) -> None:
    topic = admin.create("linger")
    producer = make_producer(bootstrap_servers=servers, linger_ms=1000)
    began = time.monotonic()
    first = producer.send(topic, b"1")
    first.result(30)
    assert time.monotonic() - began >= 1
    second = producer.send(topic, b"2")
    producer.flush(timeout=30)
    assert second.is_done
    assert [each.offset for each in (first, second)] == [0, 1]


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_acknowledged_records_of_uneven_partitions_are_there_although_requests_are_small(
    make_sync_producer: MakeProducer, servers: str, admin: Admin, is_idempotent: bool
) -> None:
    """A batch often does not fit into a request. It is then first in the next one, which may have its successor too."""
    topic, dice = written_topic(admin, servers), random.Random(1)
    settings = {"batch_size": 3000, "max_request_size": 20_000, "enable_idempotence": is_idempotent}
    producer = make_sync_producer(bootstrap_servers=servers, linger_ms=1, **settings)
    deliveries = [
        producer.send(
            topic, b"%d " % number + b"." * dice.choice((10, 100, 15_000)), partition=dice.choice((0, 0, 1, 2))
        )
        for number in range(5000)
    ]
    producer.flush(timeout=60)
    found = {(each.partition, each.offset): each.value or b"" for each in oracle_rows(servers, topic, PARTITIONS)}
    assert len(found) == PARTITIONS + len(deliveries)
    numbers = [int(found[each.partition, each.offset].split()[0]) for each in deliveries]
    assert numbers == list(range(len(deliveries)))
