"""Exactly-once `run()`: each source record has its outputs once, in order, whatever dies or is rebalanced.

Members of a group read a source, hand records to handlers, which end in any order, and write the outputs in the
transaction that commits the offsets. Real: `TransactionalCommits`, `PendingOutputs`, and the producer. The consumer is
a model: it has the positions, and learns of a rebalance late. So there are zombies, which still process and commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from headrace._aio.run.transactional_commits import Calls, TransactionalCommits
from headrace._machines.run.outputs import PendingOutputs
from headrace.errors import HeadraceError, RequestTimeoutError, TransactionAbortableError, TransactionFatalError
from headrace.types import GroupMetadata, ProducerRecord, TopicPartition

from .client import SimulatedProducer
from .lives import live
from .world import Outcome, World, simulate

KIND = "exactly-once"
TOPICS = {"out": 2}
GROUP = "g"
SOURCES = 3


class Run:
    """The source, and the group: its generation and its members."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ends = {TopicPartition("in", number): world.dice.choice((5, 15, 30)) for number in range(SOURCES)}
        self.group = world.brokers.group(GROUP)
        self.group.generation = 0
        self.lives = 0
        self.slots = [f"run-{number}" for number in range(world.dice.choice((1, 2, 3)))]

    @property
    def is_done(self) -> bool:
        return all(self.committed(tp) == end for tp, end in self.ends.items())

    def committed(self, tp: TopicPartition) -> int:
        return self.group.committed.get(tp, (0, ""))[0]

    def rebalance(self) -> None:
        """Members that have not noticed it keep their partitions until their next poll."""
        group = self.group
        group.generation += 1
        names = list(group.members)
        for name in names:
            group.members[name] = []
        for tp in self.ends if names else ():
            group.members[self.world.dice.choice(names)].append(tp)

    def join(self, name: str) -> None:
        self.group.members[name] = []
        self.rebalance()

    def leave(self, name: str) -> None:
        if self.group.members.pop(name, None) is not None:
            self.rebalance()


class Member:
    """One life of a consumer with a producer."""

    def __init__(self, run: Run, slot: str) -> None:
        run.lives += 1
        dice = run.world.dice
        self.run = run
        self.world = run.world
        self.name = f"{slot}.{run.lives}"
        self.generation = -1
        self.producer = SimulatedProducer(
            self.world.network,
            self.name,
            transactional_id=slot,
            transaction_timeout_ms=dice.choice((2000, 60_000)),
            linger_ms=0,
            batch_size=dice.choice((0, 200, 1000)),
            request_timeout_ms=dice.choice((500, 5000)),
            delivery_timeout_ms=dice.choice((6000, 100_000)),
            max_block_ms=dice.choice((1000, 60_000)),
            buffer_memory=dice.choice((400, 32 * 2**20)),  # the outputs of some transactions exceed it
            max_request_size=300,
        )
        self.outputs: PendingOutputs[ProducerRecord] = PendingOutputs()
        self._positions: dict[TopicPartition, int] = {}
        self._in_flight: dict[TopicPartition, set[int]] = {}
        self._start()

    def _start(self) -> None:
        """run() begins, for the first time or again with the same producer: at the committed offsets."""
        self.outputs.keep(())
        self._positions.clear()
        self._in_flight.clear()
        clock = asyncio.get_running_loop().time  # virtual
        self.commits = TransactionalCommits(self.producer, self._cut, self.outputs.committed, self._metadata, clock)

    def _metadata(self) -> GroupMetadata:
        return GroupMetadata(GROUP, self.generation, self.name)

    def _cut(self) -> Any:
        done = {tp: min(self._in_flight[tp], default=at) for tp, at in self._positions.items()}
        return self.outputs.cut(done)

    async def work(self) -> None:
        self.run.join(self.name)
        dice = self.world.dice
        try:
            while not self.run.is_done:
                if dice.random() < 0.5:
                    self._poll()
                if dice.random() < 0.8:
                    self._take()
                self._handle()
                if dice.random() < 0.5:
                    await self._call_producer(self.commits.steps())
                if dice.random() < 0.02:
                    await self._end()
                    self._start()
                await self.world.pause(0.001, 0.1, 1.0)
        except TransactionFatalError as error:
            self.world.note(self.name, "ends:", type(error).__name__)
        finally:
            if not self.producer.is_dead:
                self.run.leave(self.name)

    async def _end(self) -> None:
        try:
            await self._call_producer(self.commits.steps(is_last=True))
        except (TransactionAbortableError, RequestTimeoutError) as error:
            self.world.note(self.name, "ends run():", type(error).__name__)

    def _poll(self) -> None:
        group = self.run.group
        assigned = group.members.get(self.name, [])
        if self.generation != group.generation:
            self.world.note(self.name, "is assigned", len(assigned), "in generation", group.generation)
            is_next = group.generation == self.generation + 1
            kept = assigned if is_next else []  # otherwise it has missed a rebalance, and lost all of its partitions
            self.generation = group.generation
            self.outputs.keep(kept)
            for tp in self._positions.keys() - set(kept):
                del self._positions[tp], self._in_flight[tp]
        for tp in assigned:
            if tp not in self._positions and not group.pending:  # an offset that is about to change is not returned
                self._positions[tp], self._in_flight[tp] = self.run.committed(tp), set()

    def _take(self) -> None:
        for tp, position in self._positions.items():
            end = min(position + self.world.dice.choice((0, 1, 8)), self.run.ends[tp])
            if end > position:
                self.outputs.begin(tp, position)
                self._in_flight[tp].update(range(position, end))
                self._positions[tp] = end

    def _handle(self) -> None:
        dice = self.world.dice
        for tp, offsets in self._in_flight.items():
            for offset in sorted(offsets):
                if dice.random() < 0.6:
                    self.outputs.put(tp, offset, outputs_of(tp, offset))
                    offsets.remove(offset)

    async def _call_producer(self, calls: Calls) -> None:
        """As `run()` does it."""
        try:
            call = next(calls)
            while True:
                try:
                    result = await getattr(self.producer, call.method)(*call.arguments, **call.keywords)
                except HeadraceError as error:
                    call = calls.throw(error)
                else:
                    call = calls.send(result)
        except StopIteration:
            return


