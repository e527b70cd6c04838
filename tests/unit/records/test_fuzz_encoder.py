"""Encoded records are decoded again as they were, and columns that are no records raise a documented error."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from headrace._record_batch import ColumnEncoder, ProducerBatch, RowError
from headrace.records import decode
from support.harness.fuzzing import rounds

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SIZES = (0, 0, 1, 2, 63, 64, 127, 128, 300, 9_000)
TIMESTAMPS = (0, 1, -1, 1_700_000_000_000, 2**62, 2**31)
REFUSALS = (TypeError, ValueError, RuntimeError, RowError)


def some_bytes(chance: random.Random) -> bytes | None:
    size = chance.choice(SIZES)
    return None if chance.random() < 0.2 else chance.choice((b"\0", b"\xff", b"ab", chance.randbytes(1))) * size


def some_headers(chance: random.Random) -> list[tuple[str, bytes | None]]:
    return [(chance.choice(("", "k", "é", "x" * 200)), some_bytes(chance)) for _ in range(chance.choice((0, 0, 1, 3)))]


def test_records_are_the_same_after_encoding_and_decoding() -> None:
    for chance in rounds(400):
        batch = ProducerBatch("t", 0, chance.choice((1, 500, 100_000)), 0.0, None)
        written = []
        for _ in range(chance.choice((1, 2, 20))):
            value, key, headers = some_bytes(chance), some_bytes(chance), some_headers(chance)
            timestamp = chance.choice(TIMESTAMPS[:4])
            if batch.append(value, key, headers, timestamp) is None:
                break
            written.append((value, key, headers, timestamp))
        encoded = batch.finish(chance.choice(CODECS))
        if chance.random() < 0.5:
            encoded.stamp(chance.choice((0, 2**62)), chance.choice((0, 32767)), chance.choice((0, 2**31 - 1)))
        found = decode(bytes(encoded), topic="t", partition=0, position=0)
        assert [(each.value, each.key, list(each.headers), each.timestamp) for each in found] == written
        assert [each.offset for each in found] == list(range(len(written)))


# -- columns -----------------------------------------------------------------------------------------------------------

TYPES = [
    pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(), pa.string_view(), pa.binary(3),
    pa.dictionary(pa.int8(), pa.string()), pa.int8(), pa.uint64(), pa.int64(), pa.float64(), pa.bool_(), pa.null(),
    pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.date32(), pa.date64(), pa.list_(pa.string()),
    pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})), pa.map_(pa.string(), pa.binary()),
    pa.struct({"key": pa.string()}), pa.large_list(pa.struct({"name": pa.string(), "value": pa.string()})),
]  # fmt: skip
NAMES = ("value", "key", "headers", "timestamp", "partition", "topic", "offset", "lane", "other", "")
USUAL = {
    "value": pa.binary(),
    "key": pa.string(),
    "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    "timestamp": pa.timestamp("ms"),
    "partition": pa.int32(),
    "topic": pa.string(),
}


def cell(kind: pa.DataType, chance: random.Random) -> Any:
    if chance.random() < 0.15:
        return None
    if pa.types.is_fixed_size_binary(kind):
        return chance.randbytes(kind.byte_width)
    if pa.types.is_dictionary(kind):
        return chance.choice(("a", "", "b" * 50))
    if any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
        return chance.choice(("", "t", "é" * 40, "a" * 300))
    if any(check(kind) for check in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)):
        return some_bytes(chance) or b""
    if pa.types.is_integer(kind):
        return chance.choice((0, 1, 2, 100)) if pa.types.is_unsigned_integer(kind) else chance.choice((0, 1, -1, 100))
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return chance.choice((0, 1, 86_400_000))
    if pa.types.is_map(kind):
        return [(chance.choice(("a", "é")), b"1")] * chance.choice((0, 1, 3))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [cell(kind.value_type, chance) for _ in range(chance.choice((0, 1, 3)))]
    if pa.types.is_struct(kind):
        return {field.name: cell(field.type, chance) for field in kind}
    return {pa.bool_(): True, pa.float64(): chance.choice((0.0, float("nan")))}.get(kind)


def some_table(chance: random.Random) -> pa.Table:
    names = ["value", *chance.sample(NAMES, chance.randrange(4))]
    kinds = [USUAL.get(name, pa.string()) if chance.random() < 0.7 else chance.choice(TYPES) for name in names]
    rows = chance.choice((0, 1, 7, 60))
    columns = [pa.array([cell(kind, chance) for _ in range(rows)], kind) for kind in kinds]
    if chance.random() < 0.3 and rows > 1:  # with an offset into its buffers
        columns = [column.slice(1) for column in columns]
    return pa.Table.from_arrays(columns, names=names)


def encode_all(table: pa.Table, chance: random.Random) -> int:
    """The number of records. Every batch is decoded again."""
    encoder = ColumnEncoder(table, default_timestamp=1, ignored=chance.choice(((), ("topic", "partition"))))
    count = 0
    while encoder.next_topic() is not None:
        while batches := encoder.encode(
            partition_count=chance.choice((1, 3)),
            partitioner=chance.choice(("murmur2", "crc32", "none")),
            sticky=[0],
            batch_size=chance.choice((1, 200, 10_000)),
            max_record_size=chance.choice((100, 100_000)),
            codec=chance.choice(CODECS),
            max_bytes=chance.choice((1, 4_000)),
        ):
            for partition, encoded, records, _, _ in batches:
                assert len(decode(bytes(encoded), topic="t", partition=partition, position=0)) == records
                count += records
    return count


def test_columns_are_encoded_or_raise_a_documented_error() -> None:
    encoded = refused = 0
    for chance in rounds(600):
        table = some_table(chance)
        try:
            assert encode_all(table, chance) == table.num_rows
            encoded += 1
        except REFUSALS:
            refused += 1
    assert encoded > 50
    assert refused > 50
