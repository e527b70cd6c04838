"""spark.readStream.format("headrace") with a real local session and a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from support.brokers.admin import Admin
from support.brokers.produce import numbered, numbered_topic, write
from support.spark.streams import DEADLINE, Stream, grid

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("stream", 2), 2, 100)


@pytest.fixture
def stream(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> Stream:
    return Stream(spark, servers, topic, tmp_path)


def test_each_run_of_a_query_reads_only_new_records(stream: Stream, servers: str, topic: str) -> None:
    stream.run()
    assert stream.places() == grid(2, 100)
    stream.run()
    assert stream.places() == grid(2, 100)
    write(servers, topic, numbered(20, 0))
    stream.run()
    assert stream.places() == sorted(grid(2, 100) + [(0, offset) for offset in range(100, 120)])


@pytest.mark.pyspark("4.2")
def test_max_offsets_per_trigger_is_divided_equally_among_partitions(stream: Stream, servers: str, topic: str) -> None:
    write(servers, topic, numbered(300, 0))
    stream.options["maxOffsetsPerTrigger"] = 120
    query = stream.run()
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert max(batches) <= 120
    assert sum(batches) == 500
    first = json.loads(query.recentProgress[0]["sources"][0]["endOffset"])
    assert first == {topic: {"0": 60, "1": 60}}
    assert len(stream.places()) == len(set(stream.places())) == 500


@pytest.mark.pyspark("4.2")
def test_the_progress_of_a_query_has_the_latest_offsets(stream: Stream, topic: str) -> None:
    stream.options["maxOffsetsPerTrigger"] = 50
    query = stream.run()
    source = query.recentProgress[0]["sources"][0]
    assert json.loads(source["latestOffset"]) == {topic: {"0": 100, "1": 100}}


def test_a_checkpoint_has_the_form_of_spark_s_own_source(stream: Stream, topic: str) -> None:
    stream.run()
    lines = (stream.where / "checkpoint" / "offsets" / "0").read_text().splitlines()
    assert json.loads(lines[2]) == {topic: {"0": 100, "1": 100}}


def test_a_restarted_query_reads_new_partitions_from_their_beginning(
    stream: Stream, servers: str, admin: Admin, topic: str
) -> None:
    stream.run()
    admin.add_partitions(topic, 3)
    write(servers, topic, numbered(7, 2))
    stream.run()
    assert stream.places() == sorted(grid(2, 100) + [(2, offset) for offset in range(7)])


@pytest.mark.soak
def test_a_restarted_query_reads_new_topics_of_its_pattern(
    spark: SparkSession, servers: str, admin: Admin, tmp_path: Path
) -> None:
    first = admin.create("growing")
    stream = Stream(spark, servers, "", tmp_path)
    stream.options["subscribePattern"] = f"{first}.*"
    write(servers, first, numbered(5))
    stream.run()
    write(servers, admin.create("", name=f"{first}-2"), numbered(3))
    stream.run()
    assert stream.table().groupBy("topic").count().count() == 2
    assert stream.table().count() == 8


@pytest.mark.soak
@pytest.mark.parametrize("fails", [True, False])
def test_records_deleted_before_a_query_read_them_fail_it_or_are_skipped(
    stream: Stream, servers: str, admin: Admin, topic: str, fails: bool
) -> None:
    stream.run()
    write(servers, topic, numbered(100, 0))
    admin.delete_records(topic, 150)
    stream.options["failOnDataLoss"] = fails
    if fails:
        with pytest.raises(StreamingQueryException, match="no longer in the log"):
            stream.run()
        stream.options["failOnDataLoss"] = False
    stream.run()
    assert stream.places() == sorted(grid(2, 100) + [(0, offset) for offset in range(150, 200)])


@pytest.mark.soak
def test_a_topic_of_the_checkpoint_that_is_no_longer_subscribed_fails_a_query(
    stream: Stream, servers: str, admin: Admin, topic: str
) -> None:
    other = admin.create("other")
    write(servers, other, numbered(5))
    stream.options["subscribe"] = f"{topic},{other}"
    stream.run()
    stream.options["subscribe"] = topic
    with pytest.raises(StreamingQueryException, match="the options do not select it any more"):
        stream.run()
    stream.options["failOnDataLoss"] = False
    stream.run()
    assert stream.table().count() == 205


def test_a_running_query_reads_new_records(stream: Stream, servers: str, topic: str) -> None:
    stream.options["startingOffsets"] = "latest"
    query = stream.start(processingTime="100 milliseconds")
    try:
        query.processAllAvailable()
        write(servers, topic, numbered(30, 1))
        query.processAllAvailable()
        assert stream.places() == [(1, offset) for offset in range(100, 130)]
    finally:
        query.stop()
        query.awaitTermination(DEADLINE)


def test_a_later_batch_waits_for_min_offsets_per_trigger(stream: Stream, servers: str, topic: str) -> None:
    """The first batch does not wait, as in Spark. (test_spark_readers.py tests the maximum delay.)"""
    stream.options |= {"minOffsetsPerTrigger": 250, "maxTriggerDelay": "10m"}
    query = stream.start(processingTime="100 milliseconds")
    try:
        query.processAllAvailable()
        assert len(stream.places()) == 200
        write(servers, topic, numbered(60, 1))
        query.processAllAvailable()
        assert len(stream.places()) == 200
        write(servers, topic, numbered(190, 0))
        query.processAllAvailable()
        assert len(stream.places()) == 450
    finally:
        query.stop()
        query.awaitTermination(DEADLINE)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"endingOffsets": "latest"}, "has no end"), ({"startingOffsets": "{}"}, "must name exactly the partitions")],
)
def test_wrong_options_of_a_stream_are_refused(stream: Stream, options: dict[str, str], says: str) -> None:
    stream.options |= options
    with pytest.raises(Exception, match=says):
        stream.run()
