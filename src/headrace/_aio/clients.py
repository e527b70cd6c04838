"""The clients of this process that are open, for collectors of metrics.

Clients are added when they are created, and are referred to weakly. Any thread may add one or ask: each step on the
dictionary is atomic, so there is no lock that a fork could leave held.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, NamedTuple, Protocol

from .call_guard import CallGuard


class ClientParts(Protocol):
    """What all kinds of clients consist of."""

    @property
    def guard(self) -> CallGuard: ...
    @property
    def name(self) -> str: ...
    def metrics(self) -> dict[str, Any]: ...


class OpenClient(NamedTuple):
    name: str
    """Such as consumer-1. It is unique in this process, unlike the client.id."""
    parts: ClientParts


_clients: dict[str, weakref.ref[ClientParts]] = {}
_numbers = {role: itertools.count(1) for role in ("consumer", "share-consumer", "producer")}


def add(parts: ClientParts, role: str) -> str:
    """Returns the client's name."""
    name = f"{role}-{next(_numbers[role])}"
    _clients[name] = weakref.ref(parts, lambda _: _clients.pop(name, None))
    return name


def is_open(parts: ClientParts) -> bool:
    return not parts.guard.is_closed and not parts.guard.is_forked


def open_clients() -> list[OpenClient]:
    """In the order in which they were created."""
    found = ((name, reference()) for name, reference in _clients.copy().items())
    return [OpenClient(name, parts) for name, parts in found if parts is not None and is_open(parts)]
