"""Records of all kinds of producers are read exactly as confluent-kafka's consumer reads them."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

import pytest

from headrace import LocalBroker, TopicPartition
from support.brokers.admin import Admin
from support.brokers.java_producer import console_producer, performance_producer, verifiable_producer
from support.brokers.produce import Outgoing, Writer, numbered, write
from support.brokers.topic_contents import Row, oracle_rows
from support.harness.consumers import AnyConsumer, MakeConsumer, assigned, read_rows
from support.harness.waiting import wait_for

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3


def corner_cases() -> Iterator[Outgoing]:
    """Every combination of missing, empty and present parts, with headers of all kinds."""
    headers: list[tuple[tuple[str, bytes | None], ...]] = [
        (),
        (("one", b"1"),),
        (("again", b"1"), ("again", b"2"), ("again", b"")),
        (("nothing", None), ("empty", b"")),
    ]
    number = 0
    for key in (None, b"", b"key"):
        for value in (None, b"", b"value"):
            for header in headers:
                number += 1
                yield Outgoing(value, key, number % PARTITIONS, headers=header)


def compressible(count: int) -> Iterator[Outgoing]:
    for number in range(count):
        yield Outgoing(b"line %d of a log that says the same again and again" % number, b"%d" % number, number % 3)


@pytest.mark.parametrize("codec", CODECS)
def test_records_written_by_confluent_kafka_are_read_as_it_reads_them(
    make: MakeConsumer, admin: Admin, servers: str, codec: str
) -> None:
    topic = admin.create(f"confluent-{codec}", PARTITIONS)
    write(servers, topic, [*corner_cases(), *compressible(3000), *corner_cases()], compression_codec=codec)
    consumer = assigned(make, servers, topic, PARTITIONS)
    rows = read_rows(consumer, consumer.assignment())
    assert len(rows) == 3072
    assert rows == oracle_rows(servers, topic, PARTITIONS)


@pytest.fixture(scope="module")
def java_topics(kafka_broker: LocalBroker, admin: Admin, servers: str) -> dict[str, str]:
    """A topic for each codec, written by Java's producer. A console line cannot express an empty header list."""
    topics = {codec: admin.create(f"java-{codec}", PARTITIONS) for codec in CODECS}
    records = [*corner_cases(), *(Outgoing(it.value, it.key) for it in compressible(500))]
    runs = [console_producer(servers, topic, codec, records) for codec, topic in topics.items()]
    for run in runs:
        run.finish()
    return topics


@pytest.mark.parametrize("codec", CODECS)
def test_records_written_by_java_are_read_as_confluent_kafka_reads_them(
    make: MakeConsumer, java_topics: dict[str, str], servers: str, codec: str
) -> None:
    topic = java_topics[codec]
    consumer = assigned(make, servers, topic, PARTITIONS)
    rows = read_rows(consumer, consumer.assignment())
    assert len(rows) == 536
    assert {None, b"", b"key"} <= {each.key for each in rows}
    assert {None, b"", b"value"} <= {each.value for each in rows}
    assert (("again", b"1"), ("again", b"2"), ("again", b"")) in {each.headers for each in rows}
    assert (("nothing", None), ("empty", b"")) in {each.headers for each in rows}
    assert rows == oracle_rows(servers, topic, PARTITIONS)


def test_a_partition_whose_codec_changes_is_read(make_sync: MakeConsumer, admin: Admin, servers: str) -> None:
    topic = admin.create("mixed")
    for start, codec in enumerate(CODECS * 2):
        write(servers, topic, numbered(100, start=start * 100, size=50), compression_codec=codec)
    consumer = assigned(make_sync, servers, topic)
    rows = read_rows(consumer, consumer.assignment())
    assert [int(each.value or b"") for each in rows] == list(range(1000))
    assert rows == oracle_rows(servers, topic)


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_timestamps_are_those_of_the_producer_or_the_broker(
    make: MakeConsumer, admin: Admin, servers: str, kind: str
) -> None:
    topic = admin.create("times", message_timestamp_type=kind, retention_ms=-1)
    times = [1, 999, 1_000_000_000_123, 1_600_000_000_000, 5]
    write(servers, topic, [Outgoing(b"%d" % at, timestamp=at) for at in times], compression_codec="zstd")
    consumer = assigned(make, servers, topic)
    rows = read_rows(consumer, consumer.assignment())
    if kind == "CreateTime":
        assert [(each.timestamp, each.timestamp_type) for each in rows] == [(at, 0) for at in times]
    else:
        now = time.time() * 1000
        assert all(each.timestamp_type == 1 and abs(each.timestamp - now) < 60_000 for each in rows)
    assert rows == oracle_rows(servers, topic)


