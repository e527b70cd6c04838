"""The fast reader of common Produce responses agrees with the general reader and leaves all others to it."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._protocol import reader
from headrace._protocol.messages import PRODUCE, _response_type
from headrace._protocol.produce_response import read_appended

BATCHES = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.integers(-1, 2**62), st.integers(-1, 2**62)), min_size=1, max_size=4
)
TOPICS = st.lists(st.tuples(st.uuids(), BATCHES), min_size=1, max_size=3)


def frame_of(version: int, topics: Any, throttle: int = 0, code: int = 0, end: bytes = b"\x01\x00\x00") -> bytes:
    parts = [struct.pack(">i", 7), b"\0", bytes([len(topics) + 1])]
    for topic_id, batches in topics:
        name = str(topic_id).encode()
        parts += [topic_id.bytes] if version >= 13 else [bytes([len(name) + 1]), name]
        parts.append(bytes([len(batches) + 1]))
        parts += [struct.pack(">ihqqq", index, code, base, at, 0) + end for index, base, at in batches]
        parts.append(b"\0")
    return b"".join([*parts, struct.pack(">i", throttle), b"\0"])


def general(version: int, frame: bytes) -> Any:
    entity = _response_type(PRODUCE.key, version)
    _, at = reader.read_to(entity.__header_schema__, memoryview(frame))
    return reader.read(entity, memoryview(frame), at)


@pytest.mark.parametrize("version", range(PRODUCE.lowest, PRODUCE.highest + 1))
@given(topics=TOPICS, throttle=st.integers(0, 10_000))
def test_both_readers_agree(version: int, topics: Any, throttle: int) -> None:
    frame = frame_of(version, topics, throttle)
    quick, slow = read_appended(version, memoryview(frame)), general(version, frame)
    assert quick is not None
    assert (quick.throttle_time or 0) == (slow.throttle_time or 0)
    for found, expected in zip(quick.responses, slow.responses, strict=True):
        assert (found.topic_id or found.name) == getattr(expected, "topic_id", None) or found.name == expected.name
        assert [(each.index, each.base_offset, each.log_append_time) for each in found.partition_responses] == [
            (each.index, each.base_offset, each.log_append_time) for each in expected.partition_responses
        ]


USUAL = [(uuid.UUID(int=1), [(0, 5, -1)])]


@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize(
    "frame",
    [
        {"code": 6},
        {"end": b"\x01\x03no\x00"},  # a message
        {"end": b"\x02\x00\x00\x00\x01\x00\x00\x00\x00"},  # a record error
        {"end": b"\x01\x00\x01\x09\x01\x00"},  # a tagged field
    ],
)
def test_a_response_with_more_to_say_is_left_to_the_general_reader(version: int, frame: dict[str, Any]) -> None:
    raw = frame_of(version, USUAL, **frame)
    assert read_appended(version, memoryview(raw)) is None
    assert general(version, raw).responses


@given(st.binary(max_size=80))
def test_whatever_is_malformed_is_left_to_the_general_reader(raw: bytes) -> None:
    read_appended(13, memoryview(raw))
    assert read_appended(13, memoryview(frame_of(13, USUAL)[: len(raw)])) is None or len(raw) >= len(
        frame_of(13, USUAL)
    )
