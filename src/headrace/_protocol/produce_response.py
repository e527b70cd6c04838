"""The usual response to Produce: without errors, messages and tagged fields.

A producer that waits for each of its records waits for its decoding, too, which takes the general reader five times as
long. Any other response is left to it.
"""

from __future__ import annotations

import dataclasses
import datetime
import struct
import uuid
from typing import NamedTuple

from kio.schema.errors import ErrorCode

_PARTITION = struct.Struct(">ihqqqBBB")  # with an empty list of record errors, no message and no tagged fields
_USUAL_END = (1, 0, 0)
_BY_ID = 13  # the first version with topic ids
_NONE = ErrorCode.none


@dataclasses.dataclass(slots=True)
class AppendedBatch:
    """One partition of the response."""

    index: int
    base_offset: int
    log_append_time: int
    error_code: ErrorCode = _NONE


class AppendedTopic(NamedTuple):
    name: str | None
    topic_id: uuid.UUID | None
    partition_responses: tuple[AppendedBatch, ...]


class AppendedBatches(NamedTuple):
    """The response. It has the fields of kio's ProduceResponse that are used."""

    responses: tuple[AppendedTopic, ...]
    throttle_time: datetime.timedelta | None


def read_appended(version: int, frame: memoryview) -> AppendedBatches | None:
    """None if the response is not the usual one, or malformed."""
    try:
        return _read(version, frame)
    except (struct.error, IndexError, ValueError):  # ValueError: of UUIDs and texts
        return None


def _read(version: int, frame: memoryview) -> AppendedBatches | None:
    topic_count = frame[5] - 1
    if frame[4] or not 0 < topic_count < 0x7F:
        return None
    at = 6
    topics = []
    for _ in range(topic_count):
        name = topic_id = None
        if version >= _BY_ID:
            topic_id = uuid.UUID(bytes=bytes(frame[at : at + 16]))
            at += 16
        else:
            size = frame[at] - 1
            if not 0 < size < 0x7F:
                return None
            name = str(frame[at + 1 : at + 1 + size], "utf-8")
            at += 1 + size
        count = frame[at] - 1
        if not 0 < count < 0x7F:
            return None
        at += 1
        batches = []
        for _ in range(count):
            index, code, base_offset, log_append_time, _, *end = _PARTITION.unpack_from(frame, at)
            if code or tuple(end) != _USUAL_END:
                return None
            batches.append(AppendedBatch(index, base_offset, log_append_time))
            at += _PARTITION.size
        if frame[at]:
            return None
        at += 1
        topics.append(AppendedTopic(name, topic_id, tuple(batches)))
    throttle = int.from_bytes(frame[at : at + 4], "big", signed=True)
    if len(frame) != at + 5 or frame[at + 4]:
        return None
    return AppendedBatches(tuple(topics), datetime.timedelta(milliseconds=throttle) if throttle > 0 else None)
