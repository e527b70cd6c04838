"""Typed columns: the formats of a query's keys and values, with their schemas.

The driver resolves them when a query starts: it reads files and asks the registry once. Then they do not change any
more: Spark sends them to executors, and a stream notes them in its checkpoint. In tasks, the registry is only asked for
schemas of writers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark.sql.types import DataType, StructType

from .._format import Format, Source
from ..errors import ConfigError, HeadraceError, SchemaRegistryError
from .options.formats import LATEST_VERSION, FieldOptions, FormatOptions
from .options.parsers import OptionError
from .time_zone import default_time_zone

if TYPE_CHECKING:
    from ..formats._registry import RegisteredSchema, Registry

# Of a call in seconds, with retries. When a source is loaded, somebody waits for it, maybe with a wrong address. Later,
# in tasks and before each micro-batch of a sink, a registry may be down for a while; then Spark repeats the task.
_LOAD_TIMEOUT = 15.0
_TIMEOUT = 60.0
_MOST_RETRIES = 1000  # the timeout ends them


@dataclasses.dataclass(frozen=True)
class TypedField:
    """The key or the value of a query, as a typed column."""

    options: FieldOptions
    format: Format
    type: DataType
    schema: RegisteredSchema | None  # of the registry, if that has it

    @property
    def description(self) -> dict[str, Any]:
        """For a checkpoint: which schema the query reads, and a hash of its columns."""
        columns = hashlib.sha256(self.type.json().encode()).hexdigest()[:16]
        found: dict[str, Any] = {"columns": columns}
        if self.schema is not None:
            found |= {"subject": self.schema.subject, "version": self.schema.version, "id": self.schema.id}
        return {name: value for name, value in found.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class TypedColumns:
    """The typed columns of a query. Without a format there are none."""

    fields: tuple[TypedField, ...] = ()
    default_time_zone: str = "UTC"
    """Of a session that does not set one, on the driver."""

    def of(self, name: str) -> TypedField | None:
        return next((each for each in self.fields if each.options.field == name), None)


class SchemaChangedError(HeadraceError):
    """The columns of a typed key or value are not those of the query's checkpoint."""


def check_unchanged(typed: TypedColumns, before: Mapping[str, Any]) -> None:
    """Compares the schemas of a checkpoint with those of this run. A user who names a schema intends the change. Raises
    SchemaChangedError."""
    for each in typed.fields:
        name, now = each.options.field, each.description
        then = before.get(name)
        if then is None or each.options.is_pinned or then.get("columns") == now["columns"]:
            continue
        then_version, version = then.get("version"), now.get("version")
        subject = f" of subject {now.get('subject')}"
        was = f"version {then_version}{subject}" if then_version is not None else "another schema"
        keep = f"{name}.schema.version={then_version}" if then_version is not None else f"{name}.schema"
        raise SchemaChangedError(
            f"The columns of the {name} have changed since the query was started with this checkpoint: it has read "
            f"{was}, and version {version}{subject} is the latest now. Set {keep} to continue with the former columns, "
            f"{name}.schema.version={version} to read with the new ones from here on, or "
            f"{name}.schema.version={LATEST_VERSION} to accept new columns at every start"
        )


# -- on the driver -------------------------------------------------------------------------------------------------


def resolve_formats(
    options: FormatOptions, topics: Sequence[str] | None, written: Mapping[str, DataType] | None = None
) -> TypedColumns:
    """The formats of a query, with their schemas as they are now. `topics` are those of the query, None if it does not
    name them. `written` are the types of the columns that a sink gets. Raises OptionError and SchemaRegistryError."""
    found = []
    for field in options.fields:
        try:
            found.append(_resolve(field, options, topics, written))
        except SchemaRegistryError as error:
            raise SchemaRegistryError(
                f"Cannot read the schema of the {field.field}: {error}",
                status=error.status,
                code=error.code,
                scope=error.scope,
            ) from error
        except OptionError:
            raise
        except (ConfigError, ImportError) as error:
            raise OptionError(f"{field.field}.format={field.kind}: {error}") from error
    needs_zone = any(each.options.kind == "json" and each.options.time_zone is None for each in found)
    return TypedColumns(tuple(found), default_time_zone() if needs_zone else "UTC")


