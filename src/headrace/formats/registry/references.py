"""Finds the schemas that a schema refers to, directly and indirectly.

A registry does not accept cycles, and real schemas have a handful of references. The limits are for a response that is
wrong: it must not keep a caller busy until the deadline, nor overflow the stack.
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import SchemaRegistryError
from .._registry import SchemaReference
from .answers import RawReference, RawSchema

_MOST = 1000
_DEEPEST = 50


def resolve(schema: RawSchema, what: str, fetch: Callable[[RawReference], RawSchema]) -> tuple[SchemaReference, ...]:
    """All references of the schema, each behind those that it refers to itself. `fetch` returns a referenced schema."""
    fetched: dict[tuple[str | None, str, int], RawSchema] = {}
    by_name: dict[str, SchemaReference] = {}

    def add(references: tuple[RawReference, ...], path: tuple[str, ...]) -> None:
        for reference in references:
            if reference.name in path:
                raise _unusable(f"{what} has references in a cycle: {' → '.join((*path, reference.name))}")
            if len(path) >= _DEEPEST:
                raise _unusable(f"{what} has references that are nested more than {_DEEPEST} levels deep")
            place = reference.group, reference.subject, reference.version
            if (found := fetched.get(place)) is None:
                if len(fetched) >= _MOST:
                    raise _unusable(f"{what} has more than {_MOST} references")
                found = fetched[place] = fetch(reference)
                add(found.references, (*path, reference.name))
            known = by_name.get(reference.name)
            if known is not None and known.text != found.text:
                raise _unusable(
                    f"{what} refers to two different schemas by the name {reference.name!r}: "
                    f"version {known.version} of {known.subject} and version {reference.version} of "
                    f"{reference.subject}. Register it with one of them"
                )
            if known is None:
                by_name[reference.name] = SchemaReference(
                    reference.name, found.text, reference.subject, reference.version, is_direct=not path
                )

    add(schema.references, ())
    return tuple(by_name.values())


def _unusable(reason: str) -> SchemaRegistryError:
    return SchemaRegistryError(reason, scope="schema")
