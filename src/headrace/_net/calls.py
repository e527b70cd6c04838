"""Requests on a connection, and their responses. Everything belongs to the event loop of the connection. The thread of
`receiver.py` uses calls with `on_receipt`, too."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from .._protocol.messages import API_VERSIONS, Api, decode_response
from ..errors import HeadraceError
from ._kernel import DirectFetch, DirectResponse
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


class Repetition(Protocol):
    """A request that the receiving thread repeats natively after each usual response, as `fetch` says."""

    @property
    def fetch(self) -> DirectFetch: ...
    def repeated(self, response: DirectResponse) -> bool:
        """A usual response has come, and the next request was sent. On the receiving thread, before it receives the
        next response. The request may have failed on the loop meanwhile. It must not raise. Returns whether the next
        usual response may be followed by a request, too."""


class NextRequest(NamedTuple):
    """The request that follows a response: it is sent by the thread that received the response."""

    fields: Mapping[str, Any]
    on_receipt: OnReceipt
    repetition: Repetition | None = None


# Gets a small response, on the thread that receives it, before the loop does. The request may have failed on the loop
# meanwhile. It returns what makes the next request, if this thread may send one: that may return None, too. Both must
# not raise.
OnReceipt: TypeAlias = "Callable[[Reply], Callable[[], NextRequest | None] | None]"


@dataclasses.dataclass(slots=True)
class Call:
    """A request that waits for its response. With `on_receipt` it can be followed by others (`proceed`)."""

    correlation_id: int
    api: Api
    version: int
    answer: asyncio.Future[Reply] | AnswerCallback
    deadline: float
    on_receipt: OnReceipt | None = None
    repetition: Repetition | None = None
    timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def parsed(self, frame: memoryview, buffer: Frame | None) -> Reply:
        """Raises ProtocolError. A broker that does not support the version of an ApiVersions request responds in
        version 0."""
        version = self.version
        if self.api is API_VERSIONS and len(frame) >= 6:
            code = int.from_bytes(frame[4:6], "big", signed=True)
            version = 0 if code == UNSUPPORTED_VERSION else version
        return Reply(decode_response(self.api, version, frame), version, buffer)

    def proceed(self, correlation_id: int, deadline: float) -> None:
        """Waits for the response to the next request from now on."""
        self.correlation_id = correlation_id
        self.deadline = deadline
