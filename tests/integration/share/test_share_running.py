"""run() of a share consumer with a broker."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from typing import Any

import pytest

from headrace import AcknowledgeType, AsyncShareConsumer, Record, ShareConsumer
from headrace.errors import ConfigError, StateError
from support.brokers.admin import Admin
from support.brokers.produce import numbered
from support.harness.retries import patiently
from support.harness.share_consumers import MakeShareConsumer, poll_nothing, put, share_group

COUNT = 300


@pytest.fixture
def topic(servers: str, admin: Admin) -> str:
    name = admin.create("run", 2)
    for number in range(2):
        put(servers, name, numbered(COUNT // 2, partition=number, start=number * COUNT // 2))
    return name


def number_of(record: Record) -> int:
    return int(record.value or b"")


def test_a_share_run_handles_every_record_with_releases_and_rejects(
    make_sync_share: MakeShareConsumer, servers: str, topic: str
) -> None:
    """Every tenth record fails at first, every fiftieth is rejected."""
    group = share_group(servers)
    consumer = make_sync_share(bootstrap_servers=servers, group_id=group, topics=[topic])
    calls: Counter[int] = Counter()
    threads: set[int] = set()
    lock = threading.Lock()

    def handle(record: Record) -> AcknowledgeType | None:
        number = number_of(record)
        with lock:
            calls[number] += 1
            threads.add(threading.get_ident())
            is_last = sum(min(1, calls[each]) for each in calls) == COUNT and calls[10] > 1
        assert record.delivery_count == calls[number]
        if number % 50 == 0:
            return AcknowledgeType.REJECT
        if number % 10 == 0 and calls[number] == 1:
            raise ValueError("not yet")
        time.sleep(0.002)  # simulated work, so that threads overlap
        if is_last and sum(calls.values()) == COUNT + 24:
            consumer.wakeup()
        return None

    stopper = threading.Timer(60, consumer.wakeup)
    stopper.start()
    progress = consumer.run(handle, concurrency=8, retry_backoff=0.05)
    stopper.cancel()
    assert len(threads) > 1
    assert set(calls) == set(range(COUNT))
    assert {number for number, count in calls.items() if count > 1} == {
        n for n in range(COUNT) if n % 10 == 0 and n % 50
    }
    assert (progress.accepted, progress.released, progress.rejected) == (COUNT - 6, 24, 6)
    poll_nothing(consumer, 0.5)
    assert consumer.metrics()["refused"] == 0


def test_share_handlers_that_outlast_a_lock_keep_their_records(servers: str, topic: str) -> None:
    """Records whose processing takes longer than a lock are not delivered to another consumer."""
    patiently(lambda scale: _outlast_locks(servers, topic, scale))


def _outlast_locks(servers: str, topic: str, lock: float) -> None:
    group = share_group(servers, share_record_lock_duration_ms=round(1000 * lock))

    async def work() -> tuple[Counter[int], list[Any]]:
        calls: Counter[int] = Counter()
        is_all = asyncio.Event()

        async def handle(record: Record) -> None:
            calls[number_of(record)] += 1
            if calls.total() == COUNT:
                is_all.set()
            await asyncio.sleep(1.6 * lock)  # simulated work, longer than a lock

        async def one() -> Any:
            settings = {"bootstrap_servers": servers, "group_id": group, "share_acquire_mode": "record_limit"}
            async with AsyncShareConsumer(settings) as consumer:
                consumer.subscribe([topic])
                running = asyncio.create_task(consumer.run(handle, concurrency=100, max_in_flight=100))
                await is_all.wait()
                consumer.wakeup()
                return await running

        async with asyncio.timeout(60):
            return calls, await asyncio.gather(one(), one())

    calls, progress = asyncio.run(work())
    assert calls == Counter(range(COUNT))
    assert sum(each.accepted for each in progress) == COUNT
    assert sum(each.released for each in progress) == 0


def test_a_signal_ends_a_share_run_after_started_records_are_accepted(
    make_sync_share: MakeShareConsumer, servers: str, topic: str
) -> None:
    consumer = make_sync_share(bootstrap_servers=servers, group_id=share_group(servers), topics=[topic])
    begun = threading.Event()
    done: list[int] = []

    def handle(record: Record) -> None:
        begun.set()
        time.sleep(0.3)  # simulated work, interrupted by the signal
        done.append(number_of(record))

    threading.Thread(target=lambda: begun.wait(60) and os.kill(os.getpid(), signal.SIGTERM)).start()
    progress = consumer.run(handle, concurrency=4)
    assert progress.accepted == len(done) >= 1
    assert progress.running == 0
    assert progress.released > 0, "records that were not started are released"
    assert consumer.metrics()["in_hand"] == 0


def test_a_cancelled_share_run_keeps_no_record_in_hand(servers: str, topic: str) -> None:
    group = share_group(servers)

    async def work() -> int:
        handled = 0
        async with AsyncShareConsumer(bootstrap_servers=servers, group_id=group) as consumer:
            consumer.subscribe([topic])

            async def handle(record: Record) -> None:
                nonlocal handled
                handled += 1
                running.cancel()
                await asyncio.sleep(0.05)  # the cancellation arrives here

            running = asyncio.create_task(consumer.run(handle, concurrency=3))
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(asyncio.shield(running), 60)
            assert consumer.metrics()["in_hand"] == 0
        return handled

    assert 1 <= asyncio.run(work()) <= 3


class Stuck:
    """A handler whose first call with record 0 returns only after all other records are done."""

    def __init__(self, consumer: Any) -> None:
        self.calls: Counter[int] = Counter()
        self.is_free = threading.Event()
        self.ended = 0
        self._consumer = consumer

    def plain(self, record: Record) -> None:
        number = number_of(record)
        self.calls[number] += 1
        if number == 0 and self.calls[0] == 1:
            self.is_free.wait(60)
            self.ended += 1

    async def coroutine(self, record: Record) -> None:
        number = number_of(record)
        self.calls[number] += 1
        if number == 0 and self.calls[0] == 1:
            try:
                await asyncio.sleep(60)  # never ends by itself: the timeout cancels it
            finally:
                self.ended += 1

    def look(self, progress: Any) -> None:
        if progress.accepted == COUNT:
            self.is_free.set()
            self._consumer.wakeup()


@pytest.mark.parametrize("timeout", [0.5, None], ids=["timeout", "max.poll.interval.ms"])
def test_a_record_whose_share_handler_never_returns_is_released(
    make_share: MakeShareConsumer, servers: str, topic: str, timeout: float | None
) -> None:
    """It is released although its lock could be renewed, and another record can start: here the same record again."""
    consumer = make_share(
        bootstrap_servers=servers,
        group_id=share_group(servers),
        topics=[topic],
        max_poll_interval_ms=300_000 if timeout else 2_000,
    )
    work = Stuck(consumer)
    stopper = threading.Timer(60, consumer.wakeup)
    stopper.start()
    progress = consumer.run(
        work.plain if isinstance(consumer, ShareConsumer) else work.coroutine,
        concurrency=1,
        timeout=timeout,
        retry_backoff=0.05,
        on_progress=work.look,
        progress_interval=0.05,
    )
    stopper.cancel()
    assert (progress.accepted, progress.running) == (COUNT, 0)
    # Without a timeout, the record that waited behind it for as long is released, too.
    assert progress.released == 1 or (timeout is None and progress.released == 2)
    assert work.calls == Counter(range(COUNT)) + Counter([0])
    assert consumer.metrics()["refused"] == 0, "it must be released before its lock expires"
    poll_nothing(consumer, 0.5)
    assert work.is_free.is_set()


def test_a_share_run_raises_when_too_many_handlers_never_return(
    make_sync_share: MakeShareConsumer, servers: str, topic: str
) -> None:
    """With concurrency=1, one hung call is tolerated. The second one ends run()."""
    consumer = make_sync_share(bootstrap_servers=servers, group_id=share_group(servers), topics=[topic])
    is_free = threading.Event()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"2 calls of the handler .* concurrency=1"):
        consumer.run(lambda _: is_free.wait(60), concurrency=1, timeout=0.2)
    consumer.close()
    assert time.monotonic() - began < 20
    is_free.set()


def test_a_share_run_refuses_missing_subscriptions_and_wrong_options(
    make_sync_share: MakeShareConsumer, servers: str
) -> None:
    consumer: ShareConsumer = make_sync_share(bootstrap_servers=servers, group_id="g")
    with pytest.raises(StateError, match="subscribe"):
        consumer.run(print)
    with pytest.raises(ConfigError, match="concurrency=0"):
        consumer.run(print, concurrency=0)
    with pytest.raises(ConfigError, match="timeout=0"):
        consumer.run(print, timeout=0)
    with pytest.raises(TypeError, match="AsyncShareConsumer"):
        consumer.run(asyncio.sleep)  # type: ignore[arg-type]
