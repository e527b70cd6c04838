"""KIP-333's commits, backlog and positions, without a broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from headrace import AsyncConsumer, OffsetAndMetadata, TopicPartition
from headrace.lane_marks import Mark
from headrace.machines.lanes import Beginning, Lanes
from headrace.machines.partition import Position
from headrace.offsets import OffsetSet
from support.fake_broker import run

TP = TopicPartition("t", 0)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class CommitLog:
    """A coordinator that takes commits. While `gate` is closed, they wait."""

    def __init__(self) -> None:
        self.has: dict[TopicPartition, OffsetAndMetadata] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()

    async def commit(self, offsets: Offsets) -> None:
        self.asked.set()
        await self.gate.wait()
        self.has.update(offsets)

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

    @property
    def mark(self) -> Mark:
        return Mark.read(self.first.has[TP])


@contextlib.asynccontextmanager
async def scene(*holes: tuple[int, int], live: int = 120, **settings: Any) -> AsyncIterator[Scene]:
    mine = {"bootstrap_servers": "127.0.0.1:1", "group_id": "g", "enable_auto_commit": False, **settings}
    async with AsyncConsumer(**mine, enable_parallel_rebalance=True) as consumer:
        yield Scene(consumer, *holes, live=live)


class TestFarewell:
    def test_a_commit_that_is_under_way_does_not_bring_the_token_back(self) -> None:
        """A member that gives a partition up does not wait for asynchronous commits, unless this does."""

        async def main() -> None:
            async with scene() as at:
                at.read(125, 85)
                at.second.gate.clear()
                at.consumer.commit_async()
                await at.second.asked.wait()
                parting = asyncio.create_task(at.consumer._farewell(frozenset({TP})))
                await asyncio.sleep(0)
                at.second.gate.set()
                await parting
                assert (at.mark.offset, at.mark.token) == (85, "")
                assert at.mark.done == OffsetSet(125, [(85, 120)]), "what that commit said is in it"

        run(main())

    def test_nothing_is_left_to_say_when_that_commit_closes_the_range(self) -> None:
        async def main() -> None:
            async with scene() as at:
                at.read(125, 120)
                at.consumer.commit_async()
                await at.consumer._farewell(frozenset({TP}))
                assert at.first.has[TP] == OffsetAndMetadata(125)

        run(main())
