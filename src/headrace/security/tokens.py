"""Where OAUTHBEARER's tokens come from: a function of the user's, or an OIDC endpoint (client credentials).

    no token, or four fifths of its life have passed  -> ask for a new one
    that fails, and the old one is still good          -> the old one, and a warning
    that fails otherwise                               -> an error: final if it was refused, else to be tried again

Whoever asks while somebody else is asking waits for the same answer, for half a minute at most. What is asked on a
thread may take longer, but holds nothing up: nor does the end of the process wait for it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import contextvars
import http.client
import inspect
import json
import logging
import math
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..errors import AuthenticationError, HeadraceError, NetworkError
from .exchanges import check_extensions, quoted

log = logging.getLogger(__name__)

T = TypeVar("T")

_REFRESH_AFTER = 0.8
_TOKEN_WITHIN = 30.0  # whatever the source
_WITHIN = 10.0  # of an endpoint
_LARGEST_ANSWER = 256 * 1024


@dataclass(frozen=True, slots=True)
class OAuthToken:
    """A token, until when it is good (seconds since 1970; None: as the token itself says, if it is a JWT), and SASL
    extensions that go with it."""

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
        """Raises AuthenticationError, or NetworkError if it may work later."""
        if self._current is not None and time.time() < self._refresh_at:
            return self._current
        if self._asking is None:
            self._asking = asyncio.create_task(self._refresh(), name="OAuth token")
            self._asking.add_done_callback(self._asked)
        try:
            return await asyncio.shield(self._asking)
        except HeadraceError as error:
            current = self._current
            if current is None or current.expires_at is None or time.time() >= current.expires_at:
                raise
            log.warning("the old token is used on, since there is no new one: %s", error)
            return current

    def _asked(self, task: asyncio.Task[OAuthToken]) -> None:
        self._asking = None
        if not task.cancelled():
            task.exception()  # seen, also if all who waited for it are gone

    async def _refresh(self) -> OAuthToken:
        token = await self._ask()
        now = time.time()
        if token.expires_at is not None and token.expires_at <= now:
            raise AuthenticationError("the token that was given has expired already", step="token")
        self._current = token
        # One that does not tell its end is asked for at each login: it is the callback's business to keep it.
        self._refresh_at = 0.0 if token.expires_at is None else now + _REFRESH_AFTER * (token.expires_at - now)
        return token


def in_time(ask: Ask) -> Ask:
    """The same, with an end."""

    async def asked() -> OAuthToken:
        try:
            async with asyncio.timeout(_TOKEN_WITHIN):
                return await ask()
        except HeadraceError:
            raise
        except TimeoutError:
            raise NetworkError(f"there was no token within {_TOKEN_WITHIN:g} s") from None

    return asked


async def on_a_thread(work: Callable[[], T]) -> T:
    """As asyncio.to_thread(), on a thread of its own that the end of the process does not wait for."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    over: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def tell(outcome: tuple[Any, BaseException | None]) -> None:
        if not over.done():
            over.set_result(outcome)

    def run() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = (context.run(work), None)
        except BaseException as error:  # noqa: BLE001  # it is raised where it is waited for
            outcome = (None, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, outcome)

    threading.Thread(target=run, name="headrace-login", daemon=True).start()
    result, error = await over
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


def from_callback(callback: Callable[[], Any], extensions: Mapping[str, str]) -> Ask:
    """A function may be a coroutine function; any other is called on a thread, since it may have to ask somebody."""

    async def ask() -> OAuthToken:
        try:
            if inspect.iscoroutinefunction(callback):
                given = await callback()
            else:
                given = await on_a_thread(callback)
            if inspect.isawaitable(given):  # of an object that is called, or of a lambda
                given = await given
        except HeadraceError:
            raise
        except (Exception, SystemExit) as error:  # the latter would end the event loop, and with it everything
            text = f"sasl.oauthbearer.token.callback failed: {type(error).__name__}"
            if isinstance(error, OSError) and not _is_refusal(error):
                raise NetworkError(text) from error
            raise AuthenticationError(text, step="token") from error
        return _token_of(given, extensions)

    return ask


def _is_refusal(error: OSError) -> bool:
    """Whether somebody was reached and said no, as HTTP has it: urllib and requests raise that as an OSError, too."""
    status = getattr(getattr(error, "response", None), "status_code", getattr(error, "code", None))
    return isinstance(status, int) and _is_final(status)


def _is_final(status: int) -> bool:
    return status != 429 and status < 500


