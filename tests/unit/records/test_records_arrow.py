"""`Records` as an Arrow stream: pyarrow, polars, DuckDB and pandas accept it directly."""

from __future__ import annotations

import builtins
import gc
import struct
from datetime import UTC, datetime

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from headrace.records import Records, decode
from support.brokers.record_batches import Entry, encode_batch

# The columns of Spark's Kafka source.
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
VIEWS = SCHEMA.set(0, pa.field("key", pa.binary_view())).set(1, pa.field("value", pa.binary_view()))
WITH_LANE = SCHEMA.append(pa.field("lane", pa.string()))


def batch(topic="orders", partition=3, lane=None, base_offset=0):
    def headers(i):
        return (("a", b"1"), ("a", None)) if i % 3 == 1 else ()

    first = encode_batch(
        [Entry(b"k%d" % i if i % 2 else None, b"v%d" % i if i % 4 else None, headers(i)) for i in range(6)],
        base_offset=base_offset,
        base_timestamp=1_700_000_000_123,
    )
    second = encode_batch(
        [Entry(b"", b"last")], base_offset=base_offset + 6, log_append_time=True, max_timestamp=1_800_000_000_000
    )
    return decode(first + second, topic=topic, partition=partition, position=base_offset, lane=lane)


def expected(record) -> dict[str, object]:
    return {
        "key": record.key,
        "value": record.value,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": datetime.fromtimestamp(record.timestamp // 1000, UTC).replace(
            microsecond=record.timestamp % 1000 * 1000
        ),
        "timestampType": record.timestamp_type,
        "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
    }


@pytest.fixture
def records() -> Records:
    return Records([batch(), batch("events", 0, base_offset=100).slice(2, 4), batch(base_offset=7)])


def check(table: pa.Table, records: Records) -> None:
    table.validate(full=True)
    assert table.to_pylist() == [expected(r) for r in records]


def test_pyarrow_takes_records(records):
    table = pa.table(records)
    assert table.schema == SCHEMA
    check(table, records)
    check(records.to_arrow(), records)
    assert records.to_arrow().schema == SCHEMA
    assert pa.schema(records) == SCHEMA


def test_an_arrow_stream_has_one_arrow_batch_for_each_topic_in_turn(records):
    reader = pa.RecordBatchReader.from_stream(records)
    assert reader.schema == SCHEMA
    assert [b.num_rows for b in reader] == [7, 4, 7]


def test_any_slice_of_records_is_an_arrow_table(records):
    for start in range(len(records)):
        for stop in range(start, len(records) + 1):
            part = records[start:stop]
            check(pa.table(part), part)


def test_no_records_are_an_empty_arrow_table():
    for empty in (Records(), Records([batch().slice(0, 0)])):
        table = empty.to_arrow()
        assert table.num_rows == 0
        assert table.schema == SCHEMA
    assert pl.DataFrame(Records()).shape == (0, 8)


def test_an_arrow_table_has_a_lane_column_on_request():
    records = Records([batch(lane="live"), batch(lane=None), batch(lane="backlog")])
    table = records.to_arrow(lane=True)
    assert table.schema == WITH_LANE
    table.validate(full=True)
    assert table["lane"].to_pylist() == ["live"] * 7 + [None] * 7 + ["backlog"] * 7
    assert "lane" not in records.to_arrow().column_names


def test_polars_takes_records(records):
    frame = pl.DataFrame(records)
    assert frame.to_dicts() == [expected(r) for r in records]
    # polars 2 treats any stream as one column of structs here.
    assert pl.from_arrow(records).struct.unnest().equals(frame)
    assert frame.schema["timestamp"] == pl.Datetime("us", "UTC")


def test_duckdb_takes_records(records):
    # DuckDB finds the variable by its name.
    rows = duckdb.sql('select topic, sum(partition), max("offset"), count(key) from records group by 1 order by 1')
    assert rows.fetchall() == [("events", 0, 105, 2), ("orders", 42, 13, 8)]


def test_pandas_takes_records(records):
    frame = pa.table(records).to_pandas()
    assert list(frame["offset"]) == [r.offset for r in records]
    assert list(frame["value"]) == [r.value for r in records]
    assert frame["timestamp"][0] == pd.Timestamp("2023-11-14T22:13:20.123Z")
    direct = pd.DataFrame.from_arrow(records)
    assert list(direct["offset"]) == [r.offset for r in records]


def test_arrow_memory_outlives_the_records(records):
    want = [expected(r) for r in records]
    reader = pa.RecordBatchReader.from_stream(records)
    del records
    gc.collect()
    table = reader.read_all()
    del reader
    # Allocations of the same sizes overwrite memory that was freed too early.
    noise = [batch() for _ in range(100)]
    assert table.to_pylist() == want
    del noise


def test_arrow_keys_values_and_offsets_are_not_copied():
    b = batch()
    tables = [Records([b]).to_arrow() for _ in range(2)]
    for name in ("key", "value", "offset"):
        first, second = (t[name].chunk(0).buffers()[-1].address for t in tables)
        assert first == second
    # Slices point into the same memory.
    part = Records([b.slice(2, 3)]).to_arrow()
    assert part["value"].chunk(0).buffers()[-1].address == tables[0]["value"].chunk(0).buffers()[-1].address


