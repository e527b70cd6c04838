"""A flag that one thread sets and others wait for, in a thread or in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

# Seconds that a thread should wait at a time: a signal (Ctrl-C) that arrives just before a wait is noticed only when it
# ends.
SHORT_SLEEP = 0.5


class Flag:
    """Set once, by one thread. Others wait for it.

    The threads share only a bare lock. Events, conditions and futures are written in Python: an interrupt in the middle
    of one leaves its lock held, and the thread that sets it would wait for it forever.
    """

    __slots__ = ("_closed", "_watchers", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._closed = threading.Lock()
        self._closed.acquire()
        self._watchers: list[Callable[[], object]] = []

    def set(self) -> None:
        if self.is_set:
            return
        self.is_set = True
        self._closed.release()
        for watcher in self._watchers:
            with contextlib.suppress(RuntimeError):  # the loop that waited is closed
                watcher()

    def wait(self, timeout: float) -> bool:
        """Returns whether the flag is set."""
        if not self.is_set and self._closed.acquire(timeout=timeout):
            self._closed.release()
        return self.is_set

    async def wait_async(self) -> None:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        self._watchers.append(lambda: loop.call_soon_threadsafe(event.set))
        if not self.is_set:  # it may have been set before the watcher was added
            await event.wait()
