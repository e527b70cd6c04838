"""A background thread with an event loop, and the way into it.

The thread is made by the first call that needs it and is a daemon: a program that forgets to close still ends.
`run` waits for a coroutine on the caller's thread; an interrupt of the caller (Ctrl-C) cancels the coroutine.
After `fork()` the thread does not exist in the child; `Gate` keeps callers away from it there.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Portal:
    """Owned by one consumer; its methods are called by the threads that use that consumer."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_open(self) -> bool:
        return self._loop is not None

    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
        return self._loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. Every coroutine of a consumer has a deadline of its own, so this ends."""
        try:
            loop = self.loop()
            done: concurrent.futures.Future[T] = concurrent.futures.Future()
            tasks: list[asyncio.Task[T]] = []

            def begin() -> None:
                task = loop.create_task(work)
                tasks.append(task)
                task.add_done_callback(lambda task: _hand_over(task, done))

            def end() -> None:
                tasks[0].cancel() if tasks else work.close()

        except BaseException:
            work.close()  # nobody else has it, and Python warns of one that was never awaited
            raise
        try:
            loop.call_soon_threadsafe(begin)
            # Not in one wait: a signal (Ctrl-C) that comes just before it is noticed only when it ends.
            while not done.done():
                concurrent.futures.wait((done,), 0.5)
            return done.result()
        except BaseException:
            # Also an interrupt that comes between two lines here: the loop takes its calls in order, so `begin`,
            # if it was called at all, has made the task by then.
            if not done.done():
                loop.call_soon_threadsafe(end)
            raise

    def call(self, function: Callable[[], T]) -> T:
        """The result of a plain function, called on the loop's thread."""

        async def work() -> T:
            return function()

        return self.run(work())

    def close(self, timeout: float, last: Callable[[], None] | None = None) -> None:
        """Ends the thread, after a `last` call on it. What still runs on it is cancelled."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None or loop.is_closed():
            return
        if last is not None:
            loop.call_soon_threadsafe(last)
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(timeout)


def _hand_over(task: asyncio.Task[T], done: concurrent.futures.Future[T]) -> None:
    if task.cancelled():
        done.cancel()
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
