"""Small batches of a poll become one Arrow batch. It has the same rows as the records, whatever they are."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._native import arrow_batches
from headrace.records import Batch, Records, decode
from support.brokers.record_batches import ABORT, Entry, encode_batch, encode_marker

payloads = st.none() | st.binary(max_size=20) | st.just(b"long" * 50)
names = st.text(max_size=3) | st.just(b"\xff")
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
plain = st.builds(Entry, payloads, payloads)
with_headers = st.builds(Entry, payloads, payloads, headers)
keyless = st.builds(Entry, st.none(), st.binary(max_size=5))


@st.composite
def batches(draw) -> Batch:
    """Slices of decoded batches: some have no headers, no keys, no records, or only a marker."""
    data = b""
    offset = start = draw(st.integers(0, 1000))
    for _ in range(draw(st.integers(0, 3))):
        entries = draw(st.lists(draw(st.sampled_from([plain, with_headers, keyless])), max_size=12))
        data += encode_batch(
            entries,
            base_offset=offset,
            base_timestamp=draw(st.sampled_from([-1, 0, 1_700_000_000_000, 2**62])),
            compressed=draw(st.booleans()),
            log_append_time=draw(st.booleans()),
        )
        offset += max(len(entries), 1)
        if draw(st.booleans()):
            data += encode_marker(ABORT, base_offset=offset, producer_id=1)
            offset += 1
    topic, partition = draw(st.sampled_from(["orders", "Grüße", ""])), draw(st.integers(0, 3))
    lane = draw(st.sampled_from([None, "live", "backlog"]))
    truncated = encode_batch([Entry(value=b"x")], base_offset=offset)[: draw(st.integers(0, 60))]
    whole = decode(data + truncated, topic=topic, partition=partition, position=start, lane=lane)
    return whole.slice(draw(st.integers(0, 8)), draw(st.integers(0, 40)))


def rows_of(records: Records) -> list[tuple[object, ...]]:
    return [
        (r.key, r.value, r.topic, r.partition, r.offset, r.timestamp_type, [*r.headers] or None, r.lane)
        for r in records
    ]


def rows_in(table: pa.Table) -> list[tuple[object, ...]]:
    table.validate(full=True)
    names = ("key", "value", "topic", "partition", "offset", "timestampType", "headers", "lane")
    return [
        tuple(
            [(h["key"], h["value"]) for h in row[name]] if name == "headers" and row[name] else row[name]
            for name in names
        )
        for row in table.drop_columns("timestamp").to_pylist()
    ]


@pytest.mark.parametrize("rows", [1, 1023, 1024, 1025, 3000])
def test_headers_are_null_in_every_row_if_no_record_has_some(rows):
    data = encode_batch([Entry(value=b"x")] * rows)
    column = Records([decode(data, topic="orders", partition=0, position=0)]).to_arrow()["headers"]
    column.validate(full=True)
    assert (len(column), column.null_count) == (rows, rows)


@given(st.lists(batches(), max_size=6))
def test_joined_batches_have_the_rows_of_the_records(parts):
    records = Records(parts)
    table = records.to_arrow(lane=True)
    assert table["value"].num_chunks <= 1
    assert rows_in(table) == rows_of(records)
    # A single batch is exported as it is.
    alone = [Records([part]).to_arrow(lane=True) for part in parts]
    assert table.equals(pa.concat_tables([Records().to_arrow(lane=True), *alone]))
    assert records.to_arrow().equals(table.drop_columns("lane"))


@given(st.lists(batches(), max_size=6))
def test_an_arrow_stream_joins_batches_of_one_topic(parts):
    records = Records(parts)
    found = list(pa.RecordBatchReader.from_stream(records))
    assert pa.Table.from_batches(found, pa.schema(records)).equals(records.to_arrow())
    topics = [batch["topic"].unique().to_pylist() for batch in found]
    assert all(len(each) == 1 for each in topics)
    runs = itertools.groupby((part.topic, part.lane) for part in parts if len(part))
    assert [each[0] for each in topics] == [topic for (topic, _), _ in runs]


def values(count: int, size: int, partition: int = 0) -> Batch:
    data = encode_batch([Entry(None, bytes([partition, row % 256]) * (size // 2)) for row in range(count)])
    return decode(data, topic="t", partition=partition, position=0)


def test_a_default_poll_becomes_one_arrow_batch_with_only_its_own_memory():
    whole = [values(400, 100, partition) for partition in range(6)]
    records = Records([each.slice(100, 84) for each in whole])
    column = records.to_arrow()["value"]
    assert column.num_chunks == 1
    assert column.chunk(0).buffers()[-1].size == 6 * 84 * 100


def test_large_batches_are_not_copied_between_small_ones():
    large = values(200, 1000)
    records = Records([values(5, 10, 1), values(5, 10, 2), large, values(5, 10, 3)])
    column = records.to_arrow()["value"]
    assert [len(chunk) for chunk in column.chunks] == [10, 200, 5]
    alone = Records([large]).to_arrow()["value"]
    assert column.chunk(1).buffers()[-1].address == alone.chunk(0).buffers()[-1].address


def test_at_most_8_mib_are_copied():
    one = values(100, 1000)
    lengths = [len(chunk) for chunk in Records([one] * 100).to_arrow()["value"].chunks]
    assert sum(lengths) == 10_000
    joined, *others = lengths
    assert 7 * 2**20 < joined * 1000 < 8 * 2**20
    assert set(others) == {100}


def test_an_interrupted_import_releases_its_memory():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def interrupted(address: int, schema: None) -> None:
        raise KeyboardInterrupt

    parts = [values(80, 1000, partition) for partition in range(4)]
    for count in (10, 500):  # the first ones fill the allocator's caches
        before = resident()
        for _ in range(count):
            with pytest.raises(KeyboardInterrupt):
                arrow_batches(parts, lane=False, import_batch=interrupted, schema=None)
    assert resident() - before < 40e6  # 160 MB were exported
