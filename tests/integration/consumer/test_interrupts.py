"""Interrupts and exceptions at any point of a call: the consumer stays usable, and no record is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import AsyncConsumer, AsyncShareConsumer, Consumer, RebalanceListener, Records, TopicPartition
from headrace.errors import ConcurrentUseError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered_topic
from support.harness.consumers import MakeConsumer, assigned, poll_until
from support.harness.interrupts import Interrupter, interrupted_everywhere
from support.harness.waiting import Rounds, wait_for

COUNT = 20_000

# Python only reports an interrupt inside a weak reference's callback.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Interrupted(BaseException):
    """Raised by a signal handler, like KeyboardInterrupt."""


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("interrupts", 2), 2, COUNT)


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def soon(dice: random.Random, most: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, most))


class Ledger:
    """Checks that each offset of a partition is received once, in order."""

    def __init__(self) -> None:
        self.next = {0: 0, 1: 0}

    def add(self, records: Any) -> None:
        for record in records:
            assert record.offset == self.next[record.partition], "a record was lost or delivered twice"
            self.next[record.partition] += 1

    @property
    def is_complete(self) -> bool:
        return set(self.next.values()) == {COUNT}

    def complete(self, consumer: Consumer) -> None:
        wait_for("all records", lambda: self.add(consumer.poll(1.0)) or self.is_complete)


@pytest.mark.parametrize("parallel", [False, True], ids=["one lane", "two lanes"])
def test_an_interrupted_poll_loses_nothing(servers: str, topic: str, parallel: bool) -> None:
    dice, ledger, rounds = random.Random(5), Ledger(), Rounds("interrupts", 200)
    settings = {"group_id": unique("g"), "enable_parallel_rebalance": parallel, "enable_auto_commit": False}
    with assigned(Consumer, servers, topic, 2, **settings, max_poll_records=20) as consumer, interrupts():
        for _ in rounds:
            if ledger.is_complete:
                consumer.seek_to_beginning()
                ledger = Ledger()
            records = Records.EMPTY
            try:
                soon(dice, 0.0003)
                records = consumer.poll(1.0)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                rounds.met += 1
            ledger.add(records)
            assert {tp.partition: consumer.position(tp) for tp in consumer.assignment()} == ledger.next
        ledger.complete(consumer)


def test_an_interrupted_iteration_loses_nothing(servers: str, topic: str) -> None:
    dice, ledger, rounds = random.Random(6), Ledger(), Rounds("interrupts", 200)
    with assigned(Consumer, servers, topic, 2, max_poll_records=50) as consumer, interrupts():
        for _ in rounds:
            if ledger.is_complete:
                consumer.seek_to_beginning()
                ledger = Ledger()
            record = None
            try:
                soon(dice, 0.0005)
                for record in consumer:
                    ledger.add([record])
                    record = None
            except Interrupted:
                rounds.met += 1
                if record is not None and record.offset >= ledger.next[record.partition]:
                    ledger.add([record])  # the interrupt came before the record was noted
        ledger.complete(consumer)


def test_an_interrupted_iteration_leaves_the_position_behind_its_last_record(servers: str, topic: str) -> None:
    """Without another poll, since a program may catch the interrupt and close the consumer."""
    tp = TopicPartition(topic, 0)
    with assigned(Consumer, servers, topic, max_poll_records=20) as consumer:

        def scenario(at: int) -> bool:
            consumer.seek(tp, 0)
            while not consumer.poll(1.0, max_records=1):
                pass
            iteration, position = iter(consumer), 1
            with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
                for _ in range(3):
                    position = next(iteration).offset + 1
            assert consumer.position(tp) == position
            return interrupter.has_raised

        interrupted_everywhere(scenario, more_than=100)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # from dropped iterations
@pytest.mark.parametrize("parallel", [False, True], ids=["one lane", "two lanes"])
def test_an_interrupted_and_dropped_iteration_loses_nothing(servers: str, topic: str, parallel: bool) -> None:
    """Records that the iteration has not yielded, or an interrupted poll has taken, are given back. Interrupts may also
    come while they are given back."""
    dice, ledger, count = random.Random(8), Ledger(), 0
    settings = {"group_id": unique("g"), "enable_parallel_rebalance": parallel, "enable_auto_commit": False}
    with assigned(Consumer, servers, topic, 2, **settings, max_poll_records=20) as consumer:
        while count < 2000:
            interrupter = Interrupter(dice.randrange(1, 300))
            records, iteration = Records.EMPTY, iter(consumer)
            with contextlib.suppress(KeyboardInterrupt), interrupter:
                if dice.random() < 0.5:
                    records = consumer.poll(1.0)
                else:
                    for _ in range(dice.randrange(15)):
                        ledger.add([next(iteration)])
            ledger.add(records)
            count += interrupter.has_raised
            if ledger.is_complete:
                consumer.seek_to_beginning()
                ledger = Ledger()


def test_a_concurrent_poll_that_is_refused_takes_back_no_records_of_the_other(servers: str, topic: str) -> None:
    refused: list[Exception] = []

    def intrude() -> None:
        try:
            consumer.poll(0.0)
        except ConcurrentUseError as error:
            refused.append(error)

    with assigned(Consumer, servers, topic, max_poll_records=10) as consumer:
        take = consumer._parts.poll_loop._take

        def take_beside_another(*args: Any) -> Records | None:
            records = take(*args)
            other = threading.Thread(target=intrude)
            other.start()
            other.join()
            return records

        consumer._parts.poll_loop._take = take_beside_another  # type: ignore[method-assign]
        offsets = [record.offset for record in poll_until(consumer, 30)]
    assert refused
    assert offsets[:30] == list(range(30))


@pytest.mark.parametrize("kind", [AsyncConsumer, AsyncShareConsumer])
def test_a_cancelled_close_leaves_no_connection_open(servers: str, topic: str, kind: type[Any]) -> None:
    async def closed(pause: float) -> None:
        consumer = kind(bootstrap_servers=servers, group_id=unique("g"))
        consumer.subscribe([topic])
        await consumer.poll(0.2)
        client = consumer._parts.lifecycle.runtime.client
        while not (connections := client.connections.open_connections):
            await consumer.poll(0.2)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(pause)  # so that close() is at another step each time
        closing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await closing
        await consumer.close()
        assert not any(connection.is_open for connection in connections)

    async def main() -> None:
        for number in range(14):
            await closed(number * 0.0003)

    asyncio.run(main())


class Halfway:
    """Interrupts unsubscribe() halfway, and blocks it on the consumer's thread until `resume` is set."""

    def __init__(self, consumer: AsyncConsumer, interrupt: Callable[[], object]) -> None:
        self._commit, self._interrupt = consumer._parts.committer.commit_outstanding, interrupt
        self.resume = threading.Event()
        consumer._parts.committer.commit_outstanding = self._halt  # type: ignore[method-assign]

    async def _halt(self, *args: Any) -> None:
        await self._commit(*args)
        if len(args) == 2 and not self.resume.is_set():  # the commit of all partitions: the revoke is complete
            self._interrupt()
            self.resume.wait(0.5)


