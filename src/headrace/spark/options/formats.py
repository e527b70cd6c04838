"""The options of typed columns: which format keys and values have, where its schema is, and which columns rows have.

    value.format             json, avro or protobuf; without it the column is binary. The same for key.…
      value.schema           a text in the format's own language, Spark's DDL (json), or a file
      value.schema.version   of the subject: a number, or latest
      value.schema.id        of the registry
      value.subject          <topic>-value by default, if there is one topic
      value.message          protobuf: the name of the message
      value.framing          how records contain the id of their schema
      value.flatten          the fields of the struct are columns of their own
      value.timeZone         json: the zone of timestamps without a zone; by default that of the session
    schema.registry.…        url, login and TLS of the registry
    auto.register.schemas    the sink registers value.schema if it is missing
    mode                     FAILFAST, or PERMISSIVE: records that cannot be decoded are null, with a reason
    columns                  the columns that rows have

The options do not contain the schemas of the registry or of files: `spark/formats.py` reads these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from .parsers import FIELD_FORMAT_OPTIONS, REGISTRY_OPTIONS, OptionError, lowercase_names, parse_boolean, parse_integer

FieldName = Literal["key", "value"]
FIELDS: tuple[FieldName, ...] = ("key", "value")

KINDS = ("json", "avro", "protobuf")
FRAMINGS = ("none", "confluent", "apicurio", "apicurio-content")
LATEST_VERSION = "latest"
_MODES = ("FAILFAST", "PERMISSIVE")
_SECRETS = ("schema.registry.password", "schema.registry.token", "schema.registry.ssl.key.password")


@dataclasses.dataclass(frozen=True, slots=True)
class FieldOptions:
    """Of the key, or of the value."""

    field: FieldName
    kind: str
    schema: str | None  # as it was given: a text, or a file
    subject: str | None
    version: int | str | None
    schema_id: int | None
    message: str | None
    framing: str | None
    flatten: bool
    time_zone: str | None

    @property
    def is_pinned(self) -> bool:
        """Whether the user has said which schema it is, so that another one than before is intended."""
        return self.schema is not None or self.version is not None or self.schema_id is not None


@dataclasses.dataclass(frozen=True, slots=True)
class FormatOptions:
    """All of them, checked. Picklable: Spark sends it to executors."""

    fields: tuple[FieldOptions, ...] = ()
    is_permissive: bool = False
    columns: tuple[str, ...] | None = None
    auto_registers: bool = False
    registry: Mapping[str, str] | None = dataclasses.field(default=None, repr=False)
    """The options schema.registry.… without their prefix, including secrets."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> FormatOptions:
        """Raises OptionError."""
        options = lowercase_names(given)
        fields = tuple(found for field in FIELDS if (found := _parse_field(options, field)) is not None)
        registry = _parse_registry(options)
        is_permissive = _parse_mode(options, bool(fields))
        if registry is not None and not fields:
            raise OptionError("schema.registry.url needs value.format or key.format: json, avro or protobuf")
        for each in fields:
            _check_schema_source(each, registry is not None)
        return cls(
            fields=fields,
            is_permissive=is_permissive,
            columns=_parse_columns(options),
            auto_registers=parse_boolean(options, "auto.register.schemas"),
            registry=registry,
        )

    def of(self, field: FieldName) -> FieldOptions | None:
        return next((each for each in self.fields if each.field == field), None)


def secret_format_options(given: Mapping[str, str]) -> list[str]:
    """The names of those that contain a secret."""
    options = lowercase_names(given)
    found = [name for name in _SECRETS if name in options]
    has_user = "@" in options.get("schema.registry.url", "")  # it may contain several URLs
    return [*found, *(["schema.registry.url"] if has_user else [])]


