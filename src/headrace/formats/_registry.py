"""What formats need of a schema registry. `registry/` has the client; tests may use something simpler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

SchemaKind = Literal["AVRO", "JSON", "PROTOBUF"]
IdKind = Literal["id", "global", "content"]
"""Confluent's id, or one of Apicurio's: a global id is one version of one artifact, a content id is its text."""


@dataclass(frozen=True)
class SchemaReference:
    """A schema that another one refers to by `name`, with its text."""

    name: str
    text: str
    subject: str = ""
    version: int = 0
    is_direct: bool = True
    """Whether the schema itself refers to it, and not only one of its other references."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema as the registry has it."""

    id: int
    kind: SchemaKind
    text: str
    references: tuple[SchemaReference, ...] = ()
    """All schemas that this one needs, directly or not. A schema comes after those that it refers to itself."""
    subject: str | None = None
    version: int | None = None


class Registry(Protocol):
    """All methods block, can be called by any thread, and raise SchemaRegistryError."""

    def schema(self, schema_id: int, id_kind: IdKind = "id") -> RegisteredSchema:
        """The schema of an id that a record contains. Cached."""

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest schema of a subject, as the registry has it now."""

    def look_up(
        self, subject: str, text: str, kind: SchemaKind, references: tuple[SchemaReference, ...] = ()
    ) -> RegisteredSchema:
        """The registered schema of a subject that has this text. An unknown one is an error."""

    def register(
        self, subject: str, text: str, kind: SchemaKind, references: tuple[SchemaReference, ...] = ()
    ) -> RegisteredSchema:
        """Registers the text as a version of the subject, unless it is one already."""