def test_an_interrupted_unsubscribe_does_not_undo_a_later_subscribe(servers: str, topic: str) -> None:
    with Consumer(bootstrap_servers=servers, group_id=unique("g"), auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        poll_until(consumer, 1)
        main = threading.get_ident()
        halfway = Halfway(consumer._aio, lambda: signal.pthread_kill(main, signal.SIGALRM))
        with interrupts(), pytest.raises(Interrupted):
            consumer.unsubscribe()
        consumer.subscribe([topic])
        halfway.resume.set()
        assert poll_until(consumer, 1)


def test_a_cancelled_unsubscribe_does_not_undo_a_later_subscribe(servers: str, topic: str) -> None:
    async def main() -> None:
        settings = {"bootstrap_servers": servers, "group_id": unique("g"), "auto_offset_reset": "earliest"}
        async with AsyncConsumer(**settings) as consumer, asyncio.timeout(60):
            consumer.subscribe([topic])
            while not await consumer.poll(1.0):
                pass
            loop = asyncio.get_running_loop()
            leaving = asyncio.create_task(consumer.unsubscribe())
            halfway = Halfway(consumer, lambda: loop.call_soon_threadsafe(leaving.cancel))
            with pytest.raises(asyncio.CancelledError):
                await leaving
            consumer.subscribe([topic])
            halfway.resume.set()
            while not await consumer.poll(1.0):
                pass

    asyncio.run(main())


class Stumbling(RebalanceListener):
    """A listener that raises."""

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        raise ZeroDivisionError


def test_an_interrupted_first_poll_leaves_a_usable_consumer(servers: str, topic: str) -> None:
    """The first poll starts a thread and joins the group."""
    dice = random.Random(7)
    for most in [0.0005] * 40 + [0.02] * 10:
        with Consumer(bootstrap_servers=servers, group_id=unique("g"), auto_offset_reset="earliest") as consumer:
            consumer.subscribe([topic])
            with interrupts(), contextlib.suppress(Interrupted):
                soon(dice, most)
                consumer.poll(0.05)
                signal.setitimer(signal.ITIMER_REAL, 0)
            if most > 0.001:
                assert poll_until(consumer, 1)
            else:
                consumer.poll(0.0)
            other = threading.Thread(target=consumer.poll, args=(0.0,))
            other.start()
            other.join(60)
            assert not other.is_alive(), "the consumer's lock is still held"


@pytest.mark.parametrize("wrong", [("1",), (None,), (1.0, "x")], ids=str)
def test_a_poll_with_wrong_arguments_leaves_a_usable_consumer(
    make: MakeConsumer, servers: str, topic: str, wrong: tuple[Any, ...]
) -> None:
    consumer = assigned(make, servers, topic)
    with pytest.raises((TypeError, ValueError)):
        consumer.poll(wrong[0], **({"max_records": wrong[1]} if wrong[1:] else {}))
    assert len(poll_until(consumer, 10))


def test_an_error_of_a_listener_or_callback_leaves_a_usable_consumer(
    make: MakeConsumer, servers: str, topic: str
) -> None:
    settings = {"group_id": unique("g"), "auto_offset_reset": "earliest", "max_poll_records": 1}
    consumer = make(bootstrap_servers=servers, **settings)
    consumer.subscribe([topic], listener=Stumbling())
    with pytest.raises(ZeroDivisionError):
        poll_until(consumer, 1)
    assert poll_until(consumer, 1)
    consumer.commit_async(None, lambda offsets, error: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        poll_until(consumer, 10**9)
    consumer.seek_to_beginning()
    assert poll_until(consumer, 1)
