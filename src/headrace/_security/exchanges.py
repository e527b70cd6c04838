"""The messages that a client sends to log in, for each SASL mechanism. No I/O, clock or randomness.

    first()           -> the first message
    answer(challenge) -> the next message; None when the login is complete and the server is verified

`answer` raises `Rejected` if it does not accept the server's message. No error contains a secret: text from the server
passes through `quoted`, which hides text that contains the secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

_LONGEST_QUOTE = 200
_LONGEST_REFUSAL = 4096  # bytes
_REVEALING = 16  # characters: a part of a secret of this length must not be shown either


class Rejected(Exception):
    """The server violated the rules of the mechanism, or refused the login."""


class Exchange(Protocol):
    """One login on one connection. `secret` must never be shown, even if the server sends it. It is "" if the server
    cannot know it."""

    secret: str

    def first(self) -> bytes: ...

    def answer(self, challenge: bytes) -> bytes | None: ...


class Plain:
    """RFC 4616."""

    def __init__(self, username: str, password: str) -> None:
        self._username = username
        self.secret = password

    def first(self) -> bytes:
        return b"\0" + self._username.encode() + b"\0" + self.secret.encode()

    def answer(self, challenge: bytes) -> bytes | None:
        return None


class OAuthBearer:
    """RFC 7628. A server that rejects a token sends the reason in a challenge, and fails the login after one more
    message."""

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        self.secret = token
        self._extensions = extensions
        self._is_refused = False

    def first(self) -> bytes:
        pairs = {"auth": f"Bearer {self.secret}", **self._extensions}
        return ("n,,\x01" + "".join(f"{name}={value}\x01" for name, value in pairs.items()) + "\x01").encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        if self._is_refused:
            raise Rejected("the server rejected the token")
        self._is_refused = True
        return b"\x01"


def rejection_reason(challenge: bytes) -> str:
    """The reason in an OAUTHBEARER challenge, or "". Pass it through `quoted` before showing it."""
    if len(challenge) > _LONGEST_REFUSAL:
        return ""
    try:
        status = json.loads(challenge)["status"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return status if isinstance(status, str) else ""


def quoted(text: str, secret: str = "") -> str:
    """Text from a peer for an error message: short, of printable ASCII characters only, and without the secret."""
    if secret and secret[:_REVEALING] in text:
        return "(hidden because it contains the secret)"
    clean = re.sub(r"[^\x20-\x7e]+", " ", text)
    return clean if len(clean) <= _LONGEST_QUOTE else clean[:_LONGEST_QUOTE] + " …"


def extensions_in(text: str | None) -> dict[str, str]:
    """Parse `name=value,name=value`, as RFC 7628 allows it. Raises ValueError."""
    found: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in (text or "").split(","))):
        name, _, found[name] = item.partition("=")
    check_extensions(found)
    return found


def check_extensions(given: Any) -> None:
    """Check that extensions are a mapping of plain strings. Others could break out of their field in the message.
    Raises ValueError."""
    if not isinstance(given, Mapping) or not all(
        isinstance(name, str)
        and isinstance(value, str)
        and re.fullmatch(r"[A-Za-z]+", name)
        and re.fullmatch(r"[\x20-\x7e\t\r\n]+", value)
        for name, value in given.items()
    ):
        raise ValueError("extensions must be of the form name=value,name=value, with only letters in the names")
    if "auth" in given:
        raise ValueError("an extension cannot be named auth: that name is reserved for the token")
