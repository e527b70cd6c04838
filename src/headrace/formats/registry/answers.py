"""The fields of a registry's responses, and its errors.

A response is checked before it is used: it may come from a proxy, a login page or another service.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, get_args

from ...errors import SchemaNotFoundError, SchemaRegistryError
from .._registry import SchemaKind
from .http import Answer

_NOT_FOUND = frozenset({40401, 40402, 40403, 40404, 40406})
"""Error codes for an unknown subject, version or schema, and for a soft-deleted subject or version."""
_NOT_FOUND_NAMES = frozenset(f"{what}NotFoundException" for what in ("Artifact", "Content", "Group", "Version"))
"""The names of such errors in Apicurio's own API. NotFoundException itself is an unknown path."""
_KINDS: tuple[str, ...] = get_args(SchemaKind)
_LONGEST_NUMBER = 20  # digits: int() raises ValueError for thousands of them
_REFUSES_SCHEMA = frozenset({403, 410, 422, 451})
"""Statuses that are about the requested schema, if the registry itself returns them, with an error code or name. So is
404 with one of the codes above. All others (a rejected login, an unknown path, a failing or missing registry, a gateway
that denies access) are about the registry: they would be the same for the next schema."""


@dataclass(frozen=True, slots=True)
class RawReference:
    """A reference as the registry reports it. `group` is Apicurio's, and None for Confluent's API."""

    name: str
    subject: str
    version: int
    group: str | None = None


@dataclass(frozen=True, slots=True)
class RawSchema:
    """A schema as the registry reports it. `kind` is None if the response does not tell."""

    id: int
    text: str
    kind: SchemaKind | None
    references: tuple[RawReference, ...]
    subject: str | None = None
    version: int | None = None


def schema_in(answer: Answer, what: str, schema_id: int | None = None) -> RawSchema:
    """The schema of a response. `what` says what was requested, for errors: "schema 7". The response contains the id,
    unless that was requested."""
    found = json_in(answer, what)
    return RawSchema(
        _field(found, "id", int, answer, what) if schema_id is None else schema_id,
        _field(found, "schema", str, answer, what),
        _kind(found.get("schemaType"), answer, what),
        references_in(found.get("references"), answer, what),
        _optional(found, "subject", str, answer, what),
        _optional(found, "version", int, answer, what),
    )


def content_in(answer: Answer, what: str, schema_id: int = 0) -> RawSchema:
    """The schema of a response of Apicurio's own API, whose body is the text. References are in another response."""
    _check(answer, what)
    try:
        text = answer.body.decode()
    except UnicodeDecodeError:
        raise _not_a_registry(answer, what, "it is not text in UTF-8") from None
    return RawSchema(schema_id, text, _kind(answer.artifact_type, answer, what), ())


def id_in(answer: Answer, what: str) -> tuple[int, int | None]:
    """The id of a schema that was registered, and its version if the response has it."""
    found = json_in(answer, what)
    return _field(found, "id", int, answer, what), _optional(found, "version", int, answer, what)


def kind_in(answer: Answer, what: str) -> SchemaKind | None:
    """The type of the first version in a response to Apicurio's search."""
    versions = json_in(answer, what).get("versions")
    first = versions[0] if isinstance(versions, list) and versions else None
    return _kind(first.get("artifactType") if isinstance(first, dict) else None, answer, what)


def references_in(found: Any, answer: Answer, what: str) -> tuple[RawReference, ...]:
    """References in Confluent's form, with `subject`, or in Apicurio's, with `groupId` and `artifactId`."""
    if found is None:
        return ()
    if not isinstance(found, list):
        raise _not_a_registry(answer, what, "its references are not a list")
    references = []
    for each in found:
        if not isinstance(each, dict):
            raise _not_a_registry(answer, what, "a reference is not an object")
        name = _field(each, "name", str, answer, what)
        version = each.get("version")
        if isinstance(version, str) and version.isdecimal() and len(version) < _LONGEST_NUMBER:  # Apicurio's own API
            version = int(version)
        if type(version) is not int:
            raise _not_a_registry(answer, what, f"the reference {name!r} has no version number")
        subject = _field(each, "subject" if "subject" in each else "artifactId", str, answer, what)
        group = _optional(each, "groupId", str, answer, what)
        references.append(RawReference(name, subject, version, group or "default" if "artifactId" in each else None))
    return tuple(references)


