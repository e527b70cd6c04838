"""Inputs of `ColumnEncoder`: Arrow data of many libraries, and the errors for rejected data."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from headrace._record_batch import ColumnEncoder, ProducerBatch, RowError
from headrace.records import Records, decode

NOW = 1_700_000_000_000
OPTIONS: dict[str, Any] = {
    "partition_count": 6,
    "partitioner": "murmur2",
    "sticky": [2, 0, 5],
    "batch_size": 16384,
    "max_record_size": 1 << 20,
}
SCHEMA = pa.schema([("value", pa.binary())])


def encoder_of(data: object, **options: Any) -> ColumnEncoder:
    return ColumnEncoder(data, default_timestamp=NOW, **options)


def encode(
    data: object, *, ignores_other_columns: bool = False, is_of_kafka: bool = False, **changed: Any
) -> list[tuple[Any, ...]]:
    """(topic, partition, timestamp, key, value, headers) of all records."""
    encoder = encoder_of(data, ignores_other_columns=ignores_other_columns, is_of_kafka=is_of_kafka)
    found = []
    while (topic := encoder.next_topic()) is not None:
        while batches := encoder.encode(**(OPTIONS | changed)):
            for partition, batch, _, _, _ in batches:
                records = decode(batch, topic="t", partition=0, position=0)
                found += [(topic, partition, r.timestamp, r.key, r.value, r.headers) for r in records]
    return found


def values(data: object, **changed: Any) -> list[bytes | None]:
    return [each[4] for each in encode(data, **changed)]


class Stream:
    """A stream that is not a `pyarrow.RecordBatchReader`."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self.reader = reader

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader.__arrow_c_stream__(requested_schema)


