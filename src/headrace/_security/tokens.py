"""Fetches the tokens of OAUTHBEARER: from the user's callback, or from an OIDC endpoint (`token_endpoint.py`).

    there is no token, or 4/5 of its lifetime has passed   -> request a new one
    that fails, and the old token is still valid           -> log a warning, use the old token
    that fails otherwise                                   -> raise an error: final if refused, else retriable

Concurrent logins wait for the same request, for at most half a minute. A callback on a thread may take longer, but it
blocks nothing, and the process does not wait for it at exit.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import contextvars
import inspect
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..errors import AuthenticationError, HeadraceError, NetworkError
from .exchanges import check_extensions

log = logging.getLogger(__name__)

T = TypeVar("T")

_REFRESH_AFTER = 0.8
_TOKEN_WITHIN = 30.0  # seconds, for all sources


@dataclass(frozen=True, slots=True)
class OAuthToken:
    """An OAuth token, its expiry time in seconds since 1970, and its SASL extensions. If the expiry time is None and
    the token is a JWT, the time is read from the token."""

    value: str = field(repr=False)
    expires_at: float | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)


Ask = Callable[[], Coroutine[Any, Any, OAuthToken]]


class Tokens:
    """The current token. Belongs to one event loop."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._current: OAuthToken | None = None
        self._refresh_at = 0.0
        self._asking: asyncio.Task[OAuthToken] | None = None

    async def get(self) -> OAuthToken:
        """Raises AuthenticationError, or NetworkError if a later attempt may succeed."""
        if self._current is not None and time.time() < self._refresh_at:
            return self._current
        if self._asking is None:
            self._asking = asyncio.create_task(self._refresh(), name="OAuth token")
            self._asking.add_done_callback(self._asked)
        asking = self._asking
        try:
            await asyncio.wait([asking])  # not asyncio.shield(): see `Connections.connect`
            return asking.result()
        except HeadraceError as error:
            current = self._current
            if current is None or current.expires_at is None or time.time() >= current.expires_at:
                raise
            log.warning("cannot get a new token, using the old one until it expires: %s", error)
            return current

    def _asked(self, task: asyncio.Task[OAuthToken]) -> None:
        self._asking = None
        if not task.cancelled():
            task.exception()  # marks it as retrieved, in case all waiting logins were cancelled

    async def _refresh(self) -> OAuthToken:
        token = await self._ask()
        now = time.time()
        if token.expires_at is not None and token.expires_at <= now:
            raise AuthenticationError("the new token has already expired", step="token")
        self._current = token
        # A token without an expiry time is requested for each login: caching it is up to the callback.
        self._refresh_at = 0.0 if token.expires_at is None else now + _REFRESH_AFTER * (token.expires_at - now)
        return token


def with_timeout(ask: Ask) -> Ask:
    """The same source, with a time limit."""

    async def asked() -> OAuthToken:
        try:
            async with asyncio.timeout(_TOKEN_WITHIN):
                return await ask()
        except HeadraceError:
            raise
        except TimeoutError:
            raise NetworkError(f"the token source returned no token within {_TOKEN_WITHIN:g} s") from None

    return asked


async def run_in_thread(work: Callable[[], T]) -> T:
    """Like asyncio.to_thread(), but on a new daemon thread, which the process does not wait for at exit."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    over: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def finish(outcome: tuple[Any, BaseException | None]) -> None:
        if not over.done():
            over.set_result(outcome)

    def run() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = (context.run(work), None)
        except BaseException as error:  # noqa: BLE001  # raised again in the waiting task
            outcome = (None, error)
        with contextlib.suppress(RuntimeError):  # the event loop is closed: no task waits any more
            loop.call_soon_threadsafe(finish, outcome)

    threading.Thread(target=run, name="headrace-login", daemon=True).start()
    result, error = await over
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


def from_callback(callback: Callable[[], Any], extensions: Mapping[str, str]) -> Ask:
    """A source that calls the user's callback. A coroutine function is awaited; any other function is called on a
    thread, because it may block."""

    async def ask() -> OAuthToken:
        try:
            if inspect.iscoroutinefunction(callback):
                given = await callback()
            else:
                given = await run_in_thread(callback)
            if inspect.isawaitable(given):  # from a callable object or a lambda
                given = await given
        except HeadraceError:
            raise
        except (Exception, SystemExit) as error:  # SystemExit would end the event loop
            text = f"sasl.oauthbearer.token.callback failed: {type(error).__name__}"
            if isinstance(error, OSError) and not _is_refusal(error):
                raise NetworkError(text) from error
            raise AuthenticationError(text, step="token") from error
        return _token_of(given, extensions)

    return ask


def _is_refusal(error: OSError) -> bool:
    """Whether a server was reached and rejected the request. urllib and requests raise OSErrors for HTTP errors too."""
    status = getattr(getattr(error, "response", None), "status_code", getattr(error, "code", None))
    return isinstance(status, int) and is_final(status)


def is_final(status: int) -> bool:
    return status != 429 and status < 500


def _token_of(given: Any, extensions: Mapping[str, str]) -> OAuthToken:
    token = OAuthToken(given) if isinstance(given, str) else given
    if not isinstance(token, OAuthToken) or not isinstance(token.value, str):
        kind = type(given).__name__
        raise AuthenticationError(
            f"sasl.oauthbearer.token.callback returned a {kind}: it must return a string or an OAuthToken", step="token"
        )
    value = checked(token.value, "sasl.oauthbearer.token.callback")
    expires_at = expiry_in(value) if token.expires_at is None else token.expires_at
    if expires_at is not None and (
        isinstance(expires_at, bool) or not isinstance(expires_at, (int, float)) or math.isnan(expires_at)
    ):
        kind = type(expires_at).__name__
        raise AuthenticationError(
            f"sasl.oauthbearer.token.callback returned a {kind} as expires_at: it must be seconds since 1970",
            step="token",
        )
    try:
        check_extensions(token.extensions)
    except ValueError as error:
        raise AuthenticationError(f"sasl.oauthbearer.token.callback: {error}", step="token") from None
    return OAuthToken(value, expires_at, {**extensions, **token.extensions})


def checked(token: str, source: str) -> str:
    """A token without characters that RFC 6750 forbids: they could break out of their field in the message."""
    if not token or not all("\x21" <= char <= "\x7e" for char in token):
        raise AuthenticationError(f"{source} returned an invalid token", step="token")
    return token


def expiry_in(token: str) -> float | None:
    """The `exp` claim of a JWT, or None if it cannot be read. It is not verified: only brokers can do that."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expires_at = float(claims["exp"])
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
        return None
    return expires_at if 0 < expires_at < 2**53 else None
