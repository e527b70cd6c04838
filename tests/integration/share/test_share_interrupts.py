"""A share consumer with a broker: signals inside poll(), exceptions inside `with`, and responses that arrive after
their poll."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import AsyncShareConsumer, Records, ShareConsumer
from headrace._net.connection import Connection
from headrace._protocol.messages import SHARE_FETCH
from headrace.errors import ClosedError
from support.brokers.admin import Admin
from support.brokers.produce import numbered
from support.harness.retries import patiently
from support.harness.share_consumers import MakeShareConsumer, offsets, poll_nothing, poll_some, put, share_group
from support.harness.waiting import wait_for

# -- signals --------------------------------------------------------------------------------------------------------


class Interrupted(Exception):
    """Raised by a user's signal handler."""


class Signals:
    """Sends signals to the main thread at random intervals. The handler raises while it is armed."""

    def __init__(self, number: int, seed: int) -> None:
        self.armed = False
        self.raised = 0
        self._number = number
        self._dice = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Signals:
        self._before = signal.signal(self._number, self._handle)
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.armed = False
        self._stop.set()
        self._thread.join(60)
        signal.signal(self._number, self._before)

    def _handle(self, number: int, frame: object) -> None:
        if self.armed:
            self.armed = False
            self.raised += 1
            raise KeyboardInterrupt if number == signal.SIGINT else Interrupted

    def _work(self) -> None:
        while not self._stop.wait(self._dice.uniform(0.0001, 0.001)):
            os.kill(os.getpid(), self._number)


