"""Transactional producers: read_committed readers see each committed transaction once and whole, and nothing else.

Programs write transactions one after the other, with records and offsets. They are killed at any request, replaced
while they are still alive, and their transactions time out. Each keeps a ledger of what it was told:

    commit() returns                            committed
    an abort, or an error of commit()           aborted
    an error that says that it is unknown, and  either, but whole
      a program that is killed in commit()
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine
from typing import Any

from headrace.errors import (
    RequestTimeoutError,
    StateError,
    TransactionAbortableError,
    TransactionFatalError,
)
from headrace.types import GroupMetadata, OffsetAndMetadata, TopicPartition

from .client import SimulatedProducer
from .lives import live
from .world import Outcome, World, simulate

KIND = "transactions"
TOPICS = {"t": 2, "u": 1}
SOURCE = TopicPartition("source", 0)
_DESCRIBED = 0.2  # seconds: from a description at the coordinator to the InitProducerId that follows it


@dataclasses.dataclass(eq=False)
class Transaction:
    number: int
    records: list[tuple[TopicPartition, bytes]] = dataclasses.field(default_factory=list)
    has_offsets: bool = False
    result: str = "aborted"  # committed, unknown


class Ledger:
    """The transactions of one transactional id, whoever wrote them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.transactions: list[Transaction] = []

    def begin(self) -> Transaction:
        self.transactions.append(Transaction(len(self.transactions)))
        return self.transactions[-1]


class Program:
    """One life of a producer with the transactional id."""

    def __init__(self, world: World, ledger: Ledger, life: int) -> None:
        dice = world.dice
        self.world = world
        self.ledger = ledger
        self.name = f"{ledger.name}.{life}"
        request_timeout = dice.choice((500, 5000))
        self.producer = SimulatedProducer(
            world.network,
            self.name,
            transactional_id=ledger.name,
            transaction_timeout_ms=dice.choice((1000, 10_000, 60_000)),
            batch_size=dice.choice((0, 120, 1000)),
            linger_ms=dice.choice((0, 5)),
            max_in_flight_requests_per_connection=dice.choice((1, 5)),
            request_timeout_ms=request_timeout,
            delivery_timeout_ms=request_timeout + dice.choice((100, 3000, 100_000)),
            max_block_ms=dice.choice((1000, 60_000)),
        )
        self.may_be_fenced = False
        self._fencings_at_start = 0

    def _fencings(self) -> int:
        found = self.world.brokers.transactions.ids.get(self.ledger.name)
        return 0 if found is None else found.fencings

    async def run(self, count: int) -> None:
        """Until the transactions are written, or the producer cannot continue."""
        self._fencings_at_start = self._fencings()
        while len(self.ledger.transactions) < count:
            try:
                await self._transact()
            except TransactionFatalError as error:
                # It fences itself if an InitProducerId arrives late, after the one that was sent again.
                is_excused = self.may_be_fenced or self._fencings() > self._fencings_at_start + 1
                self.world.check(is_excused, f"{self.name}: a fatal error without a reason: {error}")
                self.world.note(self.name, "cannot continue:", type(error).__name__)
                return

    async def _transact(self) -> None:
        dice, producer = self.world.dice, self.producer
        if dice.random() < 0.1:
            await self._repeated("init_transactions")
        await self._repeated("begin")
        transaction = self.ledger.begin()
        self.world.note(self.name, "begins", transaction.number)
        try:
            for _ in range(dice.choice((0, 1, 3, 10))):
                name = dice.choice(list(TOPICS))
                tp = TopicPartition(name, dice.randrange(TOPICS[name]))
                value = f"{self.ledger.name} {transaction.number:04} {len(transaction.records):03}".encode()
                await producer.send(tp.topic, value, partition=tp.partition)
                transaction.records.append((tp, value))
                self.world.records += 1
                if dice.random() < 0.3:
                    await self.world.pause(0.0, 0.01, 1.0)
            if dice.random() < 0.4:
                offsets = {SOURCE: OffsetAndMetadata(transaction.number)}
                await producer.send_offsets(offsets, GroupMetadata(self.ledger.name))
                transaction.has_offsets = True
            if dice.random() < 0.2:
                await self._repeated("abort")
                return
        except (TransactionAbortableError, RequestTimeoutError):
            await self._repeated("abort")
            return
        transaction.result = "unknown"
        try:
            await self._repeated("commit")
        except TransactionFatalError as error:
            transaction.result = "unknown" if "unknown whether" in str(error) else "aborted"
            raise
        except TransactionAbortableError:
            transaction.result = "aborted"
            await self._repeated("abort")
            return
        transaction.result = "committed"

    async def _repeated(self, call: str) -> None:
        while True:
            try:
                await getattr(self.producer, call)()
                self.world.note(self.name, call)
                return
            except RequestTimeoutError:
                self.world.note(self.name, call, "timed out")
            except TransactionAbortableError:
                if call not in ("init_transactions", "begin"):
                    raise
            except StateError as error:
                raise self.world.violated(f"{self.name}: {call}: {error}") from error


