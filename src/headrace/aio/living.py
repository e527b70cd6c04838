"""The life that both kinds of consumers have: made without I/O, started by the first call that needs a task, over with
close()."""

from __future__ import annotations

import abc
import asyncio
import warnings
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

from .calls import Gate
from .doorbell import Doorbell
from .portal import Portal

# A program that is told to end should do so within a second, be the brokers there or not.
CLOSE_TIMEOUT = 0.8
THREAD_END = 2.0  # seconds that the consumer's thread has to end


class Motor(Protocol):
    """The tasks of a consumer."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def abandon(self) -> None: ...


E = TypeVar("E", bound=Motor)


class Living(abc.ABC, Generic[E]):
    """The tasks must not refer to the consumer: one that is dropped without close() ends them when it is collected."""

    def __init__(self, doorbell: Doorbell) -> None:
        self._gate = Gate()
        self._engine: E | None = None
        self._portal = Portal("headrace")
        self._closing: asyncio.Future[None] | None = None  # of the consumer's loop
        self._bell = doorbell
        self._left_behind = _LeftBehind(type(self).__name__, self._gate, self._portal)
        self._finalizer = weakref.finalize(self, self._left_behind.end)

    def wakeup(self) -> None:
        """Makes the call that is waiting, or else the next poll(), raise WakeupError. From any thread."""
        self._gate.check_fork()
        self._gate.wakeup()
        self._bell.ring()

    def _started(self, engine: E) -> E:
        self._engine = engine
        self._left_behind.engine = engine
        return engine

    def _ended(self) -> E | None:
        """The tasks, which are to be ended by the caller."""
        engine, self._engine = self._engine, None
        self._left_behind.engine = None
        return engine

    def _shut(self) -> Callable[[], None] | None:
        """The end of close(), however it went, but for the thread. Returns what the thread has to do last, if the call
        was interrupted before the tasks had ended."""
        self._gate.close()
        self._portal.shut()
        self._finalizer.detach()
        engine = self._ended()
        return None if engine is None else engine.abandon

    async def _close(self, deadline: float) -> None:
        """Ends the tasks. On the consumer's thread. A second close() beside the first one waits for it: its next step
        ends the thread, and with it what the first one still sends."""
        if self._closing is not None:
            await asyncio.wait({self._closing})
            return
        self._closing = asyncio.get_running_loop().create_future()
        try:
            self._gate.close()
            await self._end_tasks(deadline)
        finally:
            self._closing.set_result(None)

    @abc.abstractmethod
    async def _end_tasks(self, deadline: float) -> None:
        """Sends the last commits or acknowledgements, and leaves the group."""

    def _failed(self) -> None:
        """The user's code has raised, and a consumer in a with statement is about to be closed by it."""

    async def __aenter__(self) -> Self:
        self._gate.check()
        return self


class _LeftBehind:
    """What is to be ended when a consumer is dropped without close(): its threads and sockets. Nothing is committed,
    and what a share consumer held is released."""

    def __init__(self, kind: str, gate: Gate, portal: Portal) -> None:
        self.kind = kind
        self.engine: Motor | None = None
        self._gate = gate
        self._portal = portal

    def end(self) -> None:
        if self._gate.is_forked or not self._portal.is_open:
            return
        engine = self.engine
        self._portal.close(0.0, None if engine is None else engine.abandon)
        warnings.warn(
            f"unclosed {self.kind}: nothing more is committed, and its group waits for the session timeout. Call "
            f"close(), or use the consumer in a with statement",
            ResourceWarning,
            stacklevel=2,
        )
