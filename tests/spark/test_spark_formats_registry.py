"""Typed columns with a real schema registry: evolution, restarts, outages, secrets, and the sink."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from headrace.local import LocalRegistry
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, write
from support.brokers.topic_contents import oracle_rows
from support.harness.waiting import wait_for
from support.spark.avro_topics import Schema, framed, register, unframed, write_avro
from support.spark.streams import DEADLINE, Stream

pytestmark = pytest.mark.timeout(400)

FIRST: Schema = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "road", "type": "string"},
        {"name": "speed", "type": ["null", "double"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["CAR", "TRUCK"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
SECOND: Schema = {**FIRST, "fields": [*FIRST["fields"], {"name": "lanes", "type": "int", "default": 2}]}
PASSWORD = "hunter2-of-the-registry"


def reading(number: int, **more: Any) -> dict[str, Any]:
    kind = ("CAR", "TRUCK")[number % 2]
    return {"road": f"A{number}", "speed": number / 2, "kind": kind, "at": number, "tags": ["t"] * (number % 3), **more}


class Readings:
    """A topic, and its subject with the first version."""

    def __init__(self, servers: str, topic: str, registry: str) -> None:
        self.servers, self.topic, self.registry = servers, topic, registry
        self.first = register(registry, f"{topic}-value", FIRST)
        self.second: int | None = None

    @property
    def options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic,
            "value.format": "avro",
            "schema.registry.url": self.registry,
        }

    def evolve(self) -> None:
        self.second = register(self.registry, f"{self.topic}-value", SECOND)

    def write(self, numbers: range) -> None:
        write_avro(self.servers, self.topic, self.first, FIRST, map(reading, numbers))

    def write_second(self, numbers: range) -> None:
        assert self.second is not None
        values = [reading(number, lanes=number) for number in numbers]
        write_avro(self.servers, self.topic, self.second, SECOND, values)

    def load(self, spark: SparkSession, **options: str) -> DataFrame:
        given = {name.replace("__", "."): value for name, value in options.items()}
        return spark.read.format("headrace").options(**self.options | given).load()


@pytest.fixture
def readings(servers: str, admin: Admin, schema_registry: LocalRegistry) -> Readings:
    return Readings(servers, admin.create("avro"), schema_registry.url)


def sorted_values(frame: DataFrame) -> list[Row]:
    return [row.value for row in frame.orderBy("offset").collect()]


def test_avro_values_have_the_columns_of_the_subject(spark: SparkSession, readings: Readings) -> None:
    readings.write(range(10))
    readings.evolve()
    readings.write_second(range(10, 15))
    write(readings.servers, readings.topic, [Outgoing(b"\0\0\0"), Outgoing(None)])
    frame = readings.load(spark, mode="PERMISSIVE")
    assert frame.schema["value"].dataType.simpleString() == (
        "struct<road:string,speed:double,kind:string,at:timestamp,tags:array<string>,lanes:int>"
    )
    found = frame.orderBy("offset").collect()
    expected = [reading(number, lanes=number if number >= 10 else 2) for number in range(15)]
    for row, value in zip(found, expected, strict=False):
        assert (row.value.road, row.value.speed, row.value.kind) == (value["road"], value["speed"], value["kind"])
        assert (row.value.at.microsecond, row.value.tags, row.value.lanes) == (
            value["at"],
            value["tags"],
            value["lanes"],
        )
    assert [row.value_error is None for row in found] == [True] * 15 + [False, True]
    pinned = readings.load(spark, mode="PERMISSIVE", value__schema__version="1")
    assert "lanes" not in pinned.schema["value"].dataType.simpleString()
    assert [value and value.road for value in sorted_values(pinned)] == [
        value and value.road for value in sorted_values(frame)
    ]
    by_id = readings.load(spark, mode="PERMISSIVE", value__schema__id=str(readings.first))
    assert by_id.schema == pinned.schema


def test_a_schema_that_evolves_while_a_query_runs_is_resolved_to_that_of_its_start(
    spark: SparkSession, readings: Readings, tmp_path: Path
) -> None:
    readings.write(range(5))
    stream = Stream(spark, readings.servers, readings.topic, tmp_path)
    stream.options |= readings.options
    query = stream.start(processingTime="100 milliseconds")
    try:
        wait_for("the first rows", lambda: _processed(query) >= 5, DEADLINE)
        readings.evolve()
        readings.write_second(range(5, 9))
        wait_for("the rows of the new schema", lambda: _processed(query) >= 9, DEADLINE)
    finally:
        query.stop()
    assert sorted_values(stream.table())[8].asDict().keys() == {"road", "speed", "kind", "at", "tags"}
    assert [value.road for value in sorted_values(stream.table())] == [f"A{number}" for number in range(9)]
    offsets = json.loads(
        max((tmp_path / "checkpoint" / "offsets").glob("[0-9]"), key=_number).read_text().splitlines()[2]
    )
    noted = offsets["headrace:schemas"]["value"]
    assert (noted["subject"], noted["version"], noted["id"]) == (f"{readings.topic}-value", 1, readings.first)

    readings.write_second(range(9, 11))
    with pytest.raises(StreamingQueryException) as caught:
        stream.run()
    said = "\n".join(str(caught.value).splitlines()[:12])
    assert f"it has read version 1 of subject {readings.topic}-value, and version 2" in said
    assert "Set value.schema.version=1 to continue with the former columns" in said
    assert len(stream.places()) == 9

    stream.options["value.schema.version"] = "1"
    stream.run()
    assert [value.road for value in sorted_values(stream.table())] == [f"A{number}" for number in range(11)]
    readings.write_second(range(11, 12))
    stream.options["value.schema.version"] = "latest"
    stream.run()
    merged = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "out"))
    assert sorted_values(merged)[11].lanes == 11
    del stream.options["value.schema.version"]
    stream.run()


def _processed(query: Any) -> int:
    assert query.isActive, query.exception()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def _number(path: Path) -> int:
    return int(path.name)


def test_a_table_keeps_the_version_of_its_creation(spark: SparkSession, readings: Readings) -> None:
    readings.write(range(3))
    name = unique("avro").replace("-", "_")
    given = ", ".join(f"'{option}' '{value}'" for option, value in readings.options.items())
    spark.sql(f"CREATE TABLE {name} USING headrace OPTIONS ({given})")
    readings.evolve()
    readings.write_second(range(3, 5))
    found = spark.sql(f"SELECT value.* FROM {name} ORDER BY value.road").collect()
    assert [row.road for row in found] == [f"A{number}" for number in range(5)]
    assert "lanes" not in found[0].asDict()
    spark.sql(f"DROP TABLE {name}")


# -- outages ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_registry(tmp_path: Path) -> Iterator[LocalRegistry]:
    with LocalRegistry(data_dir=tmp_path / "registry") as registry:
        yield registry


def test_tasks_wait_for_a_registry_that_comes_back(
    spark: SparkSession, servers: str, admin: Admin, own_registry: LocalRegistry
) -> None:
    readings = Readings(servers, admin.create("avro-outage"), own_registry.url)
    readings.write(range(20))
    frame = readings.load(spark)
    own_registry.kill()
    found: list[Row] = []
    reader = threading.Thread(target=lambda: found.extend(frame.collect()))
    reader.start()
    tracker = spark.sparkContext.statusTracker()
    wait_for("a running task", lambda: any(map(_runs, _stages(tracker))), DEADLINE)
    own_registry.restart()
    reader.join(DEADLINE)
    assert sorted(row.offset for row in found) == list(range(20))
    own_registry.kill()
    with pytest.raises(PySparkException) as caught:
        readings.load(spark, schema__registry__username="me", schema__registry__password=PASSWORD)
    assert "Cannot read the schema of the value: " in "\n".join(str(caught.value).splitlines()[:12])
    assert PASSWORD not in str(caught.value)
    own_registry.restart()


def _stages(tracker: Any) -> list[Any]:
    return [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]


def _runs(stage: Any) -> bool:
    return stage is not None and stage.numActiveTasks > 0


# -- secrets ---------------------------------------------------------------------------------------------------------


def test_plans_checkpoints_and_logs_contain_no_secret_of_the_registry(
    spark: SparkSession, readings: Readings, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    readings.write(range(3))
    secret = {"schema.registry.username": "me", "schema.registry.password": PASSWORD}
    frame: Any = readings.load(spark, **secret)
    assert frame.count() == 3
    frame.explain(True)
    stream = Stream(spark, readings.servers, readings.topic, tmp_path)
    stream.options |= readings.options | secret
    query: Any = stream.run()
    query.explain(True)
    bad = {**stream.options, "value.schema.version": "99"}
    with pytest.raises(PySparkException) as caught:
        spark.read.format("headrace").options(**{name: str(value) for name, value in bad.items()}).load()
    shown = [
        repr(frame),
        frame._jdf.queryExecution().toString(),
        repr(list(query.recentProgress)),
        str(caught.value),
        *(path.read_text(errors="replace") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()),
        *capfd.readouterr(),
    ]
    assert not [text for text in shown if PASSWORD in text]


# -- the sink --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exactly_once", [False, True])
def test_rows_are_written_as_avro_that_others_can_read(
    spark: SparkSession, servers: str, admin: Admin, schema_registry: LocalRegistry, exactly_once: bool
) -> None:
    topic = admin.create("avro-sink")
    options = {"kafka.bootstrap.servers": servers, "topic": topic, "value.format": "avro"}
    options |= {"schema.registry.url": schema_registry.url, "value.schema": json.dumps(SECOND)}
    options |= {"exactlyOnce": "true", "sinkId": unique("sink")} if exactly_once else {}
    frame = spark.sql(
        "SELECT cast(id AS string) AS key, concat('A', id) AS road, cast(id / 2 AS double) AS speed, 'CAR' AS kind, "
        "timestamp_micros(id) AS at, array('t') AS tags, cast(id AS int) AS lanes FROM range(5)"
    )
    with pytest.raises(PySparkException, match=f"{topic}-value"):
        frame.write.format("headrace").options(**options).mode("append").save()
    options["auto.register.schemas"] = "true"
    frame.write.format("headrace").options(**options).mode("append").save()
    del options["auto.register.schemas"], options["value.schema"]
    frame.selectExpr("key", "struct(road, speed, kind, at, tags, lanes) AS value").write.format("headrace").options(
        **options
    ).mode("append").save()
    rows = oracle_rows(servers, topic, isolation="read_committed")
    expected = register(schema_registry.url, f"{topic}-value", SECOND)
    values = [unframed(row.value or b"", SECOND) for row in rows]
    assert {schema_id for schema_id, _ in values} == {expected}
    assert sorted(value["road"] for _, value in values) == sorted(2 * [f"A{number}" for number in range(5)])
    assert framed(expected, SECOND, values[0][1]) == rows[0].value
