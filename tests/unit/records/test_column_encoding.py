"""Arrow data as record batches: they equal those of `ProducerBatch`, and the decoder returns the original rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._record_batch import ColumnEncoder, ProducerBatch, crc32, positive_murmur2
from headrace.records import decode

NOW = 1_700_000_000_000
CODECS = [("none", None), ("gzip", 1), ("snappy", None), ("lz4", None), ("lz4", 3), ("zstd", None), ("zstd", -7)]
HASHES = {"murmur2": positive_murmur2, "crc32": crc32}
OPTIONS: dict[str, Any] = {
    "partition_count": 6,
    "partitioner": "murmur2",
    "sticky": [2, 0, 5],
    "batch_size": 16384,
    "max_record_size": 1 << 20,
}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

COLUMNS = ["key", "value", "headers", "timestamp", "partition", "topic"]

TEXT = st.text("abcé", max_size=20).map(str.encode)
ROWS = st.fixed_dictionaries(
    {
        "key": st.none() | TEXT,
        "value": st.none() | TEXT | st.just(b"x" * 150),
        "headers": st.none() | st.lists(st.tuples(st.text("abé", max_size=2), st.none() | TEXT), max_size=3),
        "timestamp": st.none() | st.integers(0, 4_000_000_000_000),
        "partition": st.none() | st.integers(0, 5),
        "topic": st.none() | st.sampled_from(["orders", "é"]),
    }
)
BYTES_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string(), pa.string_view()]
TEXT_TYPES = BYTES_TYPES[3:]


@dataclasses.dataclass
class Found:
    topic: str
    partition: int
    data: bytes
    count: int
    size: int
    first_row: int

    def records(self) -> list[tuple[Any, ...]]:
        batch = decode(self.data, topic="t", partition=0, position=0)
        return [(each.timestamp, each.key, each.value, list(each.headers)) for each in batch]


def encode(data: object, *, ignores_other_columns: bool = False, **changed: Any) -> Iterator[Found]:
    encoder = ColumnEncoder(data, default_timestamp=NOW, ignores_other_columns=ignores_other_columns)
    while (topic := encoder.next_topic()) is not None:
        while batches := encoder.encode(**(OPTIONS | changed)):
            for partition, batch, count, size, first_row in batches:
                yield Found(topic, partition, bytes(batch), count, size, first_row)


def encoded_records(data: object, **changed: Any) -> list[tuple[Any, ...]]:
    return [record for batch in encode(data, **changed) for record in batch.records()]


def values(data: object, **changed: Any) -> list[bytes | None]:
    return [value for _, _, value, _ in encoded_records(data, **changed)]


def record(row: dict[str, Any]) -> tuple[Any, ...]:
    timestamp = NOW if row["timestamp"] is None else row["timestamp"]
    return timestamp, row["key"], row["value"], row["headers"] or []


class Model:
    """A model of the encoder for the rows of one topic in one Arrow batch, if `max_bytes` is never reached."""

    def __init__(self, topic: str, options: dict[str, Any], sticky_batches: int) -> None:
        self.topic, self.options, self.sticky_batches = topic, options, sticky_batches
        self.open: dict[int, tuple[ProducerBatch, int]] = {}
        self.found: list[Found] = []

    def sticky(self) -> int:
        sticky: list[int] = self.options["sticky"]
        return sticky[self.sticky_batches % len(sticky)]

    def finish(self, partition: int) -> None:
        batch, first_row = self.open.pop(partition)
        count, size = len(batch), batch.size
        data = bytes(batch.finish(self.options["codec"], self.options["level"]))
        self.found.append(Found(self.topic, partition, data, count, size, first_row))

    def append(self, partition: int, row: dict[str, Any]) -> bool:
        timestamp, key, value, headers = record(row)
        return self.open[partition][0].append(value, key, headers, timestamp) is not None

    def partition_of_key(self, key: bytes | None) -> int | None:
        hashed = HASHES.get(self.options["partitioner"])
        if key is None or hashed is None or (not key and self.options["ignores_empty_key"]):
            return None
        return hashed(key) % int(self.options["partition_count"])

    def encode(self, rows: list[tuple[int, dict[str, Any]]]) -> list[Found]:
        has_sticky = False
        for number, row in rows:
            chosen = row["partition"] if row["partition"] is not None else self.partition_of_key(row["key"])
            partition = self.sticky() if chosen is None else chosen
            has_sticky |= chosen is None
            if partition in self.open and not self.append(partition, row):
                self.finish(partition)
                if chosen is None:
                    self.sticky_batches += 1
                    partition = self.sticky()
                    if partition in self.open and not self.append(partition, row):
                        self.finish(partition)
            elif partition in self.open:
                continue
            if partition not in self.open:
                batch = ProducerBatch(self.topic, partition, self.options["batch_size"], 0.0, None)
                self.open[partition] = batch, number
                assert self.append(partition, row)
        for partition in sorted(self.open):
            self.finish(partition)
        self.sticky_batches += has_sticky
        return self.found


def modelled(batches: list[list[dict[str, Any]]], options: dict[str, Any]) -> list[Found]:
    found: list[Found] = []
    sticky_batches: dict[str, int] = {}
    first_row = 0
    for rows in batches:
        numbered = list(enumerate(rows, first_row))
        first_row += len(rows)
        for topic in dict.fromkeys(row["topic"] or "" for row in rows):
            model = Model(topic, options, sticky_batches.get(topic, 0))
            found += model.encode([each for each in numbered if (each[1]["topic"] or "") == topic])
            sticky_batches[topic] = model.sticky_batches
    return found


def bytes_array(cells: list[bytes | None], kind: pa.DataType, *, is_dictionary: bool) -> pa.Array:
    is_text = kind in TEXT_TYPES
    array = pa.array([cell.decode() if cell is not None and is_text else cell for cell in cells], kind)
    if is_dictionary and kind not in (pa.binary_view(), pa.string_view()):
        return array.dictionary_encode()
    return array


def headers_array(cells: list[list[tuple[str, bytes | None]] | None], kind: str, texts: Any, blobs: Any) -> pa.Array:
    if kind == "map":
        return pa.array(cells, pa.map_(texts, blobs))
    name = "name" if kind == "name" else "key"
    item = pa.struct([("value", blobs), (name, texts)])
    rows = [None if cell is None else [{name: a, "value": b} for a, b in cell] for cell in cells]
    return pa.array(rows, pa.large_list(item) if kind == "large" else pa.list_(item))


def timestamps_array(cells: list[int | None], kind: pa.DataType) -> pa.Array:
    scale = {"us": 1000, "ns": 10**6}.get(getattr(kind, "unit", "ms"), 1)
    return pa.array([None if cell is None else cell * scale for cell in cells], pa.int64()).cast(kind)


@st.composite
def arrow_batches(draw: st.DrawFn, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """The rows as an Arrow batch with columns of any type, sliced out of a larger one."""
    before = draw(st.lists(ROWS, max_size=3))
    after = draw(st.lists(ROWS, max_size=3))
    cells = {name: [row[name] for row in [*before, *rows, *after]] for name in COLUMNS}
    kinds = st.sampled_from(BYTES_TYPES)
    columns = {
        "key": bytes_array(cells["key"], draw(kinds), is_dictionary=draw(st.booleans())),
        "value": bytes_array(cells["value"], draw(kinds), is_dictionary=draw(st.booleans())),
        "headers": headers_array(
            cells["headers"],
            draw(st.sampled_from(["key", "name", "large", "map"])),
            draw(st.sampled_from(TEXT_TYPES)),
            draw(st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()])),
        ),
        "timestamp": timestamps_array(
            cells["timestamp"],
            draw(
                st.sampled_from(
                    [pa.int64(), pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "Asia/Tokyo")]
                )
            ),
        ),
        "partition": pa.array(
            cells["partition"], draw(st.sampled_from([pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64()]))
        ),
        "topic": bytes_array(
            [None if cell is None else cell.encode() for cell in cells["topic"]],
            draw(st.sampled_from(TEXT_TYPES)),
            is_dictionary=draw(st.booleans()),
        ),
    }
    names = draw(st.permutations(list(columns)))
    whole = pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)
    return whole.slice(len(before), len(rows))


@given(
    data=st.data(),
    rows=st.lists(ROWS, max_size=30),
    codec=st.sampled_from(CODECS),
    partitioner=st.sampled_from(["murmur2", "crc32", "none"]),
    ignores_empty_key=st.booleans(),
    batch_size=st.sampled_from([0, 150, 400, 16384]),
)
def test_the_batches_are_those_that_a_producer_builds_record_by_record(
    data: st.DataObject, rows: list[Any], codec: Any, partitioner: str, ignores_empty_key: bool, batch_size: int
) -> None:
    options = OPTIONS | {
        "codec": codec[0],
        "level": codec[1],
        "partitioner": partitioner,
        "ignores_empty_key": ignores_empty_key,
        "batch_size": batch_size,
    }
    found = list(encode(data.draw(arrow_batches(rows)), **options))
    assert found == modelled([rows], options)
    numbered = {number: record(row) for number, row in enumerate(rows)}
    for batch in found:
        records = batch.records()
        assert len(records) == batch.count
        assert records[0] == numbered[batch.first_row]
    assert sorted(map(repr, numbered.values())) == sorted(repr(each) for batch in found for each in batch.records())


@given(
    data=st.data(),
    chunks=st.lists(st.lists(ROWS, max_size=8), min_size=1, max_size=4),
    as_table=st.booleans(),
    max_bytes=st.integers(0, 600),
)
def test_rows_keep_their_order_in_each_partition_over_all_arrow_batches(
    data: st.DataObject, chunks: list[list[Any]], as_table: bool, max_bytes: int
) -> None:
    schema = pa.schema(
        [("key", pa.binary()), ("value", pa.binary()), ("partition", pa.int32()), ("topic", pa.string())]
    )
    rows = [dict(row, headers=None, timestamp=None) for chunk in chunks for row in chunk]
    for number, row in enumerate(rows):
        row["value"] = b"%d" % number
    batches, at = [], 0
    for chunk in chunks:
        batches.append(pa.RecordBatch.from_pylist(rows[at : at + len(chunk)], schema))
        at += len(chunk)
    if as_table:
        source: object = pa.Table.from_batches(batches, schema)
    else:
        source = pa.RecordBatchReader.from_batches(schema, batches)
    partitions: dict[tuple[str, int], list[int]] = {}
    for batch in encode(source, batch_size=200, max_bytes=max_bytes):
        numbers = [int(value) for _, _, value, _ in batch.records()]
        assert numbers[0] == batch.first_row
        partitions.setdefault((batch.topic, batch.partition), []).extend(numbers)
    assert all(numbers == sorted(numbers) for numbers in partitions.values())
    assert sorted(number for numbers in partitions.values() for number in numbers) == list(range(len(rows)))
    for (topic, partition), numbers in partitions.items():
        for row in (rows[number] for number in numbers):
            assert (row["topic"] or "") == topic
            if row["partition"] is not None:
                assert row["partition"] == partition
            elif row["key"] is not None:
                assert positive_murmur2(row["key"]) % 6 == partition
            else:
                assert partition in OPTIONS["sticky"]


def test_rows_without_a_key_fill_one_batch_after_the_other() -> None:
    table = pa.table({"value": [b"x" * 100] * 1000})
    found = list(encode(table, batch_size=2000, max_bytes=5000))
    assert [batch.partition for batch in found] == [2, 0, 5] * (len(found) // 3) + [2, 0, 5][: len(found) % 3]
    assert all(1880 < batch.size <= 2000 for batch in found[:-1])
    starts = [batch.first_row for batch in found]
    assert starts == [sum(batch.count for batch in found[:index]) for index in range(len(found))]


def test_small_arrow_batches_use_all_sticky_partitions() -> None:
    table = pa.concat_tables([pa.table({"value": [b"x"]})] * 7)
    assert [batch.partition for batch in encode(table)] == [2, 0, 5, 2, 0, 5, 2]


def test_memory_for_partial_batches_is_bounded() -> None:
    """20 partitions with batches of 1 MB could hold 20 MB."""
    table = pa.table({"value": [b"x" * 1000] * 10_000, "partition": [number % 20 for number in range(10_000)]})
    encoder = ColumnEncoder(table, default_timestamp=NOW)
    assert encoder.next_topic() == ""
    options = OPTIONS | {"partition_count": 20, "batch_size": 10**6, "max_record_size": 10**7}
    count = 0
    while batches := encoder.encode(**options, max_bytes=500_000):
        count += sum(batch[2] for batch in batches)
        assert sum(batch[3] for batch in batches) < 1_100_000
    assert count == 10_000


@given(st.lists(st.integers(0, 400), min_size=1, max_size=40), st.integers(500, 3000), st.integers(1, 3))
def test_batches_stay_within_the_room_that_a_call_has(sizes: list[int], room: int, partitions: int) -> None:
    """Open and returned batches together. A call makes progress if the next row fits."""
    table = pa.table(
        {"value": [b"x" * size for size in sizes], "partition": [n % partitions for n in range(len(sizes))]}
    )
    encoder = ColumnEncoder(table, default_timestamp=NOW)
    assert encoder.next_topic() == ""
    count = 0
    while (size := encoder.next_size) is not None:
        assert size <= 400 + 61 + 21 + 4
        if encoder.open_bytes + size > room:
            held = encoder.open_bytes
            found = encoder.finish()
            assert sum(batch[3] for batch in found) == held <= room
        else:
            found = encoder.encode(**OPTIONS | {"batch_size": 1000}, room=room, max_bytes=1500)
            assert encoder.open_bytes + sum(batch[3] for batch in found) <= room
            assert found or encoder.open_bytes
        count += sum(batch[2] for batch in found)
    assert (count, encoder.open_bytes) == (len(sizes), 0)


def test_nothing_is_encoded_if_the_next_row_might_not_fit() -> None:
    encoder = ColumnEncoder(pa.table({"value": [b"x" * 100]}), default_timestamp=NOW)
    assert (encoder.next_topic(), encoder.next_size) == ("", 61 + 21 + 104)
    assert encoder.encode(**OPTIONS, room=185) == []
    assert encoder.next_size == 186
    assert len(encoder.encode(**OPTIONS, room=186)) == 1
    assert encoder.next_size is None


def test_the_size_is_that_before_compression() -> None:
    (batch,) = encode(pa.table({"value": [b"x" * 10_000]}), codec="zstd")
    assert len(batch.data) < 200
    assert batch.size > 10_000


def test_a_million_rows_of_two_topics_are_all_encoded() -> None:
    rows = 1_000_000
    table = pa.table({"value": pa.array([b"x" * 20]).take(pa.array([0] * rows)), "topic": ["a", "b"] * (rows // 2)})
    counts: dict[str, int] = {}
    for batch in encode(table):
        counts[batch.topic] = counts.get(batch.topic, 0) + batch.count
    assert counts == {"a": rows // 2, "b": rows // 2}


@pytest.mark.parametrize("partitioner", ["murmur2", "crc32"])
def test_a_key_determines_the_partition(partitioner: str) -> None:
    keys = [b"", b"a", b"customer-17", "ключ".encode()]
    for key in keys:
        (batch,) = encode(pa.table({"key": [key], "value": [b""]}), partition_count=97, partitioner=partitioner)
        assert batch.partition == HASHES[partitioner](key) % 97
    (batch,) = encode(pa.table({"key": [b""], "value": [b""]}), ignores_empty_key=True)
    assert batch.partition == 2


def test_fixed_size_bytes_and_all_nulls_are_encoded() -> None:
    table = pa.table({"key": pa.array([b"abcd", None], pa.binary(4)), "value": pa.nulls(2)})
    for column in ("headers", "timestamp", "partition", "topic"):
        table = table.append_column(column, pa.nulls(2))
    assert sorted(encoded_records(table), key=str) == [(NOW, None, None, []), (NOW, b"abcd", None, [])]
    empty_lists = pa.table({"value": [b"x", b"y"], "headers": [[], None]})
    assert empty_lists.schema.field("headers").type == pa.list_(pa.null())
    assert encoded_records(empty_lists) == [(NOW, None, b"x", []), (NOW, None, b"y", [])]
    no_entries = pa.table({"value": pa.array([None], pa.string()).dictionary_encode()})
    assert values(no_entries) == [None]


@pytest.mark.parametrize(
    ("cell", "kind", "milliseconds"),
    [
        (1_700_000_000, pa.timestamp("s"), 1_700_000_000_000),
        (1_700_000_000_123_999, pa.timestamp("us", "UTC"), 1_700_000_000_123),
        (86_400_000, pa.date64(), 86_400_000),
        (0, pa.int64(), 0),
        (999, pa.timestamp("us", "UTC"), 0),
        (None, pa.timestamp("ns"), NOW),
    ],
)
def test_timestamps_are_milliseconds(cell: int | None, kind: pa.DataType, milliseconds: int) -> None:
    ((timestamp, _, _, _),) = encoded_records(
        pa.table({"value": [b""], "timestamp": pa.array([cell], pa.int64()).cast(kind)})
    )
    assert timestamp == milliseconds
