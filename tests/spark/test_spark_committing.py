"""commitOffsets=true: the progress of a query is visible in its group."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace import Consumer, TopicPartition
from support.brokers.admin import Admin, unique
from support.brokers.consumer_groups_tool import describe
from support.brokers.produce import numbered, numbered_topic, write
from support.harness.waiting import wait_for
from support.spark.streams import DEADLINE, Stream, grid, started

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("committing", 2), 2, 100)


@pytest.fixture
def stream(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> Stream:
    stream = Stream(spark, servers, topic, tmp_path)
    stream.options |= {"kafka.group.id": unique("query"), "commitOffsets": "true"}
    # The first group of a broker waits for __consumer_offsets to be created; the last commit of a query does not wait.
    committed(servers, stream.options["kafka.group.id"], topic)
    return stream


def committed(servers: str, group: str, topic: str) -> list[int | None]:
    with Consumer(bootstrap_servers=servers, group_id=group) as consumer:
        found = consumer.committed([TopicPartition(topic, number) for number in range(2)])
    return [each and each.offset for each in found.values()]


@pytest.mark.pyspark("4.2")
def test_kafka_consumer_groups_shows_the_lag_of_a_query(stream: Stream, servers: str, topic: str) -> None:
    group = stream.options["kafka.group.id"]
    stream.run()
    # Spark does not wait for the reader's process, which may commit after the query has ended.
    wait_for("the commit", lambda: committed(servers, group, topic) == [100, 100], DEADLINE)
    write(servers, topic, numbered(7, 1))
    seen = describe(servers, group)[group]
    assert [(row.current_offset, row.lag) for _, row in sorted(seen.partitions.items())] == [(100, 0), (100, 7)]
    assert seen.state.members == 0, "the query commits without being a member"


@pytest.mark.soak
def test_the_last_batch_of_a_query_that_waits_for_records_is_committed(
    stream: Stream, servers: str, topic: str
) -> None:
    group = stream.options["kafka.group.id"]
    stream.options["maxOffsetsPerTrigger"] = 50
    query = stream.start(processingTime="50 milliseconds")
    try:
        query.processAllAvailable()
        wait_for("the commit", lambda: committed(servers, group, topic) == [100, 100], DEADLINE)
        write(servers, topic, numbered(3, 0))
        wait_for("the next commit", lambda: committed(servers, group, topic) == [103, 100], DEADLINE)
    finally:
        query.stop()
        query.awaitTermination(DEADLINE)


def test_a_query_continues_while_its_commits_fail_and_retries_them(stream: Stream, servers: str, topic: str) -> None:
    """While a group has members, the broker rejects commits of others."""
    group = stream.options["kafka.group.id"]
    query = None
    try:
        with Consumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False) as member:
            member.subscribe([topic])
            wait_for("its partitions", lambda: member.poll(0.1) is not None and member.assignment(), DEADLINE)
            query = stream.start(processingTime="50 milliseconds")
            query.processAllAvailable()
            assert stream.places() == grid(2, 100)
            write(servers, topic, numbered(5, 0))
            query.processAllAvailable()
            assert len(stream.places()) == 205
            assert committed(servers, group, topic) == [None, None]
        wait_for("the commit", lambda: committed(servers, group, topic) == [105, 100], DEADLINE)
        assert query.isActive
    finally:
        if query is not None:
            query.stop()
            query.awaitTermination(DEADLINE)


def test_offsets_of_a_failed_batch_are_not_committed(stream: Stream, servers: str, topic: str) -> None:
    group = stream.options["kafka.group.id"]
    stream.run()
    write(servers, topic, numbered(10, 0))
    where = str(stream.where / "checkpoint")
    failing = stream.load().selectExpr("assert_true(offset < 105, 'too far')")
    writer = failing.writeStream.format("noop").option("checkpointLocation", where).trigger(availableNow=True)
    query = started(writer.start)
    with pytest.raises(PySparkException, match="too far"):
        query.awaitTermination(DEADLINE)
    wait_for("the commit", lambda: committed(servers, group, topic) == [100, 100], DEADLINE)


def test_wrong_commit_options_are_refused_at_the_start(spark: SparkSession, servers: str) -> None:
    """One example; tests/unit/spark/test_spark_lanes_options.py has all of them."""
    given = {"kafka.bootstrap.servers": servers, "subscribe": "t", "commitOffsets": "true"}
    query = started(spark.readStream.format("headrace").options(**given).load().writeStream.format("noop").start)
    with pytest.raises(PySparkException, match="commitOffsets=true needs the option"):
        query.awaitTermination(DEADLINE)


def test_a_batch_query_refuses_commit_offsets(spark: SparkSession, servers: str, topic: str) -> None:
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    with pytest.raises(PySparkException, match="is only for streaming queries"):
        reader.option("commitOffsets", "true").option("kafka.group.id", "g").load().count()


@pytest.mark.soak
def test_a_first_batch_from_latest_reads_the_same_when_it_is_rerun(stream: Stream, servers: str, topic: str) -> None:
    """Log ends move, and Spark stores only the end of a batch, so the first batch only records the start."""
    stream.options["startingOffsets"] = "latest"
    stream.run()
    write(servers, topic, numbered(5, 0))
    # As if the driver had been killed during the first batch.
    (stream.where / "checkpoint" / "commits" / "0").unlink()
    (stream.where / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    stream.run()
    assert stream.places() == [(0, offset) for offset in range(100, 105)]
    lines = (stream.where / "checkpoint" / "offsets" / "0").read_text().splitlines()
    assert json.loads(lines[2]) == {topic: {"0": 100, "1": 100}}
