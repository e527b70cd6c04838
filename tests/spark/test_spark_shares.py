"""share.group.id=…: micro-batches of records from a share group."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ShareConsumer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from support.brokers.admin import Admin, client_settings
from support.brokers.produce import numbered
from support.brokers.steady_writer import SteadyWriter
from support.harness.share_consumers import put, share_group
from support.harness.waiting import wait_for
from support.spark.batches import LONG, Batches, metrics, sizes
from support.spark.streams import Stream, grid

pytestmark = pytest.mark.timeout(400)

LOCK = 3
"""Seconds of a lock that a test outlasts. Other tests use Kafka's default of 30 s, since a machine may pause."""


class Shared:
    """A share group and its query."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, where: Path, **settings: Any) -> None:
        self.group = share_group(servers, **settings)
        stream = Stream(spark, servers, topic, where)
        del stream.options["startingOffsets"]
        stream.options |= {"share.group.id": self.group}
        self.batches = Batches(stream)
        self.options = stream.options
        self.query: StreamingQuery | None = None

    def start(self) -> StreamingQuery:
        self.query = self.batches.start(processingTime="50 milliseconds")
        return self.query

    def run(self, count: int) -> list[StreamingQuery]:
        """Run to the end until `count` records were read. An AvailableNow query ends when no records come for two
        seconds, so a slow broker may need several runs."""
        runs = [self.batches.run()]
        deadline = time.monotonic() + LONG
        while len(self.batches.places()) < count and time.monotonic() < deadline:
            runs.append(self.batches.run())
        return runs

    def stop(self) -> None:
        if self.query is not None and self.query.isActive:
            self.query.stop()
            assert self.query.awaitTermination(LONG)


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    topic = admin.create("shared", 2)
    for number in range(2):
        put(servers, topic, numbered(100, number))
    return topic


@pytest.fixture
def shared(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> Iterator[Shared]:
    shared = Shared(spark, servers, topic, tmp_path)
    yield shared
    shared.stop()


@pytest.fixture
def shortly_shared(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> Iterator[Shared]:
    shared = Shared(spark, servers, topic, tmp_path, share_record_lock_duration_ms=1000 * LOCK)
    yield shared
    shared.stop()


def test_batches_of_a_share_group_stay_within_the_limit(shared: Shared, servers: str, topic: str) -> None:
    shared.options["maxOffsetsPerTrigger"] = 30
    runs = shared.run(200)
    assert shared.batches.places() == grid(2, 100), "each once"
    assert max(size for run in runs for size in sizes(run)) == 30
    for run in runs:
        assert [each["locksHeld"] for each in metrics(run)] == sizes(run)
    assert shared.batches.ends()[0] == {"share:group": shared.group, "share:batch": 1}
    put(servers, topic, numbered(5, 1))
    shared.run(205)
    assert shared.batches.places()[200:] == [(1, offset) for offset in range(100, 105)], (
        "all earlier records were accepted"
    )


def test_records_of_a_failed_share_batch_are_read_by_a_later_batch(shared: Shared) -> None:
    """Its records come again in the next batch (at least once). The failed batch number is run again, empty."""
    shared.options["maxOffsetsPerTrigger"] = 50
    shared.batches.break_off(after=1, processingTime="50 milliseconds")
    broken = max(shared.batches.rows)
    assert 0 < len(shared.batches.rows[broken]) <= 50
    shared.run(200)
    assert shared.batches.rows[broken] == []
    assert shared.batches.is_run_again.keys() == {broken}
    assert shared.batches.places() == grid(2, 100)


@pytest.mark.soak
def test_a_share_batch_longer_than_a_lock_keeps_its_records(shortly_shared: Shared, servers: str, topic: str) -> None:
    """Its records are not delivered to another consumer, and are accepted when it is complete."""
    shared = shortly_shared
    begun, may_end = threading.Event(), threading.Event()

    def take_long(batch: DataFrame, number: int) -> None:
        if not batch.isEmpty():
            begun.set()
            assert may_end.wait(LONG)

    shared.batches.before_each = take_long
    query = shared.start()
    assert begun.wait(LONG)
    other = ShareConsumer({**client_settings(servers), "group.id": shared.group})
    try:
        other.subscribe([topic])
        until = time.monotonic() + 3 * LOCK
        while time.monotonic() < until:
            assert not offsets(other), "a lock was not renewed"
        may_end.set()
        query.processAllAvailable()
        shared.stop()
        until = time.monotonic() + LOCK
        while time.monotonic() < until:
            assert not offsets(other), "not all records were accepted"
    finally:
        other.close()
    assert shared.batches.places() == grid(2, 100)


def offsets(consumer: ShareConsumer) -> list[tuple[int, int]]:
    return [(message.partition(), message.offset()) for message in consumer.poll(0.2) if not message.error()]


@pytest.mark.soak
def test_a_query_shares_records_with_another_share_consumer(shared: Shared, servers: str, topic: str) -> None:
    """A query and confluent-kafka's ShareConsumer are in one group: each record goes to one of them, once."""
    shared.options["maxOffsetsPerTrigger"] = 40
    query = shared.start()
    other = ShareConsumer({**client_settings(servers), "group.id": shared.group})
    theirs: list[tuple[int, int]] = []
    try:
        other.subscribe([topic])
        with SteadyWriter(servers, topic, 2, limit=4_000, first=100) as writer:

            def look() -> bool:
                theirs.extend(offsets(other))
                return len(theirs) >= 20 and len(shared.batches.places()) >= 200

            wait_for("both work", look, LONG)
            ends = writer.finish()
        expected = sorted((number, offset) for (_, number), end in ends.items() for offset in range(end))

        def all_there() -> bool:
            theirs.extend(offsets(other))
            return len(theirs) + len(shared.batches.places()) >= len(expected)

        wait_for("all", all_there, LONG)
    finally:
        other.close()
    shared.stop()
    assert sorted(theirs + shared.batches.places()) == expected
    assert max(sizes(query)) <= 40


def test_a_share_group_query_refuses_a_checkpoint_of_another_query(
    spark: SparkSession, servers: str, topic: str, shared: Shared
) -> None:
    Batches(Stream(spark, servers, topic, shared.batches.stream.where)).run()
    query = shared.batches.start()
    with pytest.raises(StreamingQueryException, match=r"that of a query without share\.group\.id"):
        query.awaitTermination(LONG)
