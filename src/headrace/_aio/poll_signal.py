"""How the threads of a consumer wake the one that waits in poll()."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence

from .._net._kernel import DirectResponse, FrameReceiver, PollWait

ITERATION_POLL = 1.0  # seconds that an iteration waits in one poll
_SHORT_SLEEP = 0.5
_LONG_SLEEP = 5.0


class PollSignal:
    """Wakes the thread or the task that waits in poll().

    `notify` may be called from any thread, with or without the buffer's lock, and in a signal handler, even one
    that interrupts `clear` or `wait`. Hence a bare lock, held while the signal is not set, and not an Event, on whose
    own lock the handler would deadlock. A signal that is set while nobody waits is kept until the next wait, so none
    is lost between a look at the buffer and the wait.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()
        self._task_side: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self.is_awaited = False  # by a thread; a hint for others
        self._poll_wait: PollWait | None = None  # created when it is needed
        self._is_receiving = False  # the thread that polls waits there

    def notify(self) -> None:
        try:  # noqa: SIM105 - each record comes along here, and a context manager takes longer than all of this
            self._unset.release()
        except RuntimeError:  # it is set already
            pass
        if self._is_receiving and self._poll_wait is not None:
            self._poll_wait.notify()
        side = self._task_side
        if side is not None:
            loop, event = side
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits there any more
                loop.call_soon_threadsafe(event.set)

    def clear(self) -> None:
        """To be called before the look at the buffer that precedes the wait."""
        self._unset.acquire(blocking=False)

    def wait(self, timeout: float) -> None:
        """May return early although nothing happened: Python notices a signal (Ctrl-C) that arrives just before the
        main thread begins to wait only when the wait ends, so that thread never waits for long. Others get no signals.
        """
        self.is_awaited = True
        try:
            if self._unset.acquire(timeout=max(0.0, min(timeout, _longest()))):
                self.notify()
        finally:
            self.is_awaited = False

    def wait_receiving(
        self, receivers: Sequence[FrameReceiver], timeout: float
    ) -> tuple[FrameReceiver, DirectResponse] | None:
        """The same, and receives meanwhile where it can. A response is to be noted: see `FrameReceiver.noted`."""
        if self._poll_wait is None:
            self._poll_wait = PollWait()
        self.is_awaited = self._is_receiving = True  # before the look at the lock: `notify` does it the other way round
        try:
            if not self._unset.locked():
                return None
            found = self._poll_wait.receive(receivers, max(0.0, min(timeout, _longest())))
            return None if found is None else (receivers[found[0]], found[1])
        finally:
            self.is_awaited = self._is_receiving = False

    async def wait_async(self, timeout: float) -> None:
        event = asyncio.Event()
        self._task_side = (asyncio.get_running_loop(), event)
        try:
            if not self._unset.locked():
                return
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._task_side = None


def _longest() -> float:
    return _SHORT_SLEEP if threading.current_thread() is threading.main_thread() else _LONG_SLEEP
