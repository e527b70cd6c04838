"""The exactly-once sink for Spark: every row is visible once, wherever drivers and workers die.

Real: the driver (`ExactlyOnceDriver`), its requests (`BrokerCoordination`, `TransactionAdmin`), the tasks
(`write_in_transaction`) and their producers. Spark is a model: it starts the tasks of a batch in workers, repeats those
that fail, ignores superfluous attempts, calls commit() or abort(), and restarts a query that has failed. An older
driver may commit after a newer one has started.

Spark's calls are synchronous. Each of them runs the virtual loop until it is done, or its process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar

from headrace._aio.produce.transaction_admin import TransactionAdmin
from headrace._machines.produce.idempotence import ProducerIdentity
from headrace._machines.produce.open_transaction import OpenTransaction
from headrace._protocol.messages import Api
from headrace.errors import HeadraceError
from headrace.spark import producer_access
from headrace.spark.sink import transactional_task
from headrace.spark.sink.brokers import BrokerCoordination
from headrace.spark.sink.exactly_once import ExactlyOnceDriver
from headrace.spark.sink.protocol import (
    BatchDecision,
    BatchPlan,
    LostTransactionsError,
    TaskTransaction,
    decode_decision,
)
from headrace.spark.sink.verdicts import Batch, judge_batch

from .client import SimulatedProducer
from .connections import simulated
from .virtual_loop import dice_of, virtual_time
from .world import Outcome, World

KIND = "sink"
TOPICS = {"t": 2}
SINK = "sink"
QUERY = "query"
_ATTEMPTS = 4
T = TypeVar("T")


class KilledError(BaseException):
    """The process ends here."""


class Process:
    """A driver or a worker. It may be killed at one of its requests."""

    def __init__(self, world: World, name: str, *, is_mortal: bool) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.state = transactional_task._Process()  # of a worker: its transactional ids
        self.state.name = name.encode().hex()[-16:].rjust(16, "0")
        self._death: asyncio.Future[None] | None = None  # during a call
        self._numbers = itertools.count()
        self._producers: list[SinkProducer] = []
        self._left = world.dice.choice((0, world.dice.randint(1, 60))) if is_mortal else 0
        world.network.watchers.append(self._step)

    def _step(self, client: str, api: Api) -> None:
        if self._left and any(each.simulated.name == client for each in self._producers):
            self._left -= 1
            if not self._left:
                self.kill(str(api))

    def kill(self, at: str) -> None:
        self.world.note(self.name, "is killed at", at)
        self.world.kills += 1
        self.is_dead = True
        if self._death is not None and not self._death.done():
            self._death.set_result(None)
        for each in self._producers:
            self.world.network.kill(each.simulated.name)

    def producer(self, settings: dict[str, str]) -> SinkProducer:
        made = SinkProducer(self, f"{self.name}.{next(self._numbers)}", settings)
        self._producers.append(made)
        return made

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the loop until the call is done. Raises KilledError if the process dies meanwhile."""
        if self.is_dead:
            raise KilledError(self.name)

        async def bounded() -> T:
            task = asyncio.ensure_future(work())
            self._death = asyncio.get_running_loop().create_future()
            await asyncio.wait([task, self._death], return_when=asyncio.FIRST_COMPLETED)
            if self.is_dead:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, HeadraceError):
                    await task
                raise KilledError(self.name)
            return task.result()

        return self.world.loop.run(bounded())

    def end(self) -> None:
        """After its death, or with its driver: nothing of it is left."""
        self.is_dead = True
        for each in self._producers:
            self.world.loop.run(each.simulated.kill())


class SinkProducer:
    """What the sink uses of `Producer`."""

    def __init__(self, process: Process, name: str, settings: dict[str, str]) -> None:
        self.process = process
        known = {key.replace(".", "_"): value for key, value in settings.items() if key != "bootstrap.servers"}

        async def make() -> SimulatedProducer:
            return SimulatedProducer(process.world.network, name, **known)

        self.simulated = process.call(make)
        self.admin: TransactionAdmin | None = None

    def begin(self) -> None:
        self.process.call(self.simulated.begin)

    def write(self, rows: list[bytes]) -> None:
        async def send() -> None:
            deliveries = [await self.simulated.send("t", row, row) for row in rows]
            await self.simulated.flush()
            for each in deliveries:
                await self.simulated.result(each)

        self.process.call(send)

    def abort(self, timeout: float) -> None:
        self.process.call(lambda: self.simulated.abort(timeout))

    def close(self, timeout: float | None = None) -> None:
        self.process.call(self.simulated.close)

    def partitions_for_topic(self, topic: str) -> range:
        return range(50)


