"""Keys map to the same partitions as with Java's producer and librdkafka."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from confluent_kafka import Producer as ConfluentProducer

from headrace._record_batch import BufferMemory, OpenBatches
from headrace.local.tools import java_classpath
from support.brokers.admin import Admin, client_settings
from support.brokers.topic_contents import oracle_rows
from support.harness.producers import MakeProducer

ORACLE = Path(__file__).parents[2] / "support" / "programs" / "PartitionOracle.java"
FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
TIMEOUT = 100.0
COUNT = 100_000
PARTITIONS = 23


def random_keys(count: int) -> list[bytes]:
    dice = random.Random(11)
    return [b"", *(dice.randbytes(dice.randrange(1, 40)) for _ in range(count - 1))]


def partitions_of(hash_name: str, keys: list[bytes], count: int) -> list[int | None]:
    batches = OpenBatches(count, hash_name, BufferMemory(1), 1)
    return [batches.partition(key) for key in keys]


def test_100_000_keys_choose_the_partitions_of_java_s_producer() -> None:
    keys = random_keys(COUNT)
    done = subprocess.run(
        ["java", *FLAGS, "-cp", java_classpath(), str(ORACLE), str(PARTITIONS)],
        input="".join(f"{key.hex()}\n" for key in keys),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert partitions_of("murmur2", keys, PARTITIONS) == [int(line) for line in done.stdout.split()]


def test_keys_land_where_java_s_partitioner_puts_them(make_producer: MakeProducer, servers: str, admin: Admin) -> None:
    topic, keys = admin.create("java-keys", PARTITIONS), random_keys(2000)
    producer = make_producer(bootstrap_servers=servers)
    deliveries = [producer.send(topic, b"", key) for key in keys]
    producer.flush()
    assert [each.partition for each in deliveries] == partitions_of("murmur2", keys, PARTITIONS)
    assert {each.key: each.partition for each in oracle_rows(servers, topic, PARTITIONS)} == {
        key: each.partition for key, each in zip(keys, deliveries, strict=True)
    }


def test_consistent_random_keys_land_where_confluent_kafka_puts_them(
    make_sync_producer: MakeProducer, servers: str, admin: Admin
) -> None:
    ours, theirs = admin.create("ours", PARTITIONS), admin.create("theirs", PARTITIONS)
    keys = random_keys(COUNT)[1:]  # an empty key is no key: its partition is random
    other = ConfluentProducer(client_settings(servers) | {"linger.ms": 50, "queue.buffering.max.messages": COUNT * 2})
    for key in keys:
        other.produce(theirs, b"", key)
    producer = make_sync_producer(bootstrap_servers=servers, partitioner="consistent_random")
    for key in keys:
        producer.send(ours, b"", key)
    producer.flush()
    assert other.flush(TIMEOUT) == 0
    expected = {each.key: each.partition for each in oracle_rows(servers, theirs, PARTITIONS)}
    assert {each.key: each.partition for each in oracle_rows(servers, ours, PARTITIONS)} == expected


def test_records_without_a_key_are_spread_over_all_partitions(
    make_producer: MakeProducer, servers: str, admin: Admin
) -> None:
    topic = admin.create("spread", 4)
    producer = make_producer(bootstrap_servers=servers, batch_size=100, linger_ms=1)
    for number in range(20_000):
        producer.send(topic, b"%020d" % number)
    producer.flush()
    counts = [admin.bounds(topic, number)[1] for number in range(4)]
    assert sum(counts) == 20_000
    assert min(counts) > 1000


def test_ignored_keys_do_not_choose_the_partition(make_producer: MakeProducer, servers: str, admin: Admin) -> None:
    topic = admin.create("ignored", 4)
    producer = make_producer(bootstrap_servers=servers, partitioner_ignore_keys=True, batch_size=100, linger_ms=1)
    found = [producer.send(topic, b"%020d" % number, b"key") for number in range(10_000)]
    producer.flush()
    assert len({each.partition for each in found}) == 4
