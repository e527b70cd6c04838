"""How serializers write the id of a schema before a record's key or value."""

from __future__ import annotations

from typing import NamedTuple

from .._arguments import short_repr
from ..errors import ConfigError
from ._registry import IdKind


class Framing(NamedTuple):
    id_size: int
    """Bytes of an id, after a zero byte. 0 if there is none."""
    id_kind: IdKind = "id"


FRAMINGS = {
    "none": Framing(0),
    # Confluent's serializers, and Apicurio's from version 3 on with their defaults.
    "confluent": Framing(4),
    # Apicurio's serializers before version 3: an id of 8 bytes, which is a global id by default.
    "apicurio": Framing(8, "global"),
    "apicurio-content": Framing(8, "content"),
}


def framing_of(name: str) -> Framing:
    """Raises ConfigError."""
    if name not in FRAMINGS:
        raise ConfigError(f"framing={short_repr(name)} is unknown: use {', '.join(FRAMINGS)}")
    return FRAMINGS[name]
