"""Which calls the producer of an exactly-once run() admits meanwhile: in the functions that run() calls, and beside it.

As tests/integration/consumer/test_calls_inside.py for consumers: every public method is in the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from headrace import AsyncConsumer, AsyncProducer, Consumer, GroupMetadata, Producer, Record
from headrace.errors import ConcurrentUseError, HeadraceError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered
from support.harness.share_consumers import put

EXACTLY_ONCE: dict[str, Any] = {"auto_offset_reset": "earliest", "commit_mode": "done", "enable_auto_commit": False}

ADMITTED, REFUSED = "admitted", "refused"


class ProducerRow(NamedTuple):
    """What happens in a place."""

    handler: str
    on_progress: str
    beside_run: str
    """In another task or thread."""


SENDS = ProducerRow(ADMITTED, ADMITTED, ADMITTED)
TRANSACTS = ProducerRow(REFUSED, REFUSED, REFUSED)
PRODUCER_CALLS: dict[str, ProducerRow] = {
    "abort": TRANSACTS,
    "begin": TRANSACTS,
    "close": ProducerRow(REFUSED, REFUSED, ADMITTED),
    "commit": TRANSACTS,
    "flush": SENDS,
    "init_transactions": TRANSACTS,
    "metrics": SENDS,
    "partitions_for_topic": SENDS,
    "send": SENDS,
    "send_all": SENDS,
    "send_arrow": SENDS,
    "send_offsets": TRANSACTS,
    "transaction": TRANSACTS,
}


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
def test_every_public_method_of_a_producer_is_in_the_table(kind: type[Any]) -> None:
    assert {name for name in dir(kind) if not name.startswith("_")} == PRODUCER_CALLS.keys()


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    topic = admin.create("calls", 1)
    put(servers, topic, numbered(1))
    return topic


def _once(function: Callable[[], Any]) -> Callable[[Any], None]:
    functions = [function]
    return lambda _: functions.pop()() if functions else None


def _plain(record: Record) -> None: ...


class ProducerCalls:
    """Makes every call of a producer that changes something, close() last, and notes which of them were refused."""

    def __init__(self, topic: str) -> None:
        self._outcomes: dict[str, str] = {}
        self._arguments: dict[str, tuple[Any, ...]] = {
            "partitions_for_topic": (topic,),
            "send": (topic, b"v"),
            "send_all": (topic, []),
            "send_arrow": (topic, pa.table({"value": pa.array([], pa.binary())})),
            "send_offsets": ({(topic, 0): 1}, GroupMetadata("g")),
        }

    async def make(self, producer: Any) -> None:
        for name in sorted(PRODUCER_CALLS, key=lambda name: name == "close"):
            self._outcomes[name] = ADMITTED
            try:
                result = getattr(producer, name)(*self._arguments.get(name, ()))
                if name == "transaction":
                    result = result.__enter__() if isinstance(producer, Producer) else result.__aenter__()
                if isinstance(producer, AsyncProducer) and inspect.isawaitable(result):
                    await result
            except ConcurrentUseError:
                self._outcomes[name] = REFUSED
            except HeadraceError:  # run() has no transaction at this time
                pass

    def check(self, place: str) -> None:
        assert self._outcomes == {name: getattr(row, place) for name, row in PRODUCER_CALLS.items()}


@contextlib.contextmanager
def exactly_once(servers: str, topic: str) -> Iterator[tuple[Consumer, Producer]]:
    with (
        Producer(bootstrap_servers=servers, transactional_id=unique("p")) as producer,
        Consumer(bootstrap_servers=servers, group_id=unique("g"), **EXACTLY_ONCE) as consumer,
    ):
        consumer.subscribe([topic])
        yield consumer, producer


@pytest.mark.parametrize("place", ["handler", "on_progress", "beside_run"])
def test_calls_of_the_producer_of_run_on_threads(servers: str, topic: str, place: str) -> None:
    calls, others = ProducerCalls(topic), []
    with exactly_once(servers, topic) as (consumer, producer):

        def make() -> None:
            asyncio.run(calls.make(producer))
            consumer.wakeup()

        def handler(record: Record) -> None:
            if place == "handler":
                make()
            elif place == "beside_run":
                others.append(threading.Thread(target=make))
                others[0].start()

        with contextlib.suppress(HeadraceError):  # one of the calls beside run() closes the producer
            on_progress = _once(make) if place == "on_progress" else None
            consumer.run(handler, producer=producer, on_progress=on_progress, progress_interval=0.01)
        for other in others:
            other.join()
    calls.check(place)


@pytest.mark.parametrize("place", ["handler", "on_progress", "beside_run"])
def test_calls_of_the_producer_of_run_in_tasks(servers: str, topic: str, place: str) -> None:
    calls = ProducerCalls(topic)

    async def main() -> None:
        async with (
            AsyncProducer(bootstrap_servers=servers, transactional_id=unique("p")) as producer,
            AsyncConsumer(bootstrap_servers=servers, group_id=unique("g"), **EXACTLY_ONCE) as consumer,
        ):
            began = asyncio.Event()
            made: list[asyncio.Task[None]] = []

            async def make() -> None:
                await calls.make(producer)
                consumer.wakeup()

            async def beside() -> None:
                await began.wait()
                await make()

            async def handler(record: Record) -> None:
                began.set()
                if place == "handler":
                    await make()

            consumer.subscribe([topic])
            if place == "beside_run":
                made.append(asyncio.create_task(beside()))
            start = _once(lambda: made.append(asyncio.create_task(make()))) if place == "on_progress" else None
            with contextlib.suppress(HeadraceError):
                await consumer.run(handler, producer=producer, on_progress=start, progress_interval=0.01)
            await asyncio.gather(*made)

    asyncio.run(main())
    calls.check(place)


def test_one_producer_serves_one_run_at_a_time(servers: str, topic: str) -> None:
    """Its transaction would contain outputs and offsets of both."""
    errors: list[Exception] = []
    with (
        exactly_once(servers, topic) as (consumer, producer),
        Consumer(bootstrap_servers=servers, group_id=unique("g"), **EXACTLY_ONCE) as second,
    ):
        second.subscribe([topic])

        def handler(record: Record) -> None:
            try:
                second.run(_plain, producer=producer)
            except ConcurrentUseError as error:
                errors.append(error)
            consumer.wakeup()

        consumer.run(handler, producer=producer)
    assert "producer of its own" in str(errors[0])
