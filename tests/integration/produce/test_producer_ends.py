"""A producer and its process: wrong arguments, close, fork, a dropped producer, Ctrl-C, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from headrace import AsyncProducer, Producer
from headrace.errors import ClosedError, ForkedError, HeadraceError, RequestTimeoutError
from support.brokers.admin import Admin
from support.brokers.topic_contents import oracle_rows
from support.harness.exits import exit_codes
from support.harness.interrupts import Interrupter, interrupted_everywhere
from support.harness.producers import MakeProducer
from support.harness.waiting import Rounds, wait_for
from support.harness.wrong_arguments import COUNTS, NAME, SECONDS, Wrong, names_of

pytestmark = [
    pytest.mark.timeout(180),
    # Python only reports an interrupt inside a weak reference's callback.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BYTES: list[Wrong] = [(5, TypeError), ([b"x"], TypeError), ({}, TypeError), (1.5, TypeError), ("\ud800", ValueError)]
WRONG: dict[str, dict[str, list[Wrong]]] = {
    "send": {
        "topic": NAME,
        "value": BYTES,
        "key": BYTES,
        "headers": [
            (5, TypeError),
            ("text", TypeError),
            (b"bytes", TypeError),
            (["name"], TypeError),
            ([("name",)], TypeError),
            ([("a", b"b", b"c")], TypeError),
            ([(b"name", b"value")], TypeError),
            ([("name", 5)], TypeError),
            ({"name": [b"value"]}, TypeError),
            ([("\ud800", b"value")], ValueError),
        ],
        "timestamp": [
            *(("5", TypeError), (1.5, TypeError), (True, TypeError), (-1, ValueError), (2**63, ValueError)),
            (datetime.datetime(1969, 12, 31, tzinfo=datetime.UTC), ValueError),
        ],
        "partition": [*COUNTS, (b"", TypeError), (2**70, ValueError), (2**31, ValueError), (-1, ValueError)],
    },
    "flush": {"timeout": SECONDS},
    "close": {"timeout": SECONDS},
    "partitions_for_topic": {"topic": NAME, "timeout": SECONDS},
}


@pytest.fixture(scope="module")
def topic(admin: Admin) -> str:
    return admin.create("producer-ends", 2)


def producing_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("headrace")}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = producing_threads()
    yield
    gc.collect()
    for thread in producing_threads() - before:
        thread.join(30)
        assert not thread.is_alive()


# -- wrong arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", list(WRONG))
def test_wrong_arguments_raise_at_once_and_leave_a_usable_producer(
    make_producer: MakeProducer, servers: str, topic: str, method: str
) -> None:
    assert set(WRONG[method]) <= names_of(Producer)[method]
    needed = {"send": {"topic": topic, "value": b""}, "partitions_for_topic": {"topic": topic}}.get(method, {})
    producer = make_producer(bootstrap_servers=servers, max_block_ms=20_000)
    for _ in range(2):  # before the first record, and while a batch is open
        for parameter, wrong in WRONG[method].items():
            for value, error in wrong:
                began = time.monotonic()
                with pytest.raises(error) as caught:
                    getattr(producer, method)(**{**needed, parameter: value})
                assert len(str(caught.value)) > 10, (parameter, value)
                assert time.monotonic() - began < 10, (parameter, value)
        assert producer.send(topic, b"fine").result(60).offset is not None


def test_wrong_timeouts_of_a_result_raise(make_producer: MakeProducer, servers: str, topic: str) -> None:
    delivery = make_producer(bootstrap_servers=servers).send(topic, b"")
    for wrong, error in SECONDS:
        with pytest.raises(error):
            delivery.result(wrong)
    delivery.result(60)


# -- closing -----------------------------------------------------------------------------------------------------------


def test_a_closed_producer_refuses_calls(make_producer: MakeProducer, servers: str, topic: str) -> None:
    unused, used = make_producer(bootstrap_servers=servers), make_producer(bootstrap_servers=servers)
    delivery = used.send(topic, b"")
    inner = [getattr(each, "producer", each) for each in (unused, used)]
    for each in (unused, used):
        each.close()
    assert delivery.result(0).offset is not None, "close() must wait for it"
    for each in inner:

        def call(name: str, *args: Any, each: Any = each) -> None:
            found = getattr(each, name)(*args)
            if asyncio.iscoroutine(found):
                asyncio.run(found)

        for name, args in (("send", (topic, b"")), ("flush", ()), ("partitions_for_topic", (topic,))):
            with pytest.raises(ClosedError, match="this producer is closed"):
                call(name, *args)
        call("close")
        call("metrics")


def test_close_delivers_what_lingers(servers: str, topic: str, admin: Admin) -> None:
    own = admin.create("lingering")
    with Producer(bootstrap_servers=servers, linger_ms=60_000) as producer:
        deliveries = [producer.send(own, b"%d" % number) for number in range(100)]
        assert not any(each.is_done for each in deliveries)
    assert [each.offset for each in deliveries] == list(range(100))


def test_send_and_flush_of_other_threads_end_when_the_producer_is_closed(servers: str, topic: str) -> None:
    producer = Producer(bootstrap_servers=servers, buffer_memory=500)
    ended: list[BaseException] = []

    def use() -> None:
        try:
            while True:
                producer.send(topic, b"." * 100)
                producer.flush()
        except HeadraceError as error:
            ended.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_for("some deliveries", lambda: producer.metrics()["records_delivered"] > 20)
    producer.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert {type(each) for each in ended} == {ClosedError}


def test_a_dropped_producer_warns_delivers_and_its_thread_ends(servers: str, topic: str) -> None:
    before = producing_threads()
    producer: Producer | None = Producer(bootstrap_servers=servers, linger_ms=60_000)
    assert producer is not None
    delivery = producer.send(topic, b"late")
    started = producing_threads() - before
    assert started
    with pytest.warns(ResourceWarning, match="unclosed Producer: its records that are not delivered within 5 s are"):
        producer = None  # drops the last reference
    for thread in started:
        thread.join(30)
        assert not thread.is_alive()
    assert delivery.result(0).topic == topic


def test_a_process_exits_while_a_daemon_thread_waits_for_a_delivery(servers: str, topic: str) -> None:
    program = f"""
