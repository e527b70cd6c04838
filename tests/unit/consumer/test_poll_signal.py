"""Hand-over between threads and tasks: the poll signal, the call guard with its wakeup, the portal."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace._aio import poll_signal as poll_signal_module
from headrace._aio.call_guard import CallGuard
from headrace._aio.poll_signal import PollSignal
from headrace._aio.portal import Portal
from headrace.errors import ClosedError, ForkedError, WakeupError
from support.brokers.fake_broker import run
from support.harness.waiting import wait_for

LONG = 50.0  # seconds; no wait lasts this long unless something is broken


# -- the poll signal ------------------------------------------------------------------------------------------------


def test_a_notification_wakes_a_waiting_thread() -> None:
    poll_signal = PollSignal()
    threading.Timer(0.02, poll_signal.notify).start()
    started = time.monotonic()
    poll_signal.wait(LONG)
    assert time.monotonic() - started < LONG / 2
    assert not poll_signal.is_awaited


def test_a_notification_before_the_wait_is_remembered_until_it_is_cleared() -> None:
    poll_signal = PollSignal()
    poll_signal.notify()
    poll_signal.wait(LONG)
    poll_signal.wait(LONG)
    poll_signal.clear()
    started = time.monotonic()
    poll_signal.wait(0.02)
    assert time.monotonic() - started >= 0.02


def test_a_notification_wakes_a_thread_that_waits_for_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_signal_module, "_LONG_SLEEP", LONG)
    poll_signal = PollSignal()
    assert not poll_signal.is_awaited
    for _ in range(2):  # the second wait uses what the first one has created
        waiting = threading.Thread(target=poll_signal.wait_receiving, args=([], LONG), daemon=True)
        waiting.start()
        wait_for("the thread waits", lambda: poll_signal.is_awaited, timeout=10.0)
        poll_signal.notify()
        waiting.join(LONG / 5)
        assert not waiting.is_alive()
        assert not poll_signal.is_awaited
        poll_signal.clear()


def test_a_notification_before_a_wait_for_responses_is_remembered() -> None:
    poll_signal = PollSignal()
    poll_signal.notify()
    started = time.monotonic()
    assert poll_signal.wait_receiving([], LONG) is None
    assert time.monotonic() - started < 0.4, "even the main thread would wait for longer"


def test_only_the_main_thread_interrupts_its_wait_to_look_for_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with many consumers, each polled by a thread, would wake all of them for nothing."""
    monkeypatch.setattr("headrace._aio.poll_signal._SHORT_SLEEP", 0.01)
    monkeypatch.setattr("headrace._aio.poll_signal._LONG_SLEEP", LONG)
    elsewhere = PollSignal()
    other = threading.Thread(target=elsewhere.wait, args=(LONG,))
    other.start()
    try:
        wait_for("the other thread waits", lambda: elsewhere.is_awaited)
        started = time.monotonic()
        for _ in range(20):
            PollSignal().wait(LONG)
        assert time.monotonic() - started < LONG / 2
        assert elsewhere.is_awaited, "it has interrupted its wait, too"
    finally:
        elsewhere.notify()
        other.join(LONG)
    assert not other.is_alive()


@pytest.mark.parametrize("late", [-0.3, -1.0, -1e9])
def test_a_poll_signal_does_not_wait_for_a_deadline_that_has_passed(late: float) -> None:
    """It can pass after the clock was read. Lock.acquire treats -1 as no timeout and rejects other negative values."""
    poll_signal = PollSignal()
    started = time.monotonic()
    poll_signal.wait(late)
    assert time.monotonic() - started < LONG / 2


def test_a_notification_from_a_thread_wakes_a_waiting_task() -> None:
    async def main() -> None:
        poll_signal = PollSignal()
        waiting = asyncio.create_task(poll_signal.wait_async(LONG))
        await asyncio.sleep(0)  # let the task start
        assert not waiting.done()
        threading.Thread(target=poll_signal.notify).start()
        await asyncio.wait_for(waiting, LONG / 2)

    run(main())


def test_a_waiting_task_sees_an_earlier_notification_and_its_timeout() -> None:
    async def main() -> None:
        poll_signal = PollSignal()
        poll_signal.notify()
        await asyncio.wait_for(poll_signal.wait_async(LONG), LONG / 2)
        poll_signal.clear()
        await poll_signal.wait_async(0.01)
        assert poll_signal._task_side is None

    run(main())


def test_a_notification_for_a_closed_event_loop_still_wakes_threads() -> None:
    poll_signal = PollSignal()
    loop = asyncio.new_event_loop()
    poll_signal._task_side = (loop, asyncio.Event())
    loop.close()
    poll_signal.notify()
    started = time.monotonic()
    poll_signal.wait(LONG)
    assert time.monotonic() - started < LONG / 2


def test_no_notification_is_lost_between_a_check_and_the_wait() -> None:
    """As in poll(): clear, check, wait. A producer notifies after it has added an item."""
    poll_signal, things, seen = PollSignal(), [], 0
    total = 2000

    def producer() -> None:
        for number in range(total):
            things.append(number)
            poll_signal.notify()

    thread = threading.Thread(target=producer)
    thread.start()
    deadline = time.monotonic() + LONG
    while seen < total and time.monotonic() < deadline:
        poll_signal.clear()
        if len(things) > seen:
            seen = len(things)
            continue
        before = time.monotonic()
        poll_signal.wait(LONG)
        assert time.monotonic() - before < LONG / 2, "a notification was lost"
    thread.join()
    assert seen == total


