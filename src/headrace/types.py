"""The small values that move between the layers and out to users."""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic. Equal to, and hashed as, the plain tuple."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndMetadata(NamedTuple):
    """A committed position: the next offset to read, with the text stored beside it.

    An unknown leader epoch is None (or -1, as records have it)."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class OffsetAndTimestamp(NamedTuple):
    """Where a search by time landed: the first record at or after the asked time."""

    offset: int
    timestamp: int
    leader_epoch: int | None = None


class Watermarks(NamedTuple):
    """A log's own bounds: its first offset, and the offset the next record will get."""

    low: int
    high: int


class GroupMetadata(NamedTuple):
    """Who this consumer is in its group. Outside of it the generation is -1 and the member id empty.
    With group.protocol=consumer the generation is the member epoch."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class Node(NamedTuple):
    """A broker's address."""

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port} (id {self.id})"


class PartitionInfo(NamedTuple):
    """What the cluster says of one partition. `leader` is None while there is none."""

    topic: str
    partition: int
    leader: Node | None
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]