class Array:
    """An array that is not a stream."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self.array.__arrow_c_array__(requested_schema)


def arrow_batch(*cells: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(cells)}, SCHEMA)


def reader_of(*batches: pa.RecordBatch) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(SCHEMA, batches)


# Sources


@pytest.mark.parametrize(
    "data",
    [
        arrow_batch(b"a", b"b"),
        pa.Table.from_batches([arrow_batch(b"a"), arrow_batch(), arrow_batch(b"b")]),
        reader_of(arrow_batch(b"a"), arrow_batch(b"b")),
        Stream(reader_of(arrow_batch(b"a"), arrow_batch(b"b"))),
        Array(arrow_batch(b"a", b"b")),
        pa.chunked_array([arrow_batch(b"a", b"b").to_struct_array()]),
        pd.DataFrame({"value": [b"a", b"b"]}),
    ],
    ids=["batch", "table", "reader", "stream", "array", "chunked array", "pandas"],
)
def test_arrow_data_of_any_kind_is_encoded(data: object) -> None:
    assert sorted(map(str, values(data))) == ["b'a'", "b'b'"]


@pytest.mark.parametrize("data", [SCHEMA.empty_table(), arrow_batch(), reader_of(), reader_of(arrow_batch())])
def test_data_without_rows_has_no_topic(data: object) -> None:
    encoder = encoder_of(data)
    assert encoder.next_topic() is None
    assert encoder.next_topic() is None


def test_polars_is_encoded() -> None:
    frame = pl.DataFrame(
        {
            "key": ["a", None],
            "value": [b"1", "é".encode()],
            "headers": [[{"name": "h", "value": b"x"}, {"name": "h", "value": None}], None],
            "timestamp": [datetime(2026, 1, 2, tzinfo=UTC), None],
            "partition": pl.Series([None, 3], dtype=pl.UInt8),
            "topic": pl.Series(["orders", "events"], dtype=pl.Categorical),
        }
    )
    expected = [
        ("orders", 4, 1_767_312_000_000, b"a", b"1", (("h", b"x"), ("h", None))),
        ("events", 3, NOW, None, "é".encode(), ()),
    ]
    assert encode(frame) == expected
    assert encode(frame.slice(1)) == expected[1:]
    assert sorted(encode(pl.concat([frame, frame], rechunk=False))) == sorted(expected * 2)


def test_duckdb_is_encoded() -> None:
    relation = duckdb.sql(
        """select 'k' as key, encode('v' || i) as value, map {'h': 'x'::blob} as headers,
                  timestamptz '2026-01-02 00:00:00+00' as timestamp, 5::hugeint::int as partition
           from range(3000) numbers(i)"""
    )
    expected = [("", 5, 1_767_312_000_000, b"k", b"v%d" % i, (("h", b"x"),)) for i in range(3000)]
    assert encode(relation) == expected


def records() -> Records:
    batches = []
    for partition, topic in [(0, "a"), (3, "a"), (1, "b")]:
        batch = ProducerBatch(topic, partition, 10**6, 0.0, None)
        for number in range(5):
            key = b"k%d" % number if number % 2 else None
            batch.append(b"v", key, [("h", None)] * (number % 3), 1000 + number)
        batches.append(decode(batch.finish(), topic=topic, partition=partition, position=0, lane="main"))
    return Records(batches)


@pytest.mark.parametrize("lane", [False, True])
def test_records_are_encoded_to_the_same_records(lane: bool) -> None:
    data = records()
    expected = [(r.topic, r.partition, r.timestamp, r.key, r.value, r.headers) for r in data]
    assert encode(data.to_arrow(lane=lane) if lane else data) == expected
    assert encode(data[2:9]) == expected[2:9]


# Laziness and lifetime


def test_arrow_batches_are_read_one_at_a_time() -> None:
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            read.append(number)
            yield arrow_batch(b"%d" % number)

    for wrap in (lambda reader: reader, Stream):
        read.clear()
        encoder = encoder_of(wrap(pa.RecordBatchReader.from_batches(SCHEMA, batches())))
        assert read == []
        for number in range(3):
            assert encoder.next_topic() == ""
            assert read == list(range(number + 1))
            ((_, batch, count, _, first_row),) = encoder.encode(**OPTIONS)
            assert (count, first_row) == (1, number)
            assert [r.value for r in decode(batch, topic="t", partition=0, position=0)] == [b"%d" % number]
            assert encoder.encode(**OPTIONS) == []
        assert encoder.next_topic() is None


@pytest.mark.parametrize("wrap", [lambda table: table, lambda table: Array(table.to_batches()[0])])
def test_the_encoder_keeps_the_memory_it_reads_and_releases_it_at_the_end(wrap: Any) -> None:
    class Bytes(bytearray):
        pass

    memory = Bytes(b"abcd" * 100_000)
    seen = weakref.ref(memory)
    offsets = pa.array(range(0, 400_001, 4), pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.binary(), 100_000, [None, offsets, pa.py_buffer(memory)])
    encoder = encoder_of(wrap(pa.table({"value": column})))
    del memory, column, offsets
    gc.collect()
    assert encoder.next_topic() == ""
    count = 0
    while batches := encoder.encode(**OPTIONS, max_bytes=100_000):
        gc.collect()
        assert seen() is not None
        for _, batch, _, _, _ in batches:
            found = [r.value for r in decode(batch, topic="t", partition=0, position=0)]
            assert set(found) == {b"abcd"}
            count += len(found)
    assert count == 100_000
    assert encoder.next_topic() is None
    del encoder
    gc.collect()
    assert seen() is None


class BrokenSourceError(Exception):
    pass


def failing() -> Iterator[pa.RecordBatch]:
    yield arrow_batch(b"a")
    raise BrokenSourceError("the disk is gone")


def test_an_exception_in_a_reader_is_raised_unchanged() -> None:
    encoder = encoder_of(pa.RecordBatchReader.from_batches(SCHEMA, failing()))
    assert encoder.next_topic() == ""
    assert len(encoder.encode(**OPTIONS)) == 1
    with pytest.raises(BrokenSourceError, match="the disk is gone"):
        encoder.next_topic()


def test_an_exception_in_a_stream_is_raised_with_its_text() -> None:
    encoder = encoder_of(Stream(pa.RecordBatchReader.from_batches(SCHEMA, failing())))
    assert encoder.next_topic() == ""
    assert len(encoder.encode(**OPTIONS)) == 1
    with pytest.raises(RuntimeError, match="the disk is gone"):
        encoder.next_topic()


@pytest.mark.parametrize("wrap", [lambda reader: reader, Stream])
def test_a_source_cannot_use_the_encoder_that_reads_it(wrap: Any) -> None:
    errors: list[str] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for call in (encoder.next_topic, lambda: encoder.encode(**OPTIONS)):
            try:
                call()
            except RuntimeError as e:
                errors.append(str(e))
        yield arrow_batch(b"a")

    encoder = encoder_of(wrap(pa.RecordBatchReader.from_batches(SCHEMA, batches())))
    assert encoder.next_topic() == ""
    assert len(errors) == 2


# Errors


@pytest.mark.parametrize("data", [[b"a"], None, {"value": [b"a"]}, "text"])
def test_data_that_is_not_arrow_is_rejected(data: object) -> None:
    with pytest.raises(TypeError, match=r"expected Arrow data .* not (list|NoneType|dict|str)"):
        encoder_of(data)


def test_an_array_that_is_not_a_table_is_rejected() -> None:
    with pytest.raises(TypeError, match="expected a table, not an Arrow array of Int64"):
        encoder_of(pa.array([1, 2]))
    with pytest.raises(TypeError, match="expected a table, not an Arrow array of Binary"):
        encoder_of(pa.chunked_array([[b"a"]]))


@pytest.mark.parametrize("wrap", [Array, lambda array: pa.chunked_array([array])])
def test_a_null_row_is_rejected(wrap: Any) -> None:
    array = pa.array([{"value": b"a"}, None], pa.struct([("value", pa.binary())]))
    with pytest.raises(ValueError, match="a row of the Arrow data is null"):
        encoder_of(wrap(array)).next_topic()


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("key", [1]),
        ("value", [1.5]),
        ("value", pa.array([1]).dictionary_encode()),
        ("headers", ["a=b"]),
        ("headers", [[b"a"]]),
        ("headers", [[{"key": "a"}]]),
        ("headers", [[{"key": b"a", "value": b"b"}]]),
        ("headers", [[{"key": "a", "value": 1}]]),
        ("headers", [[{"label": "a", "value": b"b"}]]),
        ("headers", [[{"key": "a", "value": b"b", "more": 1}]]),
        ("timestamp", ["2026-01-01"]),
        ("timestamp", pa.array([1], pa.int32())),
        ("partition", ["1"]),
        ("partition", [1.0]),
        ("topic", [b"orders"]),
        ("topic", [1]),
    ],
)
def test_a_column_of_a_wrong_type_is_rejected(column: str, cells: Any) -> None:
    table = pa.table({"value": [b"a"]} | {column: cells})
    with pytest.raises(TypeError, match=rf"^the column '{column}' has the type .*; expected "):
        encoder_of(table)


def test_unknown_columns_are_rejected_unless_they_are_to_be_ignored() -> None:
    table = pa.table({"value": [b"a"], "price": [1]})
    with pytest.raises(
        ValueError, match=r"^unknown column 'price'. .* key, value, headers, timestamp, partition, topic"
    ):
        encoder_of(table)
    assert values(table, ignores_other_columns=True) == [b"a"]
    with pytest.raises(ValueError, match="the column 'value' is missing"):
        encoder_of(pa.table({"key": [b"a"]}))
    with pytest.raises(ValueError, match="there are two columns 'value'"):
        encoder_of(pa.Table.from_arrays([pa.array([b"a"]), pa.array([b"b"])], names=["value", "value"]))


def test_a_record_that_is_too_large_is_rejected_after_the_rows_before_it() -> None:
    """The size is Java's estimate: at most 61 bytes of the batch, 21 of the record, and 2 + 1000 + 1 + 1."""
    table = pa.table({"value": [b"a", b"b", b"x" * 1000, b"c"]})
    encoder = encoder_of(pa.concat_tables([table.slice(0, 1), table.slice(1)]))
    options = OPTIONS | {"max_record_size": 1085}
    assert encoder.next_topic() == ""
    assert [batch[2] for batch in encoder.encode(**options)] == [1]
    assert encoder.encode(**options) == []
    assert encoder.next_topic() == ""
    assert [batch[2:] for batch in encoder.encode(**options)] == [(1, 61 + 8, 1)]
    for _ in range(2):
        with pytest.raises(RowError, match=r"^row 2: the record takes up to 1086 bytes, more than 1085$") as e:
            encoder.encode(**options)
        assert (e.value.row, e.value.size) == (2, 1086)
    with pytest.raises(RuntimeError, match="not all rows of the topic '' are encoded"):
        encoder.next_topic()
    options["max_record_size"] = 1086
    assert [batch[2] for batch in encoder.encode(**options)] == [2]


