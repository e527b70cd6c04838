"""All states of share groups that the share coordinators accepted, from the topic __share_group_state.

    key     int16 type (0 a snapshot, 1 an update), string group, uuid topic, int32 partition
    value   int16 version, int32 snapshot epoch, (snapshots) int32 state epoch, int32 leader epoch, int64 start offset,
            (snapshots) int64 twice, and batches: int64 first offset, int64 last offset, int8 state, int16 count

Coordinators delete what a snapshot replaces every share.coordinator.state.topic.prune.interval.ms.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from support.brokers.admin import client_settings

STATE_TOPIC = "__share_group_state"
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
"""States of records."""
_TIMEOUT = 60.0
_SNAPSHOT, _UPDATE = 0, 1
_TOPIC_ID = 16
_BATCH = 19


@dataclass(frozen=True, slots=True)
class ShareState:
    at: int
    """Milliseconds of the coordinator's clock."""
    partition: int
    start: int
    """The first offset that is not done."""
    batches: tuple[tuple[int, int, int], ...] = ()
    """First and last offset, and the state. Updates have what changes."""


def share_history(bootstrap_servers: str, group: str) -> list[ShareState]:
    """The states in the order in which the coordinators accepted them, by partition. The group has one topic."""
    settings = {"group.id": "historian", "enable.auto.commit": False, "enable.partition.eof": True}
    reader = Consumer({**client_settings(bootstrap_servers), **settings})
    found: list[ShareState] = []
    try:
        unread = set(reader.list_topics(STATE_TOPIC, timeout=_TIMEOUT).topics[STATE_TOPIC].partitions)
        reader.assign([TopicPartition(STATE_TOPIC, number, OFFSET_BEGINNING) for number in unread])
        while unread:
            message = reader.poll(_TIMEOUT)
            assert message is not None, f"{STATE_TOPIC} could not be read: {unread}"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unread.discard(message.partition())
                continue
            key, value = message.key(), message.value()
            if isinstance(key, bytes) and isinstance(value, bytes):
                state = parse_state(group, message.timestamp()[1], key, value)
                found += [] if state is None else [state]
    finally:
        reader.close()
    return sorted(found, key=lambda state: state.partition)  # a stable sort: a partition has one log


def first_open(history: Iterable[ShareState], partition: int, offsets: Iterable[int]) -> int | None:
    """The first of these offsets, in order, that is neither acknowledged nor archived according to the last state of
    each record."""
    start, done = 0, set[int]()
    for state in history:
        if state.partition == partition:
            start = max(start, state.start)
            for first, last, kind in state.batches:
                change = done.update if kind in (ACKNOWLEDGED, ARCHIVED) else done.difference_update
                change(range(first, last + 1))
    return next((offset for offset in offsets if offset >= start and offset not in done), None)


def parse_state(group: str, at: int, key: bytes, value: bytes) -> ShareState | None:
    """None if it is of another group, or no state."""
    kind, length = struct.unpack_from(">hh", key)
    if kind not in (_SNAPSHOT, _UPDATE) or key[4 : 4 + length].decode() != group:
        return None
    (partition,) = struct.unpack_from(">i", key, 4 + length + _TOPIC_ID)
    epochs = 3 if kind == _SNAPSHOT else 2
    position = 2 + 4 * epochs
    (start,) = struct.unpack_from(">q", value, position)
    position += 8 * (3 if kind == _SNAPSHOT else 1)
    count, position = _varint(value, position)
    batches = []
    for _ in range(count - 1):
        batches.append(struct.unpack_from(">qqb", value, position))
        position = _after_tags(value, position + _BATCH)
    return ShareState(at, partition, start, tuple(batches))


def _varint(data: bytes, position: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[position]
        position += 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return found, position


def _after_tags(data: bytes, position: int) -> int:
    count, position = _varint(data, position)
    for _ in range(count):
        _, position = _varint(data, position)
        size, position = _varint(data, position)
        position += size
    return position