# -- the call guard ----------------------------------------------------------------------------------------------------


def test_a_closed_guard_refuses_calls() -> None:
    guard = CallGuard()
    guard.check()
    guard.close()
    assert guard.is_closed
    with pytest.raises(ClosedError):
        guard.check()


def test_a_guard_refuses_calls_in_a_forked_child() -> None:
    guard = CallGuard()
    child = os.fork()
    if child == 0:
        try:
            guard.check()
        except ForkedError as error:
            os._exit(0 if str(os.getppid()) in str(error) else 1)
        except BaseException:  # noqa: BLE001 - no exception may reach pytest in the child
            os._exit(2)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    guard.check()


def test_a_guard_knows_when_a_run_has_ended() -> None:
    guard = CallGuard()
    with guard.running():
        assert guard.is_in_run
    assert not guard.is_in_run


def test_two_wakeups_are_raised_once() -> None:
    guard = CallGuard()
    guard.consume_wakeup()
    guard.wakeup()
    guard.wakeup()
    with pytest.raises(WakeupError):
        guard.consume_wakeup()
    guard.consume_wakeup()


def test_a_wakeup_from_a_thread_ends_the_wait_of_a_task() -> None:
    async def main() -> None:
        guard = CallGuard()
        inside = asyncio.Event()

        async def wait() -> None:
            async with guard.interruptible():
                inside.set()
                await asyncio.sleep(LONG)  # never ends by itself

        waiting = asyncio.create_task(wait())
        await inside.wait()
        threading.Thread(target=guard.wakeup).start()
        with pytest.raises(WakeupError):
            await waiting
        guard.consume_wakeup()  # it was raised already

    run(main())


def test_two_wakeups_at_once_do_not_cancel_the_task() -> None:
    guard = CallGuard()

    async def main() -> None:
        asyncio.get_running_loop().call_soon(guard.wakeup)
        asyncio.get_running_loop().call_soon(guard.wakeup)
        with pytest.raises(WakeupError):
            async with guard.interruptible():
                await asyncio.sleep(LONG)  # never ends by itself
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

    run(main())


def test_a_wakeup_before_an_interruptible_wait_ends_it_at_once() -> None:
    async def main() -> None:
        guard = CallGuard()
        guard.wakeup()
        with pytest.raises(WakeupError):
            async with guard.interruptible():
                await asyncio.sleep(LONG)  # never ends by itself

    run(main())


def test_a_cancellation_of_an_interruptible_wait_is_not_a_wakeup() -> None:
    async def main() -> None:
        guard = CallGuard()
        inside = asyncio.Event()

        async def wait() -> None:
            async with guard.interruptible():
                inside.set()
                await asyncio.sleep(LONG)  # never ends by itself

        waiting = asyncio.create_task(wait())
        await inside.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(main())


def test_a_wakeup_after_the_wait_is_kept_for_the_next_call() -> None:
    async def main() -> None:
        guard = CallGuard()
        async with guard.interruptible():
            pass
        guard.wakeup()
        await asyncio.sleep(0.01)  # a stray cancellation would arrive here
        with pytest.raises(WakeupError):
            guard.consume_wakeup()

    run(main())


# -- the portal --------------------------------------------------------------------------------------------------


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal("test portal")
    yield portal
    portal.close(LONG)


def test_a_portal_starts_its_thread_with_the_first_call(portal: Portal) -> None:
    assert not portal.is_open

    async def where() -> str:
        return threading.current_thread().name

    assert portal.run(where) == "test portal"
    assert portal.is_open
    assert portal.call(lambda: threading.current_thread().daemon)


def test_a_portal_raises_the_errors_of_its_calls(portal: Portal) -> None:
    with pytest.raises(ZeroDivisionError):
        portal.call(lambda: 1 // 0)


def test_closing_a_portal_ends_its_thread_and_cancels_its_tasks(portal: Portal) -> None:
    ended = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.sleep(LONG)  # never ends by itself
        finally:
            ended.set()

    async def spawn() -> asyncio.Task[None]:
        task = asyncio.create_task(forever())
        await asyncio.sleep(0)  # let the task start
        return task

    task = portal.run(spawn)
    assert portal._server is not None
    thread = portal._server.thread
    assert thread is not None
    portal.close(LONG)
    portal.close(LONG)
    assert ended.is_set()
    assert task.cancelled()
    assert not thread.is_alive()
    assert not portal.is_open


def test_an_interrupted_portal_call_cancels_its_coroutine(portal: Portal) -> None:
    cancelled = threading.Event()
    started = threading.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(LONG)  # never ends by itself
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupt() -> None:
        started.wait(LONG)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        portal.run(wait)
    assert cancelled.wait(LONG)


def test_an_interrupted_close_of_a_portal_still_ends_its_thread(portal: Portal) -> None:
    """Even if the interrupt comes after the thread was stopped and before that is recorded."""
    thread = portal.call(threading.current_thread)
    loop = portal.loop()
    call_soon = loop.call_soon_threadsafe

    def interrupted(*args: Any) -> None:
        loop.call_soon_threadsafe = call_soon  # type: ignore[method-assign]
        call_soon(*args)
        raise KeyboardInterrupt

    loop.call_soon_threadsafe = interrupted  # type: ignore[assignment,method-assign]
    with pytest.raises(KeyboardInterrupt):
        portal.close(LONG)
    thread.join(LONG)
    assert not thread.is_alive()
    assert portal.call(threading.current_thread) is not thread
