"""close() while another close() or another call runs, and in a forked child. No broker responds."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pytest

from headrace import AsyncConsumer, AsyncShareConsumer
from headrace._aio.portal import Portal
from headrace.errors import ClosedError
from support.harness.same_loop import on_this_loop

NOBODY = {"bootstrap_servers": "127.0.0.1:1", "group_id": "g"}
KINDS = pytest.mark.parametrize("kind", [AsyncConsumer, AsyncShareConsumer])


@KINDS
def test_a_second_close_waits_for_the_first(kind: Any) -> None:
    async def main() -> None:
        consumer = kind(**NOBODY)
        consumer._parts.lifecycle.start()
        has_begun, ended = threading.Event(), []
        ends: Any = consumer._parts if kind is AsyncShareConsumer else consumer._parts.shutdown
        end_tasks = ends.end_tasks

        async def end_slowly(deadline: float) -> None:
            has_begun.set()
            await asyncio.sleep(0.2)  # so that the second close() comes while the first is running
            await end_tasks(deadline)
            ended.append(True)

        ends.end_tasks = end_slowly
        closes = [asyncio.create_task(consumer.close())]
        assert await asyncio.to_thread(has_begun.wait, 60)
        consumer._parts.guard._closed = False  # as if it started while the first called the user's listener
        closes.append(asyncio.create_task(consumer.close()))
        await asyncio.gather(*closes)
        assert ended == [True]

    asyncio.run(main())


def test_a_cancelled_unsubscribe_leaves_no_task_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call starts new tasks."""

    async def main() -> None:
        consumer = on_this_loop(AsyncConsumer(**NOBODY, enable_parallel_rebalance=True))
        consumer.assign([("t", 0)])
        consumer._parts.lifecycle.start()
        shutdown = consumer._parts.shutdown
        has_ended, detach = asyncio.Event(), shutdown._detach_runtime
        monkeypatch.setattr(shutdown, "_detach_runtime", lambda: (detach(), has_ended.set()))
        unsubscribing = asyncio.create_task(shutdown.unsubscribe())
        await has_ended.wait()
        unsubscribing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unsubscribing
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            _, left = await asyncio.wait(tasks, timeout=30)
            assert not left

    asyncio.run(main())


def test_stopping_a_share_runtime_does_not_disturb_the_next_one() -> None:
    async def main() -> None:
        consumer = AsyncShareConsumer(**NOBODY)
        parts = consumer._parts
        parts.lifecycle.unwatch()
        before = parts.lifecycle._start()
        stopping = asyncio.create_task(parts.stop_background())
        await asyncio.sleep(0)  # let the task start
        stopping.cancel()
        after = parts.lifecycle._start()
        assert after is not before
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert parts.buffer.wake == after.sessions.wake_from_any_thread
        await after.close(1.0)

    asyncio.run(main())


def test_a_portal_that_is_shut_starts_no_other_thread() -> None:
    """A task that was in a listener when another task closed the consumer still calls the portal."""
    portal = Portal("test")
    assert portal.call(threading.current_thread) is not threading.current_thread()
    portal.shut()
    portal.close(60.0)
    with pytest.raises(ClosedError):
        portal.call(threading.current_thread)
    assert not portal.is_open


@KINDS
def test_a_forked_child_closes_while_its_parent_holds_the_buffer_lock(kind: Any) -> None:
    consumer = kind(**NOBODY)
    with consumer._parts.buffer.lock:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            try:
                asyncio.run(consumer.close())
            except BaseException:  # noqa: BLE001 - no exception may reach pytest in the child
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asyncio.run(consumer.close())
