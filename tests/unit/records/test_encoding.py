"""Record batches for Produce requests: the decoder reads what was encoded."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._record_batch import BatchBuilder, EncodedBatch, crc32, murmur2
from headrace.records import decode

CODECS = [("none", None), ("gzip", None), ("gzip", 9), ("snappy", None), ("lz4", None), ("zstd", None), ("zstd", -7)]
FIELDS = st.none() | st.binary(max_size=40)
RECORDS = st.tuples(
    st.integers(-1, 2**62), FIELDS, FIELDS, st.lists(st.tuples(st.text("abcé", max_size=3), FIELDS), max_size=3)
)


def encoded(records: list[Any], codec: str = "none", level: int | None = None) -> EncodedBatch:
    builder = BatchBuilder(10**6)
    for record in records:
        assert builder.append(*record)
    assert len(builder) == len(records)
    return builder.finish(codec, level)


@given(
    records=st.lists(RECORDS, min_size=1, max_size=20),
    codec=st.sampled_from(CODECS),
    sequence=st.integers(0, 2**31 - 1),
)
def test_a_batch_is_decoded_to_what_was_encoded(records: list[Any], codec: Any, sequence: int) -> None:
    batch = encoded(records, *codec)
    batch.stamp(17, 3, sequence, is_transactional=True)
    found = decode(batch, topic="t", partition=0, position=0)
    assert [(each.timestamp, each.key, each.value, list(each.headers)) for each in found] == records
    assert [each.offset for each in found] == list(range(len(records)))
    header = bytes(batch)[:61]
    assert (header[43:51], header[51:53], header[53:57]) == (
        (17).to_bytes(8, "big"),
        (3).to_bytes(2, "big"),
        sequence.to_bytes(4, "big"),
    )


def test_buffers_of_any_kind_are_encoded() -> None:
    batch = encoded([(5, bytearray(b"key"), memoryview(b"value"), [("name", bytearray(b"x"))])])
    (record,) = decode(batch, topic="t", partition=0, position=0)
    assert (record.key, record.value, record.headers) == (b"key", b"value", (("name", b"x"),))


def test_a_batch_accepts_records_up_to_its_limit_and_one_larger_record() -> None:
    builder = BatchBuilder(200)
    count = 0
    while builder.append(0, None, b"x" * 20):
        count += 1
    assert len(builder) == count == 5
    assert builder.size <= 200 < builder.size + 27
    alone = BatchBuilder(200)
    assert alone.append(0, None, b"x" * 1000)
    assert not alone.append(0, None, b"")


def test_a_builder_ends_with_its_batch() -> None:
    builder = BatchBuilder(100)
    with pytest.raises(ValueError, match="at least one record"):
        builder.finish()
    builder.append(0, None, b"x")
    builder.finish()
    for call in (lambda: builder.append(0, None, b"x"), builder.finish, lambda: builder.size, lambda: len(builder)):
        with pytest.raises(ValueError, match="this batch is finished"):
            call()


@pytest.mark.parametrize(
    ("codec", "level"), [("lzma", None), ("none", 1), ("gzip", 0), ("gzip", 10), ("snappy", 1), ("zstd", 23)]
)
def test_an_unknown_codec_or_level_is_refused_and_the_records_are_kept(codec: str, level: int | None) -> None:
    builder = BatchBuilder(100)
    builder.append(0, None, b"x")
    with pytest.raises(ValueError, match=codec):
        builder.finish(codec, level)
    assert len(builder) == 1


@pytest.mark.parametrize(
    "record", [(0, "text", b"", ()), (0, None, 5, ()), (0, None, None, [(b"n", None)]), ("0", None, None, ())]
)
def test_fields_of_a_wrong_type_are_refused(record: Any) -> None:
    builder = BatchBuilder(100)
    with pytest.raises((TypeError, BufferError)):
        builder.append(*record)
    assert len(builder) == 0


def test_a_batch_that_is_being_read_is_not_changed() -> None:
    batch = encoded([(0, None, b"x")])
    view = memoryview(batch)
    assert view.readonly
    with pytest.raises(BufferError):
        batch.stamp(1, 1, 1)
    view.release()
    batch.stamp(1, 1, 1)


@given(key=st.binary(max_size=50))
def test_crc32_is_that_of_zlib(key: bytes) -> None:
    assert crc32(key) == zlib.crc32(key)


def test_murmur2_is_that_of_java() -> None:
    """Utils.murmur2 of Kafka 4.3.1."""
    keys = [b"", b"a", b"ab", b"abc", b"abcd", b"21", b"foobar", b"\xff\xfe\xfd"]
    hashes = [275646681, -1563381124, 316155434, 479470107, -1323649548, -973932308, -790332482, 998637092]
    assert [murmur2(key) for key in keys] == hashes
