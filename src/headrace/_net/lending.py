"""A connection whose socket other threads use for a while: the interface between the connection and its borrower.

    the loop's -> lent    `Connection.lend`, while no request is in flight. The loop stops reading
    lent -> the loop's    `Connection.take_back`: before any request of the loop's own, a re-authentication, and the end
                          of the connection. A request of the borrower that is in flight becomes one of the connection's

Everything here is called on the event loop of the connection. The borrower guards what it shares with its threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from .._protocol.messages import Api
from ..errors import HeadraceError
from .calls import Reply


@dataclasses.dataclass(frozen=True, slots=True)
class ReturnedCall:
    """A request in flight. It was sent `age` seconds ago, and the socket has not taken the bytes `unsent` of it."""

    correlation_id: int
    api: Api
    version: int
    on_answer: Callable[[Reply | HeadraceError], None]
    age: float
    unsent: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Returned:
    """`last_id` is the correlation id of the last request, `received` the part of a response that was read already.
    `is_broken`: the socket cannot be used any more."""

    last_id: int
    call: ReturnedCall | None
    received: bytes
    is_broken: bool


class Borrower(Protocol):
    @property
    def is_in_flight(self) -> bool: ...
    def lend(self, last_id: int) -> None:
        """Requests are sent from now on. `last_id` is the correlation id of the last one before."""

    def take_back(self, now: float) -> Returned:
        """No thread uses the socket any more. `now` is the time of the loop."""

    def close(self) -> None:
        """The connection is closed. It may have been taken back long before."""
