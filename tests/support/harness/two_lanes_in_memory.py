"""A consumer with two lanes (KIP-333) and in-memory commit logs. No broker runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from headrace import AsyncConsumer, OffsetAndMetadata, TopicPartition
from headrace._aio.fetch.buffer import FetchBuffer
from headrace._aio.lanes.backlog import Backlog
from headrace._aio.lanes.commit_log_reader import CommitLogReader
from headrace._aio.lanes.commit_logs import CommitLogs
from headrace._aio.lanes.source import TwoLaneSource
from headrace._aio.lanes.start import TwoLaneStart
from headrace._machines.commit.offset_set import LAST_OFFSET, OffsetSet
from headrace._machines.fetch.partition import PartitionState, Position
from headrace._machines.lanes.commit_metadata import CommitMark
from headrace._machines.lanes.lanes import Lanes, LaneStart
from headrace._machines.positions.positions import ListedOffset
from headrace._machines.positions.truncation import EpochEnd
from headrace.errors import CommitFailedError, HeadraceError
from headrace.records import decode
from support.brokers.record_batches import Entry, encode_batch
from support.harness.same_loop import on_this_loop

TP = TopicPartition("t", 0)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class CommitLog:
    """A coordinator that accepts commits. They wait while `gate` is closed."""

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

    async def delete(self, partitions: Any) -> None:
        for tp in partitions:
            self.has.pop(tp, None)


class TwoLaneDriver:
    """A consumer with [70, 120) open in its backlog lane and the live lane at 120."""

    def __init__(self, consumer: AsyncConsumer, *holes: tuple[int, int], live: int = 120) -> None:
        consumer.assign([TP])
        self.consumer = consumer
        self.engine = consumer._parts.lifecycle.start()
        self.first, self.second = CommitLog(), CommitLog()
        logs = self.engine.store
        assert isinstance(logs, CommitLogs)
        logs._first = logs._tokens._first = self.first  # type: ignore[assignment]
        start = self.engine.positions._start
        assert isinstance(start, TwoLaneStart)
        progress = logs._second
        progress._requests = self.second  # type: ignore[assignment]
        self.second.group = "g.backlog"
        self.reader = CommitLogReader(self.first, progress)  # type: ignore[arg-type]
        self.engine.committed_reader = start._reader = self.reader
        self.buffer = consumer._parts.buffer
        self.backlog = backlog_of(self.buffer)
        self.state = self.buffer.assignment.state(TP)
        self.state.seek(Position(live))
        self.lanes = Lanes("token", LaneStart(live, OffsetSet(live), holes or ((70, 120),)))
        with self.buffer.lock:
            self.backlog.open(self.state, self.lanes)
        progress.note([TP])
        self.first.has[TP] = self.lanes.first.commit

    def read(self, live: int, beside: int) -> None:
        """Both lanes have delivered all records before these offsets."""
        with self.buffer.lock:
            self.state.seek(Position(live))
            self.backlog.assignment.state(TP).position = Position(beside)
            self.lanes.handed_out(beside)

    @property
    def mark(self) -> CommitMark:
        return CommitMark.read(self.first.has[TP])


def backlog_of(buffer: FetchBuffer) -> Backlog:
    assert isinstance(buffer.source, TwoLaneSource)
    return buffer.source.backlog


@contextlib.asynccontextmanager
async def two_lane_consumer(*holes: tuple[int, int], live: int = 120, **settings: Any) -> AsyncIterator[TwoLaneDriver]:
    mine = {"bootstrap_servers": "127.0.0.1:1", "group_id": "g", "enable_auto_commit": False, **settings}
    async with on_this_loop(AsyncConsumer(**mine, enable_parallel_rebalance=True)) as consumer:
        yield TwoLaneDriver(consumer, *holes, live=live)


def fill(state: PartitionState, offset: int, count: int) -> None:
    data = encode_batch([Entry(value=b"x")] * count, base_offset=offset)
    lane = "live" if state.stop > LAST_OFFSET else "backlog"
    state.arrived(100, offset + count)
    records = decode(data, topic="t", partition=0, position=offset, lane=lane)
    state.decoded(offset, 100, records, offset + count)


class Log:
    """A log with its end and the end of an epoch."""

    def __init__(self, end: int, epoch_end: EpochEnd | HeadraceError) -> None:
        self.end = end
        self.epoch_end = epoch_end

    async def by_time(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        return dict.fromkeys(timestamps, ListedOffset(self.end, -1, 7))

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, object]:
        assert epochs == {TP: 5}
        return dict.fromkeys(epochs, self.epoch_end)


def set_log(driver: TwoLaneDriver, log: Log) -> None:
    """Set the offsets that leaders return to the consumer."""
    start = driver.engine.positions._start
    assert isinstance(start, TwoLaneStart)
    driver.engine.positions._offsets = start._offsets = log  # type: ignore[assignment]
