"""Decides who may see the page. Nothing here does I/O or reads a clock.

    without a secret   only this machine: the server listens on loopback, and answers only to loopback names. A page of
                       another site cannot reach it under a name of its own (DNS rebinding).
    with a secret      a password or a token: once at /login, which sets a cookie, or as `Authorization: Bearer …` in
                       every request. Any name is answered: a cookie belongs to the name for which it was set.

The cookie is its expiry and a signature, so nothing has to be stored. The key changes with every start.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from ..monitor.loopback import is_loopback_host

SESSION_SECONDS = 12 * 3600.0
_SAFE_METHODS = ("GET", "HEAD")
_OTHER_SITES = ("cross-site", "same-site")  # same-site: another port of this machine


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class PageAccess:
    """`digests` are hashes of the accepted secrets; without any, everybody on this machine has access."""

    key: bytes = dataclasses.field(repr=False)
    digests: tuple[bytes, ...] = dataclasses.field(default=(), repr=False)

    @property
    def needs_login(self) -> bool:
        return bool(self.digests)

    def is_secret(self, text: str) -> bool:
        """Compares in constant time: hashes have one length, and all of them are compared."""
        given = digest(text)
        matches = [hmac.compare_digest(given, each) for each in self.digests]
        return any(matches)

    def new_session(self, now: float) -> str:
        expiry = str(int(now + SESSION_SECONDS))
        return f"{expiry}.{self._signature(expiry)}"

    def is_session(self, cookie: str, now: float) -> bool:
        expiry, _, signature = cookie.partition(".")
        is_signed = hmac.compare_digest(signature.encode(), self._signature(expiry).encode())
        return is_signed and int(expiry) > now

    def _signature(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()

    def refusal(self, method: str, headers: Mapping[str, str]) -> Refusal | None:
        """Why a request is refused, whoever sends it. The names of headers are in lower case."""
        host = headers.get("host", "")
        if not self.needs_login and not is_loopback_host(host):
            return Refusal(421, "This page is only available under the name localhost, 127.0.0.1 or [::1].")
        if headers.get("sec-fetch-site") in _OTHER_SITES and headers.get("sec-fetch-mode") != "navigate":
            return Refusal(403, "This page does not answer requests of other sites.")
        if method in _SAFE_METHODS:
            return None
        origin = headers.get("origin")
        # A browser sends the origin with every POST. Programs that send none have no cookies of somebody else.
        if origin is not None and _origin_host(origin) != host.lower():
            return Refusal(403, "This request comes from another site.")
        return None


def digest(secret: str) -> bytes:
    """Of any text: JSON and environment variables may contain surrogates."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


def _origin_host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None
