"""Refuses calls after close() and fork(), and inside of functions that run() calls; interrupts those that wait on
wakeup().

run() polls, commits and ends by itself, and waits for the functions that it calls. So in them most calls of its
consumer would take records away from it, or wait for each other:

    a handler, dead_letter   may ask questions, pause, and call what other threads may call. On a thread, `Exclusive`
                             allows less
    on_progress              may not poll, run or end the consumer
    another task             may not poll or run (another thread: `Exclusive`)

The producer of an exactly-once run() has a guard of its own, and knows the same run(): nobody else may begin or end a
transaction meanwhile, and the functions that run() calls may not close it.

A function of run() is known by its context, which tasks inherit that it creates.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import NamedTuple

from ..errors import ClosedError, ConcurrentUseError, ForkedError, WakeupError

HANDLER = "a handler of run()"
ON_PROGRESS = "on_progress of run()"


class UnderWay:
    """One run(), and the task that has called it. None: a thread, which `Exclusive` knows."""

    def __init__(self, task: asyncio.Task[object] | None) -> None:
        self.task = task
        self._thread = threading.get_ident()

    @property
    def is_caller(self) -> bool:
        """Whether run() itself makes the call, or what it calls without another task or thread."""
        is_here = self._thread == threading.get_ident()
        return is_here and (self.task is None or self.task is asyncio.current_task())


class _Inside(NamedTuple):
    run: UnderWay
    function: str


_called_by_runs: ContextVar[tuple[_Inside, ...]] = ContextVar("called_by_runs", default=())


def _never() -> bool:
    return False


class CallGuard:
    """Every call begins with a check. `wakeup` may be called from any thread; the rest belongs to the caller's."""

    def __init__(self, role: str = "consumer") -> None:
        self.is_polling: Callable[[], bool] = _never  # set by the parts: a poll() is under way
        self._role = role
        self._pid = os.getpid()
        self._closed = False
        self._run: UnderWay | None = None
        # Guards the two below. Reentrant, because a signal handler may call wakeup() in the middle of another method.
        self._lock = threading.RLock()
        self._wakeup = False  # for a poll or a run that is under way, or else for the next call
        self._sleepers: set[Interruptible] = set()

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_forked(self) -> bool:
        return os.getpid() != self._pid

    def close(self) -> None:
        self._closed = True

    def check(self) -> None:
        """Raises ClosedError or ForkedError. Enough for questions."""
        if self._closed or os.getpid() != self._pid:
            self.check_fork()
            raise ClosedError(f"this {self._role} is closed")

    def check_fork(self) -> None:
        """Raises ForkedError in a child process: locks and sockets from before the fork must not be touched."""
        if self.is_forked:
            raise ForkedError(
                f"this {self._role} belongs to process {self._pid} and was inherited through fork(): create a new one "
                f"in this process ({os.getpid()})"
            )

    # -- calls during run() --------------------------------------------------------------------------------------

    def check_change(self, call: str) -> None:
        """For calls that change what run() relies on. Raises ConcurrentUseError in a handler."""
        self.check()
        if self._run is not None and self._function(self._run) == HANDLER:
            self._refuse(HANDLER, call)

    def check_reading(self, call: str) -> None:
        """For poll() and run(). Raises ConcurrentUseError in functions that run() calls, and in other tasks."""
        self.check()
        if (run := self._run) is not None:
            self.check_end(call)
            if run.task is not None and run.task is not asyncio.current_task():
                raise ConcurrentUseError(
                    f"run() is under way in another task, and takes all records: {call} would take some of them away. "
                    f"Call wakeup() to end run()"
                )

    def check_end(self, call: str) -> None:
        """For close() and unsubscribe(). Raises ConcurrentUseError in functions that run() calls."""
        if (run := self._run) is not None and (function := self._function(run)) is not None:
            self._refuse(function, call)

    def check_transaction(self, call: str) -> None:
        """For the calls of a producer that begin, extend or end transactions: during run(), they are those of run()."""
        self.check()
        if (run := self._run) is not None:
            if (function := self._function(run)) is not None:
                self._refuse_for_producer(function, call)
            if not run.is_caller:
                self._refuse_for_producer("another task or thread", call)

    def check_end_of_producer(self) -> None:
        """For close(). Elsewhere it is a way to end run()."""
        if (run := self._run) is not None and (function := self._function(run)) is not None:
            self._refuse_for_producer(function, "close()")

    def _refuse_for_producer(self, place: str, call: str) -> None:
        raise ConcurrentUseError(
            f"{place} cannot call {call} of the {self._role} of a run(): it writes the outputs that handlers return "
            f"in transactions that it begins and ends itself. Use another producer for other records"
        )

    def _function(self, run: UnderWay) -> str | None:
        """The function of this run() in which the call is made."""
        return next((each.function for each in _called_by_runs.get() if each.run is run), None)

    def _refuse(self, function: str, call: str) -> None:
        raise ConcurrentUseError(
            f"{function} cannot call {call} of its {self._role}: run() polls, commits and ends by itself, and waits "
            f"for the functions that it calls. Call wakeup() to end run()"
        )

    @contextmanager
    def running(self, task: asyncio.Task[object] | None = None) -> Iterator[None]:
        """Around run()."""
        self._run = UnderWay(task)
        try:
            yield
        finally:
            self._run = None
            self.forget_wakeup()  # whoever called it meant the run that has ended

    @contextmanager
    def lent_to(self, consumer: CallGuard) -> Iterator[None]:
        """Around run(producer=…), inside of `running` of the consumer's guard. This is the producer's."""
        if self._run is not None:
            raise ConcurrentUseError(
                "another run() is under way with this producer, which has one transaction at a time: each run() needs "
                "a producer of its own, with its own transactional.id"
            )
        self._run = consumer._run
        try:
            yield
        finally:
            self._run = None

    @property
    def is_in_run(self) -> bool:
        """Whether the caller is run() itself."""
        run = self._run
        return run is not None and (run.task is None or run.task is asyncio.current_task())

    def enter_handler(self) -> None:
        """In the task or thread of a handler, which ends with it, or calls only handlers."""
        run, inside = self._run, _called_by_runs.get()
        if run is not None and all(each.run is not run for each in inside):
            _called_by_runs.set((*inside, _Inside(run, HANDLER)))

    def call_on_progress(self, function: Callable[[], object]) -> None:
        run = self._run
        if run is None:
            function()
            return
        token = _called_by_runs.set((*_called_by_runs.get(), _Inside(run, ON_PROGRESS)))
        try:
            function()
        finally:
            _called_by_runs.reset(token)

    # -- wakeup() ------------------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """Interrupts every call that waits; if none does, the next one."""
        with self._lock:
            sleepers = list(self._sleepers)
            if not sleepers or self._run is not None or self.is_polling():
                self._wakeup = True
            for sleeper in sleepers:
                sleeper.is_asked = True
        for sleeper in sleepers:
            sleeper.interrupt()

    def consume_wakeup(self) -> None:
        """Raises WakeupError if wakeup() was called since the last time."""
        if self._wakeup:
            with self._lock:
                self._wakeup = False
            raise WakeupError("wakeup() was called")

    def forget_wakeup(self) -> None:
        """A poll raises a WakeupError of a call inside of it: its own is the same one."""
        with self._lock:
            self._wakeup = False

    def keep_wakeup(self) -> None:
        """A call has ended before wakeup() could interrupt it: the next one raises WakeupError."""
        with self._lock:
            self._wakeup = True

    def interruptible(self) -> Interruptible:
        """`async with` around the part of a call that wakeup() interrupts."""
        return Interruptible(self, self._sleepers, self._lock)


class Interruptible:
    """Cancels its task on wakeup(), and turns that cancellation into a WakeupError, as `asyncio.timeout` turns its own
    into a TimeoutError. Each of several calls that wait gets its own: a cancellation that stayed one would look like
    the end of the consumer's thread."""

    def __init__(self, guard: CallGuard, sleepers: set[Interruptible], lock: threading.RLock) -> None:
        self.is_asked = False  # guarded by the lock
        self._guard = guard
        self._sleepers = sleepers
        self._lock = lock
        self._woken = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._guard.consume_wakeup()
        with self._lock:
            self._sleepers.add(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._sleepers.discard(self)
        if self._woken and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise WakeupError("wakeup() was called")
        if self.is_asked:
            self._guard.keep_wakeup()

    def interrupt(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        with self._lock:
            if self not in self._sleepers or self._woken:  # nothing would undo a second cancellation
                return
        self._woken = True
        self._task.cancel()
