"""Refuses calls after close() and fork(), and interrupts the one that waits on wakeup()."""

from __future__ import annotations

import asyncio
import os
import threading
from types import TracebackType

from ..errors import ClosedError, ForkedError, WakeupError


class CallGuard:
    """Every call begins with `check`. `wakeup` may be called from any thread; the rest belongs to the caller's."""

    def __init__(self, role: str = "consumer") -> None:
        self._role = role
        self._pid = os.getpid()
        self._closed = False
        # Guards the two below. Reentrant, because a signal handler may call wakeup() in the middle of another method.
        self._lock = threading.RLock()
        self._wakeup = False
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
        """Raises ClosedError or ForkedError."""
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

    def wakeup(self) -> None:
        with self._lock:
            self._wakeup = True
            sleepers = list(self._sleepers)
        for sleeper in sleepers:
            sleeper.interrupt()

    def consume_wakeup(self) -> None:
        """Raises WakeupError if wakeup() was called since the last time."""
        if self._wakeup:
            with self._lock:
                self._wakeup = False
            raise WakeupError("wakeup() was called")

    def interruptible(self) -> Interruptible:
        """`async with` around the part of a call that wakeup() interrupts."""
        return Interruptible(self, self._sleepers, self._lock)


class Interruptible:
    """Cancels its task on wakeup(), and turns that cancellation into a WakeupError, as `asyncio.timeout` turns its own
    into a TimeoutError."""

    def __init__(self, guard: CallGuard, sleepers: set[Interruptible], lock: threading.RLock) -> None:
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
            self._guard.consume_wakeup()

    def interrupt(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        with self._lock:
            if self not in self._sleepers or self._woken:  # nothing would undo a second cancellation
                return
        self._woken = True
        self._task.cancel()
