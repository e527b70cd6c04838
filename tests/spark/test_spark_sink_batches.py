"""Writes in the function of `foreachBatch`, which the output mode update needs: exactly once by the batch's number."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, write
from support.brokers.topic_contents import oracle_rows
from support.spark.streams import DEADLINE, started

pytestmark = pytest.mark.timeout(300)
PARTITIONS = 2
WORDS = [b"a", b"b", b"a", b"c", b"a", b"b"]


class Counts:
    """A query that counts words, and writes the counts that a batch has changed."""

    def __init__(self, spark: SparkSession, servers: str, admin: Admin, where: Path) -> None:
        self.spark, self.servers, self.where = spark, servers, where
        self.source, self.topic = admin.create("words", 1), admin.create("counts", PARTITIONS)
        self.sink = unique("sink")

    def add(self, words: list[bytes]) -> None:
        write(self.servers, self.source, [Outgoing(word) for word in words])

    def save(self, rows: DataFrame, **options: object) -> None:
        writer = rows.write.format("headrace").option("kafka.bootstrap.servers", self.servers).mode("append")
        given = {"topic": self.topic, "exactlyOnce": "true", "sinkId": self.sink, **options}
        writer.options(**{name: str(value) for name, value in given.items()}).save()

    def writer(self) -> DataStreamWriter:
        source = {"kafka.bootstrap.servers": self.servers, "subscribe": self.source, "startingOffsets": "earliest"}
        loaded = self.spark.readStream.format("headrace").options(**source).option("maxOffsetsPerTrigger", "3").load()
        counts = loaded.selectExpr("cast(value as string) as key").groupBy("key").count()
        rows = counts.selectExpr("key", "cast(count as string) as value")
        return rows.writeStream.outputMode("update").option("checkpointLocation", str(self.where / "checkpoint"))

    def run(self, function: Callable[[DataFrame, int], None]) -> StreamingQuery:
        """Run to the end of the topic, or to the first error."""
        writer = self.writer().foreachBatch(function).trigger(processingTime="0 seconds")
        query = started(writer.start)
        with contextlib.suppress(PySparkException):
            query.processAllAvailable()
        query.stop()
        with contextlib.suppress(PySparkException):
            query.awaitTermination(DEADLINE)
        return query

    def written(self) -> Counter[tuple[bytes | None, bytes | None]]:
        rows = oracle_rows(self.servers, self.topic, PARTITIONS, isolation="read_committed")
        return Counter((row.key, row.value) for row in rows)


@pytest.fixture
def counts(spark: SparkSession, servers: str, admin: Admin, tmp_path: Path) -> Counts:
    made = Counts(spark, servers, admin, tmp_path)
    made.add(WORDS)
    return made


ONCE = Counter({(b"a", b"2"): 1, (b"b", b"1"): 1, (b"a", b"3"): 1, (b"b", b"2"): 1, (b"c", b"1"): 1})
"""What the output mode update gives for WORDS in two batches of three."""


def test_spark_refuses_the_output_mode_update_for_the_sink(counts: Counts) -> None:
    options = {"kafka.bootstrap.servers": counts.servers, "topic": counts.topic}
    writer = counts.writer().format("headrace").options(**options)
    with pytest.raises(PySparkException, match="does not support Update mode"):
        writer.start().awaitTermination(DEADLINE)


def test_a_repeated_batch_is_not_written_again(counts: Counts) -> None:
    repeated: list[int] = []

    def function(rows: DataFrame, batch: int) -> None:
        counts.save(rows, batchId=batch)
        repeated.append(batch)
        if len(repeated) in (1, 3):
            raise RuntimeError("failed on purpose")

    for _ in range(3):
        counts.run(function)
    assert repeated == [0, 0, 1, 1]
    assert counts.written() == ONCE


def test_two_writes_of_a_function_need_two_sinks(counts: Counts) -> None:
    def function(rows: DataFrame, batch: int) -> None:
        counts.save(rows, batchId=batch)
        counts.save(rows, batchId=batch)

    query = counts.run(function)
    assert f"has already written batch 0 with sinkId='{counts.sink}'" in str(query.exception())

    def corrected(rows: DataFrame, batch: int) -> None:
        counts.save(rows, batchId=batch)
        counts.save(rows, batchId=batch, sinkId=f"{counts.sink}-2")

    assert counts.run(corrected).exception() is None
    assert counts.written() == ONCE + ONCE


def test_a_wrong_batch_is_an_error(counts: Counts) -> None:
    query = counts.run(lambda rows, batch: counts.save(rows, batchId=batch + 1))
    assert "batchId=1 is not the number of this batch, 0" in str(query.exception())
    with pytest.raises(PySparkException, match="batchId is for writes in the function of foreachBatch"):
        counts.save(counts.spark.range(1).selectExpr("cast(id as string) as value"), batchId=0)
    assert not counts.written()


def test_a_job_does_not_use_the_sink_of_a_query(counts: Counts) -> None:
    counts.run(lambda rows, batch: counts.save(rows, batchId=batch))
    with pytest.raises(PySparkException, match=r"belongs to the query .* In foreachBatch, set the option batchId"):
        counts.save(counts.spark.range(1).selectExpr("cast(id as string) as value"))
    assert counts.written() == ONCE