def _parse_field(options: Mapping[str, str], field: FieldName) -> FieldOptions | None:
    given = {
        name: options[f"{field}.{name}".lower()].strip()
        for name in FIELD_FORMAT_OPTIONS
        if f"{field}.{name}".lower() in options
    }
    for name, text in given.items():
        if not text:
            raise OptionError(f"{field}.{name} is empty. Set it, or remove it")
    kind = given.get("format", "").lower()
    if "format" not in given:
        if given:
            raise OptionError(f"{field}.{next(iter(given))} needs {field}.format: json, avro or protobuf")
        return None
    if kind not in KINDS:
        raise OptionError(f"{field}.format={given['format']!r} must be json, avro or protobuf")
    framing = given.get("framing")
    if framing is not None and framing.lower() not in FRAMINGS:
        raise OptionError(f"{field}.framing={framing!r} must be one of {', '.join(FRAMINGS)}")
    if "message" in given and kind != "protobuf":
        raise OptionError(f"{field}.message is for {field}.format=protobuf only. Remove it")
    if "timeZone" in given and kind != "json":
        raise OptionError(f"{field}.timeZone is for {field}.format=json only. Remove it")
    pins = [name for name in ("schema", "schema.version", "schema.id") if name in given]
    if len(pins) > 1:
        raise OptionError(f"Only one of these options can be set: {', '.join(f'{field}.{name}' for name in pins)}")
    schema_id = given.get("schema.id")
    return FieldOptions(
        field=field,
        kind=kind,
        schema=given.get("schema"),
        subject=given.get("subject"),
        version=_parse_version(given.get("schema.version"), field),
        schema_id=None if schema_id is None else parse_integer(schema_id, f"{field}.schema.id"),
        message=given.get("message"),
        framing=None if framing is None else framing.lower(),
        flatten=parse_boolean(options, f"{field}.flatten"),
        time_zone=given.get("timeZone"),
    )


def _parse_version(text: str | None, field: str) -> int | str | None:
    if text is None or text.lower() == LATEST_VERSION:
        return None if text is None else LATEST_VERSION
    return parse_integer(text, f"{field}.schema.version", low=1)


def _parse_registry(options: Mapping[str, str]) -> dict[str, str] | None:
    prefix = "schema.registry."
    found = {name.removeprefix(prefix): options[name] for name in map(str.lower, REGISTRY_OPTIONS) if name in options}
    if not found:
        return None
    if not found.get("url", "").strip():
        raise OptionError(
            "The option schema.registry.url is missing. Set it to the address of the registry, such as "
            "http://localhost:8081"
        )
    return found


def _check_schema_source(field: FieldOptions, has_registry: bool) -> None:
    name = field.field
    if has_registry:
        return
    if field.schema is None and field.version is None and field.schema_id is None and field.subject is None:
        return  # a JSON sink may do without; `spark/formats.py` decides
    for option, is_given in (
        (f"{name}.schema.version", field.version is not None),
        (f"{name}.schema.id", field.schema_id is not None),
        (f"{name}.subject", field.subject is not None),
    ):
        if is_given:
            raise OptionError(f"{option} needs schema.registry.url, the address of the schema registry")


def _parse_mode(options: Mapping[str, str], has_format: bool) -> bool:
    given = options.get("mode")
    if given is None:
        return False
    mode = given.strip().upper()
    if mode == "DROPMALFORMED":
        raise OptionError(
            "mode=DROPMALFORMED is not supported: no record is dropped silently. Use mode=PERMISSIVE, and filter by "
            "value_error"
        )
    if mode not in _MODES:
        raise OptionError(f"mode={given!r} must be {' or '.join(_MODES)}")
    if mode == "PERMISSIVE" and not has_format:
        raise OptionError("mode=PERMISSIVE needs value.format or key.format: bytes are never malformed")
    return mode == "PERMISSIVE"


def _parse_columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    given = options.get("columns")
    if given is None:
        return None
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    if not names:
        raise OptionError(f"columns={given!r} names no column. Use the form value,timestamp")
    return names
