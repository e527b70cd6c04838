"""What both consumers for threads are: an asynchronous one on a background thread, and a door for one thread at a time.

Calls that need I/O go to the background and wait.
"""

from __future__ import annotations

import abc
import threading
import weakref
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from ..aio.calls import Gate
from ..errors import ConcurrentUseError
from .portal import Portal

THREAD_END = 2.0  # seconds that the background thread has to end
ITERATION_POLL = 1.0


class Asynchronous(Protocol):
    """The consumer behind."""

    _gate: Gate

    def wakeup(self) -> None: ...
    def _abandon(self) -> None: ...


A = TypeVar("A", bound=Asynchronous)


class Threaded(abc.ABC, Generic[A]):
    def __init__(self, aio: A) -> None:
        self._aio = aio
        self._portal = Portal("headrace")
        self._inside = threading.RLock()
        self._finalizer = weakref.finalize(self, _abandon, self._portal, aio)

    def wakeup(self) -> None:
        self._aio.wakeup()

    @abc.abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        self._aio._gate.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _alone(self) -> Alone:
        self._aio._gate.check()
        return Alone(self._inside)

    def _shut(self) -> None:
        """The end of close(), however it went."""
        self._aio._gate.close()
        self._finalizer.detach()
        self._portal.close(THREAD_END)


class Alone:
    """The consumer is for one thread at a time. A second one is told so, and does not wait."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ConcurrentUseError(
                "another thread is inside of this consumer, which is for one at a time (but for wakeup(), done() and "
                "in_flight())"
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def documented_as(aio: type[Any], threaded: type[Any]) -> None:
    """The two consumers are documented once."""
    for name in dir(aio):
        method = getattr(threaded, name, None)
        if callable(method) and not name.startswith("_") and method.__doc__ is None:
            method.__doc__ = getattr(aio, name).__doc__


def _abandon(portal: Portal, aio: Asynchronous) -> None:
    """A consumer that is dropped without close() takes its threads and sockets along. Nothing is committed, and what a
    share consumer held is released."""
    if not aio._gate.is_forked:
        portal.close(0.0, aio._abandon)