def _hand_over(producer: SinkProducer) -> OpenTransaction | None:
    return producer.process.call(producer.simulated.hand_over)


def _has_stray_init(producer: SinkProducer) -> bool:
    return producer.simulated.transactions.machine.has_stray_init


def _ask(producer: SinkProducer, ask: Callable[[TransactionAdmin], Coroutine[Any, Any, T]]) -> T:
    if producer.admin is None:
        producer.admin = producer.simulated.admin()
    admin = producer.admin
    return producer.process.call(lambda: ask(admin))


def _send_rows(producer: SinkProducer, batches: Iterator[Any], options: Any, rows: Any) -> int:
    values = [value for batch in batches for value in batch.values]
    producer.write(values)
    return len(values)


@contextlib.contextmanager
def _patched() -> Iterator[None]:
    task, access = transactional_task, producer_access
    before = task.Producer, task.send_rows, task.exclude_modules_from_gc, task._process  # type: ignore[attr-defined]
    functions = access.hand_over, access.ask_coordinators, access.has_stray_init
    task.send_rows, task.exclude_modules_from_gc = _send_rows, lambda: None  # type: ignore[attr-defined,assignment]
    access.hand_over, access.ask_coordinators, access.has_stray_init = _hand_over, _ask, _has_stray_init  # type: ignore[assignment]
    try:
        yield
    finally:
        task.Producer, task.send_rows, task.exclude_modules_from_gc, task._process = before  # type: ignore[attr-defined]
        access.hand_over, access.ask_coordinators, access.has_stray_init = functions


class WatchedDriver(ExactlyOnceDriver):
    """Only a timeout can make it withdraw a decision, although nothing is lost by it."""

    world: World

    def _record(self, identity: ProducerIdentity, decision: BatchDecision) -> ProducerIdentity:
        offsets = self.world.brokers.group(SINK).committed
        found = decode_decision([metadata for _, metadata in offsets.values()], SINK)
        if found is not None and decision == found.withdrawn():
            self.world.note("withdraws", found.batch)
            self.world.check(self.world.brokers.transactions.timeouts > 0, "a decision is withdrawn without a timeout")
        return super()._record(identity, decision)


