"""All commits that a group's coordinator accepted, from the topic __consumer_offsets.

The log has every commit, while polling for committed offsets would miss some. It is compacted only after it has grown
by 100 MB, which no test reaches.

    key     int16 version (0 or 1), string group, string topic, int32 partition; other versions are no commits
    value   int16 version, int64 offset, from version 3 on int32 leader epoch, string metadata, ...; null if the offset
            was deleted. From version 4 on a string's length is a varint, plus one
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from support.brokers.admin import bounds_of, client_settings, unique
from support.members.events import TopicAndPartition

OFFSETS_TOPIC = "__consumer_offsets"
_TIMEOUT = 60.0
_OFFSET_KEYS = (0, 1)
_WITH_EPOCH = 3
_FLEXIBLE = 4


@dataclass(frozen=True, slots=True)
class Commit:
    at: int
    """Milliseconds of the coordinator's clock, which all processes on one machine share."""
    tp: TopicAndPartition
    offset: int
    metadata: str = ""


def partition_of(group: str, partitions: int) -> int:
    """The partition of __consumer_offsets for a group. Its leader is the group's coordinator."""
    number = 0
    for unit in group.encode("utf-16-be")[1::2]:  # Java's hashCode; the names of tests are ASCII
        number = (number * 31 + unit) & 0xFFFFFFFF
    signed = number - 2**32 if number >= 2**31 else number
    return abs(signed) % partitions


def names_on(partition: int, partitions: int, prefix: str) -> Iterator[str]:
    """Names of groups with the same coordinator, also after it fails over."""
    while True:
        name = unique(prefix)
        if partition_of(name, partitions) == partition:
            yield name


def commit_history(bootstrap_servers: str, group: str) -> list[Commit]:
    """The commits in the order in which the coordinator accepted them."""
    settings = {"group.id": "historian", "enable.auto.commit": False, "enable.partition.eof": True}
    reader = Consumer({**client_settings(bootstrap_servers), **settings})
    try:
        count = len(reader.list_topics(OFFSETS_TOPIC, timeout=_TIMEOUT).topics[OFFSETS_TOPIC].partitions)
        tp = TopicPartition(OFFSETS_TOPIC, partition_of(group, count), OFFSET_BEGINNING)
        _, end = bounds_of(reader, tp)
        reader.assign([tp])
        commits: list[Commit] = []
        # Other groups may keep writing, so stop at the log end seen first, or at the current end if that was a marker.
        while True:
            message = reader.poll(_TIMEOUT)
            assert message is not None, f"{tp} could not be read"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return commits
            key, value = message.key(), message.value()
            if isinstance(key, bytes) and isinstance(value, bytes) and (found := _parse(key, value)) is not None:
                owner, where, committed, metadata = found
                if owner == group:
                    commits.append(Commit(message.timestamp()[1], where, committed, metadata))
            if (message.offset() or 0) + 1 >= end:
                return commits
    finally:
        reader.close()


def _parse(key: bytes, value: bytes) -> tuple[str, TopicAndPartition, int, str] | None:
    (version,) = struct.unpack_from(">h", key)
    if version not in _OFFSET_KEYS:
        return None
    group, position = _string(key, 2)
    topic, position = _string(key, position)
    (partition,) = struct.unpack_from(">i", key, position)
    version, offset = struct.unpack_from(">hq", value)
    return group, (topic, partition), offset, _metadata(value, version)


def _metadata(value: bytes, version: int) -> str:
    position = 10 + (4 if version >= _WITH_EPOCH else 0)
    if version < _FLEXIBLE:
        return _string(value, position)[0]
    length = shift = 0
    while True:
        byte = value[position]
        position += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value[position : position + length - 1].decode()


def _string(data: bytes, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, position)
    end = position + 2 + length
    return data[position + 2 : end].decode(), end
