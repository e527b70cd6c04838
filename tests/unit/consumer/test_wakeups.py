"""wakeup() with concurrent tasks and in signal handlers. No broker runs."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from headrace import Consumer, TopicPartition
from headrace._aio.call_guard import CallGuard
from headrace.errors import (
    WakeupError,
)
from support.brokers.fake_broker import run

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
