"""What both consumers for threads share: the consumer's thread, and a lock for one calling thread at a time.

Calls that need I/O run on the consumer's own thread, and the caller waits.
"""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Any, Self

from .._aio.lifecycle import THREAD_END, Lifecycle
from .._native import Exclusive
from ..errors import ConcurrentUseError

_ONE_AT_A_TIME = (
    "another thread uses this consumer, which serves one thread at a time (except for wakeup(), done() and in_flight())"
)


class Threaded(abc.ABC):
    def __init__(self, lifecycle: Lifecycle[Any]) -> None:
        self._lifecycle = lifecycle
        self._guard = lifecycle.guard
        self._portal = lifecycle.portal
        self._inside = Exclusive(ConcurrentUseError, _ONE_AT_A_TIME)
        lifecycle.owner_name = type(self).__name__

    def wakeup(self) -> None:
        self._lifecycle.wakeup()

    @abc.abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        self._guard.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._on_error()
        self.close()

    @abc.abstractmethod
    def _on_error(self) -> None:
        """The user's code has raised inside of the with statement."""

    def _alone(self) -> Exclusive:
        """To be entered at once. Raises ConcurrentUseError for a second thread, which does not wait."""
        self._guard.check()
        return self._inside

    def _shut(self) -> None:
        """The last part of close(), whatever happened before."""
        self._portal.close(THREAD_END, self._lifecycle.shut())


def documented_as(aio: type[Any], threaded: type[Any]) -> None:
    """The methods of both consumers are documented once, in the asynchronous one."""
    for name in dir(aio):
        method = getattr(threaded, name, None)
        if callable(method) and not name.startswith("_") and method.__doc__ is None:
            method.__doc__ = getattr(aio, name).__doc__
