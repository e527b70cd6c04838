"""Stands before the application: refuses requests by `PageAccess`, and adds the headers that restrict browsers.

The page has no inline scripts or styles, loads nothing from elsewhere, and cannot be framed. Responses with data are
not stored by browsers or proxies. Wrong secrets are answered late, and only a few at a time for each address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import PageAccess

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_PUBLIC = ("/login", "/static/")
_DATA = ("/api/", "/events")
TOO_MANY = "Too many attempts. Wait a moment."
_WRONG_SECRET_DELAY = 1.0  # seconds
_WRONG_SECRETS_AT_ONCE = 4  # of one peer
_BEYOND_GUESSING = 32  # characters: the length of the tokens that `headrace ui` generates


class SecretCheck:
    """Checks secrets that somebody may guess: four guesses a second at most from one address.

    While these are waiting, further guesses from there are rejected unseen: otherwise the right one would show. Other
    addresses are not affected, nor are sessions. Neither is a right secret that is too long to be guessed, because
    behind a proxy all clients have one address.
    """

    def __init__(self, access: PageAccess) -> None:
        self._access = access
        self._waiting: Counter[str] = Counter()  # peers with guesses only, so connections limit its size

    async def answer(self, secret: str, client: str) -> int:
        """The status of the response to the client at this address: 200, 401, or 429 if too many of its guesses are
        waiting."""
        if len(secret) >= _BEYOND_GUESSING and self._access.is_secret(secret):
            return 200
        peer = peer_of(client)
        if self._waiting[peer] >= _WRONG_SECRETS_AT_ONCE:
            return 429
        if self._access.is_secret(secret):
            return 200
        self._waiting[peer] += 1
        try:
            await asyncio.sleep(_WRONG_SECRET_DELAY)
        finally:
            self._waiting[peer] -= 1
            if not self._waiting[peer]:
                del self._waiting[peer]
        return 401


def peer_of(client: str) -> str:
    """Whose address it is: one machine may have all addresses of an IPv6 network with 64 bits."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((int(address), 64), strict=False))


def client_of(scope: Scope) -> str:
    """The address of the client; empty if the server does not know it."""
    client = scope.get("client")
    return str(client[0]) if client else ""


class Guard:
    """An ASGI middleware."""

    def __init__(self, app: ASGIApp, access: PageAccess, check: SecretCheck, cookie: str) -> None:
        self._app = app
        self._access = access
        self._check = check
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_restricted(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = await self._refused(scope)
        await (answer or self._app)(scope, receive, send_restricted)

    async def _refused(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        if refusal := self._access.refusal(scope["method"], headers):
            return PlainTextResponse(refusal.text + "\n", refusal.status)
        if not self._access.needs_login or path.startswith(_PUBLIC):
            return None
        if self._access.is_session(read_cookie(headers.get("cookie", ""), self._cookie), time.time()):
            return None
        status = 401
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and (status := await self._check.answer(token.strip(), client_of(scope))) == 200:
            return None
        if status == 429:
            return JSONResponse({"error": TOO_MANY}, status, {"retry-after": "1"})
        if path.startswith(_DATA) or scope["method"] not in ("GET", "HEAD"):
            error = {"error": "Sign in first, or send a valid token."}
            return JSONResponse(error, 401, {"www-authenticate": "Bearer"})
        target = path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
        return RedirectResponse(f"/login?next={quote(target, safe='')}", 303)


def read_cookie(header: str, name: str) -> str:
    """The cookie's value; empty if it is missing. Other programs on this host may set cookies of any form."""
    return cookie_parser(header).get(name, "")
