"""The thread that calls on_event and on_stats."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import AsyncConsumer, AsyncProducer, AsyncShareConsumer, Consumer, Producer, ShareConsumer
from headrace._aio.callbacks import MOST, Callbacks
from headrace.errors import ClosedError, ConfigError
from headrace.events import HeartbeatsFailing, HeartbeatsRecovered, MembershipSafe
from support.harness.waiting import wait_for

EVENT = HeartbeatsFailing("g", 3.0, "refused")
SOON = 30.0


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headrace-callbacks"]


@pytest.fixture
def make() -> Iterator[Callable[..., Callbacks]]:
    made: list[Callbacks] = []

    def make_one(metrics: Callable[[], dict[str, Any]] = dict, **options: Any) -> Callbacks:
        made.append(Callbacks(metrics, **options))
        made[-1].start()
        return made[-1]

    yield make_one
    for each in made:
        each.stop()
    wait_for("the end of all threads", lambda: not running())


def test_events_come_in_order_on_a_thread_of_their_own(make: Callable[..., Callbacks]) -> None:
    seen: queue.Queue[tuple[Any, str]] = queue.Queue()
    callbacks = make(on_event=lambda event: seen.put((event, threading.current_thread().name)))
    events = [EVENT, HeartbeatsRecovered("g", 4.0), MembershipSafe("g", "poll")]
    for event in events:
        callbacks.report(event)
    assert [seen.get(timeout=SOON) for _ in events] == [(event, "headrace-callbacks") for event in events]


def test_statistics_come_at_the_interval(make: Callable[..., Callbacks]) -> None:
    seen: queue.Queue[tuple[Any, float]] = queue.Queue()
    numbers = iter(range(100))

    def note(found: dict[str, Any]) -> None:
        seen.put((found, time.monotonic()))

    began = time.monotonic()
    make(lambda: {"number": next(numbers)}, on_stats=note, interval=0.05)
    found = [seen.get(timeout=SOON) for _ in range(4)]
    assert [each for each, _ in found] == [{"number": number} for number in range(4)]
    assert found[-1][1] - began >= 0.19


@pytest.mark.parametrize(
    "options", [{}, {"on_stats": print}, {"on_stats": print, "interval": 0.0}], ids=["none", "no interval", "zero"]
)
def test_without_a_function_to_call_there_is_no_thread(make: Callable[..., Callbacks], options: Any) -> None:
    make(**options).report(EVENT)
    assert running() == []


def test_a_function_that_raises_is_called_again_and_logged_once(
    make: Callable[..., Callbacks], caplog: pytest.LogCaptureFixture
) -> None:
    seen: queue.Queue[Any] = queue.Queue()

    def fail(event: Any) -> None:
        seen.put(event)
        raise SystemExit("no such metric")

    callbacks = make(on_event=fail)
    for _ in range(3):
        callbacks.report(EVENT)
    for _ in range(3):
        seen.get(timeout=SOON)
    callbacks.stop()
    wait_for("the end", lambda: not running())
    (logged,) = [each for each in caplog.records if "raised" in each.getMessage()]
    assert "on_event raised SystemExit('no such metric')" in logged.getMessage()
    assert logged.exc_info is not None


def test_a_function_that_blocks_delays_nobody_and_loses_only_what_exceeds_the_queue(
    make: Callable[..., Callbacks], caplog: pytest.LogCaptureFixture
) -> None:
    may_go, began, seen = threading.Event(), threading.Event(), []

    def block(event: Any) -> None:
        began.set()
        assert may_go.wait(SOON)
        seen.append(event)

    callbacks = make(on_event=block)
    callbacks.report(EVENT)
    assert began.wait(SOON)
    before = time.monotonic()
    for _ in range(MOST + 50):
        callbacks.report(EVENT)
    callbacks.stop()
    assert time.monotonic() - before < SOON / 2
    may_go.set()
    wait_for("the end", lambda: not running())
    assert len(seen) == 1 + MOST, "those that were reported before stop() are passed on"
    assert [each.getMessage() for each in caplog.records if each.name != "headrace.events"] == [
        f"on_event has not returned for {MOST} events: further events are dropped until it does"
    ]


def test_calls_never_overlap_even_after_a_restart(make: Callable[..., Callbacks]) -> None:
    may_go, first, inside, most = threading.Event(), threading.Event(), [], []

    def look(event: Any) -> None:
        inside.append(event)
        most.append(len(inside))
        first.set()
        assert may_go.wait(SOON)
        inside.pop()

    callbacks = make(on_event=look)
    callbacks.report(EVENT)
    assert first.wait(SOON)
    callbacks.stop()
    callbacks.start()
    callbacks.report(EVENT)
    assert len(running()) == 2
    may_go.set()
    wait_for("both calls", lambda: len(most) == 2)
    assert most == [1, 1]


def test_statistics_end_with_their_client(make: Callable[..., Callbacks]) -> None:
    def closed() -> dict[str, Any]:
        raise ClosedError("this consumer is closed")

    make(closed, on_stats=print, interval=0.01)
    wait_for("the end", lambda: not running())


def test_statistics_that_cannot_be_read_are_logged_once_and_do_not_end_the_thread(
    make: Callable[..., Callbacks], caplog: pytest.LogCaptureFixture
) -> None:
    seen: queue.Queue[Any] = queue.Queue()
    errors = [ValueError("torn"), RuntimeError("changed size")]

    def read() -> dict[str, Any]:
        if errors:
            raise errors.pop(0)
        return {"polls": 1}

    callbacks = make(read, on_stats=seen.put, on_event=seen.put, interval=0.01)
    assert seen.get(timeout=SOON) == {"polls": 1}
    callbacks.report(EVENT)
    while (found := seen.get(timeout=SOON)) != EVENT:
        assert found == {"polls": 1}
    (logged,) = [each.getMessage() for each in caplog.records if "raised" in each.getMessage()]
    assert logged == "metrics() raised ValueError('torn'): it will be called again"


@pytest.mark.parametrize("kind", [Consumer, ShareConsumer])
def test_events_and_statistics_come_until_close_even_after_unsubscribe(kind: Any) -> None:
    """A run() unsubscribes because of a stuck handler, and reports later that the handler has returned."""
    events: queue.Queue[Any] = queue.Queue()
    stats: queue.Queue[Any] = queue.Queue()
    functions = {"on_event": events.put, "on_stats": stats.put, "statistics_interval_ms": 10}
    with kind(bootstrap_servers="127.0.0.1:1", group_id="g", **functions) as client:
        client.subscribe(["t"])
        client.poll(0.0)
        client.unsubscribe()
        while not stats.empty():
            stats.get()
        stats.get(timeout=SOON)
        client._parts.callbacks.report(EVENT)
        assert events.get(timeout=SOON) == EVENT
        client.subscribe(["t"])
        client.poll(0.0)
        assert len(running()) == 1
    wait_for("the end", lambda: not running())


def test_a_closed_producer_reports_no_statistics() -> None:
    """Its counters are those of tasks that close() ends a little before the thread of the callbacks."""
    producer = Producer(bootstrap_servers="127.0.0.1:1", on_stats=print)
    producer.close()
    with pytest.raises(ClosedError):
        producer._parts.lifecycle._callbacks._metrics()


def test_events_are_logged_with_or_without_a_function(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.events")
    Callbacks(dict).report(EVENT)
    Callbacks(dict).report(HeartbeatsRecovered("g", 4.0))
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "group g: heartbeats have failed for 3.0 s: refused"),
        ("INFO", "group g: heartbeats are accepted again, after 4.0 s"),
    ]


async def coroutine(argument: Any) -> None: ...


class Awaited:
    async def __call__(self, argument: Any) -> None: ...


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer, ShareConsumer, AsyncShareConsumer, Producer, AsyncProducer])
@pytest.mark.parametrize("wrong", ["print", 5, coroutine, Awaited()])
@pytest.mark.parametrize("name", ["on_event", "on_stats"])
def test_only_plain_functions_can_be_called_back(kind: Any, wrong: Any, name: str) -> None:
    settings = {"bootstrap_servers": "b:1", name: wrong}
    if "Consumer" in kind.__name__:
        settings["group_id"] = "g"
    elif name == "on_event":
        return  # a producer has no events
    with pytest.raises(ConfigError, match=rf"{name.replace('_', '.')}=.*must be a (plain )?function"):
        kind(**settings)
