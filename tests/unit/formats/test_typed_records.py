"""`Records.to_arrow(value=…)` and `Records.rows(value=…)`: columns, rows, errors that name the record."""

from __future__ import annotations

import io
import json

import fastavro
import pyarrow as pa
import pytest

from headrace import TopicPartition, _encoding
from headrace.errors import ConfigError, RecordDecodeError, RecordEncodeError, SchemaRegistryError
from headrace.formats import Avro, Json
from headrace.records import Record, Records, decode
from support.brokers.record_batches import Entry, encode_batch
from support.formats.registry import MemoryRegistry

ROAD = Json("road string, speed double")
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


def batch(*values, topic="readings", partition=1, key=b"k", offset=10):
    data = encode_batch([Entry(key, value, (("h", b"1"),)) for value in values], base_offset=offset)
    return decode(data, topic=topic, partition=partition, position=0)


def text(road, speed):
    return json.dumps({"road": road, "speed": speed}).encode()


def test_the_value_is_a_struct_column():
    records = Records([batch(text("A1", 1), None), batch(text("A7", 2), partition=2)])
    table = records.to_arrow(value=ROAD)
    assert table.column_names == COLUMNS
    assert table["value"].to_pylist() == [{"road": "A1", "speed": 1.0}, None, {"road": "A7", "speed": 2.0}]
    assert table.drop_columns("value").equals(records.to_arrow().drop_columns("value"))


def test_keys_are_decoded_too_and_slices_and_lanes_work():
    records = Records([batch(text("A1", 1), text("A7", 2), text("B5", 3), key=b"7")])[1:]
    table = records.to_arrow(key=Json("int"), value=ROAD, lane=True)
    assert table.column_names == [*COLUMNS, "lane"]
    assert table["key"].to_pylist() == [7, 7]
    assert table["value"].to_pylist() == [{"road": "A7", "speed": 2.0}, {"road": "B5", "speed": 3.0}]
    assert table["offset"].to_pylist() == [11, 12]


def test_flatten_spreads_the_fields():
    records = Records([batch(text("A1", 1), None)])
    table = records.to_arrow(value=ROAD, flatten=True)
    assert table.column_names == ["key", "road", "speed", *COLUMNS[2:]]
    assert table["road"].to_pylist() == ["A1", None]


def test_flattened_fields_with_the_name_of_a_column_get_a_prefix():
    records = Records([batch(b'{"timestamp": 5, "value": 6, "id": 7}', key=b'{"id": 1, "value": 2}')])
    value, key = Json("timestamp int, value int, id int"), Json("id int, value int")
    table = records.to_arrow(value=value, key=key, flatten=True)
    assert table.column_names == ["key_id", "key_value", "value_timestamp", "value", "id", *COLUMNS[2:]]
    assert table.select(["key_id", "key_value", "value_timestamp", "value", "id"]).to_pylist() == [
        {"key_id": 1, "key_value": 2, "value_timestamp": 5, "value": 6, "id": 7}
    ]
    with pytest.raises(ConfigError, match="makes two columns value_offset"):
        records.to_arrow(value=Json("value_offset int, offset int"), flatten=True)
    with pytest.raises(
        ConfigError, match=r"flatten=True needs a struct, but the value is list<.*> and the key is binary"
    ):
        Records([batch(b"[1]")]).to_arrow(value=Json("array<int>"), flatten=True)


def test_a_bad_record_is_named():
    records = Records([batch(text("A1", 1)), batch(text("A1", 1), b"{", b"[", partition=4, offset=100)])
    with pytest.raises(RecordDecodeError) as caught:
        records.to_arrow(value=ROAD)
    error = caught.value
    assert (error.partition, error.offset, error.field) == (TopicPartition("readings", 4), 101, "value")
    assert str(error) == (
        "cannot decode the value at offset 101 of readings-4: invalid JSON at byte 1: expected a name in quotes, "
        "found the end"
    )


