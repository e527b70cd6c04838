"""The dead letter topic without run(): writes before and after close(), and the end of its producer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

import pytest

from headrace import Consumer, Record
from headrace._aio.run.dead_letters import DeadLetterTopic
from headrace.config.consumer import ConsumerConfig
from headrace.errors import RequestTimeoutError
from support.brokers.admin import Admin, unique
from support.harness.consumers import poll_until

WITHIN = 60.0


def letters_to(topic: str, servers: str) -> DeadLetterTopic:
    return DeadLetterTopic(topic, "billing", ConsumerConfig.parse({"bootstrap.servers": servers}))


def write(letters: DeadLetterTopic, number: int) -> Future[None]:
    return letters.write(Record("orders", 0, number, value=b"%d" % number), ValueError("no"), 1)


def written_to(topic: str, servers: str, count: int) -> set[bytes | None]:
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        return {record.value for record in poll_until(consumer, count)}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_producer_of_dead_letters_ends_after_the_last_one(servers: str, admin: Admin) -> None:
    """close() may come earlier: it does not wait, and no dead letter is lost."""
    topic, before = admin.create("letters"), set(threading.enumerate())
    letters = letters_to(topic, servers)
    writes = [write(letters, number) for number in range(50)]
    assert set(threading.enumerate()) > before
    letters.close()
    assert not wait(writes, WITHIN).not_done
    assert [each.exception() for each in writes] == [None] * 50
    assert written_to(topic, servers, 50) == {b"%d" % number for number in range(50)}
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_a_handler_that_run_has_given_up_can_still_write_its_dead_letter(servers: str, admin: Admin) -> None:
    topic, before = admin.create("late"), set(threading.enumerate())
    letters = letters_to(topic, servers)
    letters.close()
    for number in range(2):
        write(letters, number).result(WITHIN)
        wait_until(lambda: set(threading.enumerate()) <= before)
    assert written_to(topic, servers, 2) == {b"0", b"1"}


def test_a_task_that_is_cancelled_leaves_no_producer_behind(servers: str, admin: Admin) -> None:
    topic, before = admin.create("cancelled"), set(threading.enumerate())
    letters = letters_to(topic, servers)

    async def cancelled() -> None:
        task = asyncio.ensure_future(asyncio.wrap_future(write(letters, 0)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    letters.close()
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_an_error_names_the_record_and_keeps_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace._aio.run.dead_letters._WRITE_TIMEOUT_MS", 200)
    letters = letters_to(unique("unreachable"), "127.0.0.1:1")
    try:
        with pytest.raises(RequestTimeoutError, match=r"the dead letter of orders-0, offset 7, to unreachable-.*: no"):
            write(letters, 7).result(WITHIN)
    finally:
        letters.close()
