"""Which calls a consumer admits while it is in use: inside of the functions that it calls, and beside them.

One table for all four consumers. Every public method is in it, so a new one has to be classified.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from headrace import AsyncConsumer, AsyncShareConsumer, Consumer, RebalanceListener, Record, ShareConsumer
from headrace.errors import ConcurrentUseError, HeadraceError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered
from support.harness.share_consumers import put, share_group
from support.harness.waiting import wait_for

pytestmark = pytest.mark.kafka("4.2")

ADMITTED, REFUSED = "admitted", "refused"
TASKS_ONLY = "admitted in a task, refused on a thread"
"""A consumer for threads serves one thread at a time, and handlers have threads of their own."""


class Row(NamedTuple):
    """What happens in a place."""

    handler: str
    on_progress: str
    callback: str
    """A rebalance listener; of share consumers, the callback for acknowledgements."""
    beside_poll: str
    """In another task or thread, while poll() waits."""
    beside_run: str


QUESTION = Row(ADMITTED, ADMITTED, ADMITTED, ADMITTED, ADMITTED)
ASKS_BROKERS = Row(TASKS_ONLY, ADMITTED, ADMITTED, TASKS_ONLY, TASKS_ONLY)
CHANGES = Row(REFUSED, ADMITTED, ADMITTED, TASKS_ONLY, TASKS_ONLY)
ENDS = Row(REFUSED, REFUSED, ADMITTED, TASKS_ONLY, TASKS_ONLY)
READS = Row(REFUSED, REFUSED, REFUSED, REFUSED, REFUSED)

CALLS: dict[str, Row] = {
    "assign": CHANGES,
    "assignment": QUESTION,
    "beginning_offsets": ASKS_BROKERS,
    "child_consumer_is_alive": QUESTION,
    "close": ENDS,
    "commit": CHANGES,
    "commit_async": CHANGES,
    "committed": ASKS_BROKERS,
    "delay_revoke": CHANGES,
    "done": QUESTION,
    "end_offsets": ASKS_BROKERS,
    "enforce_rebalance": CHANGES,
    "group_metadata": QUESTION,
    "in_flight": QUESTION,
    "list_topics": ASKS_BROKERS,
    "lost_partitions": QUESTION,
    "metrics": QUESTION,
    "offsets_for_times": ASKS_BROKERS,
    "partitions_for_topic": ASKS_BROKERS,
    "pause": ASKS_BROKERS,
    "paused": QUESTION,
    "poll": READS,
    "position": ASKS_BROKERS,
    "resume": ASKS_BROKERS,
    "run": READS,
    "seek": CHANGES,
    "seek_to_beginning": CHANGES,
    "seek_to_end": CHANGES,
    "subscribe": CHANGES,
    "subscription": QUESTION,
    "to_be_revoked_partitions": QUESTION,
    "unsubscribe": ENDS,
    "wakeup": QUESTION,
    "watermarks": ASKS_BROKERS,
    "iteration": READS,
}
SHARE_CALLS: dict[str, Row] = {
    "acknowledge": QUESTION,
    "acquisition_lock_timeout": QUESTION,
    "close": ENDS,
    "commit": CHANGES,
    "commit_async": CHANGES,
    "metrics": QUESTION,
    "poll": READS,
    "run": READS,
    "set_acknowledgement_commit_callback": CHANGES,
    "subscribe": CHANGES,
    "subscription": QUESTION,
    "unsubscribe": ENDS,
    "wakeup": QUESTION,
    "iteration": READS,
}
TABLES: dict[type[Any], dict[str, Row]] = {
    Consumer: CALLS,
    AsyncConsumer: CALLS,
    ShareConsumer: SHARE_CALLS,
    AsyncShareConsumer: SHARE_CALLS,
}
_LAST = ["unsubscribe", "close", "wakeup"]  # in this order: they end what the other calls need

POLLS = 60  # of half a second, at most
THREADED = [Consumer, ShareConsumer]
IN_TASKS = [AsyncConsumer, AsyncShareConsumer]


@pytest.mark.parametrize("kind", TABLES)
def test_every_public_method_is_in_the_table(kind: type[Any]) -> None:
    assert {name for name in dir(kind) if not name.startswith("_")} | {"iteration"} == TABLES[kind].keys()


class Calls:
    """Makes every call in turn, and notes which of them were refused."""

    def __init__(self, kind: type[Any], topic: str) -> None:
        tp, self._kind = (topic, 0), kind
        self._outcomes: dict[str, str] = {}
        table = TABLES[kind]

        def order(name: str) -> int:
            return _LAST.index(name) if name in _LAST else -2 if table[name] is READS else -1

        self._names = sorted(table, key=order)
        self._arguments: dict[str, tuple[Any, ...]] = {
            "acknowledge": (Record(topic, 0, 0),),
            "done": (Record(topic, 0, 0),),
            "partitions_for_topic": (topic,),
            "offsets_for_times": ({tp: 0},),
            "poll": (0.0,),
            "run": (_coroutine if kind in IN_TASKS else _plain,),
            "seek": (tp, 0),
            "set_acknowledgement_commit_callback": (None,),
            "subscribe": ([topic],),
            **dict.fromkeys(["position", "watermarks"], (tp,)),
            **dict.fromkeys(
                ["assign", "beginning_offsets", "committed", "delay_revoke", "end_offsets", "pause", "resume"], ([tp],)
            ),
        }

    @contextlib.contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        outcome = ADMITTED
        try:
            yield
        except HeadraceError as error:
            if isinstance(error, ConcurrentUseError) or "listener cannot call" in str(error):
                outcome = REFUSED
        self._outcomes[name] = outcome

    def make(self, consumer: Any) -> None:
        for name in self._names:
            with self._noted(name):
                if name == "iteration":
                    next(iter(consumer))
                else:
                    result = getattr(consumer, name)(*self._arguments.get(name, ()))
                    if inspect.iscoroutine(result):  # in a plain function of an asynchronous consumer
                        result.close()

    async def make_in_task(self, consumer: Any) -> None:
        for name in self._names:
            with self._noted(name):
                arguments = self._arguments.get(name, ())
                result = anext(aiter(consumer)) if name == "iteration" else getattr(consumer, name)(*arguments)
                if inspect.isawaitable(result):
                    await result

    def check(self, place: str) -> None:
        rows = {name: getattr(row, place) for name, row in TABLES[self._kind].items()}
        in_task = ADMITTED if self._kind in IN_TASKS else REFUSED
        assert self._outcomes == {name: in_task if row == TASKS_ONLY else row for name, row in rows.items()}


def _plain(record: Record) -> None: ...


async def _coroutine(record: Record) -> None: ...


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    topic = admin.create("calls", 1)
    put(servers, topic, numbered(1))
    return topic


def member(kind: type[Any], servers: str, topic: str, listener: RebalanceListener | None = None) -> Any:
    if kind in (ShareConsumer, AsyncShareConsumer):
        consumer = kind(bootstrap_servers=servers, group_id=share_group(servers))
        consumer.subscribe([topic])
    else:
        usual: dict[str, Any] = {"auto_offset_reset": "earliest", "commit_mode": "done"}
        consumer = kind(bootstrap_servers=servers, group_id=unique("g"), **usual)
        consumer.subscribe([topic], listener=listener)
    return consumer


# -- inside of the functions that run() calls ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", THREADED)
def test_calls_in_a_handler_on_a_thread(kind: type[Any], servers: str, topic: str) -> None:
    calls = Calls(kind, topic)
    with member(kind, servers, topic) as consumer:
        consumer.run(lambda record: calls.make(consumer))
    calls.check("handler")


@pytest.mark.parametrize("kind", IN_TASKS)
@pytest.mark.parametrize("in_own_task", [False, True])
def test_calls_in_a_handler_in_a_task(kind: type[Any], servers: str, topic: str, in_own_task: bool) -> None:
    """Tasks that a handler creates are a part of it."""
    calls = Calls(kind, topic)

    async def main() -> None:
        async def handler(record: Record) -> None:
            made = calls.make_in_task(consumer)
            await (asyncio.create_task(made) if in_own_task else made)

        async with member(kind, servers, topic) as consumer:
            await consumer.run(handler)

    asyncio.run(main())
    calls.check("handler")


@pytest.mark.parametrize("kind", THREADED)
def test_calls_in_on_progress_on_a_thread(kind: type[Any], servers: str, topic: str) -> None:
    calls = Calls(kind, topic)
    with member(kind, servers, topic) as consumer:
        consumer.run(_plain, on_progress=_once(lambda: calls.make(consumer)), progress_interval=0.01)
    calls.check("on_progress")


@pytest.mark.parametrize("kind", IN_TASKS)
def test_calls_in_a_task_of_on_progress(kind: type[Any], servers: str, topic: str) -> None:
    calls = Calls(kind, topic)

    async def main() -> None:
        made: list[asyncio.Task[None]] = []
        async with member(kind, servers, topic) as consumer:
            start = _once(lambda: made.append(asyncio.create_task(calls.make_in_task(consumer))))
            await consumer.run(_coroutine, on_progress=start, progress_interval=0.01)
            await made[0]

    asyncio.run(main())
    calls.check("on_progress")


def _once(function: Callable[[], Any]) -> Callable[[Any], None]:
    functions = [function]
    return lambda _: functions.pop()() if functions else None


# -- inside of callbacks of poll() -----------------------------------------------------------------------------------


class Listening(RebalanceListener):
    def __init__(self, make: Callable[[], Awaitable[None] | None]) -> None:
        self._make = make

    def on_partitions_assigned(self, partitions: Any) -> Awaitable[None] | None:
        return self._make()


def test_calls_in_a_listener_on_a_thread(servers: str, topic: str) -> None:
    calls = Calls(Consumer, topic)
    consumer = member(Consumer, servers, topic, Listening(lambda: calls.make(consumer)))
    with contextlib.suppress(HeadraceError):  # the calls have closed it
        for _ in range(POLLS):
            consumer.poll(0.5)
    calls.check("callback")


def test_calls_in_a_listener_in_a_task(servers: str, topic: str) -> None:
    calls = Calls(AsyncConsumer, topic)

    async def main() -> None:
        consumer = member(AsyncConsumer, servers, topic, Listening(lambda: calls.make_in_task(consumer)))
        with contextlib.suppress(HeadraceError):
            for _ in range(POLLS):
                await consumer.poll(0.5)

    asyncio.run(main())
    calls.check("callback")


def test_calls_in_a_callback_for_acknowledgements(servers: str, topic: str) -> None:
    calls = Calls(ShareConsumer, topic)
    consumer = member(ShareConsumer, servers, topic)
    consumer.set_acknowledgement_commit_callback(lambda *_: calls.make(consumer))
    with contextlib.suppress(HeadraceError):
        for _ in range(POLLS):
            consumer.poll(0.5)
    calls.check("callback")


# -- beside a call ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", THREADED)
@pytest.mark.parametrize("place", ["beside_poll", "beside_run"])
def test_calls_on_another_thread(kind: type[Any], servers: str, topic: str, place: str) -> None:
    calls = Calls(kind, topic)
    with member(kind, servers, topic) as consumer:
        began = threading.Event()

        def beside() -> None:
            began.wait(60)
            if place == "beside_poll":
                wait_for("poll()", consumer._parts.guard.is_polling)
            calls.make(consumer)

        other = threading.Thread(target=beside)
        other.start()
        if place == "beside_run":
            consumer.run(lambda record: began.set())
        else:
            assert consumer.poll(30.0)
            began.set()
            with pytest.raises(HeadraceError, match="wakeup"):
                consumer.poll(60.0)
        other.join()
    calls.check(place)


@pytest.mark.parametrize("kind", IN_TASKS)
@pytest.mark.parametrize("place", ["beside_poll", "beside_run"])
def test_calls_in_another_task(kind: type[Any], servers: str, topic: str, place: str) -> None:
    calls = Calls(kind, topic)

    async def main() -> None:
        began = asyncio.Event()

        async def handler(record: Record) -> None:
            began.set()

        async def polling() -> None:
            while True:
                for record in await consumer.poll(60.0):
                    await handler(record)

        async with member(kind, servers, topic) as consumer:
            using = asyncio.create_task(consumer.run(handler) if place == "beside_run" else polling())
            await began.wait()
            await calls.make_in_task(consumer)
            with contextlib.suppress(HeadraceError):
                await using

    asyncio.run(main())
    calls.check(place)