def test_bad_records_become_null_with_a_reason():
    records = Records([batch(text("A1", 1), b"{", None), batch(text("A7", 2), partition=2)])
    table = records.to_arrow(value=ROAD, key=Json("int"), errors="null")
    assert table.column_names == [*COLUMNS, "value_error", "key_error"]
    assert table["value"].to_pylist() == [{"road": "A1", "speed": 1.0}, None, None, {"road": "A7", "speed": 2.0}]
    reasons = table["value_error"].to_pylist()
    assert [reason is None for reason in reasons] == [True, False, True, True]
    assert "invalid JSON" in reasons[1]
    assert all("expected" in reason for reason in table["key_error"].to_pylist())
    flat = records.to_arrow(value=ROAD, errors="null", flatten=True)
    assert flat["road"].to_pylist() == ["A1", None, None, "A7"]


def test_no_records_have_the_same_columns():
    full = Records([batch(text("A1", 1))])
    for options in ({}, {"flatten": True}, {"errors": "null"}, {"flatten": True, "errors": "null", "lane": True}):
        assert Records.EMPTY.to_arrow(value=ROAD, **options).schema == full.to_arrow(value=ROAD, **options).schema


def test_no_records_of_a_registry_have_the_columns_of_the_records_before():
    registry = MemoryRegistry("JSON")
    registry.add("readings-value", {"type": "object", "properties": {"x": {"type": "integer"}}})
    made = Json(registry)
    unknown = Records.EMPTY.to_arrow(value=made, flatten=True)
    assert unknown.schema.field("value").type == pa.null()
    full = Records([batch(b'\x00\x00\x00\x00\x01{"x": 1}')]).to_arrow(value=made, flatten=True)
    assert Records.EMPTY.to_arrow(value=made, flatten=True).schema == full.schema
    assert registry.asked["latest", "readings-value"] == 1


def test_topics_with_different_columns_are_not_mixed():
    registry = MemoryRegistry("JSON")
    for topic in "a", "b":
        registry.add(f"{topic}-value", {"type": "object", "properties": {topic: {"type": "integer"}}})
    cell = b'\x00\x00\x00\x00\x01{"a": 1}'
    records = Records([batch(cell, topic="a"), batch(cell, topic="b")])
    made = Json(registry)
    with pytest.raises(ConfigError, match="the topics a and b have different columns"):
        records.to_arrow(value=made)
    assert records[TopicPartition("a", 1)].to_arrow(value=made)["value"].to_pylist() == [{"a": 1}]


def test_wrong_arguments_are_refused():
    records = Records([batch(b"{}")])
    with pytest.raises(TypeError, match=r"rows\(\)"):
        records.to_arrow(value=json.loads)
    with pytest.raises(TypeError, match="value must be a format"):
        records.to_arrow(value="json")
    with pytest.raises(ConfigError, match="errors="):
        records.to_arrow(value=ROAD, errors="ignore")
    with pytest.raises(ConfigError, match="need value= or key="):
        records.to_arrow(flatten=True)
    with pytest.raises(TypeError, match="flatten must be True or False"):
        records.to_arrow(value=ROAD, flatten=1)
    with pytest.raises(TypeError, match="key must be a format such as"):
        records.rows(key=5)


def test_rows_are_dictionaries():
    records = Records([batch(text("A1", 1), None)])
    rows = list(records.rows(value=ROAD))
    assert rows == [
        {
            "key": b"k",
            "value": {"road": "A1", "speed": 1.0},
            "topic": "readings",
            "partition": 1,
            "offset": 10,
            "timestamp": rows[0]["timestamp"],
            "timestamp_type": 0,
            "headers": (("h", b"1"),),
        },
        rows[0] | {"value": None, "offset": 11, "timestamp": rows[1]["timestamp"]},
    ]
    assert next(records.rows())["value"] == text("A1", 1)


def test_many_rows_are_decoded():
    values = [text("A1", number) for number in range(5000)]
    records = Records([batch(*values), batch(*values, partition=2)])
    for used in (ROAD, json.loads):
        found = [row["value"]["speed"] for row in records.rows(value=used)]
        assert found == [*range(5000), *range(5000)]