@pytest.mark.parametrize("partition", [-1, 6, 2**63 - 1])
def test_a_partition_that_does_not_exist_is_rejected(partition: int) -> None:
    encoder = encoder_of(pa.table({"value": [b"a", b"b"], "partition": [None, partition]}))
    encoder.next_topic()
    assert len(encoder.encode(**OPTIONS)) == 1
    with pytest.raises(
        RowError, match=f"^row 1: partition {partition} does not exist: the topic has 6 partitions"
    ) as e:
        encoder.encode(**OPTIONS)
    assert (e.value.row, e.value.size, e.value.partition) == (1, None, partition)
    if partition == 6:
        assert [batch[0] for batch in encoder.encode(**OPTIONS | {"partition_count": 7})] == [6]


@pytest.mark.parametrize("headers", [[None], [{"key": None, "value": b"x"}]])
def test_a_header_without_a_name_is_rejected(headers: Any) -> None:
    item = pa.struct([("key", pa.string()), ("value", pa.binary())])
    encoder = encoder_of(pa.table({"value": [b"a"], "headers": pa.array([headers], pa.list_(item))}))
    encoder.next_topic()
    with pytest.raises(RowError, match=r"^row 0: a header is null or has no name"):
        encoder.encode(**OPTIONS)


@pytest.mark.parametrize("number", [-1, -999, -1000, -1001, -(2**63)])
@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        *((pa.int64(), "ms"), (pa.date64(), "ms"), (pa.timestamp("s"), "s"), (pa.timestamp("ms", "UTC"), "ms")),
        *((pa.timestamp("us", "UTC"), "µs"), (pa.timestamp("ns"), "ns")),
    ],
)
def test_a_timestamp_before_1970_is_rejected(number: int, kind: pa.DataType, unit: str) -> None:
    """Also one that would be rounded to Kafka's "no timestamp", -1 ms."""
    encoder = encoder_of(pa.table({"value": [b"a"], "timestamp": pa.array([number], pa.int64()).view(kind)}))
    encoder.next_topic()
    with pytest.raises(RowError, match=rf"^row 0: the timestamp is before 1970 \({number} {unit}\): .* null is"):
        encoder.encode(**OPTIONS)