def json_in(answer: Answer, what: str, kind: type = dict) -> Any:
    _check(answer, what)
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise _not_a_registry(answer, what, "it is not JSON") from None
    if not isinstance(found, kind):
        raise _not_a_registry(answer, what, f"it is not a JSON {'object' if kind is dict else 'array'}")
    return found


def _check(answer: Answer, what: str) -> None:
    """Raises the error of a response whose status is not 200."""
    if answer.status == HTTPStatus.OK:
        return
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        found = None
    raise _error(answer, what, found if isinstance(found, dict) else {})


def _error(answer: Answer, what: str, found: dict[str, Any]) -> SchemaRegistryError:
    """`found` has the fields `error_code` and `message`; those of Apicurio's own API are `name` and `title`."""
    status = answer.status
    code = found.get("error_code") if type(found.get("error_code")) is int else None
    message = found.get("message") or found.get("title")
    said = " ".join(message.split()) if isinstance(message, str) else ""
    # Secrets are removed from `answer.said` only.
    said = said if said in answer.said else answer.said
    details = f" ({said})" if said else ""
    if status == HTTPStatus.UNAUTHORIZED:
        text = (
            f"{answer.url}: the schema registry rejected the login (HTTP 401){details}. "
            "Check username and password, or token"
        )
    elif status == HTTPStatus.FORBIDDEN:
        text = (
            f"{answer.url}: the schema registry denies access to {what} (HTTP 403){details}. "
            "Ask for permission, or log in"
        )
    elif status == HTTPStatus.NOT_FOUND and (code in _NOT_FOUND or str(found.get("name")) in _NOT_FOUND_NAMES):
        return SchemaNotFoundError(
            f"{answer.url}: the schema registry has no {what}{details}. Check that it is the registry of the records' "
            "producer",
            status=status,
            code=code,
        )
    elif status == HTTPStatus.NOT_FOUND:
        text = (
            f"{answer.url}: not found (HTTP 404){details}. Check the URL of the schema registry; "
            "that of Apicurio ends with /apis/ccompat/v7"
        )
    elif status == HTTPStatus.CONFLICT:
        text = (
            f"{answer.url}: the schema registry rejected the {what}: "
            f"it is incompatible with earlier versions{details}. "
            "Change the schema, or the compatibility level of the subject"
        )
    elif status == HTTPStatus.UNPROCESSABLE_ENTITY:
        text = f"{answer.url}: the schema registry rejected the {what} as invalid{details}"
    else:
        text = f"{answer.url}: the schema registry did not return the {what}: HTTP {status}{details}"
    is_the_registrys = code is not None or isinstance(found.get("name"), str)
    is_about_schema = status in _REFUSES_SCHEMA and is_the_registrys
    return SchemaRegistryError(text, status=status, code=code, scope="schema" if is_about_schema else "registry")


def _not_a_registry(answer: Answer, what: str, why: str) -> SchemaRegistryError:
    return SchemaRegistryError(
        f"{answer.url}: the response for {what} cannot be used: {why}. Is this the URL of a schema registry? "
        f"The response starts with: {answer.said[:200]}",
        status=answer.status,
    )


def _kind(found: Any, answer: Answer, what: str) -> SchemaKind | None:
    if found is None:
        return None
    if found not in _KINDS:
        raise SchemaRegistryError(
            f"{answer.url}: {what} is a schema of type {str(found)[:80]!r}: only AVRO, JSON and PROTOBUF are supported",
            scope="schema",
        )
    kind: SchemaKind = found
    return kind


def _field(found: dict[str, Any], name: str, kind: type, answer: Answer, what: str) -> Any:
    value = found.get(name)
    if type(value) is not kind:
        raise _not_a_registry(answer, what, f"it has no {'number' if kind is int else 'string'} {name!r}")
    return value


def _optional(found: dict[str, Any], name: str, kind: type, answer: Answer, what: str) -> Any:
    return None if found.get(name) is None else _field(found, name, kind, answer, what)
