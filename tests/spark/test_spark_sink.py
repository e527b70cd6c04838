"""The sink in a real session: written records, rejected data, and error messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.local import LocalBroker
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.brokers.topic_contents import oracle_rows

pytestmark = pytest.mark.timeout(300)
FIRST_LINES = 25


def frame(spark: SparkSession, count: int = 100, partitions: int = 2) -> DataFrame:
    columns = ("cast(id as string) as key", "cast(concat('value ', id) as binary) as value")
    return spark.range(0, count, 1, partitions).selectExpr(*columns)


def save(data: DataFrame, servers: str, **options: str) -> None:
    data.write.format("headrace").option("kafka.bootstrap.servers", servers).options(**options).mode("append").save()


def shown(action: Callable[[], Any]) -> str:
    """The first lines of the error that the action raises."""
    with pytest.raises(PySparkException) as caught:
        action()
    return "\n".join(str(caught.value).splitlines()[:FIRST_LINES])


def stream(spark: SparkSession, servers: str, source: str, where: Path, **options: str) -> None:
    loaded = spark.readStream.format("headrace").option("kafka.bootstrap.servers", servers)
    loaded = loaded.option("subscribe", source).option("startingOffsets", "earliest").load().select("key", "value")
    writer = loaded.writeStream.format("headrace").option("kafka.bootstrap.servers", servers).options(**options)
    query = writer.option("checkpointLocation", str(where / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(150), "it does not end"


class TestBatches:
    def test_every_row_is_written(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic = admin.create("sink", 3)
        save(frame(spark), servers, topic=topic)
        rows = oracle_rows(servers, topic, 3)
        assert sorted(int(row.key or b"") for row in rows) == list(range(100))
        assert all(row.value == b"value " + (row.key or b"") for row in rows)
        assert {row.headers for row in rows} == {()}

    def test_all_columns_are_written(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        first, second = admin.create("sink", 2), admin.create("sink", 2)
        rows = [
            (b"k", "text", [("a", b"1"), ("a", None)], first, 1, 5),
            (None, None, [], second, 0, 6),
            (b"", "", None, second, 1, 7),
        ]
        types = "key binary, value string, headers array<struct<key:string,value:binary>>, topic string, partition int"
        save(spark.createDataFrame(rows, f"{types}, other int"), servers, includeHeaders="true")
        [one] = oracle_rows(servers, first, 2)
        assert (one.partition, one.key, one.value) == (1, b"k", b"text")
        assert one.headers == (("a", b"1"), ("a", None))
        found = [(row.partition, row.key, row.value, row.headers) for row in oracle_rows(servers, second, 2)]
        assert found == [(0, None, None, ()), (1, b"", b"", ())]

    def test_the_option_topic_takes_precedence(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic = admin.create("sink")
        save(
            spark.createDataFrame([("v", None), ("w", "elsewhere")], "value string, topic string"), servers, topic=topic
        )
        assert sorted(row.value or b"" for row in oracle_rows(servers, topic)) == [b"v", b"w"]

    @pytest.mark.pyspark("4.1")
    def test_sql_inserts_rows_into_a_table(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic = admin.create("sink")
        name = unique("inserted").replace("-", "_")
        given = f"'kafka.bootstrap.servers' '{servers}', subscribe '{topic}', topic '{topic}'"
        spark.sql(f"CREATE TABLE {name} USING headrace OPTIONS ({given})")
        spark.sql(f"INSERT INTO {name} (key, value) VALUES (cast('k' AS binary), cast('v' AS binary))")
        assert [(row.key, row.value) for row in oracle_rows(servers, topic)] == [(b"k", b"v")]
        assert spark.table(name).count() == 1
        spark.sql(f"DROP TABLE {name}")

    def test_a_batch_without_rows_writes_nothing(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic = admin.create("sink")
        save(frame(spark).where("false"), servers, topic=topic)
        assert oracle_rows(servers, topic) == []


class TestStreams:
    def test_every_record_of_a_stream_is_written(
        self, spark: SparkSession, servers: str, admin: Admin, tmp_path: Path
    ) -> None:
        source, topic = admin.create("sink-source", 2), admin.create("sink", 2)
        write(servers, source, numbered(200))
        stream(spark, servers, source, tmp_path, topic=topic)
        write(servers, source, numbered(50, 1))
        stream(spark, servers, source, tmp_path, topic=topic)
        expected = sorted(row.value or b"" for row in oracle_rows(servers, source, 2))
        assert sorted(row.value or b"" for row in oracle_rows(servers, topic, 2)) == expected

    def test_output_mode_complete_writes_every_result(
        self, spark: SparkSession, servers: str, admin: Admin, tmp_path: Path
    ) -> None:
        source, topic = admin.create("sink-source"), admin.create("sink")
        write(servers, source, numbered(10))
        reader = spark.readStream.format("headrace").option("kafka.bootstrap.servers", servers)
        counted = reader.option("subscribe", source).option("startingOffsets", "earliest").load().groupBy().count()
        writer = counted.selectExpr("cast(count as string) as value").writeStream.format("headrace")
        writer = writer.outputMode("complete").option("topic", topic).option("kafka.bootstrap.servers", servers)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(150), "it does not end"
        assert [row.value for row in oracle_rows(servers, topic)] == [b"10"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("columns", "options", "text"),
        [
            (["id"], {"topic": "t"}, "The column value is missing: the columns are id"),
            (["'v' as value"], {}, "No topic is given. Set the option topic, or add a column topic"),
            (["id as value"], {"topic": "t"}, "The column value is bigint, but must be string or binary"),
            (["'v' as value", "id as key"], {"topic": "t"}, "The column key is bigint, but must be string or binary"),
            (["'v' as value", "id as topic"], {}, "The column topic is bigint, but must be string"),
            (["'v' as value", "id as partition"], {"topic": "t"}, "The column partition is bigint, but must be int"),
            (["'v' as value", "'h' as headers"], {"topic": "t"}, "must be array<struct<key:string,value:binary>>"),
            (["'v' as value"], {"topic": " "}, "The option topic is empty"),
            (
                ["'v' as value"],
                {"topic": "t", "kafka.value.serializer": "x"},
                "kafka.value.serializer is not supported",
            ),
            (["'v' as value"], {"topic": "t", "kafka.acks": "2"}, "kafka.acks='2'"),
            (["'v' as value"], {"topic": "t", "exactlyOnce": "true"}, "exactlyOnce=true needs a sinkId"),
            (["'v' as value"], {"topic": "t", "exactlyOnes": "true"}, "did you mean exactlyOnce?"),
            (["'v' as value"], {"topic": "t", "linger.ms": "5"}, "use kafka.linger.ms"),
        ],
    )
    def test_wrong_input_is_refused_before_tasks_start(
        self, spark: SparkSession, servers: str, columns: list[str], options: dict[str, str], text: str
    ) -> None:
        assert text in shown(lambda: save(spark.range(2).selectExpr(*columns), servers, **options))

    def test_overwriting_is_refused(self, spark: SparkSession, servers: str) -> None:
        writer = frame(spark).write.format("headrace").option("kafka.bootstrap.servers", servers).option("topic", "t")
        assert "A topic cannot be overwritten. Use .mode('append')" in shown(writer.mode("overwrite").save)


class TestFailedWrites:
    def test_a_null_topic_is_an_error(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        data = spark.createDataFrame([("v", None)], "value string, topic string")
        assert "its column topic is null" in shown(lambda: save(data, servers))

    def test_an_impossible_topic_is_named(self, spark: SparkSession, servers: str) -> None:
        said = shown(lambda: save(frame(spark), servers, **{"topic": "two words", "kafka.max.block.ms": "1500"}))
        assert "two words" in said
        assert "is not a valid topic name" in said

    def test_an_unknown_partition_is_named(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic = admin.create("sink", 2)
        data = spark.createDataFrame([("v", 7)], "value string, partition int")
        said = shown(lambda: save(data, servers, topic=topic))
        assert topic in said
        assert "partition 7" in said

    def test_a_record_that_is_too_large_names_its_limit(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic = admin.create("sink")
        data = spark.range(1).selectExpr("repeat('x', 2000000) as value")
        assert "max.request.size" in shown(lambda: save(data, servers, topic=topic))

    def test_a_record_that_the_broker_refuses_names_topic_and_partition(
        self, spark: SparkSession, servers: str, admin: Admin
    ) -> None:
        topic = admin.create("sink", max_message_bytes=1000)
        data = spark.range(1).selectExpr("repeat('x', 2000) as value")
        said = shown(lambda: save(data, servers, topic=topic))
        assert f"{topic}-0" in said
        assert "MESSAGE_TOO_LARGE" in said

    def test_an_unreachable_broker_is_named(self, spark: SparkSession) -> None:
        said = shown(lambda: save(frame(spark), "127.0.0.1:9", topic="t", **{"kafka.max.block.ms": "1500"}))
        assert "127.0.0.1:9" in said


def test_missing_topics_and_brokers_are_named(spark: SparkSession) -> None:
    with LocalBroker(properties={"auto.create.topics.enable": "false"}) as broker:
        servers = broker.bootstrap_servers
        said = shown(lambda: save(frame(spark), servers, **{"topic": "missing", "kafka.max.block.ms": "1500"}))
        assert "topic missing is not there" in said
        assert "UNKNOWN_TOPIC_OR_PARTITION" in said
        with contextlib.closing(Admin(servers)) as admin:
            topic = admin.create("sink")
        options = {
            "topic": topic,
            "kafka.request.timeout.ms": "1000",
            "kafka.delivery.timeout.ms": "2000",
            "kafka.max.block.ms": "2000",
        }
        save(frame(spark), servers, **options)
    said = shown(lambda: save(frame(spark), servers, **options))
    assert f"{topic}-0: not delivered within delivery.timeout.ms=2000" in said or servers in said
