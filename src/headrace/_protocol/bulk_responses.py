"""Responses about thousands of partitions: Metadata, ListOffsets, OffsetFetch.

The partitions of a topic are an array of items that usually have the same size: without tagged fields, with empty
commit metadata, with equally many replicas. Such an array is unpacked in one step, ten times as fast as item by item.
Any other array is left to the general reader, and so is a response that is malformed.

The results have the fields of kio's entities that a survey uses, under the same names.
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from kio.schema.list_offsets.v11 import response as list_offsets
from kio.schema.metadata.v13 import response as metadata
from kio.schema.offset_fetch.v9 import response as offset_fetch

from ..errors import ProtocolError
from .reader import read_to

T = TypeVar("T")

_ERRORS = (struct.error, IndexError, ValueError, ProtocolError)
_HEADER = 5  # correlation id, and no tagged fields
_SMALL = 0x80  # a varint below is one byte


class _Unusual(ValueError):
    """The general reader decodes the response."""


class BulkOffset(NamedTuple):
    """A partition of ListOffsets."""

    partition_index: int
    error_code: int
    timestamp: int
    offset: int
    leader_epoch: int
    tags: int = 0


class BulkCommit(NamedTuple):
    """A partition of OffsetFetch, with empty metadata."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    metadata_size: int
    error_code: int
    tags: int = 0

    @property
    def metadata(self) -> str:
        return ""


class BulkLog(NamedTuple):
    """A partition of Metadata."""

    error_code: int
    partition_index: int
    leader_id: int
    leader_epoch: int
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]
    offline_replicas: tuple[int, ...]


class BulkTopic(NamedTuple):
    name: str | None
    partitions: Sequence[Any]
    error_code: int = 0
    topic_id: uuid.UUID | None = None
    is_internal: bool = False


class BulkGroup(NamedTuple):
    group_id: str
    topics: Sequence[BulkTopic]
    error_code: int