def test_a_compacted_topic_is_read_across_its_offset_gaps(make: MakeConsumer, admin: Admin, servers: str) -> None:
    """The log has gaps between offsets, empty and shortened batches, and tombstones."""
    topic = admin.create(
        "compacted", cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.001, segment_bytes=2**20
    )
    writer = Writer(servers, compression_codec="lz4")
    for turn in range(6):
        writer.send(topic, [Outgoing(b"%d" % turn, b"key-%d" % key) for key in range(0, 400, turn + 1)])
        writer.send(topic, [Outgoing(None, b"gone-%d" % key) for key in range(20)])
        writer.flush()
    wrote = admin.bounds(topic)[1]

    def compacted() -> bool:
        # A record closes the active segment, which is never compacted.
        write(servers, topic, [Outgoing(b"tick", b"tick")])
        return len(oracle_rows(servers, topic)) < wrote // 2

    wait_for("compaction", compacted, every=0.3)
    consumer = assigned(make, servers, topic)

    def rows_without_cleaning() -> list[Row] | None:
        """None if the cleaner ran meanwhile: the oracle must see the same before and after."""
        consumer.seek_to_beginning()
        before, rows = oracle_rows(servers, topic), read_rows(consumer, consumer.assignment())
        if before != oracle_rows(servers, topic):
            return None
        assert rows == before
        return rows

    rows = wait_for("a pause of the cleaner", rows_without_cleaning)
    assert rows is not None
    assert len(rows) < wrote // 2
    offsets = [each.offset for each in rows]
    assert offsets != list(range(offsets[0], offsets[-1] + 1))
    assert consumer.position((topic, 0)) == consumer.end_offsets([(topic, 0)])[TopicPartition(topic, 0)]


def test_records_larger_than_every_limit_are_read(make: MakeConsumer, admin: Admin, servers: str) -> None:
    """KIP-74: the first batch is returned completely, however small the fetch and buffer limits are."""
    size = 10 * 1000 * 1000
    topic = admin.create("big", 2, max_message_bytes=size + 100_000)
    records = [
        Outgoing(bytes([65 + number]) * (size if number % 2 else 100), partition=number // 4) for number in range(8)
    ]
    write(servers, topic, records, message_max_bytes=size + 100_000)
    consumer = assigned(
        make, servers, topic, 2, max_partition_fetch_bytes=10_000, fetch_max_bytes=20_000, queued_max_bytes=1_000_000
    )
    rows = read_rows(consumer, consumer.assignment())
    assert [len(each.value or b"") for each in rows] == [100, size] * 4
    assert rows == oracle_rows(servers, topic, 2)


def all_are_over(consumer: AnyConsumer, admin: Admin, topic: str) -> bool:
    """Whether no transaction of the topic is open. The broker writes markers after it has responded to EndTxn."""
    stable = consumer.end_offsets(consumer.assignment())
    return stable == {tp: admin.bounds(topic, tp.partition)[1] for tp in stable}


def test_records_written_by_javas_tools_are_read(make_sync: MakeConsumer, admin: Admin, servers: str) -> None:
    """Numbers with given timestamps, and a series of committed transactions."""
    topics = [admin.create("verifiable", PARTITIONS, retention_ms=-1), admin.create("transactional", PARTITIONS)]
    runs = [
        verifiable_producer(
            servers, topics[0], 2000, "--message-create-time", "1600000000000", "--repeating-keys", "7"
        ),
        performance_producer(
            servers, topics[1], 20_000, ["compression.type=zstd", "linger.ms=1"],
            *("--record-size", "100", "--transactional-id", topics[1], "--transaction-duration-ms", "50"),
        ),
    ]  # fmt: skip
    for run in runs:
        run.finish()
    for topic, count in zip(topics, (2000, 20_000), strict=True):
        consumer = assigned(make_sync, servers, topic, PARTITIONS, isolation_level="read_committed")
        wait_for("the last markers", functools.partial(all_are_over, consumer, admin, topic))
        rows = read_rows(consumer, consumer.assignment())
        assert len(rows) == count
        assert rows == oracle_rows(servers, topic, PARTITIONS, "read_committed")
