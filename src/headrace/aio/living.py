"""The life that both kinds of consumers have: made without I/O, started by the first call that needs a task, over with
close()."""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, Self, TypeVar

from ..errors import StateError
from .calls import Gate
from .doorbell import Doorbell

# A program that is told to end should do so within a second, be the brokers there or not.
CLOSE_TIMEOUT = 0.8


class Motor(Protocol):
    """The tasks of a consumer."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def abandon(self) -> None: ...


E = TypeVar("E", bound=Motor)


class Living(Generic[E]):
    def __init__(self, doorbell: Doorbell) -> None:
        self._gate = Gate()
        self._engine: E | None = None
        self._polling = False
        self._bell = doorbell

    def wakeup(self) -> None:
        """Makes the call that is waiting, or else the next poll(), raise WakeupError. From any thread."""
        self._gate.check_fork()
        self._gate.wakeup()
        self._bell.ring()

    def _check_loop(self) -> None:
        if self._engine is not None and self._engine.loop is not asyncio.get_running_loop():
            raise StateError("this consumer belongs to another event loop")

    def _abandon(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.abandon()

    async def __aenter__(self) -> Self:
        self._gate.check()
        return self