class Query:
    """A checkpoint, and the drivers that run from it."""

    def __init__(self, world: World) -> None:
        dice = world.dice
        self.world = world
        self.batches = dice.choice((1, 2, 4))
        self.partitions = dice.choice((1, 2, 3))
        self.committed = 0  # the number of batches in Spark's commit log
        self.is_lost = False
        self.options = SimpleNamespace(
            sink_id=SINK,
            topic="t",
            decision_topic=None,
            settings={
                "transaction.timeout.ms": dice.choice(("10000", "60000", "900000")),
                "request.timeout.ms": dice.choice(("500", "5000")),
                "delivery.timeout.ms": dice.choice(("6000", "100000")),
                "max.block.ms": "60000",
                "default.api.timeout.ms": dice.choice(("500", "5000", "60000")),
                "linger.ms": "0",
            },
        )
        self._names = itertools.count()
        self._workers: list[Process] = []
        self._zombies: list[Callable[[], None]] = []

    def rows(self, batch: int, partition: int) -> list[bytes]:
        return [f"{batch} {partition} {number}".encode() for number in range((batch + partition) % 4)]

    def drive(self) -> None:
        """One life of the driver."""
        world, dice = self.world, self.world.dice
        process = Process(world, f"driver{next(self._names)}", is_mortal=True)
        try:
            driver = self._driver(process)
            while self.committed < self.batches:
                batch = self.committed
                plan = driver.plan()
                world.note(process.name, "plans", batch)
                tasks = self._write(plan, batch)
                self._pause(0.0, 0.1, 20.0)
                if dice.random() < 0.1:
                    self._zombies.append(functools.partial(driver.commit, plan, Batch(QUERY, batch), tasks))
                    world.note(process.name, "becomes a zombie")
                    return
                try:
                    driver.commit(plan, Batch(QUERY, batch), tasks)
                except HeadraceError as error:
                    world.note(process.name, "fails:", type(error).__name__)
                    driver.abort(plan, tasks)
                    raise
                world.note(process.name, "has committed", batch)
                self.committed = max(self.committed, batch + 1)
        except LostTransactionsError:
            world.check(world.brokers.transactions.timeouts > 0, "transactions are lost without a timeout")
            self.is_lost = True
        except (HeadraceError, KilledError):
            pass
        if not self._zombies:
            process.end()

    def _driver(self, process: Process) -> ExactlyOnceDriver:
        settings = {key: value for key, value in self.options.settings.items() if not key.startswith("transaction")}
        producer: Any = process.producer(settings)
        clock = self.world.loop.time
        driver = WatchedDriver(SINK, BrokerCoordination(producer, self.options), lambda: int(clock() * 1000))  # type: ignore[arg-type]
        driver.world = self.world
        return driver

    def _write(self, plan: BatchPlan, batch: int) -> list[TaskTransaction]:
        found = []
        for partition in range(self.partitions):
            if self.world.dice.random() < 0.2:  # a speculative attempt, which Spark ignores
                with contextlib.suppress(HeadraceError, KilledError):
                    self._attempt(plan, batch, partition)
            for attempt in range(_ATTEMPTS):
                try:
                    found.append(self._attempt(plan, batch, partition))
                    break
                except (HeadraceError, KilledError):
                    if attempt == _ATTEMPTS - 1:
                        raise HeadraceError("the task has failed too often") from None
        return [each for each in found if each is not None]

    def _attempt(self, plan: BatchPlan, batch: int, partition: int) -> TaskTransaction | None:
        if not judge_batch(plan.decided, Batch(QUERY, batch), SINK):
            return None
        worker = self._worker()
        transactional_task._process = worker.state
        transactional_task.Producer = worker.producer  # type: ignore[assignment,misc]
        rows = self.rows(batch, partition)
        batches = iter([SimpleNamespace(num_rows=len(rows), values=rows)])
        transaction, count = transactional_task.write_in_transaction(batches, self.options, None, plan)  # type: ignore[arg-type]
        self.world.records += count
        return None if transaction is None else TaskTransaction(transaction, partition, count)

    def _worker(self) -> Process:
        self._workers = [each for each in self._workers if not each.is_dead]
        if len(self._workers) < 2:
            self._workers.append(Process(self.world, f"worker{next(self._names)}", is_mortal=not self.world.is_calm))
        return self.world.dice.choice(self._workers)

    def run_zombie(self) -> None:
        if self._zombies:
            self.world.note("a zombie commits")
            with contextlib.suppress(HeadraceError, KilledError):
                self._zombies.pop()()

    def _pause(self, *seconds: float) -> None:
        self.world.loop.run(self.world.pause(*seconds))

    def check(self) -> None:
        world = self.world
        visible = [value for number in range(TOPICS["t"]) for value in world.brokers.log("t", number).committed()]
        wanted = {
            row
            for batch in range(self.batches)
            for number in range(self.partitions)
            for row in self.rows(batch, number)
        }
        doubled = sorted({value for value in visible if visible.count(value) > 1})
        missing = sorted(wanted - set(visible)) if not self.is_lost else []
        world.check(not doubled, f"rows are visible twice: {doubled}")
        world.check(not missing, f"rows are missing: {missing}")


def run(seed: int) -> Outcome:
    dice = dice_of(seed, KIND)
    with virtual_time(seed) as loop, _patched():

        async def make() -> World:
            return World(loop, dice, TOPICS, 2)

        world = loop.run(make())
        with simulated(world.network):
            loop.run(_begin(world))
            query = Query(world)
            for life in itertools.count():
                if dice.random() < 0.3:
                    query.run_zombie()
                if query.committed == query.batches or query.is_lost:
                    break
                if life == 6:
                    world.calm()
                world.check(life < 30, "the query does not end")
                query.drive()
                loop.run(world.pause(0.1, 5.0, 40.0))
            world.calm()
            query.run_zombie()
            loop.run(world.until_idle())
            query.check()
            for each in query._workers:
                each.end()
        if loop.crashes:
            raise world.violated("; ".join(loop.crashes))
        return world.outcome()


async def _begin(world: World) -> None:
    world.begin_trouble()
