"""Requests on a connection, and their responses. Everything belongs to the event loop of the connection."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from .._protocol.messages import Api
from ..errors import HeadraceError
from .frame_pool import Frame


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """A response. `body` may hold views of `frame`. Return the frame with `recycle` when they are no longer used."""

    body: Any
    version: int
    frame: Frame | None = None


class AnswerCallback:
    """In place of a future, for a caller that does not wait: called at once, and not an iteration of the loop later.
    With a reply, or with the error that ended the connection. It must not raise."""

    __slots__ = ("_function", "_is_done")

    def __init__(self, function: Callable[[Reply | HeadraceError], None]) -> None:
        self._function = function
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def set_result(self, reply: Reply) -> None:
        self._is_done = True
        self._function(reply)

    def set_exception(self, error: HeadraceError) -> None:
        self._is_done = True
        self._function(error)

    def exception(self) -> None:
        """Nobody has to retrieve it: it was given to the function."""


@dataclasses.dataclass(slots=True)
class Call:
    """A request that waits for its response."""

    correlation_id: int
    api: Api
    version: int
    answer: asyncio.Future[Reply] | AnswerCallback
    timer: asyncio.TimerHandle
