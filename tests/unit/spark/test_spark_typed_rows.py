"""The rows of a task, and what a checkpoint says about their schemas, without a session."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from headrace.errors import RecordDecodeError
from headrace.formats._registry import RegisteredSchema
from headrace.spark.checkpoint import Checkpoint, check_schemas, with_schemas
from headrace.spark.formats import SchemaChangedError, TypedColumns, TypedField, resolve_formats
from headrace.spark.options.formats import FormatOptions
from headrace.spark.schema import source_schema
from headrace.spark.worker.rows import RowBuilder

MILLIS = '{"type": "long", "logicalType": "timestamp-millis"}'
AT = f'{{"type": "record", "name": "R", "fields": [{{"name": "at", "type": {MILLIS}}}]}}'


def builder(**options: str) -> RowBuilder:
    given = {name.replace("__", "."): value for name, value in options.items()}
    parsed = FormatOptions.parse(given)
    typed = resolve_formats(parsed, ["t"])
    rows = RowBuilder(source_schema(given, parsed, typed), typed, is_permissive=parsed.is_permissive)
    copy = pickle.loads(pickle.dumps(rows))
    assert isinstance(copy, RowBuilder)
    return copy


def records(*values: bytes | None) -> Any:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"7"] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": ["t"] * count,
            "partition": pa.array([3] * count, pa.int32()),
            "offset": pa.array(range(100, 100 + count), pa.int64()),
            "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * count, pa.int32()),
        }
    )


def test_the_first_bad_record_is_named() -> None:
    rows = builder(value__format="json", value__schema="n INT")
    with pytest.raises(RecordDecodeError, match=r"cannot decode the value at offset 101 of t-3: \$\.n: "):
        rows.build(records(b'{"n": 1}', b'{"n": []}', b"{"))


def test_fields_of_bad_records_are_null_when_they_are_flattened() -> None:
    rows = builder(
        value__format="json",
        value__schema="n INT, t STRUCT<x: INT>",
        value__flatten="true",
        mode="PERMISSIVE",
        columns="n,t,value_error",
    )
    found = rows.build(records(b'{"n": 1, "t": {"x": 2}}', b'{"n": 3, "t": 4}', None)).to_pylist()
    assert [(row["n"], row["t"]) for row in found] == [(1, {"x": 2}), (None, None), (None, None)]
    assert [row["value_error"] is None for row in found] == [True, False, True]


def test_a_value_that_spark_s_type_cannot_have_is_an_error_of_its_record() -> None:
    huge = b"\xfe" + b"\xff" * 8 + b"\x01"  # the largest long, in milliseconds
    rows = builder(value__format="avro", value__schema=AT, mode="PERMISSIVE", columns="value,value_error")
    found = rows.build(records(b"\x02", huge, b"\x04")).to_pylist()
    assert [row["value"] is None for row in found] == [False, True, False]
    assert "cannot have the value" in found[1]["value_error"]


def test_a_key_and_a_lane_are_columns_too() -> None:
    rows = builder(key__format="json", key__schema="INT", includeLane="true", columns="lane,key")
    assert rows.build(records(b"x"), "live").to_pylist() == [{"lane": "live", "key": 7}]


# -- checkpoints -----------------------------------------------------------------------------------------------------


def typed(schema: str, version: int | None = None, **options: str) -> TypedColumns:
    parsed = FormatOptions.parse({"value.format": "json", "schema.registry.url": "http://localhost:1", **options})
    found = resolve_formats(FormatOptions.parse({"value.format": "json", "value.schema": schema}), ["t"]).fields[0]
    registered = None if version is None else RegisteredSchema(70 + version, "JSON", "", (), "t-value", version)
    return TypedColumns((TypedField(parsed.fields[0], found.format, found.type, registered),))


def test_a_checkpoint_without_typed_columns_has_spark_s_form() -> None:
    assert with_schemas({"t": {"0": 3}}, TypedColumns()) == {"t": {"0": 3}}


def test_a_checkpoint_with_typed_columns_is_read_as_one_without() -> None:
    offset = with_schemas({"t": {"0": 3}}, typed("n INT", 1))
    schema = offset["headrace:schemas"]["value"]
    assert (schema["subject"], schema["version"], schema["id"]) == ("t-value", 1, 71)
    assert Checkpoint.from_json(offset) == Checkpoint.from_json({"t": {"0": 3}})
    check_schemas(offset, TypedColumns())
    check_schemas({"t": {"0": 3}}, typed("n INT", 1))


def test_other_columns_than_before_stop_a_query_unless_its_schema_is_named() -> None:
    offset = with_schemas({}, typed("n INT", 1))
    check_schemas(offset, typed("n INT", 2))
    with pytest.raises(SchemaChangedError) as caught:
        check_schemas(offset, typed("n INT, m INT", 2))
    said = str(caught.value)
    assert "it has read version 1 of subject t-value, and version 2 of subject t-value is the latest now" in said
    assert "value.schema.version=1" in said
    assert "value.schema.version=2" in said
    assert "value.schema.version=latest" in said
    for pin in ({"value.schema.version": "2"}, {"value.schema.version": "latest"}, {"value.schema.id": "72"}):
        check_schemas(offset, typed("n INT, m INT", 2, **pin))


def test_a_field_of_the_key_may_have_the_name_of_the_value_s_reasons() -> None:
    rows = builder(
        key__format="json",
        key__schema="STRUCT<value_error: STRING>",
        key__flatten="true",
        value__format="json",
        value__schema="INT",
        columns="value_error,value",
    )
    batch = records(b"1")
    batch = batch.set_column(0, "key", pa.array([b'{"value_error": "mine"}'], pa.binary()))
    assert rows.build(batch).to_pylist() == [{"value_error": "mine", "value": 1}]
