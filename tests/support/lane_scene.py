"""A consumer with two lanes (KIP-333) and no broker: what its commit logs have is in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from headrace import AsyncConsumer, OffsetAndMetadata, TopicPartition
from headrace.errors import CommitFailedError, HeadraceError
from headrace.lane_marks import Mark
from headrace.machines.lanes import Beginning, Lanes
from headrace.machines.partition import PartitionState, Position
from headrace.offsets import LAST_OFFSET, OffsetSet
from headrace.records import decode

from .batches import Entry, encode_batch
from .same_loop import on_this_loop

TP = TopicPartition("t", 0)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class CommitLog:
    """A coordinator that takes commits. While `gate` is closed, they wait."""

    def __init__(self) -> None:
        self.group = "g"
        self.has: dict[TopicPartition, OffsetAndMetadata] = {}
        self.refuses: HeadraceError | None = None
        self.deleted: set[TopicPartition] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()
        self.taken = asyncio.Event()

    async def commit(self, offsets: Offsets, topic_ids: object = None) -> None:
        self.asked.set()
        await self.gate.wait()
        self.has.update({tp: it for tp, it in offsets.items() if tp not in self.deleted})
        self.taken.set()
        if gone := self.deleted & offsets.keys():
            error = CommitFailedError(100, "UNKNOWN_TOPIC_ID", False, "deleted")
            error.partitions = frozenset(gone)
            raise error

    async def committed(self, partitions: Any) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if isinstance(self.refuses, HeadraceError):
            raise self.refuses
        return {tp: self.has.get(tp) for tp in partitions}

    async def forget(self, partitions: Any) -> None:
        for tp in partitions:
            self.has.pop(tp, None)


class Scene:
    """A consumer with [70, 120) open in its backlog lane and the live lane at 120."""

    def __init__(self, consumer: AsyncConsumer, *holes: tuple[int, int], live: int = 120) -> None:
        consumer.assign([TP])
        self.consumer = consumer
        self.engine = consumer._start()
        self.first, self.second = CommitLog(), CommitLog()
        self.engine.logs._first = self.first  # type: ignore[assignment]
        self.engine.logs._second = self.second  # type: ignore[assignment]
        self.intake = consumer._intake
        assert self.intake.backlog is not None
        self.backlog = self.intake.backlog
        self.state = self.intake.assignment.state(TP)
        self.state.seek(Position(live))
        self.lanes = Lanes("token", Beginning(live, OffsetSet(live), holes or ((70, 120),)))
        with self.intake.lock:
            self.backlog.open(self.state, self.lanes)
        self.first.has[TP] = self.lanes.first.commit

    def read(self, live: int, beside: int) -> None:
        """Both lanes have handed out all before."""
        with self.intake.lock:
            self.state.seek(Position(live))
            self.backlog.assignment.state(TP).position = Position(beside)
            self.lanes.handed_out(beside)

    @property
    def mark(self) -> Mark:
        return Mark.read(self.first.has[TP])


@contextlib.asynccontextmanager
async def scene(*holes: tuple[int, int], live: int = 120, **settings: Any) -> AsyncIterator[Scene]:
    mine = {"bootstrap_servers": "127.0.0.1:1", "group_id": "g", "enable_auto_commit": False, **settings}
    async with on_this_loop(AsyncConsumer(**mine, enable_parallel_rebalance=True)) as consumer:
        yield Scene(consumer, *holes, live=live)


def fill(state: PartitionState, offset: int, count: int) -> None:
    data = encode_batch([Entry(value=b"x")] * count, base_offset=offset)
    lane = "live" if state.stop > LAST_OFFSET else "backlog"
    state.arrived(100, offset + count)
    records = decode(data, topic="t", partition=0, position=offset, lane=lane)
    state.decoded(offset, 100, records, offset + count)
