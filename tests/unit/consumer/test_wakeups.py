"""wakeup() with concurrent tasks and in signal handlers. No broker runs."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from headrace import AsyncConsumer, Consumer, TopicPartition
from headrace._aio.call_guard import CallGuard
from headrace.errors import WakeupError
from support.brokers.fake_broker import run
from support.harness.waiting import wait_for

TP = TopicPartition("t", 0)


def test_a_wakeup_after_one_was_raised_cancels_no_task():
    async def main():
        guard = CallGuard()
        guard.wakeup()
        with pytest.raises(WakeupError):
            async with guard.interruptible():
                pass
        guard.wakeup()
        await asyncio.sleep(0)  # a cancellation would arrive here
        with pytest.raises(WakeupError):
            guard.consume_wakeup()

    run(main())


@pytest.mark.parametrize("polls", [False, True])
def test_a_wakeup_interrupts_the_calls_of_all_tasks_and_no_later_one(polls):
    async def main():
        async with AsyncConsumer(bootstrap_servers="127.0.0.1:1") as consumer:
            consumer.assign([TP])
            calls = [consumer.end_offsets([TP]), consumer.list_topics(), consumer.position(TP)]
            tasks = [asyncio.create_task(call) for call in [*calls, *([consumer.poll(60.0)] if polls else [])]]
            guard = consumer._parts.guard
            waiting = lambda: len(guard._sleepers) == len(calls) and guard.is_polling() is polls  # noqa: E731
            await asyncio.to_thread(wait_for, "all calls", waiting)
            consumer.wakeup()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(each) for each in found] == [WakeupError] * len(tasks)
            assert not await consumer.poll(0.0), "it is open, and the wakeup is over"

    run(main())


def test_a_wakeup_that_comes_when_a_call_has_ended_interrupts_the_next():
    async def main():
        guard = CallGuard()
        async with guard.interruptible():
            guard.wakeup()
        with pytest.raises(WakeupError):
            guard.consume_wakeup()
        guard.consume_wakeup()

    run(main())


def test_a_wakeup_of_a_call_inside_of_a_poll_is_raised_once():
    async def main():
        guard = CallGuard()
        guard.is_polling = lambda: True

        async def call():
            async with guard.interruptible():
                guard.wakeup()
                await asyncio.sleep(60)

        with pytest.raises(WakeupError):
            await call()
        guard.forget_wakeup()  # the poll raises the same error
        guard.consume_wakeup()

    run(main())


def test_wakeups_in_a_signal_handler_are_raised_by_polls():
    consumer = Consumer(bootstrap_servers="127.0.0.1:1")
    consumer.assign([TP])
    before = signal.signal(signal.SIGALRM, lambda *_: consumer.wakeup())
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        began = time.monotonic()
        woken = 0
        while time.monotonic() < began + 1.0 or woken <= 10:
            assert time.monotonic() < began + 60
            try:
                consumer.poll(0.0001)
            except WakeupError:
                woken += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        consumer.close()
