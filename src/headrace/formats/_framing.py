"""How serializers write the id of a schema before a record's key or value."""

from __future__ import annotations

from typing import NamedTuple

from .._arguments import short_repr
from ..errors import ConfigError
from ._registry import IdKind

_LARGEST_CONFLUENT_ID = 2**31 - 1  # serializers and registries have signed integers of 4 bytes

MOST_UNKNOWN = 100
"""Bytes that no serializer has written can contain any number of different ids, each of which would cause a request."""
NOT_ASKED = f"the registry did not know {MOST_UNKNOWN} other schema ids of this batch, so it was not asked"


class Framing(NamedTuple):
    id_size: int
    """Bytes of an id, after a zero byte. 0 if there is none."""
    id_kind: IdKind = "id"

    def refusal(self, schema_id: int) -> str | None:
        """Why no registry can have the id; None if it can. Some registries answer such an id with an unknown path,
        which would be taken for an error of the settings, and not of the record."""
        if schema_id < 0:
            return f"the schema id {schema_id} is negative"
        if self.id_kind == "id" and schema_id > _LARGEST_CONFLUENT_ID:
            return f"the schema id {schema_id} is larger than {_LARGEST_CONFLUENT_ID}"
        return None

    def check_writable(self) -> None:
        """Raises ConfigError if the id of a registered schema is not the one that records contain."""
        if self.id_kind == "global":
            raise ConfigError(
                "framing='apicurio' is for decoding only: the Confluent-compatible API does not return global ids. "
                "Encode with framing='apicurio-content' or 'confluent'"
            )


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
