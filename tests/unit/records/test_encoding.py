"""Record batches for Produce requests: the decoder returns the encoded records."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._record_batch import EncodedBatch, ProducerBatch, crc32, murmur2
from headrace.records import decode

CODECS = [
    ("none", None),
    ("gzip", None),
    ("gzip", 9),
    ("snappy", None),
    ("lz4", None),
    ("lz4", 9),
    ("lz4", 17),
    ("zstd", None),
    ("zstd", -7),
]
FIELDS = st.none() | st.binary(max_size=40)
RECORDS = st.tuples(
    st.integers(-1, 2**62), FIELDS, FIELDS, st.lists(st.tuples(st.text("abcé", max_size=3), FIELDS), max_size=3)
)


def batch_of(limit: int = 10**6) -> ProducerBatch:
    return ProducerBatch("t", 0, limit, 0.0, None)


def encoded(records: list[Any], codec: str = "none", level: int | None = None) -> EncodedBatch:
    batch = batch_of()
    for timestamp, key, value, *headers in records:
        assert batch.append(value, key, *headers, timestamp=timestamp) is not None
    assert len(batch) == len(records)
    return batch.finish(codec, level)


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


def test_text_is_encoded_as_utf8() -> None:
    (record,) = decode(encoded([(5, "clé", "värde", [("näme", "x")])]), topic="t", partition=0, position=0)
    assert (record.key, record.value, record.headers) == ("clé".encode(), "värde".encode(), (("näme", b"x"),))


def test_a_batch_accepts_records_up_to_its_limit_and_one_larger_record() -> None:
    batch = batch_of(200)
    count = 0
    while batch.append(b"x" * 20) is not None:
        count += 1
    assert len(batch) == count == 5
    assert batch.size <= 200 < batch.size + 27
    alone = batch_of(200)
    assert alone.append(b"x" * 1000) is not None
    assert alone.append(b"") is None


def test_a_finished_batch_takes_no_more_records() -> None:
    batch = batch_of()
    with pytest.raises(ValueError, match="at least one record"):
        batch.finish()
    batch.append(b"x")
    assert batch.finish() is batch.finish() is batch.encoded
    assert batch.append(b"x") is None
    assert len(batch) == 1


@pytest.mark.parametrize(
    ("codec", "level"),
    [("lzma", None), ("none", 1), ("gzip", 0), ("gzip", 10), ("snappy", 1), ("lz4", 0), ("lz4", 18), ("zstd", 23)],
)
def test_an_unknown_codec_or_level_is_refused_and_the_records_are_kept(codec: str, level: int | None) -> None:
    batch = batch_of()
    batch.append(b"x")
    with pytest.raises(ValueError, match=codec):
        batch.finish(codec, level)
    assert len(batch.finish()) > 0


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"value": 5}, "value must be bytes, str or None, not int"),
        ({"value": None, "key": 1.5}, "key must be bytes, str or None, not float"),
        ({"value": None, "headers": [("n", 1)]}, "a header's value must be bytes, str or None, not int"),
        ({"value": None, "headers": [(b"n", None)]}, "headers"),
        ({"value": None, "timestamp": "0"}, "timestamp"),
        ({"value": "\ud800"}, "surrogates"),
    ],
)
def test_fields_of_a_wrong_type_are_refused(fields: dict[str, Any], error: str) -> None:
    batch = batch_of()
    with pytest.raises((TypeError, UnicodeEncodeError), match=error):
        batch.append(**fields)
    assert len(batch) == 0


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
    """The expected values are those of Utils.murmur2 in Kafka 4.3.1."""
    keys = [b"", b"a", b"ab", b"abc", b"abcd", b"21", b"foobar", b"\xff\xfe\xfd"]
    hashes = [275646681, -1563381124, 316155434, 479470107, -1323649548, -973932308, -790332482, 998637092]
    assert [murmur2(key) for key in keys] == hashes