def pinned_options(typed: TypedColumns) -> dict[str, str]:
    """Options that select the schemas of `typed` again at any time later: for a table, whose columns are fixed."""
    found: dict[str, str] = {}
    for each in typed.fields:
        name, schema = each.options.field, each.schema
        if each.options.schema is not None:
            text = _read_schema(each.options.schema, f"{name}.schema")
            found |= {f"{name}.schema": text} if isinstance(text, str) else {}
        elif schema is not None and schema.version is not None and each.options.schema_id is None:
            found |= {f"{name}.schema.version": str(schema.version), f"{name}.subject": schema.subject or ""}
    return found


def _resolve(
    field: FieldOptions,
    options: FormatOptions,
    topics: Sequence[str] | None,
    written: Mapping[str, DataType] | None,
) -> TypedField:
    from .arrow_types import spark_type

    text = None if field.schema is None else _read_schema(field.schema, f"{field.field}.schema")
    schema: RegisteredSchema | None = None
    registry: FixedRegistry | None = None
    subject = field.subject or (f"{topics[0]}-{field.field}" if topics is not None and len(topics) == 1 else None)
    if options.registry is not None:
        if text is None:
            schema = _registered(field, options.registry, subject, _LOAD_TIMEOUT if written is None else _TIMEOUT)
        registry = FixedRegistry(_registry_settings(options.registry), schema)
    made = _make(field, options, registry, subject, text, written)
    found = made.arrow_type(Source(topics[0] if topics else "", field.field))
    return TypedField(field, made, spark_type(found, field.field), schema)


def _registered(
    field: FieldOptions, settings: Mapping[str, str], subject: str | None, timeout: float
) -> RegisteredSchema:
    if subject is None and field.schema_id is None:
        raise OptionError(
            f"{field.field}.subject is missing: the query has several topics, or a pattern. Set it to the subject of "
            f"all records, or set {field.field}.schema"
        )
    registry = _open_registry({**_registry_settings(settings), "timeout": timeout})
    found: RegisteredSchema
    if field.schema_id is not None:
        found = registry.schema(field.schema_id)
    elif field.version is None or field.version == LATEST_VERSION:
        found = registry.latest(subject)
    else:
        found = registry.version(subject, int(field.version))
    return found


def _make(
    field: FieldOptions,
    options: FormatOptions,
    registry: FixedRegistry | None,
    subject: str | None,
    text: str | bytes | None,
    written: Mapping[str, DataType] | None,
) -> Format:
    name = field.field
    named: dict[str, Any] = {} if field.framing is None else {"framing": field.framing}
    if registry is None and text is None and not (written is not None and field.kind == "json"):
        raise OptionError(
            f"{name}.format={field.kind} needs a schema: set {name}.schema, or schema.registry.url for the schema that "
            f"is registered for the topic"
        )
    if field.kind == "json":
        return _make_json(field, registry, subject, text, written, named)
    if registry is not None:
        named |= {"subject": subject, "auto_register_schemas": options.auto_registers and text is not None}
    if field.kind == "avro":
        from ..formats import Avro

        if isinstance(text, bytes):
            raise OptionError(f"{name}.schema is not text: an Avro schema is JSON in UTF-8")
        return Avro(registry, text, **named) if registry is not None else Avro(text or "", **named)
    from ..formats import Protobuf

    named |= {"message": field.message, "unsigned": False}
    return Protobuf(text or "", **named) if registry is None else Protobuf(registry, schema=text, **named)


def _make_json(
    field: FieldOptions,
    registry: FixedRegistry | None,
    subject: str | None,
    text: str | bytes | None,
    written: Mapping[str, DataType] | None,
    named: dict[str, Any],
) -> Format:
    from ..formats import Json
    from .arrow_types import arrow_type

    if isinstance(text, bytes):
        raise OptionError(f"{field.field}.schema is not text in UTF-8")
    if field.time_zone is not None:
        if written is not None:
            raise OptionError(
                f"{field.field}.timeZone is for reading only: the sink writes every timestamp with its zone, as UTC. "
                "Remove it"
            )
        named |= {"timezone": field.time_zone}
    if text is not None:
        return Json(text, **({"framing": "confluent"} if registry is not None else {}) | named)
    if registry is not None:
        return Json(registry, subject=subject, **named)
    assert written is not None
    return Json(arrow_type(written[field.field]), **named)


