"""How the threads of a consumer tell the one in poll() that it is worth looking again."""

from __future__ import annotations

import asyncio
import contextlib
import threading

_SHORT_SLEEP = 0.5


class Doorbell:
    """Wakes the one who waits in poll(), be it a thread or a task.

    `ring` may be called from any thread, with or without the intake's lock, and in a signal handler, even one
    that interrupts `clear` or `wait`: hence a bare lock, held while the bell is silent, and not an Event, whose
    own lock the handler would wait for in vain. A ring with nobody waiting is remembered until the next wait, so
    none gets lost between a look at the buffer and the wait.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()
        self._task_side: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has rung already
            self._silent.release()
        side = self._task_side
        if side is not None:
            loop, event = side
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits there any more
                loop.call_soon_threadsafe(event.set)

    def clear(self) -> None:
        """To be called before the look at the buffer that the wait follows."""
        self._silent.acquire(blocking=False)

    def wait(self, timeout: float) -> None:
        """May end early, with nothing having happened: a signal (Ctrl-C) that comes just before the thread falls
        asleep is noticed only when it wakes, so it never sleeps for long."""
        if self._silent.acquire(timeout=max(0.0, min(timeout, _SHORT_SLEEP))):
            self.ring()

    async def wait_async(self, timeout: float) -> None:
        event = asyncio.Event()
        self._task_side = (asyncio.get_running_loop(), event)
        try:
            if not self._silent.locked():
                return
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._task_side = None