@pytest.mark.parametrize(
    ("milliseconds", "microseconds"),
    [
        (-1, -1000),  # no timestamp, as in Spark's Kafka source
        (-2, -2000),
        (0, 0),
        # Producers that write microseconds or nanoseconds.
        (1_700_000_000_000_000, 1_700_000_000_000_000_000),
        (1_700_000_000_000_000_000, 2**63 - 1),
        (-(2**63), -(2**63)),
    ],
)
def test_extreme_timestamps_become_arrow_timestamps(milliseconds, microseconds):
    data = encode_batch([Entry()], base_timestamp=milliseconds)
    records = Records([decode(data, topic="t", partition=0, position=0)])
    assert records[0].timestamp == milliseconds
    assert records.to_arrow()["timestamp"].cast(pa.int64()).to_pylist() == [microseconds]


class TestRequestedSchema:
    @pytest.mark.parametrize(
        ("column", "type_"),
        [
            ("key", pa.large_binary()),
            ("value", pa.binary_view()),
            ("topic", pa.large_string()),
            ("topic", pa.string_view()),
            ("topic", pa.dictionary(pa.int32(), pa.string())),
            ("lane", pa.dictionary(pa.int32(), pa.string())),
            ("timestamp", pa.timestamp("ms", "UTC")),
            ("timestamp", pa.timestamp("ns", "UTC")),
        ],
        ids=str,
    )
    def test_a_requested_schema_may_have_other_representations(self, column, type_):
        records = Records([batch(lane="live"), batch().slice(1, 4)])
        want = WITH_LANE.set(WITH_LANE.get_field_index(column), pa.field(column, type_))
        reader = pa.RecordBatchReader.from_stream(records, schema=want)
        assert reader.schema == want
        table = reader.read_all()
        table.validate(full=True)
        assert table.cast(WITH_LANE).equals(records.to_arrow(lane=True))

    def test_requested_views_point_into_the_memory_of_the_values(self):
        big = Records([decode(encode_batch([Entry(value=b"x" * 200_000)]), topic="t", partition=0, position=0)])
        table = pa.RecordBatchReader.from_stream(big, schema=VIEWS).read_all()
        assert table["value"].type == pa.binary_view()
        assert table["value"].chunk(0).buffers()[2].address == big.to_arrow()["value"].chunk(0).buffers()[2].address
        del big
        gc.collect()
        assert table["value"].to_pylist() == [b"x" * 200_000]

    def test_polars_and_duckdb_take_requested_views(self, records):
        views = pa.RecordBatchReader.from_stream(records, schema=VIEWS).read_all()
        assert pl.DataFrame(views).equals(pl.DataFrame(records))
        found = duckdb.sql("select value from views").fetchall()
        assert found == [(r.value,) for r in records]

    def test_a_requested_type_without_conversion_is_ignored(self, records):
        odd = SCHEMA.set(4, pa.field("offset", pa.float64()))
        assert pa.RecordBatchReader.from_stream(records, schema=odd).schema == SCHEMA
        # pyarrow then casts by itself.
        assert pa.table(records, schema=odd).schema == odd

    def test_a_requested_schema_with_other_columns_is_refused(self, records):
        for wrong in (SCHEMA.remove(0), SCHEMA.append(pa.field("more", pa.int32()))):
            with pytest.raises(ValueError, match="the columns are key, value, topic"):
                pa.RecordBatchReader.from_stream(records, schema=wrong)

    def test_a_requested_schema_of_another_type_is_refused(self, records):
        with pytest.raises(TypeError):
            records.__arrow_c_stream__(object())
        with pytest.raises(ValueError, match="name"):
            records.__arrow_c_stream__(records.__arrow_c_stream__())


@pytest.mark.parametrize("lane", [1, None, "no"])
def test_to_arrow_refuses_a_lane_that_is_no_bool(records, lane):
    with pytest.raises(TypeError, match="lane must be True or False"):
        records.to_arrow(lane=lane)


def test_without_pyarrow_to_arrow_says_what_to_install(records, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "pyarrow":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'headrace\[arrow\]'"):
        records.to_arrow()


def test_a_long_topic_name_with_many_records_fits_an_arrow_table():
    one = encode_batch([Entry()] * 1000)
    data = b"".join(struct.pack(">q", 1000 * i) + one[8:] for i in range(100))
    topic = "x" * 249
    table = Records([decode(data, topic=topic, partition=0, position=0)]).to_arrow()
    table.validate(full=True)
    assert table["topic"].unique().to_pylist() == [topic]
    assert table.num_rows == 100_000


def test_arrow_topic_columns_are_right_after_exports_of_other_topics():
    """The topic columns of the last few topics are cached, each as long as the longest export."""
    names = [f"topic {number}" for number in range(20)] + ["", "x" * 300]
    for length in (3, 1, 0, 2, 3):
        for name in (*names, *reversed(names)):
            table = Records([batch(topic=name).slice(0, length)]).to_arrow()
            table.validate(full=True)
            assert table["topic"].to_pylist() == [name] * min(length, len(batch()))