def _token_of(given: Any, extensions: Mapping[str, str]) -> OAuthToken:
    token = OAuthToken(given) if isinstance(given, str) else given
    if not isinstance(token, OAuthToken) or not isinstance(token.value, str):
        kind = type(given).__name__
        raise AuthenticationError(
            f"sasl.oauthbearer.token.callback returned a {kind}: a string or an OAuthToken is needed", step="token"
        )
    value = _checked(token.value, "sasl.oauthbearer.token.callback")
    expires_at = expiry_in(value) if token.expires_at is None else token.expires_at
    if expires_at is not None and (
        isinstance(expires_at, bool) or not isinstance(expires_at, (int, float)) or math.isnan(expires_at)
    ):
        kind = type(expires_at).__name__
        raise AuthenticationError(
            f"sasl.oauthbearer.token.callback returned an expires_at of {kind}: seconds since 1970 are needed",
            step="token",
        )
    try:
        check_extensions(token.extensions)
    except ValueError as error:
        raise AuthenticationError(f"sasl.oauthbearer.token.callback: {error}", step="token") from None
    return OAuthToken(value, expires_at, {**extensions, **token.extensions})


def _checked(token: str, source: str) -> str:
    """A token is b64token of RFC 6750: anything else could break out of its field in the message."""
    if not token or not all("\x21" <= char <= "\x7e" for char in token):
        raise AuthenticationError(f"{source} gave what cannot be a token", step="token")
    return token


def expiry_in(token: str) -> float | None:
    """The `exp` of a JWT; None if there is none to be read. Only brokers can tell whether it is genuine."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expires_at = float(claims["exp"])
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
        return None
    return expires_at if 0 < expires_at < 2**53 else None


# -- OIDC --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """Where a client gets tokens with its own credentials (RFC 6749, 4.4)."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None
    extensions: Mapping[str, str]
    trust: Callable[[], ssl.SSLContext]
    urlencode: bool = False

    async def ask(self) -> OAuthToken:
        return await on_a_thread(self._ask)

    def _ask(self) -> OAuthToken:
        began = time.time()
        answer = self._post()
        token = answer.get("access_token")
        if not isinstance(token, str):
            raise AuthenticationError(f"the token endpoint at {self._where} gave no access_token", step="token")
        _checked(token, f"the token endpoint at {self._where}")
        life = answer.get("expires_in")
        expires_at = expiry_in(token)
        if isinstance(life, (int, float)) and not isinstance(life, bool) and life > 0:
            expires_at = min(began + life, expires_at or began + life)
        return OAuthToken(token, expires_at, self.extensions)

    @property
    def _where(self) -> str:
        """Without what may be secret in it."""
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"

    def _post(self) -> dict[str, Any]:
        form = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        pair = [self.client_id, self.client_secret]
        if self.urlencode:
            pair = [urllib.parse.quote_plus(part) for part in pair]
        request = urllib.request.Request(
            self.url,
            data=urllib.parse.urlencode(form).encode(),
            headers={
                "Authorization": "Basic " + base64.b64encode(":".join(pair).encode()).decode(),
                "Accept": "application/json",
            },
        )
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if self.url.lower().startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=self.trust()))
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=_WITHIN) as answer:
                body = self._read(answer, time.monotonic() + _WITHIN)
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None
        except (OSError, ValueError, http.client.HTTPException) as error:  # timeouts and TLS; nonsense for HTTP
            reason = quoted(str(getattr(error, "reason", None) or error), self.client_secret)
            raise NetworkError(f"the token endpoint at {self._where} cannot be asked: {reason}") from None
        if len(body) > _LARGEST_ANSWER:
            raise AuthenticationError(f"the token endpoint at {self._where} answers without end", step="token")
        found = _json(body)
        if not isinstance(found, dict):
            raise AuthenticationError(f"the token endpoint at {self._where} does not answer in JSON", step="token")
        return found

    def _read(self, answer: Any, deadline: float) -> bytes:
        """All of it, up to a byte too much. The timeout of a socket begins anew with every byte."""
        body, expected = b"", answer.length or 0
        while len(body) <= _LARGEST_ANSWER and (part := answer.read1(_LARGEST_ANSWER + 1 - len(body))):
            body += part
            if time.monotonic() > deadline:
                raise TimeoutError("its answer does not end in time")
        if len(body) < min(expected, _LARGEST_ANSWER):
            raise http.client.IncompleteRead(body)
        return body

    def _refused(self, error: urllib.error.HTTPError) -> HeadraceError:
        body = b""
        with error, contextlib.suppress(OSError, http.client.HTTPException):
            body = self._read(error.fp, time.monotonic() + _WITHIN)
        found = _json(body)
        said = found.get("error") if isinstance(found, dict) else None
        reason = f": {quoted(said, self.client_secret)}" if isinstance(said, str) else ""
        text = f"the token endpoint at {self._where} answered {error.code}{reason}"
        return AuthenticationError(text, step="token") if _is_final(error.code) else NetworkError(text)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The secret is for the endpoint that the user named, and no other."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