class BulkBroker(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


class BulkMetadata(NamedTuple):
    brokers: Sequence[BulkBroker]
    cluster_id: str | None
    controller_id: int
    topics: Sequence[BulkTopic]
    error_code: int
    throttle_time: None = None


class BulkOffsets(NamedTuple):
    topics: Sequence[BulkTopic]
    throttle_time: None = None


class BulkCommits(NamedTuple):
    groups: Sequence[BulkGroup]
    throttle_time: None = None


def read_list_offsets(version: int, frame: memoryview) -> BulkOffsets | None:
    """None if the response is not the usual one."""
    return _guarded(_read_list_offsets, version, frame)


def read_offset_fetch(version: int, frame: memoryview) -> BulkCommits | None:
    return _guarded(_read_offset_fetch, version, frame)


def read_metadata(version: int, frame: memoryview) -> BulkMetadata | None:
    return _guarded(_read_metadata, version, frame)


def _guarded(read: Callable[[int, _Cursor], T], version: int, frame: memoryview) -> T | None:
    try:
        cursor = _Cursor(frame)
        # A throttled client must know: the general reader has the field.
        if cursor.i32() != 0:
            return None
        found = read(version, cursor)
        cursor.no_tags()
        return found if cursor.at == len(frame) else None
    except _ERRORS:
        return None


class _Cursor:
    __slots__ = ("at", "frame")

    def __init__(self, frame: memoryview) -> None:
        if frame[_HEADER - 1]:
            raise _Unusual
        self.frame = frame
        self.at = _HEADER

    def uvarint(self) -> int:
        byte = self.frame[self.at]
        self.at += 1
        if byte < _SMALL:
            return byte
        value, shift = byte & 0x7F, 7
        while True:
            byte = self.frame[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < _SMALL:
                return value
            shift += 7
            if shift > 28:
                raise _Unusual

    def count(self) -> int:
        found = self.uvarint() - 1
        if found < 0:
            raise _Unusual
        return found

    def raw(self, size: int) -> memoryview:
        found = self.frame[self.at : self.at + size]
        if len(found) != size:
            raise _Unusual
        self.at += size
        return found

    def text(self) -> str:
        return str(self.raw(self.count()), "utf-8")

    def optional_text(self) -> str | None:
        size = self.uvarint() - 1
        return None if size < 0 else str(self.raw(size), "utf-8")

    def i16(self) -> int:
        return int.from_bytes(self.raw(2), "big", signed=True)

    def i32(self) -> int:
        return int.from_bytes(self.raw(4), "big", signed=True)

    def no_tags(self) -> None:
        if self.frame[self.at]:
            raise _Unusual
        self.at += 1

    def one_by_one(self, entity: type[Any], count: int) -> list[Any]:
        """Items of different sizes, with the general reader."""
        items = []
        for _ in range(count):
            item, self.at = read_to(entity, self.frame, self.at)
            items.append(item)
        return items


# -- ListOffsets, OffsetFetch --------------------------------------------------------------------------------------

_OFFSET = struct.Struct(">ihqqiB")
_COMMIT = struct.Struct(">iqiBhB")
_COMMIT_SIZE_AT = 16  # where a commit has the size of its metadata: 0 is none, 1 is empty
_EMPTY = b"\x00\x01"


def _read_list_offsets(version: int, cursor: _Cursor) -> BulkOffsets:
    topics = []
    for _ in range(cursor.count()):
        name, count = cursor.text(), cursor.count()
        items: Sequence[Any]
        raw = cursor.frame[cursor.at : cursor.at + count * _OFFSET.size]
        if len(raw) == count * _OFFSET.size and not any(raw[_OFFSET.size - 1 :: _OFFSET.size]):
            items = list(map(BulkOffset._make, _OFFSET.iter_unpack(raw)))
            cursor.at += len(raw)
        else:
            items = cursor.one_by_one(list_offsets.ListOffsetsPartitionResponse, count)
        cursor.no_tags()
        topics.append(BulkTopic(name, items))
    return BulkOffsets(topics)


def _read_offset_fetch(version: int, cursor: _Cursor) -> BulkCommits:
    groups = []
    for _ in range(cursor.count()):
        group = cursor.text()
        topics = []
        for _ in range(cursor.count()):
            name, count = cursor.text(), cursor.count()
            topics.append(BulkTopic(name, _commits(cursor, count)))
            cursor.no_tags()
        groups.append(BulkGroup(group, topics, cursor.i16()))
        cursor.no_tags()
    return BulkCommits(groups)


def _commits(cursor: _Cursor, count: int) -> Sequence[Any]:
    size = _COMMIT.size
    raw = cursor.frame[cursor.at : cursor.at + count * size]
    if len(raw) == count * size:
        has_metadata = bytes(raw[_COMMIT_SIZE_AT::size]).strip(_EMPTY)
        if not has_metadata and not any(raw[size - 1 :: size]):
            cursor.at += len(raw)
            return list(map(BulkCommit._make, _COMMIT.iter_unpack(raw)))
    return cursor.one_by_one(offset_fetch.OffsetFetchResponsePartitions, count)


# -- Metadata ------------------------------------------------------------------------------------------------------

_TOP_LEVEL_ERROR = 13  # the first version with one


def _read_metadata(version: int, cursor: _Cursor) -> BulkMetadata:
    brokers = []
    for _ in range(cursor.count()):
        brokers.append(BulkBroker(cursor.i32(), cursor.text(), cursor.i32(), cursor.optional_text()))
        cursor.no_tags()
    cluster_id, controller = cursor.optional_text(), cursor.i32()
    topics = []
    for _ in range(cursor.count()):
        code, name = cursor.i16(), cursor.optional_text()
        raw_id = bytes(cursor.raw(16))
        is_internal = cursor.raw(1)[0] != 0
        logs = _logs(cursor, cursor.count())
        cursor.raw(4)
        cursor.no_tags()
        topic_id = uuid.UUID(bytes=raw_id) if any(raw_id) else None
        topics.append(BulkTopic(name, logs, code, topic_id, is_internal))
    error = cursor.i16() if version >= _TOP_LEVEL_ERROR else 0
    return BulkMetadata(brokers, cluster_id, controller, topics, error)


def _logs(cursor: _Cursor, count: int) -> Sequence[Any]:
    if count == 0:
        return ()
    frame, at = cursor.frame, cursor.at
    # The sizes of the first item's three lists, as the frame has them: their length plus one.
    first = at + 14
    replicas = frame[first]
    second = first + 1 + 4 * (replicas - 1)
    in_sync = frame[second]
    third = second + 1 + 4 * (in_sync - 1)
    offline = frame[third]
    if 0 < replicas < _SMALL and 0 < in_sync < _SMALL and 0 < offline < _SMALL:
        packed = _log_layout(replicas - 1, in_sync - 1, offline - 1)
        size = packed.size
        raw = frame[at : at + count * size]
        if len(raw) == count * size and all(
            _is_constant(raw[place - at :: size], value)
            for place, value in ((first, replicas), (second, in_sync), (third, offline), (at + size - 1, 0))
        ):
            cursor.at += len(raw)
            a, b = 4 + replicas - 1, 4 + replicas - 1 + in_sync - 1
            return [BulkLog._make((*row[:4], row[4:a], row[a:b], row[b:])) for row in packed.iter_unpack(raw)]
    return cursor.one_by_one(metadata.MetadataResponsePartition, count)


def _is_constant(values: memoryview, value: int) -> bool:
    return bytes(values).count(value) == len(values)


@functools.cache
def _log_layout(replicas: int, in_sync: int, offline: int) -> struct.Struct:
    return struct.Struct(f">hiiix{replicas}ix{in_sync}ix{offline}ix")
