"""`exactlyOnce=true` with a real session and broker: without faults, and with faults inside one session."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace import Producer
from headrace.local import LocalBroker
from headrace.spark import producer_access
from headrace.spark.sink.protocol import driver_transactional_id
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.brokers.topic_contents import oracle_rows
from support.spark.streams import started

pytestmark = pytest.mark.timeout(300)
PARTITIONS = 2


def values(servers: str, topic: str) -> list[bytes]:
    rows = oracle_rows(servers, topic, PARTITIONS, isolation="read_committed")
    return sorted(row.value or b"" for row in rows)


def expected(count: int) -> list[bytes]:
    return sorted(b"%d" % number for number in range(count))


def save(data: DataFrame, servers: str, topic: str, sink: str) -> None:
    writer = data.write.format("headrace").option("kafka.bootstrap.servers", servers).option("topic", topic)
    writer.option("exactlyOnce", "true").option("sinkId", sink).mode("append").save()


class Copy:
    """A query that copies a topic, a few records at a time."""

    def __init__(self, spark: SparkSession, servers: str, source: str, topic: str, where: Path, **options: str) -> None:
        self.spark = spark
        self.where = where
        self.source = {"kafka.bootstrap.servers": servers, "subscribe": source, "startingOffsets": "earliest"}
        self.sink = {"kafka.bootstrap.servers": servers, "topic": topic, "exactlyOnce": "true", **options}

    def run(self, per_batch: int = 50) -> int:
        """Run to the end of the topic; return the number of batches with records."""
        reader = self.spark.readStream.format("headrace").options(**self.source)
        loaded = reader.option("maxOffsetsPerTrigger", str(per_batch)).load().select("key", "value")
        writer = loaded.writeStream.format("headrace").options(**self.sink)
        writer = writer.option("checkpointLocation", str(self.where / "checkpoint")).trigger(processingTime="0 seconds")
        query = started(writer.start)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
            query.awaitTermination(150)
        return sum(1 for progress in query.recentProgress if progress["numInputRows"])


class TestBatches:
    def test_a_job_is_visible_once(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic, sink = admin.create("once", PARTITIONS), unique("sink")
        data = spark.range(0, 100, 1, 3).selectExpr("cast(id as string) as value")
        save(data, servers, topic, sink)
        assert values(servers, topic) == expected(100)
        save(data, servers, topic, sink)
        assert values(servers, topic) == sorted(expected(100) * 2), "a second job writes its rows again"

    def test_a_job_that_fails_leaves_nothing(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic, sink = admin.create("once", PARTITIONS), unique("sink")
        rows = "case when id = 99 then raise_error('failed on purpose') else cast(id as string) end as value"
        with pytest.raises(PySparkException, match="failed on purpose"):
            save(spark.range(0, 100, 1, 3).selectExpr(rows), servers, topic, sink)
        save(spark.range(5).selectExpr("cast(id as string) as value"), servers, topic, sink)
        assert values(servers, topic) == expected(5), "no open transaction may hide the rows"


def test_transactions_without_timeouts_are_used_where_brokers_allow_them(spark: SparkSession) -> None:
    allowed = {"unstable.api.versions.enable": "true", "transaction.two.phase.commit.enable": "true"}
    rows = "case when id = 99 then raise_error('failed on purpose') else cast(id as string) end as value"
    with LocalBroker(properties=allowed) as broker:
        servers, topic, sink = broker.bootstrap_servers, "once", unique("sink")
        with contextlib.closing(Admin(servers)) as admin:
            admin.create(topic, PARTITIONS, name=topic)
        save(spark.range(0, 50, 1, 3).selectExpr("cast(id as string) as value"), servers, topic, sink)
        with Producer(bootstrap_servers=servers) as producer:
            names = [driver_transactional_id(sink)]
            found = producer_access.ask_coordinators(producer, lambda admin: admin.describe(names))
            assert found[names[0]].timeout_ms == 2**31 - 1
        with pytest.raises(PySparkException, match="failed on purpose"):
            save(spark.range(0, 100, 1, 3).selectExpr(rows), servers, topic, sink)
        save(spark.range(50, 60).selectExpr("cast(id as string) as value"), servers, topic, sink)
        assert values(servers, topic) == expected(60)


class TestStreams:
    def test_every_record_is_visible_once(
        self, spark: SparkSession, servers: str, admin: Admin, tmp_path: Path
    ) -> None:
        source, topic = admin.create("once-source", PARTITIONS), admin.create("once", PARTITIONS)
        write(servers, source, numbered(200))
        copy = Copy(spark, servers, source, topic, tmp_path, sinkId=unique("sink"))
        assert copy.run() >= 4
        before = sorted(row.value or b"" for row in oracle_rows(servers, source, PARTITIONS))
        assert values(servers, topic) == before
        write(servers, source, numbered(100, 1))
        copy.run()
        assert values(servers, topic) == sorted(row.value or b"" for row in oracle_rows(servers, source, PARTITIONS))

    def test_a_second_query_with_the_same_sink_is_refused(
        self, spark: SparkSession, servers: str, admin: Admin, tmp_path: Path
    ) -> None:
        source, topic, sink = admin.create("once-source", PARTITIONS), admin.create("once", PARTITIONS), unique("sink")
        write(servers, source, numbered(50))
        first = Copy(spark, servers, source, topic, tmp_path / "first", sinkId=sink)
        first.run()
        with pytest.raises(PySparkException, match="belongs to another query"):
            Copy(spark, servers, source, topic, tmp_path / "second", sinkId=sink).run()
        write(servers, source, numbered(50, 1))
        first.run()
        assert values(servers, topic) == sorted(row.value or b"" for row in oracle_rows(servers, source, PARTITIONS))

    def test_a_checkpoint_keeps_its_sink_until_the_user_names_the_first_batch_of_another(
        self, spark: SparkSession, servers: str, admin: Admin, tmp_path: Path
    ) -> None:
        source, topic, sink = admin.create("once-source", PARTITIONS), admin.create("once", PARTITIONS), unique("sink")
        write(servers, source, numbered(50))
        Copy(spark, servers, source, topic, tmp_path, sinkId=sink).run(1000)
        write(servers, source, numbered(50, 1))
        with pytest.raises(PySparkException, match=r"sinkId='another-.*' has no decision about the batches") as caught:
            Copy(spark, servers, source, topic, tmp_path, sinkId=f"another-{sink}").run(1000)
        [number] = set(re.findall(r"set firstBatchId=(\d+)", str(caught.value)))
        Copy(spark, servers, source, topic, tmp_path, sinkId=f"another-{sink}", firstBatchId=number).run(1000)
        assert values(servers, topic) == sorted(row.value or b"" for row in oracle_rows(servers, source, PARTITIONS))
