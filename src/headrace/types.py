"""The small value types that are passed between layers and returned to users."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic. It equals the tuple `(topic, partition)` and has the same hash."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndMetadata(NamedTuple):
    """A committed position: the next offset to consume, with the metadata string that is stored with it.

    An unknown leader epoch is None. -1, which records use for an unknown epoch, is accepted too."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class OffsetAndTimestamp(NamedTuple):
    """The result of a search by time: the first record at or after the requested timestamp."""

    offset: int
    timestamp: int
    leader_epoch: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to write, as the arguments of `Producer.send`: what the handler of an exactly-once `run()` returns."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None = None
    headers: Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]] | None = None
    timestamp: int | datetime.datetime | None = None
    partition: int | None = None


class RecordMetadata(NamedTuple):
    """Where a record was written. `timestamp` is in milliseconds since 1970: the record's own, or the broker's if the
    topic has message.timestamp.type=LogAppendTime. `offset` is None with acks=0: the broker sends no response."""

    topic: str
    partition: int
    offset: int | None
    timestamp: int


class Watermarks(NamedTuple):
    """The bounds of a log: its first offset, and the offset that the next record will get."""

    low: int
    high: int


class GroupMetadata(NamedTuple):
    """This consumer's identity in its group. Before it joins, the generation is -1 and the member id is empty. After it
    left, was removed, or unsubscribed, it keeps its identity until it joins again, so that brokers reject its
    transactions. With assign(), it has none.
    With group.protocol=consumer, the generation is the member epoch."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class Node(NamedTuple):
    """A broker: its id, address and rack."""

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port} (id {self.id})"


class PartitionInfo(NamedTuple):
    """The cluster metadata of one partition. `leader` is None while the partition has no leader."""

    topic: str
    partition: int
    leader: Node | None
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]


class AcknowledgeType(enum.IntEnum):
    """How a share consumer acknowledges a record."""

    ACCEPT = 1
    """The record was processed. It is not delivered again."""
    RELEASE = 2
    """The record was not processed. It is delivered again, to any member, which raises its delivery count."""
    REJECT = 3
    """The record cannot be processed. It is not delivered again."""
    RENEW = 4
    """The record is still being processed. Its acquisition lock is extended (KIP-1222), and the record must be
    acknowledged later."""
