"""Errors in a real session show their cause in the first lines; and log lines that users see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.spark.drivers import Driver

FIRST_LINES = 15
pytestmark = pytest.mark.timeout(300)


def shown(action: Callable[[], Any]) -> str:
    """The first lines of the error that the action raises."""
    with pytest.raises(PySparkException) as caught:
        action()
    said = str(caught.value)
    assert "UnboundLocalError" not in said
    assert "During handling of" not in said
    assert "direct cause" not in said
    return "\n".join(said.splitlines()[:FIRST_LINES])


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    topic = admin.create("errors", 2)
    write(servers, topic, numbered(100))
    return topic


def streamed(spark: SparkSession, directory: Path, **options: str) -> None:
    frame = spark.readStream.format("headrace").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(directory / unique("checkpoint")))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120), "the query does not end"


class TestOptions:
    def test_wrong_options_of_a_streaming_query_are_shown_first(
        self, spark: SparkSession, servers: str, topic: str, tmp_path: Path
    ) -> None:
        given = {"kafka.bootstrap.servers": servers, "subscribe": topic}
        offsets = f'{{"{topic}":{{"0":0,"1":-7}}}}'
        said = shown(lambda: streamed(spark, tmp_path, **given, startingOffsets=offsets))
        assert f"startingOffsets of {topic}-1: -7 is below the minimum, -2" in said
        said = shown(lambda: streamed(spark, tmp_path, **{"bootstrap.servers": servers, "subscribe": topic}))
        assert "use kafka.bootstrap.servers" in said

    def test_options_of_a_streaming_query_that_kafka_contradicts_are_shown_first(
        self, spark: SparkSession, servers: str, tmp_path: Path
    ) -> None:
        given = {"kafka.bootstrap.servers": servers, "subscribe": "nowhere"}
        assert "topics that do not exist: nowhere" in shown(lambda: streamed(spark, tmp_path, **given))

    def test_wrong_options_of_a_batch_query_are_shown_first(
        self, spark: SparkSession, servers: str, topic: str
    ) -> None:
        reader = spark.read.format("headrace").option("kafka.bootstrap.servers", servers)
        said = shown(lambda: reader.option("assign", "[").load().count())
        assert """assign='[' is not valid JSON""" in said
        assert """Use the form {"topic":[0,1]}""" in said


class TestTasks:
    @pytest.mark.pyspark("4.1")
    def test_lost_records_of_a_task_are_shown_first(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic = admin.create("errors")
        write(servers, topic, numbered(100))
        reader = spark.read.format("headrace").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
        frame = reader.option("startingOffsets", f'{{"{topic}":{{"0":10}}}}').load()
        assert frame.count() == 90
        admin.delete_records(topic, 40)
        assert "the records from offset 10 to before 40 are no longer in the log" in shown(frame.count)


class TestNoBroker:
    def test_a_batch_query_without_a_broker_shows_its_servers_first(self, spark: SparkSession) -> None:
        reader = spark.read.format("headrace").option("kafka.bootstrap.servers", "127.0.0.1:9")
        frame = reader.options(**{"subscribe": "t", "kafka.default.api.timeout.ms": "500"}).load()
        assert "Cannot connect to any server of kafka.bootstrap.servers=127.0.0.1:9" in shown(frame.count)


@pytest.mark.pyspark("4.1")
def test_the_log_has_one_line_for_each_query(servers: str, topic: str, tmp_path: Path) -> None:
    given = {"kafka.bootstrap.servers": servers, "subscribe": topic, "kafka.max.poll.records": "5"}
    job = {
        "batch": {**given, "maxTriggerDelay": "5m"},
        "stream": {**given, "startingOffsets": "earliest", "wholly.other": "1"},
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    with Driver("spark_log_lines.py", job, tmp_path / "driver.log") as driver:
        assert driver.reported("counts") == [100, 100]
        assert driver.reported("ended")
        assert driver.end() == 0
        lines = [line.partition("headrace.spark")[2] for line in driver.said.splitlines() if "headrace.spark" in line]
    unused = ".error_boundary: These options are accepted but have no effect in this query: kafka.max.poll.records"
    assert lines == [f"{unused}, maxTriggerDelay", f"{unused}, wholly.other"]
