"""A consumer's threads, loops and background tasks, without a real broker."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import time
from typing import Any

import pytest

from headrace import AsyncConsumer, Consumer, Producer, ShareConsumer, TopicPartition
from headrace._aio.clients import open_clients
from headrace.errors import (
    ClosedError,
    CorruptRecordError,
    HeadraceError,
    KafkaError,
    LogTruncationError,
    NetworkError,
    OffsetOutOfRangeError,
)
from support.brokers.fake_broker import run

TP = TopicPartition("t", 0)


def test_a_call_after_close_starts_no_thread():
    consumer = Consumer(bootstrap_servers="127.0.0.1:1")
    consumer.close()
    before = threading.active_count()
    with pytest.raises(ClosedError):
        consumer.list_topics()
    assert threading.active_count() <= before
    consumer.close()


@pytest.mark.parametrize(
    "error",
    [
        CorruptRecordError("m", TP, 5),
        KafkaError(1, "X", False, "m"),
        OffsetOutOfRangeError("m", {TP: 5}),
        LogTruncationError("m", {TP: None}),
        NetworkError("m"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_pickled(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_an_unexpected_error_of_a_background_task_is_raised_by_poll(caplog):
    async def main():
        async with AsyncConsumer(bootstrap_servers="127.0.0.1:1") as consumer:
            consumer.assign([TP])
            runtime = consumer._parts.lifecycle.start()

            async def broken():
                raise TypeError("a bug")

            runtime.positions._round = broken
            with pytest.raises(HeadraceError, match="a bug"):
                await consumer.poll(50.0)

    run(main())


def test_an_auto_commit_after_unsubscribe_does_not_use_the_old_event_loop():
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g", auto_commit_interval_ms=1) as consumer:
        consumer.assign([TP])
        consumer.poll(0.0)
        consumer.unsubscribe()
        consumer.assign([TP])
        consumer.seek(TP, 5)
        time.sleep(0.005)  # an auto-commit is due
        assert not consumer.poll(0.0)


def test_an_async_consumer_can_be_used_from_several_event_loops():
    consumer = AsyncConsumer(bootstrap_servers="127.0.0.1:1")
    consumer.assign([TP])
    assert len(asyncio.run(consumer.poll(0.0))) == 0
    assert len(asyncio.run(consumer.poll(0.0))) == 0
    asyncio.run(consumer.close())


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_a_consumer_that_is_dropped_without_close_warns_and_ends_its_threads(kind):
    consumer = kind(bootstrap_servers="127.0.0.1:1")
    consumer.assign([TP])
    records = consumer.poll(0.0) if kind is Consumer else asyncio.run(consumer.poll(0.0))
    assert len(records) == 0
    thread = consumer._parts.lifecycle.portal._server.thread
    assert thread.is_alive()
    last = [consumer]
    del consumer
    with pytest.warns(ResourceWarning, match=rf"^unclosed {kind.__name__}: .* Call close\(\)"):
        last.clear()  # no reference cycle keeps it alive until the garbage collector runs
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Consumer, "on_event"),
        (Consumer, "on_stats"),
        (ShareConsumer, "on_event"),
        (ShareConsumer, "on_stats"),
        (Producer, "on_stats"),
    ],
)
def test_a_client_is_collected_with_the_object_whose_methods_it_calls(kind: type[Any], name: str) -> None:
    class App:
        def __init__(self) -> None:
            settings: dict[str, Any] = {name: self.hear}
            settings |= {"statistics_interval_ms": 3_600_000} if name == "on_stats" else {}
            settings |= {} if kind is Producer else {"group_id": "g"}
            self.client = kind(bootstrap_servers="127.0.0.1:1", **settings)
            self.client._parts.lifecycle.start()

        def hear(self, news: Any) -> None: ...

    app = App()
    thread = app.client._parts.lifecycle.portal._server.thread
    del app
    with pytest.warns(ResourceWarning, match="^unclosed"):
        gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_a_dropped_consumer_is_not_open_even_while_its_parts_are_in_use():
    consumer = Consumer(bootstrap_servers="127.0.0.1:1")
    consumer.assign([TP])
    consumer.poll(0.0)
    parts = consumer._parts
    assert parts in [each.parts for each in open_clients()]
    with pytest.warns(ResourceWarning, match="^unclosed Consumer"):
        del consumer
    assert parts not in [each.parts for each in open_clients()]


def test_a_consumer_that_was_closed_or_never_used_does_not_warn(recwarn):
    for is_used in (False, True):
        consumer = Consumer(bootstrap_servers="127.0.0.1:1")
        consumer.assign([TP])
        if is_used:
            consumer.poll(0.0)
            consumer.close()
        del consumer
    gc.collect()
    assert not [each for each in recwarn if each.category is ResourceWarning]