# An error in a callback of the garbage collector cannot be raised.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1], ids=["SIGINT", "a handler that raises"])
def test_interrupted_share_polls_lose_no_record(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin, number: int
) -> None:
    topic = admin.create("interrupted", 2)
    count = 3000
    for partition in range(2):
        put(servers, topic, numbered(count // 2, partition=partition))
    group = share_group(servers)
    consumer = make_sync_share(bootstrap_servers=servers, group_id=group, max_poll_records=1, topics=[topic])
    seen: list[tuple[int, int]] = []
    deliveries = set()
    deadline = time.monotonic() + 100
    with Signals(number, seed=number) as signals:
        while len(seen) < count or signals.raised <= 10:
            assert time.monotonic() < deadline, (len(seen), signals.raised)
            records = Records.EMPTY
            try:
                signals.armed = True
                records = consumer.poll(0.2)
                signals.armed = False
            except (KeyboardInterrupt, Interrupted):
                pass  # the exception has the records if the poll was complete
            for record in records:
                seen.append((record.partition, record.offset))
                deliveries.add(record.delivery_count)
    assert sorted(seen) == [(partition, offset) for partition in range(2) for offset in range(count // 2)]
    assert deliveries == {1}
    assert set(consumer.commit().values()) <= {None}
    numbers = consumer.metrics()
    assert (numbers["acknowledged"], numbers["records_returned"], numbers["in_hand"]) == (count, count, 0)


# -- exceptions inside `with` -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["poll", "iteration"])
@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_exception_accepts_no_share_record_that_was_not_processed(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin, kind: str, mode: str, form: str
) -> None:
    """The third of ten records fails: in explicit mode two are accepted, in implicit mode none of this poll."""
    topic = admin.create("left")
    put(servers, topic, numbered(10))
    group = share_group(servers)
    settings = {"bootstrap_servers": servers, "group_id": group, "share_acknowledgement_mode": mode}

    def work(consumer: Any, record: Any) -> None:
        if record.offset == 2:
            raise ZeroDivisionError
        if mode == "explicit":
            consumer.acknowledge(record)

    def in_threads() -> None:
        with ShareConsumer(settings) as consumer:
            consumer.subscribe([topic])
            for record in consumer if form == "iteration" else poll_some(consumer):
                work(consumer, record)

    async def in_tasks() -> None:
        async with AsyncShareConsumer(settings) as consumer:
            consumer.subscribe([topic])
            while form == "poll":
                for record in await consumer.poll(1.0):
                    work(consumer, record)
            async for record in consumer:
                work(consumer, record)

    with pytest.raises(ZeroDivisionError):
        in_threads() if kind == "sync" else asyncio.run(in_tasks())
    other = make_sync_share(bootstrap_servers=servers, group_id=group, topics=[topic])
    again: list[tuple[int, int | None]] = []
    expected = range(2 if mode == "explicit" else 0, 10)
    while len(again) < len(expected):
        again += [(record.offset, record.delivery_count) for record in poll_some(other)]
    assert again == [(offset, 2) for offset in expected]


# -- late responses ---------------------------------------------------------------------------------------------------


class LateAnswers:
    """Delays ShareFetch responses that have arrived, like a slow network."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.held = 0
        real = Connection.start

        async def start(connection: Connection, api: Any, fields: Any, *args: Any, **options: Any) -> Any:
            reply = await real(connection, api, fields, *args, **options)
            if api is SHARE_FETCH and not self.is_open.is_set() and _has_records(reply.body):
                self.held += 1
                await asyncio.get_running_loop().run_in_executor(None, self.is_open.wait, 60)
            return reply

        monkeypatch.setattr(Connection, "start", start)


def _has_records(body: Any) -> bool:
    return any(each.acquired_records for topic in body.responses for each in topic.partitions)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateAnswers]:
    answers = LateAnswers(monkeypatch)
    yield answers
    answers.is_open.set()


@pytest.mark.parametrize("mode", ["batch_optimized", "record_limit"])
@pytest.mark.parametrize("timeout", [0.0, 0.2])
def test_share_records_that_arrive_after_their_poll_wait_for_the_next_one(
    make_sync_share: MakeShareConsumer,
    servers: str,
    admin: Admin,
    late: LateAnswers,
    mode: str,
    timeout: float,
) -> None:
    """Their locks are renewed, no more records are acquired, and each poll keeps its own limit."""

    def scenario(scale: float) -> None:
        topic = admin.create("late")
        put(servers, topic, numbered(10))
        lock = scale * 1.0
        group = share_group(servers, share_record_lock_duration_ms=round(lock * 1000))
        settings = {"bootstrap_servers": servers, "group_id": group, "topics": [topic]}
        consumer = make_sync_share(**settings, max_poll_records=6, share_acquire_mode=mode)
        late.is_open.clear()
        late.held = 0
        wait_for("the response", lambda: not consumer.poll(timeout) and late.held)
        assert consumer.metrics()["buffered_records"] == 0
        assert not consumer.poll(timeout, max_records=3), "no second request while one is in flight"
        late.is_open.set()
        held = 6 if mode == "record_limit" else 10
        wait_for("the records", lambda: consumer.metrics()["buffered_records"] == held)
        assert late.held == 1
        if mode == "batch_optimized":
            other = make_sync_share(**settings)
            poll_nothing(other, 1.8 * lock)
        else:
            time.sleep(1.8 * lock)  # longer than a lock without renewal
        assert consumer.metrics()["buffered_records"] == held
        assert offsets(consumer.poll(0, max_records=4)) == [0, 1, 2, 3]
        rest = list(consumer.poll(0, max_records=4))
        assert offsets(rest) == list(range(4, min(8, held)))
        while len(rest) < 6:
            rest += poll_some(consumer)
        assert [(record.offset, record.delivery_count) for record in rest] == [(at, 1) for at in range(4, 10)]
        assert list(consumer.commit().values()) == [None]
        assert consumer.metrics()["refused"] == 0

    patiently(scenario)


def test_short_share_polls_acquire_no_more_than_max_poll_records(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    """record_limit with polls shorter than a round trip and limits up to max.poll.records."""
    topic = admin.create("short", 3)
    for partition in range(3):
        put(servers, topic, numbered(100, partition=partition))
    consumer = make_sync_share(
        bootstrap_servers=servers,
        group_id=share_group(servers),
        share_acquire_mode="record_limit",
        max_poll_records=7,
        topics=[topic],
    )
    planner = consumer._parts.buffer.planner
    most: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            with consumer._parts.buffer.lock:
                most.append(planner.buffer.count + sum(session.arriving for session in planner.sessions.values()))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        dice = random.Random(7)
        seen: list[tuple[int, int]] = []
        deadline = time.monotonic() + 100
        while len(seen) < 300:
            assert time.monotonic() < deadline, len(seen)
            limit = dice.choice([None, 1, 3])
            records = consumer.poll(dice.choice([0.0, 0.001, 0.01]), max_records=limit)
            assert len(records) <= (limit or 7)
            seen += [(record.partition, record.offset) for record in records]
    finally:
        stop.set()
        watching.join(60)
    assert sorted(seen) == [(partition, offset) for partition in range(3) for offset in range(100)]
    assert max(most) <= 7


# -- calls other than poll() ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.003, 0.01, 0.03])
@pytest.mark.parametrize("call", ["unsubscribe", "commit", "close"])
def test_an_interrupted_share_call_leaves_a_usable_or_closed_consumer(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin, call: str, delay: float
) -> None:
    topic = admin.create("others")
    put(servers, topic, numbered(10))
    group = share_group(servers)
    settings = {"bootstrap_servers": servers, "group_id": group, "topics": [topic]}
    consumer = make_sync_share(**settings, max_poll_records=4)
    assert offsets(poll_some(consumer)) == [0, 1, 2, 3]
    is_interrupted = _interrupted_after(delay, getattr(consumer, call))
    if call == "close":
        consumer.close()
        with pytest.raises(ClosedError):
            consumer.poll(0)
        consumer = make_sync_share(**settings, max_poll_records=4)
    elif call == "unsubscribe":
        consumer.subscribe([topic])
    seen: list[int] = [] if call == "close" else [0, 1, 2, 3]
    deadline = time.monotonic() + 60
    while len({*seen}) < 10:
        assert time.monotonic() < deadline, (seen, is_interrupted, consumer.metrics())
        seen += offsets(consumer.poll(0.2))
    assert call == "unsubscribe" or sorted(seen) == list(range(10)), "unsubscribe() may have released the first four"
    (result,) = consumer.commit().values()
    if call == "unsubscribe":
        assert result is None or "records are released" in str(result)
    else:
        assert result is None
    consumer.close()


def _interrupted_after(delay: float, call: Any) -> bool:
    def handle(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handle)
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        call()
        timer.join()
        time.sleep(0.01)  # time for the signal to arrive
    except Interrupted:
        return True
    finally:
        signal.signal(signal.SIGUSR1, before)
    return False
