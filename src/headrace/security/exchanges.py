"""What a client says to log in, mechanism by mechanism; no I/O, no clock, no chance.

    first()           -> the first message
    answer(challenge) -> the next one; None: done, and satisfied with the server

`answer` raises `Rejected` when what the server says is not acceptable. No message of that contains a secret; what the
server says is only shown through `quoted`, which leaves out what repeats one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

_LONGEST_QUOTE = 200
_LONGEST_REFUSAL = 4096  # bytes
_TELLING = 16  # characters of a secret that tell too much of it


class Rejected(Exception):
    """The other side did not behave as the mechanism demands."""


class Exchange(Protocol):
    """One login over one connection. `secret` is what nobody may see, also if the server says it; "" if it cannot."""

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
    """RFC 7628. A server that refuses a token says why in a challenge, and fails after one more message."""

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
            raise Rejected("the token was refused")
        self._is_refused = True
        return b"\x01"


def refusal_in(challenge: bytes) -> str:
    """The reason in a challenge of OAUTHBEARER, for a message. Not quoted yet."""
    if len(challenge) > _LONGEST_REFUSAL:
        return ""
    try:
        status = json.loads(challenge)["status"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return status if isinstance(status, str) else ""


def quoted(text: str, secret: str = "") -> str:
    """What a peer wrote, fit for a message: short, of printable characters only, and without the secret."""
    if secret and secret[:_TELLING] in text:
        return "(not shown, since the secret is in it)"
    shown = re.sub(r"[^\x20-\x7e]+", " ", text)
    return shown if len(shown) <= _LONGEST_QUOTE else shown[:_LONGEST_QUOTE] + " …"


def extensions_in(text: str | None) -> dict[str, str]:
    """`name=value,name=value` as RFC 7628 allows them. Raises ValueError."""
    found: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in (text or "").split(","))):
        name, _, found[name] = item.partition("=")
    check_extensions(found)
    return found


def check_extensions(given: Any) -> None:
    """A mapping of texts: anything else could break out of its field in the message. Raises ValueError."""
    if not isinstance(given, Mapping) or not all(
        isinstance(name, str)
        and isinstance(value, str)
        and re.fullmatch(r"[A-Za-z]+", name)
        and re.fullmatch(r"[\x20-\x7e\t\r\n]+", value)
        for name, value in given.items()
    ):
        raise ValueError("extensions must be of the form name=value,name=value, names of letters only")
    if "auth" in given:
        raise ValueError("auth is the token's own place")
