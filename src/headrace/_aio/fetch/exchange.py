"""A fetch on its connection: the request, and what its response brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ..._machines.fetch.standing_fetch import FetchPlan
from ..._net._kernel import DirectFetch, DirectResponse
from ..._net.calls import NextRequest, Reply
from ..._net.connection import Connection
from .decoder import Delivery


class FetchOutcome(NamedTuple):
    """What a response brings: records to decode, and what is left to do on the loop."""

    delivery: Delivery
    is_stale: bool = False
    was_refused: bool = False
    wakes_others: bool = False
    nodes: frozenset[int] = frozenset()

    @property
    def concerns_others(self) -> bool:
        return self.is_stale or self.was_refused or self.wakes_others


class RespondedStream(Protocol):
    def received(self, exchange: FetchExchange, reply: Reply) -> Callable[[], NextRequest | None] | None: ...
    def repeated(self, exchange: FetchExchange, response: DirectResponse) -> bool: ...


class FetchExchange:
    """A request and its response, for the connection. If it is repeated natively, `plan` is that of the last
    request."""

    __slots__ = ("_stream", "connection", "fetch", "plan")

    def __init__(self, stream: RespondedStream, plan: FetchPlan, connection: Connection, fetch: DirectFetch) -> None:
        self._stream = stream
        self.plan = plan
        self.connection = connection
        self.fetch = fetch

    def __call__(self, reply: Reply) -> Callable[[], NextRequest | None] | None:
        return self._stream.received(self, reply)

    def repeated(self, response: DirectResponse) -> bool:
        return self._stream.repeated(self, response)