def _read_schema(given: str, option: str) -> str | bytes:
    """A schema, which is given as a text or as a file: its text, or bytes if it is none (Protobuf's descriptors)."""
    is_url = given.lower().startswith("file:")
    if not is_url and ("\n" in given or not os.path.isfile(given)):
        if given.endswith((".avsc", ".proto", ".json", ".ddl")) and "{" not in given:
            raise OptionError(f"{option}: there is no file {given} on the driver")
        return given
    path = pathlib.Path(unquote(urlsplit(given).path) if is_url else given)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OptionError(f"{option}: cannot read the file {path}: {error}") from None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def in_time_zone(each: TypedField, zone: str) -> TypedField:
    """The field with the time zone of a session, unless its options name one. Raises ConfigError."""
    from ..formats import Json

    if not isinstance(each.format, Json) or each.options.time_zone is not None:
        return each
    return dataclasses.replace(each, format=each.format.with_timezone(zone))


# -- the registry --------------------------------------------------------------------------------------------------

_SETTINGS = {
    "url": "url",
    "username": "username",
    "password": "password",
    "token": "token",
    "ssl.ca.location": "ca_file",
    "ssl.certificate.location": "cert_file",
    "ssl.key.location": "key_file",
    "ssl.key.password": "key_password",
}


def _registry_settings(options: Mapping[str, str]) -> dict[str, Any]:
    given = {_SETTINGS[name]: value for name, value in options.items()}
    return {**given, "timeout": _TIMEOUT, "retries": _MOST_RETRIES}


# The registries of this process, by their settings, the most recently used last: tasks of a worker share what they
# have fetched. Only the thread that runs tasks, or plans a query, accesses it; a fork takes it along.
_MOST_REGISTRIES = 4
_registries: dict[tuple[tuple[str, Any], ...], Registry] = {}


def _open_registry(settings: Mapping[str, Any]) -> Any:
    from ..formats import SchemaRegistry

    key = tuple(sorted(settings.items()))
    found = _registries.pop(key, None)
    if found is None:
        try:
            found = SchemaRegistry(**settings)
        except (ConfigError, OSError, ValueError) as error:
            raise OptionError(f"schema.registry.…: {error}") from None
    _registries[key] = found
    if len(_registries) > _MOST_REGISTRIES:
        del _registries[next(iter(_registries))]
    return found


class FixedRegistry:
    """A registry whose latest schema of the subject stays the one that it was when the query started. Its pickle
    contains the login, its repr does not."""

    def __init__(self, settings: Mapping[str, Any], fixed: RegisteredSchema | None) -> None:
        self._settings = settings
        self._fixed = fixed
        self._registry = _open_registry(settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return FixedRegistry, (self._settings, self._fixed)

    def __repr__(self) -> str:
        return repr(self._registry)

    def latest(self, subject: str) -> RegisteredSchema:
        return self._registry.latest(subject) if self._fixed is None else self._fixed

    def schema(self, schema_id: int, id_kind: Any = "id") -> RegisteredSchema:
        found: RegisteredSchema = self._registry.schema(schema_id, id_kind)
        return found

    def look_up(self, subject: str, text: str, kind: Any, references: Any = ()) -> RegisteredSchema:
        found: RegisteredSchema = self._registry.look_up(subject, text, kind, references)
        return found

    def register(self, subject: str, text: str, kind: Any, references: Any = ()) -> RegisteredSchema:
        found: RegisteredSchema = self._registry.register(subject, text, kind, references)
        return found


def struct_fields(each: TypedField) -> StructType:
    """The fields of a column that is flattened. Raises OptionError."""
    if not isinstance(each.type, StructType):
        name = each.options.field
        raise OptionError(
            f"{name}.flatten=true needs a struct, but the {name} is {each.type.simpleString()}. Remove the option"
        )
    return each.type
