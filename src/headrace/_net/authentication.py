"""SASL authentication on a connection, and re-authentication before the login expires (KIP-368).

    SaslHandshake       selects the mechanism
    SaslAuthenticate    carries the mechanism's messages, until the client is satisfied

With `connections.max.reauth.ms`, or with a token that expires, the broker returns the lifetime of the login. After that
time it closes the connection at the next request. So the client logs in again on the same connection after about nine
tenths of the lifetime. The broker answers the requests that were sent before; new requests are held back until the
login is complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from .._chance import chance
from .._protocol.codes import NONE, code_name
from .._protocol.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from .._security.access import Access
from .._security.exchanges import Exchange, Rejected, quoted, rejection_reason
from ..errors import AuthenticationError, HeadraceError

log = logging.getLogger(__name__)

_UNSUPPORTED_MECHANISM = 33
_ILLEGAL_STATE = 34
_MOST_ROUNDS = 20
# A broker rejects a login within a second of the previous one.
_SHORTEST_WAIT = 1.1


def connection_error(error: Exception, host: str) -> HeadraceError:
    """An unexpected exception as an error of this connection, with the exception as its cause."""
    if isinstance(error, HeadraceError):
        return error
    failure = HeadraceError(f"the connection to {host} failed with an unexpected {type(error).__name__}")
    failure.__cause__ = error
    return failure


class _Link(Protocol):
    """The part of a connection that authentication uses."""

    host: str

    def call_after_pending(self, api: Api, fields: Mapping[str, Any]) -> Awaitable[Any]: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...


class Authentication:
    """The logins of one connection. `failed` is called with the error if a re-authentication fails."""

    def __init__(self, link: _Link, host_name: str, access: Access, failed: Callable[[HeadraceError], None]) -> None:
        self._link = link
        self._host_name = host_name
        self._access = access
        self._failed = failed
        self._timer: asyncio.TimerHandle | None = None
        self._reauthentication: asyncio.Task[None] | None = None
        self.is_done = False

    async def log_in(self) -> None:
        """Raises AuthenticationError, and the errors of `Connection.call`."""
        exchange = await self._begin()
        await self._log_in(exchange)
        self.is_done = True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._reauthentication is not None and self._reauthentication is not asyncio.current_task():
            self._reauthentication.cancel()

    async def _begin(self) -> Exchange:
        try:
            return await self._access.exchange(self._host_name)
        except Rejected as error:
            raise self._error(str(error), "authenticate") from None

    async def _log_in(self, exchange: Exchange) -> None:
        mechanism = self._access.mechanism
        reply = await self._link.call_after_pending(SASL_HANDSHAKE, {"mechanism": mechanism})
        code = reply.error_code
        if code == _UNSUPPORTED_MECHANISM:
            offered = ", ".join(quoted(name, exchange.secret) for name in reply.mechanisms[:10]) or "none"
            raise self._error(f"the broker does not offer this mechanism. It offers: {offered}", "handshake")
        if code == _ILLEGAL_STATE:
            raise self._error("the broker does not expect a login on this port: see security.protocol", "handshake")
        if code != NONE:
            raise self._error(code_name(code), "handshake")
        lifetime = await self._exchange(exchange)
        if lifetime > 0:
            # Random, so that not all connections re-authenticate at the same moment.
            wait = max(_SHORTEST_WAIT, lifetime * chance.uniform(0.85, 0.95))
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(wait, self._start_reauthentication)

    async def _exchange(self, exchange: Exchange) -> float:
        """Return the lifetime of the login in seconds. 0 means that it lasts as long as the connection."""
        why = ""
        try:
            message: bytes | None = exchange.first()
            for _ in range(_MOST_ROUNDS):
                assert message is not None
                reply = await self._link.call_after_pending(SASL_AUTHENTICATE, {"auth_bytes": message})
                if reply.error_code != NONE:
                    said = quoted(reply.error_message or why, exchange.secret)
                    raise self._error(f"{code_name(reply.error_code)}{f': {said}' if said else ''}", "authenticate")
                if self._access.mechanism == "OAUTHBEARER":
                    why = rejection_reason(reply.auth_bytes) or why
                message = exchange.answer(bytes(reply.auth_bytes))
                if message is None:
                    return float(reply.session_lifetime.total_seconds())
        except Rejected as error:
            raise self._error(str(error), "authenticate") from None
        raise self._error(f"the login was not complete after {_MOST_ROUNDS} messages", "authenticate")

    def _error(self, reason: str, step: str) -> AuthenticationError:
        return AuthenticationError(
            f"SASL {step} with {self._access.mechanism} at {self._link.host} failed: {reason}", step=step
        )

    # -- re-authentication -----------------------------------------------------------------------------------------

    def _start_reauthentication(self) -> None:
        self._reauthentication = asyncio.create_task(
            self._reauthenticate(), name=f"re-authenticate with {self._link.host}"
        )

    async def _reauthenticate(self) -> None:
        try:
            exchange = await self._begin()  # may fetch a token: requests are still sent meanwhile
            self._link.hold()
            try:
                await self._log_in(exchange)
            finally:
                self._link.release()
        except Exception as error:  # noqa: BLE001  # an error caused by a peer must end only its connection
            self._failed(connection_error(error, self._link.host))
        else:
            log.debug("re-authenticated with %s", self._link.host)
