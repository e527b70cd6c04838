"""Typed columns from JSON on a real session: the rows of from_json, bad records, lanes, share groups, SQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, write
from support.harness.share_consumers import share_group
from support.spark.streams import Stream

pytestmark = pytest.mark.timeout(400)

READING = (
    "road STRING, speed DOUBLE, lanes INT, total BIGINT, at TIMESTAMP, open BOOLEAN, tags ARRAY<STRING>, "
    "limits MAP<STRING, INT>, place STRUCT<x: DOUBLE, names: ARRAY<STRUCT<n: STRING>>>, price DECIMAL(10,2), day DATE"
)
BAD = {3: b'{"road": "A3", "speed": ', 8: b'{"road": "A8", "speed": "fast"}'}
COUNT = 40


def reading(number: int) -> bytes:
    found: dict[str, Any] = {
        "road": f'A{number} äöü "quoted" 🚗',
        "speed": number * 1.5,
        "lanes": number % 4 or None,
        "total": 2**40 + number,
        "at": f"2026-03-02T06:00:{number:02}.125+01:00",
        "open": number % 2 == 0,
        "tags": [f"t{each}" for each in range(number % 3)],
        "limits": {"car": 100 + number, "truck": None},
        "place": {"x": -number / 7, "names": [{"n": "here"}, {"n": None}], "unknown": [1, {"a": 2}]},
        "price": number + 0.25,
        "day": f"2026-03-{number % 28 + 1:02}",
        "unknown": {"deep": [[1]]},
    }
    if number % 5 == 0:
        del found["place"]
    return json.dumps(found).encode()


def fill(servers: str, topic: str, *, bad: dict[int, bytes]) -> None:
    """COUNT records in two partitions, in turns. One value is null."""
    values = [bad.get(number, reading(number)) for number in range(COUNT)]
    records = [Outgoing(value, b"%d" % number, number % 2) for number, value in enumerate(values)]
    write(servers, topic, [*records, Outgoing(None, b"null", 0)])


@pytest.fixture(scope="module")
def good(admin: Admin, servers: str) -> str:
    topic = admin.create("typed", 2)
    fill(servers, topic, bad={})
    return topic


@pytest.fixture(scope="module")
def mixed(admin: Admin, servers: str) -> str:
    topic = admin.create("typed-mixed", 2)
    fill(servers, topic, bad=BAD)
    return topic


@pytest.fixture
def load(spark: SparkSession, servers: str) -> Callable[..., DataFrame]:
    def load(topic: str, options: dict[str, str] | None = None) -> DataFrame:
        given = {"kafka.bootstrap.servers": servers, "subscribe": topic, **(options or {})}
        return spark.read.format("headrace").options(**given).load()

    return load


JSON = {"value.format": "json", "value.schema": READING}


def rows(frame: DataFrame) -> list[Row]:
    return frame.orderBy("partition", "offset").collect()


class TestBatch:
    def test_typed_values_equal_those_of_from_json(self, load: Callable[..., DataFrame], good: str) -> None:
        ours = load(good, JSON)
        raw = load(good)
        theirs = raw.withColumn("value", F.from_json(F.col("value").cast("string"), READING))
        assert ours.schema == theirs.schema
        found = rows(ours)
        assert found == rows(theirs)
        assert len(found) == COUNT + 1
        assert sum(row.value is None for row in found) == 1

    def test_failfast_names_the_record_and_the_reason(
        self, spark: SparkSession, servers: str, load: Callable[..., DataFrame], mixed: str
    ) -> None:
        one = {"kafka.bootstrap.servers": servers, "assign": f'{{"{mixed}":[0]}}'}
        with pytest.raises(PySparkException) as caught:
            spark.read.format("headrace").options(**JSON, **one).load().collect()
        first = "\n".join(str(caught.value).splitlines()[:15])
        assert f"cannot decode the value at offset 4 of {mixed}-0: $.speed: " in first
        assert load(mixed, JSON | {"columns": "offset"}).count() == COUNT + 1, "what is not decoded cannot be bad"

    def test_permissive_keeps_bad_records_with_their_reason(self, load: Callable[..., DataFrame], mixed: str) -> None:
        found = rows(load(mixed, JSON | {"mode": "permissive"}))
        assert len(found) == COUNT + 1
        errors = {row.key.decode(): row.value_error for row in found if row.value_error is not None}
        assert errors.keys() == {str(number) for number in BAD}
        assert errors["8"].startswith("$.speed: ")
        assert all((row.value is None) == (row.value_error is not None) for row in found if row.key != b"null")

    def test_columns_can_be_flattened_and_left_out(self, load: Callable[..., DataFrame], mixed: str) -> None:
        options = JSON | {"mode": "PERMISSIVE", "value.flatten": "true"}
        spread = load(mixed, options)
        assert spread.columns[:3] == ["key", "road", "speed"]
        assert spread.columns[-1] == "value_error"
        few = load(mixed, options | {"columns": "Offset, road,value_error"})
        assert few.columns == ["offset", "road", "value_error"]
        assert sorted(map(str, few.collect())) == sorted(
            map(str, spread.select("offset", "road", "value_error").collect())
        )
        assert load(mixed, {"columns": "timestamp"}).columns == ["timestamp"]

    def test_keys_have_a_format_too(self, load: Callable[..., DataFrame], good: str) -> None:
        options = {"key.format": "json", "key.schema": "INT", "mode": "PERMISSIVE", "columns": "key,key_error"}
        found = load(good, options).collect()
        assert sorted(row.key for row in found if row.key is not None) == list(range(COUNT))
        assert [row.key_error is not None for row in found].count(True) == 0, "null is not an error"

    def test_protobuf_is_decoded_with_spark_s_types(
        self, servers: str, admin: Admin, load: Callable[..., DataFrame]
    ) -> None:
        topic = admin.create("typed-protobuf")
        proto = 'syntax = "proto3"; message R { string road = 1; uint64 total = 2; repeated uint32 n = 3; }'
        write(
            servers,
            topic,
            [Outgoing(b"\n\x02A1\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x1a\x02\x01\x02"), Outgoing(b"\n")],
        )
        options = {"value.format": "protobuf", "value.schema": proto, "value.message": "R", "mode": "PERMISSIVE"}
        frame = load(topic, options)
        assert frame.select("value").schema.simpleString() == (
            "struct<value:struct<road:string,total:decimal(20,0),n:array<bigint>>>"
        )
        good, bad = rows(frame)
        assert (good.value.road, int(good.value.total), good.value.n) == ("A1", 2**64 - 1, [1, 2])
        assert (bad.value, bad.value_error is None) == (None, False)

    def test_a_schema_is_read_from_a_file(self, load: Callable[..., DataFrame], good: str, tmp_path: Path) -> None:
        file = tmp_path / "reading.ddl"
        file.write_text("road STRING,\n speed DOUBLE")
        for given in (str(file), file.as_uri()):
            found = load(good, {"value.format": "json", "value.schema": given}).select("value.*")
            assert found.columns == ["road", "speed"]

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"value.format": "json"}, "value.format=json needs a schema"),
            ({"value.format": "avro", "value.schema": "road STRING"}, "value.format=avro: "),
            ({**JSON, "mode": "DROPMALFORMED"}, "no record is dropped silently"),
            ({**JSON, "columns": "speed"}, "there is no column speed"),
            ({**JSON, "value.schema": "topic STRING", "value.flatten": "true"}, "the value has a field topic"),
            ({**JSON, "value.schema": "there/is/none.ddl"}, "there is no file there/is/none.ddl on the driver"),
        ],
    )
    def test_a_wrong_option_is_an_error_of_load(
        self, load: Callable[..., DataFrame], options: dict[str, str], said: str
    ) -> None:
        with pytest.raises(PySparkException) as caught:
            load("anything", options)
        assert said in "\n".join(str(caught.value).splitlines()[:15])

    def test_a_schema_of_the_user_is_refused(self, spark: SparkSession, servers: str, good: str) -> None:
        reader = spark.read.format("headrace").schema("road STRING, speed DOUBLE")
        with pytest.raises(PySparkException, match=r"remove \.schema\(.*set value\.format and value\.schema"):
            reader.options(**{"kafka.bootstrap.servers": servers, "subscribe": good}).load().collect()


class TestStreams:
    @pytest.mark.pyspark("4.2")
    def test_a_stream_has_typed_columns_and_lanes(
        self, spark: SparkSession, servers: str, mixed: str, tmp_path: Path
    ) -> None:
        stream = Stream(spark, servers, mixed, tmp_path)
        stream.options |= JSON | {"mode": "PERMISSIVE", "value.flatten": "true", "includeLane": "true"}
        stream.options |= {"enable.parallel.rebalance": "true", "maxOffsetsPerTrigger": "15"}
        stream.run()
        table = stream.table()
        assert table.count() == COUNT + 1
        assert table.where("value_error IS NOT NULL").count() == len(BAD)
        assert table.where("road LIKE 'A%' AND lane IN ('live', 'backlog')").count() == COUNT - len(BAD)

    def test_the_checkpoint_has_the_schema_and_a_named_schema_may_change(
        self, spark: SparkSession, servers: str, admin: Admin, tmp_path: Path
    ) -> None:
        topic = admin.create("typed-checkpoint")
        write(servers, topic, [Outgoing(reading(number)) for number in range(3)])
        stream = Stream(spark, servers, topic, tmp_path)
        stream.options |= {"value.format": "json", "value.schema": "road STRING"}
        stream.run()
        last = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[2]
        offsets = json.loads(last)
        assert offsets[topic] == {"0": 3}
        assert offsets["headrace:schemas"]["value"].keys() == {"columns"}
        write(servers, topic, [Outgoing(reading(number)) for number in range(3, 5)])
        stream.options |= {"value.schema": "road STRING, speed DOUBLE"}
        stream.run()
        values = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "out")).orderBy("offset").collect()
        assert [row.value.speed for row in values] == [None, None, None, 4.5, 6.0]

    @pytest.mark.pyspark("4.2")
    def test_a_bad_record_stops_a_failfast_stream_at_its_batch(
        self, spark: SparkSession, servers: str, admin: Admin, tmp_path: Path
    ) -> None:
        topic = admin.create("typed-failfast")
        write(servers, topic, [Outgoing(b'{"n": 1}'), Outgoing(b"{"), Outgoing(b'{"n": 3}')])
        stream = Stream(spark, servers, topic, tmp_path)
        stream.options |= {"value.format": "json", "value.schema": "n INT", "maxOffsetsPerTrigger": "1"}
        with pytest.raises(StreamingQueryException, match=rf"the value at offset 1 of {topic}-0"):
            stream.run()
        assert stream.places() == [(0, 0)]
        stream.options["mode"] = "PERMISSIVE"
        stream.run()
        assert stream.places() == [(0, 0), (0, 1), (0, 2)], "nothing is lost"

    @pytest.mark.pyspark("4.2")
    def test_a_share_group_has_typed_columns(
        self, spark: SparkSession, servers: str, admin: Admin, tmp_path: Path
    ) -> None:
        topic, group = admin.create("typed-shares", 2), share_group(servers)
        fill(servers, topic, bad=BAD)
        stream = Stream(spark, servers, topic, tmp_path)
        del stream.options["startingOffsets"]
        stream.options |= JSON | {"mode": "PERMISSIVE", "share.group.id": group, "columns": "value,value_error,key"}
        stream.run()
        assert stream.table().where("value.road LIKE 'A%'").count() == COUNT - len(BAD)
        assert stream.table().where("value_error IS NOT NULL").count() == len(BAD)


class TestSql:
    def test_a_table_has_typed_columns_and_can_be_written(
        self, spark: SparkSession, servers: str, admin: Admin
    ) -> None:
        topic = admin.create("typed-table")
        name = unique("typed").replace("-", "_")
        options = {
            "kafka.bootstrap.servers": servers,
            "subscribe": topic,
            "topic": topic,
            "columns": "key,value",
            "value.format": "json",
            "value.schema": "road STRING, speed DOUBLE",
            "key.format": "json",
            "key.schema": "BIGINT",
        }
        given = ", ".join(f"'{option}' '{value}'" for option, value in options.items())
        spark.sql(f"CREATE TABLE {name} USING headrace OPTIONS ({given})")
        spark.sql(f"INSERT INTO {name} VALUES (7, struct('A1', 1.5)), (8, struct('A2', NULL))")
        found = spark.sql(f"SELECT key, value.road, value.speed FROM {name} ORDER BY key").collect()
        assert [tuple(row) for row in found] == [(7, "A1", 1.5), (8, "A2", None)]
        spark.sql(f"DROP TABLE {name}")


class TestSink:
    @pytest.mark.parametrize("exactly_once", [False, True])
    @pytest.mark.parametrize("is_spread", [False, True])
    def test_typed_rows_are_written_and_read_back(
        self,
        spark: SparkSession,
        servers: str,
        admin: Admin,
        load: Callable[..., DataFrame],
        good: str,
        exactly_once: bool,
        is_spread: bool,
    ) -> None:
        topic = admin.create("typed-sink", 2)
        frame = load(good, JSON | {"value.flatten": str(is_spread).lower()}).where("key <> 'null'")
        options = {"kafka.bootstrap.servers": servers, "topic": topic, "value.format": "json"}
        options |= {"exactlyOnce": "true", "sinkId": unique("sink")} if exactly_once else {}
        frame.write.format("headrace").options(**options).mode("append").save()
        written = load(topic, JSON).select("key", "value").collect()
        original = load(good, JSON).where("key <> 'null'").select("key", "value").collect()
        assert sorted(written, key=str) == sorted(original, key=str)

    def test_columns_that_do_not_fit_are_refused_before_a_task_starts(self, spark: SparkSession, servers: str) -> None:
        frame = spark.createDataFrame([("A1", "fast")], "road string, speed string")
        options = {"kafka.bootstrap.servers": servers, "topic": "t", "value.format": "json"}
        options |= {"value.schema": "road STRING"}
        with pytest.raises(PySparkException, match="value has the field speed, which the schema does not have"):
            frame.write.format("headrace").options(**options).mode("append").save()
