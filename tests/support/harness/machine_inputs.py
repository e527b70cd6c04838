"""Inputs for tests of the machines: metadata, and chunks of records that are only offsets."""

from __future__ import annotations

import dataclasses
import uuid
from types import SimpleNamespace
from typing import Any

from headrace._machines.cluster import Cluster
from headrace._machines.fetch.partition import PartitionState, Position
from headrace._protocol.messages import METADATA
from headrace.types import TopicPartition
from support.brokers.fake_broker import answer

T1, T2 = uuid.UUID(int=1), uuid.UUID(int=2)
TP = TopicPartition("t", 0)


def partition(number: int = 0, leader: int = 1, epoch: int = 5, offline: tuple[int, ...] = ()) -> dict[str, Any]:
    return {
        "error_code": 0,
        "partition_index": number,
        "leader_id": leader,
        "leader_epoch": epoch,
        "replica_nodes": (1, 2),
        "isr_nodes": (1,),
        "offline_replicas": offline,
    }


def topic(
    *partitions: dict[str, Any], name: str | None = "t", id: uuid.UUID | None = T1, code: int = 0
) -> dict[str, Any]:
    return {
        "error_code": code,
        "name": name,
        "topic_id": id,
        "is_internal": False,
        "partitions": partitions,
    }


def metadata(*topics: dict[str, Any], brokers: tuple[int, ...] = (1, 2), version: int = 13) -> Any:
    return answer(
        METADATA,
        version,
        throttle_time=0,
        brokers=[{"node_id": id, "host": f"b{id}", "port": 9092, "rack": None} for id in brokers],
        cluster_id="c",
        controller_id=1,
        topics=topics,
        error_code=0,
    )


def cluster_of(*topics: dict[str, Any], brokers: tuple[int, ...] = (1, 2)) -> Cluster:
    cluster = Cluster()
    cluster.apply(metadata(*topics, brokers=brokers))
    return cluster


@dataclasses.dataclass(frozen=True)
class FakeChunk:
    """The interface of the kernel's Batch, with offsets as records."""

    offsets: tuple[int, ...]
    next_offset: int
    leader_epoch: int = 3
    bytes_each: float = 10

    @property
    def nbytes(self) -> int:
        return int(self.bytes_each * len(self.offsets))

    @property
    def first_offset(self) -> int | None:
        return self.offsets[0] if self.offsets else None

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(offset=self.offsets[index])

    def slice(self, start: int, length: int) -> FakeChunk:
        piece = self.offsets[start : start + length]
        ends = start + length >= len(self.offsets)
        return dataclasses.replace(self, offsets=piece, next_offset=self.next_offset if ends else piece[-1] + 1)


def chunk(start: int, end: int, epoch: int = 3) -> FakeChunk:
    return FakeChunk(tuple(range(start, end)), end, epoch)


def at(offset: int, epoch: int = -1) -> PartitionState:
    state = PartitionState(TP)
    state.seek(Position(offset, epoch))
    return state


def feed(state: PartitionState, *chunks: FakeChunk) -> None:
    """Buffer the chunks: each arrives and is decoded in turn."""
    for each in chunks:
        start = state.fetch_offset
        state.arrived(100, each.next_offset)
        state.decoded(start, 100, each, each.next_offset)


def offsets(chunks: list) -> list[int]:
    return [offset for each in chunks for offset in each.offsets]