def test_rows_with_functions():
    records = Records([batch(b"1", None, b"no", b"4", key=b"abc")])
    rows = records.rows(value=json.loads, key=bytes.decode)
    assert [next(rows)["value"], next(rows)["value"]] == [1, None]
    with pytest.raises(RecordDecodeError, match="offset 12 of readings-1: JSONDecodeError: Expecting value") as caught:
        next(rows)
    assert isinstance(caught.value.__cause__, json.JSONDecodeError)
    rows = list(records.rows(value=json.loads, key=bytes.decode, errors="null"))
    assert [row["value"] for row in rows] == [1, None, None, 4]
    assert [row["value_error"] is None for row in rows] == [True, True, False, True]
    assert {row["key"] for row in rows} == {"abc"}


def test_rows_before_a_bad_record_are_returned():
    rows = Records([batch(text("A1", 1), b"{")]).rows(value=ROAD)
    assert next(rows)["value"]["road"] == "A1"
    with pytest.raises(RecordDecodeError):
        next(rows)


def test_a_registry_that_is_away_can_be_asked_again():
    registry = MemoryRegistry()
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}
    schema_id = registry.add("readings-value", schema)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"x": 1})
    records = Records([batch(b"\0" + schema_id.to_bytes(4, "big") + out.getvalue())])
    avro = Avro(registry)
    registry.is_away = True
    with pytest.raises(SchemaRegistryError):
        records.to_arrow(value=avro, errors="null")
    with pytest.raises(SchemaRegistryError):
        list(records.rows(value=avro, errors="null"))
    registry.is_away = False
    assert records.to_arrow(value=avro)["value"].to_pylist() == [{"x": 1}]
    assert [row["value"] for row in records.rows(value=avro)] == [{"x": 1}]


def test_raw_bytes_of_a_record():
    record = Record("t", 0, 1, key=b"k", value=b"v")
    assert (record.raw_key, record.raw_value) == (b"k", b"v")


def test_typed_columns_are_valid_arrow():
    table = Records([batch(text("A1", 1), b"bad")]).to_arrow(value=ROAD, errors="null")
    table.validate(full=True)
    assert isinstance(table, pa.Table)


def test_a_time_that_python_cannot_have_is_an_error_of_its_record():
    """Microseconds that were written as milliseconds are in the year 50,000 or later."""
    at = {"type": "long", "logicalType": "timestamp-millis"}
    schema = {"type": "record", "name": "Reading", "fields": [{"name": "at", "type": at}]}
    cells = []
    for millis in (0, 1_700_000_000_000_000, 1000):
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, {**schema, "fields": [{"name": "at", "type": "long"}]}, {"at": millis})
        cells.append(buffer.getvalue())
    records = Records([batch(*cells)])
    found = list(records.rows(value=Avro(schema), errors="null"))
    assert [row["value"] and row["value"]["at"].timestamp() for row in found] == [0.0, None, 1.0]
    assert [row["value_error"] is None for row in found] == [True, False, True]
    assert records.to_arrow(value=Avro(schema), errors="null")["value_error"].null_count == 3  # Arrow can have it
    with pytest.raises(RecordDecodeError, match="cannot decode the value at offset 11 of readings-1: Python cannot"):
        list(records.rows(value=Avro(schema)))


def test_a_large_table_is_encoded_in_parts(monkeypatch):
    """A column of bytes has room for 2 GiB."""
    monkeypatch.setattr(_encoding, "_PART_BYTES", 1000)
    table = pa.table({"x": range(100), "s": pa.array([{"y": None}] * 100, pa.struct([("y", pa.int64())]))})
    parts = list(_encoding.encoded_reader(table, "readings", {"value": Json("x int, s struct<y: int>")}))
    assert len(parts) > 5
    assert max(part.nbytes for part in parts) < 1000
    assert pa.Table.from_batches(parts)["value"].to_pylist()[99] == b'{"x":99,"s":{"y":null}}'
    with pytest.raises(RecordEncodeError, match="row 57: "):
        list(_encoding.encoded_reader(table, "readings", {"value": OnlyBelow57()}))
    assert _encoding.encoded_reader(table.slice(0, 0), "readings", {"value": OnlyBelow57()}).read_all().num_rows == 0


class OnlyBelow57(Json):
    def __init__(self):
        super().__init__("x int, s struct<y: int>")

    def encode(self, values, source):
        for row, value in enumerate(values.to_pylist()):
            if value["x"] == 57:
                raise RecordEncodeError(row, source.field, "no")
        return super().encode(values, source)