def outputs_of(tp: TopicPartition, offset: int) -> list[ProducerRecord]:
    values = [f"{tp.partition} {offset:05} {number}".encode() for number in range(offset % 3)]
    return [ProducerRecord("out", value, partition=tp.partition % TOPICS["out"]) for value in values]


def check(world: World, ends: Mapping[TopicPartition, int]) -> None:
    visible = [world.brokers.log("out", number).committed() for number in range(TOPICS["out"])]
    for tp, end in ends.items():
        own = f"{tp.partition} ".encode()
        found = [value for values in visible for value in values if value.startswith(own)]
        wanted = [each.value for offset in range(end) for each in outputs_of(tp, offset)]
        if found != wanted:
            doubled = sorted({value for value in found if found.count(value) > 1})
            missing = sorted(set(map(bytes, filter(None, wanted))) - set(found))  # type: ignore[arg-type]
            raise world.violated(f"{tp}: twice {doubled}, missing {missing}, in order {found == sorted(found)}")
        world.records += len(found)


async def scenario(world: World) -> None:
    run = Run(world)
    world.begin_trouble()
    world.add_act(run.rebalance, 3)
    if world.dice.random() < 0.3:  # the topic of the outputs is created later
        world.brokers.missing.add("out")
        world.loop.call_later(world.dice.choice((0.5, 5.0, 30.0)), world.brokers.missing.discard, "out")

    async def supervise(slot: str) -> None:
        lives: list[asyncio.Task[bool]] = []
        while not run.is_done:
            member = Member(run, slot)
            life = asyncio.create_task(_life(run, member))
            lives.append(life)
            patience = None if world.dice.random() < 0.7 else 5.0 * world.dice.random()
            await asyncio.wait([life], timeout=patience)
        await asyncio.gather(*lives)

    tasks = [asyncio.create_task(supervise(slot)) for slot in run.slots]
    await world.pause(1.0, 10.0, 60.0)
    world.calm()
    await asyncio.gather(*tasks)
    await world.until_idle()
    check(world, run.ends)


async def _life(run: Run, member: Member) -> bool:
    is_dead = await live(run.world, member.producer, member.work())
    if is_dead:
        await run.world.pause(0.1, 5.0)  # until its session expires
    run.leave(member.name)
    return is_dead


def run(seed: int) -> Outcome:
    return simulate(KIND, seed, TOPICS, None, scenario)
