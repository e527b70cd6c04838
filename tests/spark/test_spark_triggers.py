"""Triggers and their options, with a real broker: when batches run, and which records they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from support.brokers.admin import Admin
from support.brokers.produce import Outgoing, numbered, numbered_topic, write
from support.harness.waiting import wait_for
from support.spark.streams import DEADLINE, Stream, grid, offsets_of, started

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("triggered", 2, retention_ms=-1), 2, 100)


@pytest.fixture
def stream(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> Stream:
    return Stream(spark, servers, topic, tmp_path)


def ends(query: Any) -> list[dict[str, int]]:
    """The end offsets of batches with records."""
    done = [each["sources"][0] for each in query.recentProgress if each["numInputRows"]]
    return [next(iter(offsets_of(each["endOffset"]).values())) for each in done]


@pytest.mark.pyspark("4.2")
def test_available_now_ends_at_the_end_offsets_of_its_start(stream: Stream, servers: str, topic: str) -> None:
    stream.options["maxOffsetsPerTrigger"] = 50
    read: list[tuple[int, int]] = []

    def batch(frame: DataFrame, _number: int) -> None:
        read.extend((row.partition, row.offset) for row in frame.select("partition", "offset").collect())
        write(servers, topic, numbered(10, 0))

    def run() -> list[tuple[int, int]]:
        read.clear()
        writer = stream.load().writeStream.foreachBatch(batch).trigger(availableNow=True)
        query = started(writer.option("checkpointLocation", str(stream.where / "checkpoint")).start)
        assert query.awaitTermination(DEADLINE), "the query does not end"
        return sorted(read)

    assert run() == grid(2, 100)
    # The four batches of the first run each wrote ten records.
    assert run() == [(0, offset) for offset in range(100, 140)]


@pytest.mark.pyspark("4.2")
def test_trigger_once_reads_everything_in_one_batch(stream: Stream) -> None:
    stream.options["maxOffsetsPerTrigger"] = 50
    query = stream.run(once=True)
    assert stream.places() == grid(2, 100), "trigger(once) reads everything, despite the limit"
    assert len(ends(query)) == 1


@pytest.mark.pyspark("4.2")
def test_max_offsets_per_trigger_can_be_divided_in_proportion_to_the_lag(
    stream: Stream, servers: str, topic: str
) -> None:
    write(servers, topic, numbered(800, 0))
    stream.options |= {"maxOffsetsPerTrigger": 500, "maxOffsetsPerTriggerShares": "proportional"}
    query = stream.run()
    assert ends(query)[0] == {"0": 450, "1": 50}
    assert len(stream.places()) == len(set(stream.places())) == 1000


def test_a_running_query_reads_new_partitions(stream: Stream, servers: str, admin: Admin, topic: str) -> None:
    query = stream.start(processingTime="100 milliseconds")
    try:
        query.processAllAvailable()
        admin.add_partitions(topic, 4)
        write(servers, topic, [*numbered(5, 2), *numbered(5, 3)])
        wait_for("the new partitions", lambda: set(ends(query)[-1]) == {"0", "1", "2", "3"}, DEADLINE, every=0.1)
        query.processAllAvailable()
    finally:
        query.stop()
        query.awaitTermination(DEADLINE)
    assert stream.places() == sorted(grid(2, 100) + [(number, offset) for number in (2, 3) for offset in range(5)])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingTimestamp": 6000}, range(5, 10)),
        ({"startingOffsetsByTimestamp": '{"TOPIC":{"0":9000}}'}, range(8, 10)),
        ({"startingOffsets": '{"TOPIC":{"0":7}}'}, range(7, 10)),
        ({"startingTimestamp": 90_000, "startingOffsetsByTimestampStrategy": "latest"}, range(0)),
        (
            {
                "kafka.group.id": "given",
                "groupIdPrefix": "prefix",
                "fetchOffset.numRetries": 5,
                "fetchOffset.retryIntervalMs": 1,
                "minPartitions": 4,
                "maxRecordsPerPartition": 3,
            },
            range(10),
        ),
    ],
)
def test_a_query_starts_at_the_offsets_or_timestamps_of_its_options(
    stream: Stream, servers: str, admin: Admin, tmp_path: Path, options: dict[str, Any], expected: range
) -> None:
    topic = admin.create("timed", retention_ms=-1)
    write(servers, topic, [Outgoing(b"x", timestamp=1000 * number) for number in range(1, 11)])
    named = {name: str(value).replace("TOPIC", topic) for name, value in options.items()}
    stream.options |= {"subscribe": topic} | named
    if not expected:
        stream.run()
        write(servers, topic, [Outgoing(b"x", timestamp=1000)])
        expected = range(10, 11)
    stream.run()
    assert stream.places() == [(0, offset) for offset in expected]


def test_a_query_reads_only_assigned_partitions(stream: Stream, topic: str) -> None:
    del stream.options["subscribe"]
    stream.options["assign"] = f'{{"{topic}":[1]}}'
    stream.run()
    assert stream.places() == [(1, offset) for offset in range(100)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"assign": '{"TOPIC":[0,7]}'}, r"partitions that do not exist: triggered-.*-7"),
        ({"subscribe": "TOPIC,nowhere"}, "topics that do not exist: nowhere"),
        ({"subscribe": "TOPIC", "startingTimestamp": "99999999999999"}, "no record at or after"),
    ],
)
def test_a_missing_topic_partition_or_timestamp_fails_a_query_at_its_start(
    stream: Stream, topic: str, options: dict[str, str], says: str
) -> None:
    del stream.options["subscribe"]
    stream.options |= {name: value.replace("TOPIC", topic) for name, value in options.items()}
    with pytest.raises(StreamingQueryException, match=says):
        stream.run()
