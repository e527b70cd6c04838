"""Requests on a connection, and their responses. Everything belongs to the event loop of the connection; the thread of
`receiver.py` reads a `Call`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from .._protocol.messages import API_VERSIONS, Api, correlation_id_of, decode_response
from ..errors import HeadraceError, ProtocolError
from .frame_pool import Frame

UNSUPPORTED_VERSION = 35


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
    # Called on the receiving thread, perhaps after the request has failed on the loop. It must not raise.
    on_receipt: Callable[[Reply], None] | None = None

    def parsed(self, frame: memoryview, buffer: Frame | None) -> Reply:
        """Raises ProtocolError. A broker that does not support the version of an ApiVersions request responds in
        version 0."""
        version = self.version
        if self.api is API_VERSIONS and len(frame) >= 6:
            code = int.from_bytes(frame[4:6], "big", signed=True)
            version = 0 if code == UNSUPPORTED_VERSION else version
        return Reply(decode_response(self.api, version, frame), version, buffer)

    def read_on_receipt(self, frame: memoryview) -> Reply | None:
        """The response, if it belongs to this request and `on_receipt` wants it. The loop reports errors."""
        try:
            if self.on_receipt is None or correlation_id_of(frame) != self.correlation_id:
                return None
            reply = self.parsed(frame, None)
        except ProtocolError:
            return None
        self.on_receipt(reply)
        return reply
