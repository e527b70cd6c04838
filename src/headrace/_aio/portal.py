"""The thread that every client has of its own, with an event loop, and how other threads call into it.

All connections and tasks of a client run on it: heartbeats are sent and fetches received whatever the user's thread
or event loop is doing. Its loop is always asyncio's own, also if the user runs another one (uvloop, for example).

The first call that needs the thread creates it. It is a daemon: a program that forgets to close still ends. `run` waits
for a coroutine on the caller's thread, `wait` in the caller's event loop; an interrupt of the caller (Ctrl-C,
cancellation) cancels the coroutine and waits until it has ended: otherwise the step that it is in could undo what the
caller does next. After `fork()` the thread does not exist in the child; `CallGuard` refuses calls there.

The caller and the thread share only flags, which are safe when the caller is interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast

from ..errors import ClosedError, HeadraceError
from .flag import SHORT_SLEEP, Flag

T = TypeVar("T")

_START = 60.0  # seconds that a thread has to start
_LAST_STEP = 1.0  # seconds that an interrupted call waits at most for its coroutine


class Portal:
    """Owned by one client. The threads that use that client call its methods."""

    def __init__(self, name: str, role: str = "consumer") -> None:
        self._name = name
        self._role = role
        self._server: _Server | None = None
        self._is_shut = False

    @property
    def is_open(self) -> bool:
        return self._server is not None

    @property
    def is_current(self) -> bool:
        """Whether the caller is on this thread."""
        server = self._server
        return server is not None and server.thread is threading.current_thread()

    def loop(self) -> asyncio.AbstractEventLoop:
        return self._serving().loop()

    def _serving(self) -> _Server:
        """Raises ClosedError after `shut`."""
        server = self._server
        if server is None:
            if self._is_shut:
                raise ClosedError(f"this {self._role} is closed")
            server = self._server = _Server(self._name, self._role)
        return server

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine, which is created and run on the portal's thread. Every coroutine of a client has
        a deadline of its own, so this ends."""
        job = _Job(self._serving(), work)
        try:
            job.submit()
            while not job.over.wait(SHORT_SLEEP):
                pass
            return job.result()
        except BaseException:
            job.cancel()
            job.over.wait(_LAST_STEP)
            raise

    async def wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The same, awaited in the user's event loop. On the portal's own loop the coroutine is awaited directly."""
        if self.is_current:
            return await work()
        job = _Job(self._serving(), work)
        try:
            job.submit()
            await job.over.wait_async()
            return job.result()
        except GeneratorExit:
            job.cancel()
            raise
        except BaseException:
            job.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_STEP):
                    await job.over.wait_async()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """The result of a plain function, called on the portal's thread."""
        if self.is_current:
            return function()

        async def work() -> T:
            return function()

        return self.run(work)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Calls the function on the portal's thread, after all earlier calls, and does not wait."""
        if self.is_current:
            function()
        else:
            self.loop().call_soon_threadsafe(function)

    def shut(self) -> None:
        """No other thread will be created after the current one, which still has to be closed."""
        self._is_shut = True

    def close(self, timeout: float, last: Callable[[], None] | None = None) -> None:
        """Ends the thread, after a `last` call on it. Its remaining tasks are cancelled."""
        server = self._stop(last)
        if server is not None and server.thread is not None and server.thread is not threading.current_thread():
            server.thread.join(timeout)

    async def close_async(self, timeout: float, last: Callable[[], None] | None = None) -> None:
        """The same without blocking the user's event loop."""
        server = self._stop(last)
        if server is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await server.ended.wait_async()

    def end_after(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Flag | None:
        """Runs the coroutine, then ends the thread. Waits for nothing and takes no lock: a finalizer may call it on any
        thread, this one included. Returns the flag that is set at the end."""
        server, self._server = self._server, None
        if server is None:
            return None
        server.end_after(work)
        return server.ended

    def _stop(self, last: Callable[[], None] | None) -> _Server | None:
        """The server that is about to end, if there is one."""
        server = self._server
        if server is None:
            return None
        try:
            server.stop(last)
        except BaseException:
            # Interrupted: the next call needs another thread, and this one must end nevertheless.
            server.stop(last)
            raise
        finally:
            self._server = None
        return server


class _Server:
    """The thread. An interrupt (Ctrl-C) while it starts leaves a state that the next call can use: it is unknown then
    whether a thread has started, so the next call starts another one, and the first one that runs serves."""

    def __init__(self, name: str, role: str) -> None:
        self.role = role
        self.ended = Flag()
        self.thread: threading.Thread | None = None
        self.jobs: set[_Job[Any]] = set()  # unfinished ones. Its methods are atomic
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = Flag()
        self._turn = threading.Lock()  # held by the thread that serves
        self._last: asyncio.Task[None] | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._start()
            deadline = time.monotonic() + _START
            while not self._ready.wait(SHORT_SLEEP):
                if time.monotonic() > deadline:
                    raise HeadraceError(f"the {self.role}'s thread did not start within {_START:.0f} s")
        return cast("asyncio.AbstractEventLoop", self._loop)

    def _start(self) -> None:
        try:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        except RuntimeError as error:
            # An interrupt (Ctrl-C) while start() waits for the thread ends there as "cannot release un-acquired lock".
            # Callers that take a RuntimeError for a closed loop would then wait for a job that nobody has.
            if error.__context__ is not None:
                raise error.__context__ from None
            raise

    def stop(self, last: Callable[[], None] | None) -> None:
        """From any thread, and more than once."""
        loop = self.loop()
        with contextlib.suppress(RuntimeError):  # it has ended already
            if last is not None:
                loop.call_soon_threadsafe(last)
            loop.call_soon_threadsafe(loop.stop)

    def end_after(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """From any thread, which may be interrupted in the middle of anything."""
        loop = self._loop
        if loop is None:  # it has not started, so there is nothing to end
            return

        def begin() -> None:
            self._last = loop.create_task(work(), name="end")
            self._last.add_done_callback(lambda _: loop.stop())

        with contextlib.suppress(RuntimeError):  # it has ended already
            loop.call_soon_threadsafe(begin)

    def _serve(self) -> None:
        if not self._turn.acquire(blocking=False):
            return
        self.thread = threading.current_thread()
        # Not new_event_loop(), which follows the program's policy: connections need asyncio's own transports.
        loop = asyncio.SelectorEventLoop()
        asyncio.set_event_loop(loop)
        self._loop = loop
        self._ready.set()
        try:
            loop.run_forever()
        finally:
            try:
                loop.run_until_complete(loop.shutdown_asyncgens())
                while tasks := asyncio.all_tasks(loop):  # again: calls that were scheduled before create tasks now
                    for task in tasks:
                        task.cancel()
                    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
                # A connection's socket is closed one iteration after the connection.
                loop.run_until_complete(asyncio.sleep(0))
                loop.close()
            finally:
                self.ended.set()
                for job in list(self.jobs):  # those that were submitted too late to start
                    job.over.set()


class _Job(Generic[T]):
    """A coroutine on the portal's thread. It is created there: if the caller created it, an interrupt before it is
    submitted would leave it never awaited."""

    def __init__(self, server: _Server, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.over = Flag()
        self._server = server
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._error: BaseException | None = None

    def submit(self) -> None:
        """From the caller's thread."""
        self._server.jobs.add(self)
        loop = self._server.loop()  # what this raises is raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._begin)
        if self._server.ended.is_set:  # perhaps before this job was added
            self.over.set()

    def _begin(self) -> None:
        try:
            self._task = asyncio.get_running_loop().create_task(self._work())
        except BaseException as error:  # noqa: BLE001  # raised in the thread that waits
            self._error = error
            self._finish()
        else:
            self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """From the caller's thread, at any time: the loop runs its calls in order, so `_begin`, if it was submitted at
        all, has created the task by then."""
        loop = self._server.loop()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is None:  # and there will not be one
            self._finish()
        else:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            self._error = task.exception()
        self._finish()

    def _finish(self) -> None:
        self._server.jobs.discard(self)
        self.over.set()

    def result(self) -> T:
        """To be called when it is over. If it was cancelled, then by the end of the thread: a caller that has cancelled
        it does not ask."""
        if self._error is not None:
            raise self._error
        if self._task is None or not self._task.done() or self._task.cancelled():
            raise ClosedError(f"this {self._server.role} was closed while the call was waiting")
        return self._task.result()
