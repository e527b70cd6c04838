"""What keeps a consumer's calls in order: one at a time in poll(), none after close() or fork(), and wakeup()."""

from __future__ import annotations

import asyncio
import os
import threading
from types import TracebackType

from ..errors import ClosedError, ForkedError, WakeupError


class Gate:
    """Asked at the start of every call. `wakeup` may come from any thread; the rest belongs to the caller's."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._closed = False
        # Guards the two below. Reentrant, because wakeup() may come in a signal handler on top of another method.
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
        self.check_fork()
        if self._closed:
            raise ClosedError("this consumer is closed")

    def check_fork(self) -> None:
        """Raises ForkedError in a child process: locks and sockets from before the fork must not be touched."""
        if self.is_forked:
            raise ForkedError(
                f"this consumer belongs to process {self._pid} and came here through fork(): make a new one in "
                f"this process ({os.getpid()})"
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
        """`async with` around what wakeup() shall end."""
        return Interruptible(self, self._sleepers, self._lock)


class Interruptible:
    """Cancels the task inside of it on wakeup(), and makes a WakeupError of that cancellation, as
    `asyncio.timeout` makes a TimeoutError of its own."""

    def __init__(self, gate: Gate, sleepers: set[Interruptible], lock: threading.RLock) -> None:
        self._gate = gate
        self._sleepers = sleepers
        self._lock = lock
        self._woken = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._gate.consume_wakeup()
        with self._lock:
            self._sleepers.add(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._sleepers.discard(self)
        if self._woken and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            self._gate.consume_wakeup()

    def interrupt(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        with self._lock:
            if self not in self._sleepers or self._woken:  # a second cancellation would not be taken back
                return
        self._woken = True
        self._task.cancel()
