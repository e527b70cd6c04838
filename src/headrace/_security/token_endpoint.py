"""Requests tokens of OAUTHBEARER from an OIDC endpoint (client credentials).

A module of its own, imported by whoever has such an endpoint: urllib and http.client take a twentieth of the time of
`from headrace import Consumer`.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import AuthenticationError, HeadraceError, NetworkError
from .exchanges import quoted
from .tokens import OAuthToken, checked, expiry_in, is_final, run_in_thread

_WITHIN = 10.0  # seconds, for one response
_LARGEST_ANSWER = 256 * 1024


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """An endpoint that issues tokens for client credentials (RFC 6749, section 4.4)."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None
    extensions: Mapping[str, str]
    trust: Callable[[], ssl.SSLContext]
    urlencode: bool = False

    async def ask(self) -> OAuthToken:
        return await run_in_thread(self._ask)

    def _ask(self) -> OAuthToken:
        began = time.time()
        answer = self._post()
        token = answer.get("access_token")
        if not isinstance(token, str):
            raise AuthenticationError(f"the token endpoint at {self._where} returned no access_token", step="token")
        checked(token, f"the token endpoint at {self._where}")
        life = answer.get("expires_in")
        expires_at = expiry_in(token)
        if isinstance(life, (int, float)) and not isinstance(life, bool) and life > 0:
            expires_at = min(began + life, expires_at or began + life)
        return OAuthToken(token, expires_at, self.extensions)

    @property
    def _where(self) -> str:
        """The URL without parts that may be secret."""
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
        except (OSError, ValueError, http.client.HTTPException) as error:  # timeouts, TLS errors, invalid HTTP
            reason = quoted(str(getattr(error, "reason", None) or error), self.client_secret)
            raise NetworkError(
                f"the token endpoint at {self._where} did not return a valid response: {reason}"
            ) from None
        if len(body) > _LARGEST_ANSWER:
            raise AuthenticationError(
                f"the response of the token endpoint at {self._where} exceeds {_LARGEST_ANSWER} bytes", step="token"
            )
        found = _json(body)
        if not isinstance(found, dict):
            raise AuthenticationError(
                f"the response of the token endpoint at {self._where} is not a JSON object", step="token"
            )
        return found

    def _read(self, answer: Any, deadline: float) -> bytes:
        """The whole response, up to one byte above the limit. A deadline is needed besides the socket's timeout, which
        starts again with every byte."""
        body, expected = b"", answer.length or 0
        while len(body) <= _LARGEST_ANSWER and (part := answer.read1(_LARGEST_ANSWER + 1 - len(body))):
            body += part
            if time.monotonic() > deadline:
                raise TimeoutError("the response took too long")
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
        return AuthenticationError(text, step="token") if is_final(error.code) else NetworkError(text)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: the secret must reach only the endpoint that the user configured."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