from headrace import Producer
from headrace.errors import RequestTimeoutError

producer = Producer(bootstrap_servers={servers!r}, linger_ms=60_000)
delivery = producer.send({topic!r}, b"lost")

def task():
    started.set()
    while True:
        try:
            delivery.result(0.0001)
        except RequestTimeoutError:
            pass
"""
    assert [code for code, _ in exit_codes(program)] == [0] * 4  # stderr may have a warning of an unclosed producer


# -- fork --------------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> None:
    """Run `work` in a forked child, which then exits like a program. Fail if it failed there."""
    read, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read)
            signal.alarm(60)
            work()
            gc.collect()
            status = 0
        except BaseException:  # noqa: BLE001 - the parent reports any error
            os.write(write_end, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(write_end)
    said = b"".join(iter(lambda: os.read(read, 65536), b""))
    os.close(read)
    assert os.waitpid(pid, 0)[1] == 0, said.decode()


def test_a_producer_refuses_calls_in_a_forked_child_and_serves_its_parent(servers: str, admin: Admin) -> None:
    own = admin.create("forked")
    producer = Producer(bootstrap_servers=servers, linger_ms=500)
    producer.send(own, b"0").result(60)
    pending = producer.send(own, b"1")

    def child() -> None:
        for call in (
            lambda: producer.send(own, b"of the child"),
            lambda: producer.send(own, b"of the child", partition=0),
            producer.flush,
            lambda: producer.partitions_for_topic(own),
            lambda: pending.result(20),
        ):
            with pytest.raises(ForkedError, match=str(os.getppid())):
                call()
        producer.close()
        producer.close()
        with Producer(bootstrap_servers=servers) as other:
            other.send(own, b"2").result(60)

    with producer:
        in_child(child)
        assert pending.result(60).offset is not None
        producer.send(own, b"3").result(60)
    assert sorted(each.value or b"" for each in oracle_rows(servers, own)) == [b"0", b"1", b"2", b"3"]


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


class Interrupted(BaseException):
    """Raised by a signal handler, like KeyboardInterrupt."""


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


def test_interrupted_calls_leave_a_usable_producer_and_every_accepted_record_is_delivered_once(
    servers: str, admin: Admin
) -> None:
    own, dice = admin.create("interrupted"), random.Random(3)
    accepted: list[tuple[int, Any]] = []
    with Producer(bootstrap_servers=servers, linger_ms=1, buffer_memory=5_000, batch_size=500) as producer:
        with interrupts():
            number, rounds = 0, Rounds("interrupts", 100, at_least=1000)
            for _ in rounds:
                try:
                    signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-5, 0.002))
                    for _ in range(50):
                        number += 1
                        accepted.append((number, producer.send(own, b"%d" % number)))
                    if dice.random() < 0.3:
                        producer.flush()
                    if dice.random() < 0.3:
                        accepted[-1][1].result()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupted:
                    rounds.met += 1
        producer.flush(timeout=60)
    found = [int(each.value or b"") for each in oracle_rows(servers, own)]
    assert found == sorted(set(found)), "duplicated or out of order"
    assert {each for each, _ in accepted} <= set(found), "an accepted record is lost"
    assert all(found[each.offset] == value for value, each in accepted)


CALLS: dict[str, Callable[[Producer, str], object]] = {
    "send": lambda producer, topic: producer.send(topic, b"x"),
    "flush": lambda producer, topic: producer.flush(timeout=30),
    "result": lambda producer, topic: producer.send(topic, b"x").result(30),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_a_call_that_is_interrupted_anywhere_leaves_a_usable_producer(servers: str, topic: str, name: str) -> None:
    with Producer(bootstrap_servers=servers, linger_ms=0, batch_size=0) as producer:
        producer.send(topic, b"").result(60)

        def scenario(at: int) -> bool:
            producer.send(topic, b"before")
            with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
                CALLS[name](producer, topic)
            assert producer.send(topic, b"after").result(20).offset is not None
            return interrupter.has_raised

        interrupted_everywhere(scenario, 2000, more_than=5)


def test_a_first_send_that_is_interrupted_anywhere_leaves_a_usable_producer(servers: str, topic: str) -> None:
    def scenario(at: int) -> bool:
        with Producer(bootstrap_servers=servers, linger_ms=0) as producer:
            with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
                producer.send(topic, b"x")
            assert producer.send(topic, b"after").result(20).offset is not None
        return interrupter.has_raised

    interrupted_everywhere(scenario, 2000, every=3, more_than=5)


def test_a_close_that_is_interrupted_anywhere_can_be_repeated_and_leaves_no_thread(servers: str, topic: str) -> None:
    def scenario(at: int) -> bool:
        before = producing_threads()
        producer = Producer(bootstrap_servers=servers, linger_ms=60_000)
        delivery = producer.send(topic, b"x")
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            producer.close()
        with contextlib.suppress(ClosedError):  # the record may have been given up
            producer.close()
        with contextlib.suppress(ClosedError):
            delivery.result(20)
        assert delivery.is_done
        for thread in producing_threads() - before:
            thread.join(20)
            assert not thread.is_alive()
        return interrupter.has_raised

    interrupted_everywhere(scenario, 2000, every=3, more_than=5)


# -- asyncio -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_cancelled_calls_leave_a_usable_async_producer(servers: str, admin: Admin, runs: Callable[..., Any]) -> None:
    own = admin.create("cancelled")

    async def main() -> None:
        dice, rounds = random.Random(4), Rounds("cancellations", 50, at_least=600)
        async with AsyncProducer(bootstrap_servers=servers, linger_ms=1, buffer_memory=2_000) as producer:

            async def use(number: int) -> None:
                delivery = await producer.send(own, b"%d" % number + b"." * 300)
                match number % 3:
                    case 0:
                        await delivery
                    case 1:
                        await producer.flush()

            for number in rounds:
                task = asyncio.create_task(use(number))
                await asyncio.sleep(dice.uniform(0, 0.003))
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    rounds.met += 1
            assert (await (await producer.send(own, b"last"))).offset is not None

    runs(asyncio.wait_for(main(), 100))
    found = [each.value or b"" for each in oracle_rows(servers, own)]
    assert len(found) == len(set(found))
    assert found[-1] == b"last"


def test_a_cancelled_close_can_be_repeated(servers: str, topic: str) -> None:
    async def main() -> None:
        for number in range(14):
            producer = AsyncProducer(bootstrap_servers=servers, linger_ms=60_000)
            delivery = await producer.send(topic, b"x")
            closing = asyncio.create_task(producer.close())
            await asyncio.sleep(number * 0.0005)  # so that close() is at another step each time
            closing.cancel()
            with contextlib.suppress(asyncio.CancelledError, ClosedError):
                await closing
            with contextlib.suppress(ClosedError):
                await producer.close()
            assert delivery.is_done

    asyncio.run(asyncio.wait_for(main(), 60))


def test_deliveries_can_be_awaited_in_another_loop_and_asked_for_in_a_thread(servers: str, topic: str) -> None:
    async def send() -> tuple[AsyncProducer, Any]:
        producer = AsyncProducer(bootstrap_servers=servers, linger_ms=100)
        delivery = await producer.send(topic, b"x")
        waiting = asyncio.create_task(_awaited(delivery))
        await asyncio.sleep(0)
        waiting.cancel()
        return producer, delivery

    producer, delivery = asyncio.run(send())  # the loop is closed before the record is delivered
    assert delivery.result(30).offset is not None

    async def resume() -> None:
        assert (await delivery).offset == delivery.offset
        another = await producer.send(topic, b"y")
        assert (await another).offset is not None
        await producer.close()

    asyncio.run(resume())


async def _awaited(delivery: Any) -> Any:
    return await delivery


def test_many_tasks_await_their_own_deliveries(servers: str, admin: Admin) -> None:
    own = admin.create("tasks", 3)

    async def main() -> list[tuple[int, int]]:
        async with AsyncProducer(bootstrap_servers=servers, buffer_memory=10_000) as producer:

            async def one(number: int) -> tuple[int, int]:
                found = await (await producer.send(own, b"%d" % number, b"%d" % number))
                return found.partition, found.offset

            return await asyncio.gather(*(one(number) for number in range(2000)))

    places = asyncio.run(asyncio.wait_for(main(), 100))
    found = {(each.partition, each.offset): int(each.value or b"") for each in oracle_rows(servers, own, 3)}
    assert [found[place] for place in places] == list(range(2000))


def test_a_result_that_is_not_there_in_time_raises_and_the_record_is_delivered_later(servers: str, topic: str) -> None:
    with Producer(bootstrap_servers=servers, linger_ms=500) as producer:
        delivery = producer.send(topic, b"x")
        with pytest.raises(RequestTimeoutError, match="not delivered within 0 s"):
            delivery.result(0)
        assert not delivery.is_done
        assert delivery.result(30).offset is not None
