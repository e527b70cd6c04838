"""The time zone of a session, as a task and the planning process find it."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark import TaskContext

from headrace.spark.formats import resolve_formats
from headrace.spark.options.formats import FormatOptions
from headrace.spark.options.parsers import OptionError
from headrace.spark.schema import source_schema
from headrace.spark.sink.encoding import plan_rows
from headrace.spark.time_zone import default_time_zone, session_time_zone
from headrace.spark.worker.rows import RowBuilder

SESSION, JVM = "spark.sql.session.timeZone", "spark.driver.extraJavaOptions"
AT = {"value.format": "json", "value.schema": "at TIMESTAMP"}


@pytest.fixture
def properties(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Those of a running task."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)  # a new context becomes that of the process
    found: dict[str, str] = {}
    monkeypatch.setattr(TaskContext(), "_localProperties", found)
    return found


def test_outside_of_a_task_no_session_is_known() -> None:
    assert session_time_zone() is None


def test_a_task_knows_the_zone_that_its_session_or_jvm_was_given(properties: dict[str, str]) -> None:
    assert session_time_zone() is None
    properties[JVM] = "-Xmx1g -Duser.timezone=Asia/Tokyo -XX:+UseG1GC"
    assert session_time_zone() == "Asia/Tokyo"
    properties[SESSION] = "Europe/Berlin"
    assert session_time_zone() == "Europe/Berlin"


@pytest.mark.parametrize(
    ("variables", "zone"),
    [
        ({"TZ": "America/New_York"}, "America/New_York"),
        ({"TZ": ":America/New_York"}, "America/New_York"),
        ({"TZ": "America/New_York", "JAVA_TOOL_OPTIONS": "-Duser.timezone='+02:00'"}, "+02:00"),
    ],
)
def test_the_zone_of_the_machine_is_the_one_that_java_finds(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], zone: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_time_zone() == zone


def test_a_machine_always_has_a_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "no zone")
    pa.timestamp("us", default_time_zone())


def hour_of(rows: RowBuilder) -> int:
    cells = {"topic": ["t"], "value": [b'{"at": "2026-03-02T06:00:00"}']}
    batch = pa.RecordBatch.from_pydict(cells).set_column(1, "value", pa.array(cells["value"], pa.binary()))
    at = rows.build(batch).column("value")[0].as_py()["at"]
    assert isinstance(at, datetime.datetime)
    return at.astimezone(datetime.UTC).hour


def rows_with(**more: str) -> RowBuilder:
    given = AT | {"columns": "value"} | {name.replace("__", "."): value for name, value in more.items()}
    options = FormatOptions.parse(given)
    typed = resolve_formats(options, ["t"])
    return RowBuilder(source_schema(given, options, typed), typed)


def test_rows_have_the_zone_of_their_session(properties: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    rows, chosen = rows_with(), rows_with(value__timeZone="UTC")
    monkeypatch.setenv("TZ", "UTC")  # the executor's is not the driver's
    assert hour_of(rows) == 21
    properties[SESSION] = "America/New_York"
    assert (hour_of(rows), hour_of(chosen)) == (11, 6)
    properties[SESSION] = "+01:00"
    assert (hour_of(rows), hour_of(chosen)) == (5, 6)


def test_only_json_that_is_read_has_a_zone() -> None:
    with pytest.raises(OptionError, match=r"value\.timeZone is for value\.format=json only"):
        FormatOptions.parse({"value.format": "protobuf", "value.timeZone": "UTC"})
    with pytest.raises(OptionError, match=r"value\.timeZone='Mars' is unknown|timezone='Mars' is unknown"):
        rows_with(value__timeZone="Mars")


def test_a_sink_has_no_zone() -> None:
    from pyspark.sql.types import StructField, StructType, TimestampType

    from headrace.spark.options.sink import SinkOptions

    options = {"kafka.bootstrap.servers": "localhost:1", "topic": "t"} | AT | {"value.timeZone": "UTC"}
    schema = StructType([StructField("at", TimestampType())])
    with pytest.raises(OptionError, match=r"value\.timeZone is for reading only"):
        plan_rows(schema, SinkOptions.parse(options), FormatOptions.parse(options))
