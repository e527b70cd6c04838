"""The thread that every consumer has of its own, with an event loop, and the ways into it.

All connections and tasks of a consumer live on it: heartbeats go out and fetches come in whatever the user's thread or
event loop is doing, and it is always asyncio's own loop, whichever one the user runs (uvloop, for example).

The thread is made by the first call that needs it and is a daemon: a program that forgets to close still ends.
`run` waits for a coroutine on the caller's thread, `wait` in the caller's event loop; an interrupt of the caller
(Ctrl-C, cancellation) cancels the coroutine. After `fork()` the thread does not exist in the child; `Gate` keeps
callers away from it there.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..errors import ClosedError

T = TypeVar("T")

_START = 60.0  # seconds that a thread has to start


class Portal:
    """Owned by one consumer; its methods are called by the threads that use that consumer."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._server: _Server | None = None

    @property
    def is_open(self) -> bool:
        return self._server is not None

    @property
    def is_current(self) -> bool:
        """Whether the caller is on this thread."""
        server = self._server
        return server is not None and server.thread is threading.current_thread()

    def loop(self) -> asyncio.AbstractEventLoop:
        server = self._server
        if server is None:
            server = self._server = _Server(self._name)
        return server.loop()

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
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(end)
            raise

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The same for a coroutine of the user's event loop. On the portal's own loop it is awaited at once."""
        if self.is_current:
            return await work
        try:
            done = asyncio.run_coroutine_threadsafe(work, self.loop())
        except BaseException:
            work.close()
            raise
        try:
            return await asyncio.wrap_future(done)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                raise ClosedError("this consumer was closed meanwhile") from None
            raise

    def call(self, function: Callable[[], T]) -> T:
        """The result of a plain function, called on the loop's thread."""
        if self.is_current:
            return function()

        async def work() -> T:
            return function()

        return self.run(work())

    def call_soon(self, function: Callable[[], object]) -> None:
        """Calls it on the loop's thread, behind all that was asked of it before, and does not wait."""
        if self.is_current:
            function()
        else:
            self.loop().call_soon_threadsafe(function)

    def close(self, timeout: float, last: Callable[[], None] | None = None) -> None:
        """Ends the thread, after a `last` call on it. What still runs on it is cancelled."""
        server = self._stop(last)
        if server is not None and server.thread is not None and server.thread is not threading.current_thread():
            server.thread.join(timeout)

    async def close_async(self, timeout: float) -> None:
        """The same without blocking the user's event loop."""
        server = self._stop(None)
        if server is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await asyncio.wrap_future(server.ended)

    def _stop(self, last: Callable[[], None] | None) -> _Server | None:
        """What is about to end, if there is something."""
        server = self._server
        if server is None:
            return None
        with contextlib.suppress(RuntimeError):  # it has ended already
            if last is not None:
                server.loop().call_soon_threadsafe(last)
            server.loop().call_soon_threadsafe(server.loop().stop)
        self._server = None
        return server


class _Server:
    """The thread. An interrupt (Ctrl-C) while it starts leaves nothing that the next call could not use: nobody knows
    then whether a thread has begun, so another one is started, and the first one to begin serves."""

    def __init__(self, name: str) -> None:
        self.ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.thread: threading.Thread | None = None
        self._name = name
        self._ready: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._turn = threading.Lock()  # of the thread that serves

    def loop(self) -> asyncio.AbstractEventLoop:
        if not self._ready.done():
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        return self._ready.result(_START)

    def _serve(self) -> None:
        if not self._turn.acquire(blocking=False):
            return
        self.thread = threading.current_thread()
        # Not new_event_loop(), which follows the program's policy: connections need asyncio's own transports.
        loop = asyncio.SelectorEventLoop()
        asyncio.set_event_loop(loop)
        self._ready.set_result(loop)
        try:
            loop.run_forever()
        finally:
            try:
                tasks = asyncio.all_tasks(loop)
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.close()
            finally:
                if self.ended.set_running_or_notify_cancel():  # whoever waited may have been cancelled
                    self.ended.set_result(None)


def _hand_over(task: asyncio.Task[T], done: concurrent.futures.Future[T]) -> None:
    if task.cancelled():
        done.cancel()
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())
