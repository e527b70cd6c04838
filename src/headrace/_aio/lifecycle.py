"""From the first call to `close()`: what all kinds of clients need to start, wake up and end.

A client is created without I/O. The first call that needs a background task starts the client's thread and creates its
*runtime*, the set of all its tasks. `unsubscribe()` ends the runtime, and the next call creates another one; `close()`
ends it for good.

The background tasks must not refer to the client (the facade that the user holds). A client that is dropped without
`close()` is then collected at once, and `Lifecycle` ends its thread and its sockets.
"""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from .call_guard import CallGuard
from .callbacks import Callbacks
from .poll_signal import PollSignal
from .portal import Portal

# A program that is asked to end should do so within a second, whether the brokers answer or not.
CLOSE_TIMEOUT = 0.8
THREAD_END = 2.0  # seconds that the client's thread has to end
LAST_TRY = 0.05  # seconds that each of the last requests gets although the time is up


class Runtime(Protocol):
    """The tasks of a client."""

    def abandon(self) -> None:
        """Releases threads and sockets without waiting, on the client's thread."""


R = TypeVar("R", bound=Runtime)


UNCLOSED_CONSUMER = "it commits nothing more, and its group waits for the session timeout"


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

    def watch(self, owner: object) -> None:
        """Ends the thread when `owner`, the client, is collected without having been closed."""
        self.owner_name = type(owner).__name__
        self._finalizer = weakref.finalize(owner, self.end_unclosed)

    def unwatch(self) -> None:
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
        """The client was dropped without close(). A consumer commits nothing, and a share consumer's records are
        released."""
        if self.guard.is_forked or not self.portal.is_open:
            return
        self.guard.close()  # something may still refer to the parts: collectors of metrics skip those of closed clients
        runtime = self.runtime
        self._callbacks.stop()
        self.portal.close(0.0, None if runtime is None else runtime.abandon)
        warnings.warn(
            f"unclosed {self.owner_name}: {self._unclosed}. Call close(), or use the {self._role} in a with statement",
            ResourceWarning,
            stacklevel=2,
        )
