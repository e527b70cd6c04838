"""Records written by headrace, read by Java's consumer, confluent-kafka and headrace."""

from __future__ import annotations

import datetime
import random
import subprocess
import time
from typing import Any

import pytest

from headrace import TopicPartition
from headrace._aio.produce.producer import Bytes
from support.brokers.admin import Admin
from support.brokers.java_tool import java_tool
from support.brokers.topic_contents import oracle_rows, row
from support.harness.consumers import MakeConsumer, assigned, poll_until
from support.harness.producers import MakeProducer

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NULL = "<null>"
JAVA_ENDS_WITHIN = 100.0
LARGE = 10 * 2**20

Sent = tuple[Bytes | None, Bytes | None, list[tuple[str, Bytes | None]]]


def samples(codec: str) -> list[Sent]:
    """Values, keys and headers of all kinds: null, empty, text, compressible and incompressible."""
    dice = random.Random(codec)
    found: list[Sent] = [
        (None, None, []),
        (b"", b"", []),
        (None, b"tombstone", []),
        ("größer", "schlüssel", [("name", "wert"), ("name", b"again"), ("null", None), ("empty", b"")]),
        (b"x" * 200_000, b"compressible", []),
        (dice.randbytes(200_000).hex(), "incompressible", []),
        (bytearray(b"array"), memoryview(b"view"), [("v", memoryview(b"1"))]),
    ]
    found += [(b"value %d" % number, b"%d" % (number % 7), [("n", b"%d" % number)]) for number in range(500)]
    return found


def as_bytes(value: Bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else None if value is None else bytes(value)


def plain(sent: Sent) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
    value, key, headers = sent
    return as_bytes(value), as_bytes(key), tuple((name, as_bytes(each)) for name, each in headers)


def java_rows(servers: str, topic: str, count: int) -> list[str]:
    """Partition, offset, headers, key and value of each record, as Java's console consumer prints them."""
    shown = ("partition", "offset", "headers", "key", "value")
    done = subprocess.run(
        java_tool(
            "consumer.ConsoleConsumer",
            *("--bootstrap-server", servers, "--topic", topic, "--from-beginning"),
            *("--max-messages", str(count), "--timeout-ms", "60000"),
            *(part for name in shown for part in ("--formatter-property", f"print.{name}=true")),
            *("--formatter-property", "null.literal=" + NULL),
        ),
        capture_output=True,
        timeout=JAVA_ENDS_WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return sorted(done.stdout.decode().splitlines())


def as_java_prints(offset: int, sent: Sent) -> str:
    value, key, headers = plain(sent)

    def text(each: bytes | None) -> str:
        return NULL if each is None else each.decode()

    named = ",".join(f"{name}:{text(each)}" for name, each in headers) or "NO_HEADERS"
    return "\t".join(("Partition:0", f"Offset:{offset}", named, text(key), text(value)))


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_are_read_by_java_confluent_and_headrace(
    make_sync_producer: MakeProducer, make_sync: MakeConsumer, servers: str, admin: Admin, codec: str
) -> None:
    topic, records = admin.create(f"written-{codec}"), samples(codec)
    first = int(time.time() * 1000) - 100_000
    producer = make_sync_producer(bootstrap_servers=servers, compression_type=codec, linger_ms=20)
    deliveries = [
        producer.send(topic, value, key, headers=headers, timestamp=first + number)
        for number, (value, key, headers) in enumerate(records)
    ]
    producer.flush()
    assert [each.offset for each in deliveries] == list(range(len(records)))
    expected = oracle_rows(servers, topic)
    assert [(each.value, each.key, each.headers) for each in expected] == [plain(each) for each in records]
    assert [each.timestamp for each in expected] == [first + number for number in range(len(records))]
    consumer = assigned(make_sync, servers, topic)
    assert [row(each) for each in poll_until(consumer, len(records))] == expected
    printed = sorted(as_java_prints(number, each) for number, each in enumerate(records))
    assert java_rows(servers, topic, len(records)) == printed


def test_a_record_of_10_mb_is_delivered(make_producer: MakeProducer, servers: str, admin: Admin) -> None:
    topic = admin.create("large", max_message_bytes=LARGE + 1000)
    producer = make_producer(bootstrap_servers=servers, max_request_size=LARGE + 1000)
    value = random.Random(1).randbytes(LARGE)
    assert producer.send(topic, value, b"key").result(60).offset == 0
    assert producer.send(topic, b"after").result(60).offset == 1
    assert [each.value for each in oracle_rows(servers, topic)] == [value, b"after"]


def test_timestamps_are_those_of_the_records(make_producer: MakeProducer, servers: str, admin: Admin) -> None:
    topic = admin.create("create-time", retention_ms=-1)
    producer = make_producer(bootstrap_servers=servers)
    moment = datetime.datetime(2020, 5, 17, 12, 30, 1, 234_567, tzinfo=datetime.UTC)
    before = int(time.time() * 1000)
    deliveries = [producer.send(topic, b"", timestamp=each) for each in (5, 0, moment, None)]
    found = [each.result(60).timestamp for each in deliveries]
    assert found[:3] == [5, 0, 1_589_718_601_234]
    assert before <= found[3] <= int(time.time() * 1000)
    assert [each.timestamp for each in oracle_rows(servers, topic)] == found


def test_deliveries_have_the_log_append_time_of_a_topic_that_has_one(
    make_producer: MakeProducer, servers: str, admin: Admin
) -> None:
    topic = admin.create("append-time", message_timestamp_type="LogAppendTime")
    producer = make_producer(bootstrap_servers=servers)
    delivery = producer.send(topic, b"", timestamp=5)
    producer.flush()
    (found,) = oracle_rows(servers, topic)
    assert delivery.timestamp == delivery.result().timestamp == found.timestamp
    assert found.timestamp > 10**12
    assert found.timestamp_type == 1


def test_deliveries_tell_partition_and_offset_of_their_records(
    make_producer: MakeProducer, servers: str, admin: Admin
) -> None:
    topic = admin.create("places", 5)
    producer = make_producer(bootstrap_servers=servers, linger_ms=2, batch_size=300)
    dice = random.Random(3)
    sent: list[tuple[bytes, Any]] = []
    for number in range(3000):
        place = dice.choice(({"partition": dice.randrange(5)}, {"key": b"%d" % dice.randrange(40)}, {}))
        sent.append((b"%d" % number, producer.send(topic, b"%d" % number, **place)))
    producer.flush()
    found = {(each.partition, each.offset): each.value for each in oracle_rows(servers, topic, 5)}
    assert {(each.partition, each.offset): value for value, each in sent} == found
    places = [TopicPartition(each.topic, each.partition) for each in producer.partitions_for_topic(topic)]
    assert places == [TopicPartition(topic, number) for number in range(5)]
