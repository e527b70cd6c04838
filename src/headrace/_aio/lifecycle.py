"""From the first call to `close()`: what all kinds of clients need to start, wake up and end.

A client is created without I/O. The first call that needs a background task starts the client's thread and creates its
*runtime*, the set of all its tasks. `unsubscribe()` ends the runtime, and the next call creates another one; `close()`
ends it for good.

The background tasks must not refer to the client (the facade that the user holds). A client that is dropped without
`close()` is then collected at once, and `Lifecycle` ends its tasks, thread and sockets: a member leaves its group, a
producer delivers its records.

- A finalizer may run on any thread, the client's own included, between any two steps, with any lock held. So it only
  starts the end on the client's thread, and waits for nothing.
- At the exit of the interpreter, all clients that are still open end in the same way, together, within AT_EXIT seconds.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from .call_guard import CallGuard
from .callbacks import Callbacks
from .flag import SHORT_SLEEP, Flag
from .poll_signal import PollSignal
from .portal import Portal

log = logging.getLogger(__name__)

# A program that is asked to end should do so within a second, whether the brokers answer or not.
CLOSE_TIMEOUT = 0.8
THREAD_END = 2.0  # seconds that the client's thread has to end
LAST_TRY = 0.05  # seconds that each of the last requests gets although the time is up
AT_EXIT = 1.0  # seconds that all clients get that are open when the interpreter exits
_DROPPED = 10.0  # seconds that a client has to end after it was dropped


class Runtime(Protocol):
    """The tasks of a client."""

    def abandon(self) -> None:
        """Releases threads and sockets without waiting, on the client's thread."""


R = TypeVar("R", bound=Runtime)
T = TypeVar("T")

UNCLOSED_CONSUMER = "it commits nothing more, and leaves its group"


class Held(Generic[T]):
    """A function or object of the user. The client holds it, and its parts refer to this weakly: it may refer to the
    client, which would otherwise never be collected."""

    def __init__(self, value: T) -> None:
        self.value = value


def held(reference: weakref.ref[Held[T]] | None) -> T | None:
    found = None if reference is None else reference()
    return None if found is None else found.value


class Lifecycle(Generic[R]):
    """The guard, the thread and the runtime of one client.

    `portal` and `runtime` are plain attributes, read anew by every call: `runtime` is None before the first call that
    needs it and after its end. `unclosed` says what is lost when the client is dropped without close().
    """

    def __init__(
        self,
        poll_signal: PollSignal,
        create_runtime: Callable[[], R],
        *,
        role: str = "consumer",
        unclosed: str = UNCLOSED_CONSUMER,
        callbacks: Callbacks | None = None,
    ) -> None:
        self.guard = CallGuard(role)
        self.portal = Portal("headrace", role)
        self.runtime: R | None = None
        self.owner_name = role
        self._role = role
        self._unclosed = unclosed
        self._poll_signal = poll_signal
        self._create_runtime = create_runtime
        self._callbacks = Callbacks(dict) if callbacks is None else callbacks
        self._closing: asyncio.Future[None] | None = None  # belongs to the client's loop
        self._finalizer: weakref.finalize[..., Any] | None = None
        self.end_dropped: Callable[[], Coroutine[Any, Any, None]] | None = None
        """What a client does that was dropped, on its thread: set by its parts. It has a deadline of its own."""

    def watch(self, owner: object) -> None:
        """Ends everything when `owner`, the client, is collected without having been closed."""
        self.owner_name = type(owner).__name__
        self._finalizer = weakref.finalize(owner, self.end_unclosed)
        self._finalizer.atexit = False  # see `_end_all`
        _watched.add(self)

    def unwatch(self) -> None:
        _watched.discard(self)
        if self._finalizer is not None:
            self._finalizer.detach()

    def wakeup(self) -> None:
        """From any thread, and in signal handlers."""
        self.guard.check_fork()
        self.guard.wakeup()
        self._poll_signal.notify()

    def start(self) -> R:
        """The runtime, created if there is none."""
        return self.portal.call(self._start) if self.runtime is None else self.runtime

    def _start(self) -> R:
        """On the client's thread."""
        if self.runtime is None:
            self.runtime = self._create_runtime()
            self._callbacks.start()
        return self.runtime

    def detach_runtime(self) -> R | None:
        """The runtime, which the caller has to end. The next `start` creates another one."""
        runtime, self.runtime = self.runtime, None
        return runtime

    async def close(self, end_tasks: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Ends the tasks with `end_tasks`, on the client's thread. A second close() beside the first one waits for
        it: the next step of the second would end the thread, and with it whatever the first one is still sending."""
        if self._closing is not None:
            await asyncio.wait({self._closing})
            return
        self._closing = asyncio.get_running_loop().create_future()
        try:
            self.guard.close()
            await end_tasks()
        finally:
            self._closing.set_result(None)

    def shut(self) -> Callable[[], None] | None:
        """The last part of close(), whatever happened before, except for ending the thread. If close() was interrupted
        before the tasks had ended, returns the last call for the thread to make."""
        self.guard.close()
        self.portal.shut()
        self.unwatch()
        self._callbacks.stop()
        runtime = self.detach_runtime()
        return None if runtime is None else runtime.abandon

    def end_unclosed(self) -> None:
        """The client was dropped without close()."""
        if self.begin_end() is not None:
            self.warn()

    def begin_end(self) -> Flag | None:
        """The flag that the client's thread sets when it has ended, or None if there is nothing to end."""
        _watched.discard(self)
        if self.guard.is_forked or not self.portal.is_open:
            return None
        self.guard.close()  # something may still refer to the parts: collectors of metrics skip those of closed clients
        self._callbacks.stop()
        self.portal.shut()
        return self.portal.end_after(self._end_dropped)

    def warn(self) -> None:
        warnings.warn(
            f"unclosed {self.owner_name}: {self._unclosed}. Call close(), or use the {self._role} in a with statement",
            ResourceWarning,
            stacklevel=3,
        )

    async def _end_dropped(self) -> None:
        try:
            if self.end_dropped is not None:
                async with asyncio.timeout(_DROPPED):
                    await self.end_dropped()
        except Exception as error:  # noqa: BLE001  # there is nobody to raise it to
            log.warning("the end of an unclosed %s failed: %r", self._role, error)
        finally:
            runtime = self.detach_runtime()
            if runtime is not None:
                runtime.abandon()


_watched: set[Lifecycle[Any]] = set()  # of the clients that are open. Its methods are atomic


@atexit.register
def _end_all() -> None:
    """Daemon threads still run now. All clients end at the same time, so that many take no longer than one."""
    ends = [(each, ended) for each in _watched.copy() if (ended := each.begin_end()) is not None]
    deadline = time.monotonic() + AT_EXIT
    for _, ended in ends:
        while not ended.is_set and (left := deadline - time.monotonic()) > 0:
            ended.wait(min(left, SHORT_SLEEP))
    for each, _ in ends:
        try:
            each.warn()
        except ResourceWarning:  # python -W error. As a finalizer does: the other clients are not affected
            sys.excepthook(*sys.exc_info())
