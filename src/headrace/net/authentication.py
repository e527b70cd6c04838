"""SASL on a connection: the login, and the next one before it runs out (KIP-368).

    SaslHandshake       which mechanism
    SaslAuthenticate    the mechanism's messages, until the client is satisfied

A broker with `connections.max.reauth.ms`, or a token with an end, tells how long a login lasts, and then closes the
connection at the next request. So the login is made anew on the same connection, when nine tenths of that time have
passed: requests that were sent before are answered first, and those that come meanwhile are held back until it is done.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from ..errors import AuthenticationError, HeadraceError
from ..protocol.codes import NONE, code_name
from ..protocol.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from ..security.access import Access
from ..security.exchanges import Exchange, Rejected, quoted, refusal_in

log = logging.getLogger(__name__)

_UNSUPPORTED_MECHANISM = 33
_ILLEGAL_STATE = 34
_MOST_ROUNDS = 20
# A broker does not take a login that comes within a second of the one before.
_SHORTEST_WAIT = 1.1


def as_failure(error: Exception, host: str) -> HeadraceError:
    """What nobody has foreseen, as an error of one connection. Its cause is chained."""
    if isinstance(error, HeadraceError):
        return error
    failure = HeadraceError(f"the connection to {host} failed in an unforeseen way: {type(error).__name__}")
    failure.__cause__ = error
    return failure


class _Link(Protocol):
    """What is needed of a connection."""

    host: str

    def call_in_turn(self, api: Api, fields: Mapping[str, Any]) -> Awaitable[Any]: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...


class Authentication:
    """The logins of one connection. `failed` is told when one after the first does not succeed."""

    def __init__(self, link: _Link, host_name: str, access: Access, failed: Callable[[HeadraceError], None]) -> None:
        self._link = link
        self._host_name = host_name
        self._access = access
        self._failed = failed
        self._timer: asyncio.TimerHandle | None = None
        self._again: asyncio.Task[None] | None = None
        self.is_done = False

    async def log_in(self) -> None:
        """Raises AuthenticationError, and what a call raises."""
        exchange = await self._begin()
        await self._log_in(exchange)
        self.is_done = True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._again is not None and self._again is not asyncio.current_task():
            self._again.cancel()

    async def _begin(self) -> Exchange:
        try:
            return await self._access.exchange(self._host_name)
        except Rejected as error:
            raise self._error(str(error), "authenticate") from None

    async def _log_in(self, exchange: Exchange) -> None:
        mechanism = self._access.mechanism
        reply = await self._link.call_in_turn(SASL_HANDSHAKE, {"mechanism": mechanism})
        code = reply.error_code
        if code == _UNSUPPORTED_MECHANISM:
            offered = ", ".join(quoted(name, exchange.secret) for name in reply.mechanisms[:10]) or "none"
            raise self._error(f"the broker does not offer it, but {offered}", "handshake")
        if code == _ILLEGAL_STATE:
            raise self._error("the broker does not expect a login at this port: see security.protocol", "handshake")
        if code != NONE:
            raise self._error(code_name(code), "handshake")
        lifetime = await self._exchange(exchange)
        if lifetime > 0:
            # Not all connections at the same moment.
            wait = max(_SHORTEST_WAIT, lifetime * random.uniform(0.85, 0.95))
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(wait, self._start_again)

    async def _exchange(self, exchange: Exchange) -> float:
        """Returns how many seconds the login lasts; 0: for as long as the connection."""
        why = ""
        try:
            message: bytes | None = exchange.first()
            for _ in range(_MOST_ROUNDS):
                assert message is not None
                reply = await self._link.call_in_turn(SASL_AUTHENTICATE, {"auth_bytes": message})
                if reply.error_code != NONE:
                    said = quoted(reply.error_message or why, exchange.secret)
                    raise self._error(f"{code_name(reply.error_code)}{f': {said}' if said else ''}", "authenticate")
                if self._access.mechanism == "OAUTHBEARER":
                    why = refusal_in(reply.auth_bytes) or why
                message = exchange.answer(bytes(reply.auth_bytes))
                if message is None:
                    return float(reply.session_lifetime.total_seconds())
        except Rejected as error:
            raise self._error(str(error), "authenticate") from None
        raise self._error("the broker's questions have no end", "authenticate")

    def _error(self, reason: str, step: str) -> AuthenticationError:
        return AuthenticationError(
            f"SASL {step} with {self._access.mechanism} at {self._link.host} failed: {reason}", step=step
        )

    # -- again -----------------------------------------------------------------------------------------------------

    def _start_again(self) -> None:
        self._again = asyncio.create_task(self._log_in_again(), name=f"log in again at {self._link.host}")

    async def _log_in_again(self) -> None:
        try:
            exchange = await self._begin()  # may have to ask for a token: requests go on meanwhile
            self._link.hold()
            try:
                await self._log_in(exchange)
            finally:
                self._link.release()
        except Exception as error:  # noqa: BLE001  # whatever a peer brings about ends its connection, and nothing else
            self._failed(as_failure(error, self._link.host))
        else:
            log.debug("logged in again at %s", self._link.host)