def test_records_without_a_timestamp_that_were_read_from_kafka_get_one() -> None:
    batch = ProducerBatch("t", 0, 10_000, 0.0, None)
    for timestamp in (-1, 5):
        batch.append(b"v", None, None, timestamp)
    data = Records([decode(batch.finish(), topic="t", partition=0, position=0)])
    assert [each.timestamp for each in data] == [-1, 5]
    assert [row[2] for row in encode(data, is_of_kafka=True)] == [NOW, 5]
    with pytest.raises(RowError, match="before 1970"):
        encode(data)


def test_an_empty_topic_is_rejected() -> None:
    encoder = encoder_of(pa.table({"value": [b"a", b"b"], "topic": ["orders", ""]}))
    with pytest.raises(RowError, match=r"^row 1: the topic is empty"):
        encoder.next_topic()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"partitioner": "random"}, "random is not a partitioner"),
        ({"codec": "lzma"}, "lzma is not a codec"),
        ({"codec": "zstd", "level": 23}, "zstd has no level 23"),
        ({"sticky": []}, "sticky must be partitions below 6, at least one"),
        ({"sticky": [6]}, "sticky must be partitions below 6"),
        ({"partition_count": 0}, "sticky must be partitions below 0"),
    ],
)
def test_invalid_options_are_rejected_and_no_row_is_lost(changed: dict[str, Any], text: str) -> None:
    encoder = encoder_of(arrow_batch(b"a"))
    encoder.next_topic()
    with pytest.raises(ValueError, match=text):
        encoder.encode(**OPTIONS | changed)
    assert len(encoder.encode(**OPTIONS)) == 1


def test_encoding_begins_with_a_topic() -> None:
    with pytest.raises(RuntimeError, match=r"call next_topic\(\) before encode\(\)"):
        encoder_of(arrow_batch(b"a")).encode(**OPTIONS)
