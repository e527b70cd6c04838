"""What both consumers for threads are: an asynchronous one, and a door for one thread at a time.

Calls that need I/O go to the consumer's own thread and wait.
"""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from headrace._native import Exclusive

from ..aio.living import THREAD_END, Living
from ..errors import ConcurrentUseError

ITERATION_POLL = 1.0
_ONE_AT_A_TIME = (
    "another thread is inside of this consumer, which is for one at a time (but for wakeup(), done() and in_flight())"
)

A = TypeVar("A", bound=Living[Any])


class Threaded(abc.ABC, Generic[A]):
    def __init__(self, aio: A) -> None:
        self._aio = aio
        self._portal = aio._portal
        self._inside = Exclusive(ConcurrentUseError, _ONE_AT_A_TIME)
        aio._left_behind.kind = type(self).__name__

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
        if kind is not None:
            self._aio._failed()
        self.close()

    def _alone(self) -> Exclusive:
        """To be entered at once. A second thread is told so, and does not wait."""
        self._aio._gate.check()
        return self._inside

    def _shut(self) -> None:
        """The end of close(), however it went."""
        self._portal.close(THREAD_END, self._aio._shut())


def documented_as(aio: type[Any], threaded: type[Any]) -> None:
    """The two consumers are documented once."""
    for name in dir(aio):
        method = getattr(threaded, name, None)
        if callable(method) and not name.startswith("_") and method.__doc__ is None:
            method.__doc__ = getattr(aio, name).__doc__