class Supervisor:
    """Starts the next program when one has died, sometimes while the last one is still alive."""

    def __init__(self, world: World, ledger: Ledger, count: int) -> None:
        self.world = world
        self.ledger = ledger
        self.count = count
        self.programs: list[Program] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        while len(self.ledger.transactions) < self.count:
            task = self._start()
            patience = None if self.world.dice.random() < 0.7 else 3.0 * self.world.dice.random()
            await asyncio.wait([task], timeout=patience)
        await asyncio.gather(*self._tasks)

    def _start(self) -> asyncio.Task[None]:
        for each in self.programs:
            each.may_be_fenced = True
        program = Program(self.world, self.ledger, len(self.programs))
        self.programs.append(program)
        task = asyncio.create_task(self._life(program))
        self._tasks.append(task)
        return task

    async def _life(self, program: Program) -> None:
        await live(self.world, program.producer, program.run(self.count))


def check(world: World, ledger: Ledger) -> None:
    own = f"{ledger.name} ".encode()
    visible = {
        tp: [v for v in each.log.committed() if v.startswith(own)] for tp, each in world.brokers.partitions.items()
    }
    for tp, values in visible.items():
        world.check(len(set(values)) == len(values), f"{tp}: a record is visible twice")
        world.check(values == sorted(values), f"{tp}: {ledger.name} is out of order: {values}")
    for each in ledger.transactions:
        name = f"transaction {each.number} of {ledger.name} ({each.result})"
        seen = [value in visible[tp] for tp, value in each.records]
        if each.result == "committed":
            world.check(all(seen), f"{name} is not whole: {sum(seen)} of {len(seen)} records")
        elif each.result == "aborted":
            world.check(not any(seen), f"{name} is visible: {sum(seen)} of {len(seen)} records")
        else:
            world.check(all(seen) or not any(seen), f"{name} is visible in part: {sum(seen)} of {len(seen)} records")
    known = {value for each in ledger.transactions for _, value in each.records}
    strange = {value for values in visible.values() for value in values} - known
    world.check(not strange, f"{strange} was never sent")
    _check_offsets(world, ledger)


def _check_offsets(world: World, ledger: Ledger) -> None:
    found = world.brokers.group(ledger.name).committed.get(SOURCE, (-1, ""))[0]
    committing = [each for each in ledger.transactions if each.has_offsets and each.result != "aborted"]
    certain = max((each.number for each in committing if each.result == "committed"), default=-1)
    allowed = {certain, *(each.number for each in committing if each.number > certain)}
    world.check(found in allowed, f"{ledger.name}: the offset {found} is committed, and should be in {allowed}")


async def scenario(world: World) -> None:
    dice = world.dice
    ledgers = [Ledger(f"id{number}") for number in range(dice.choice((1, 1, 2)))]
    world.begin_trouble()
    if dice.random() < 0.3:
        world.add_act(lambda: world.brokers.features.update({"transaction.version": 2}), 1)
    works: list[Coroutine[Any, Any, None]] = [
        Supervisor(world, each, dice.choice((3, 8, 15))).run() for each in ledgers
    ]
    tasks = [asyncio.create_task(each) for each in works]
    await world.pause(1.0, 10.0, 60.0)
    world.calm()
    await asyncio.gather(*tasks)
    await world.until_idle()
    for ledger in ledgers:
        check(world, ledger)
    check_successors(world)


def check_successors(world: World) -> None:
    """A fenced producer does not abort the transaction of its successor, except for one that has begun after the
    description that said there is none."""
    age = world.brokers.transactions.usurped
    world.check(age < _DESCRIBED, f"a fenced producer has aborted a transaction of its successor, {age:.3f} s old")


def run(seed: int) -> Outcome:
    return simulate(KIND, seed, TOPICS, None, scenario)
