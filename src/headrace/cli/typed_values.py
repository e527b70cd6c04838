"""The options --value and --key of `tail` and `produce`: Avro, JSON or Protobuf, with the schemas of a registry.

The registry is --registry, else HEADRACE_REGISTRY, else that of `headrace up --registry`. Secrets come from the
environment or a prompt, never from the command line, where other users see them:

    HEADRACE_REGISTRY_PASSWORD   with --registry-user; without it, the command asks for the password on a terminal
    HEADRACE_REGISTRY_TOKEN      instead of a user
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, Literal

import click

from ..errors import HeadraceError, RecordEncodeError
from ..local.background import read_status
from .connection_options import Command
from .formatting import say
from .record_format import JsonText

if TYPE_CHECKING:
    from .._format import Format
    from ..formats import SchemaRegistry
    from ..records import Records

_CHOICES = click.Choice(["bytes", "json", "avro", "protobuf"])


@dataclasses.dataclass(frozen=True, slots=True)
class TypedFields:
    """What --value, --key and --registry say."""

    value: str
    key: str
    url: str | None
    user: str | None
    ca_file: str | None

    @property
    def names(self) -> frozenset[str]:
        """The fields that are not bytes."""
        return frozenset(name for name in ("key", "value") if getattr(self, name) != "bytes")

    def __bool__(self) -> bool:
        return bool(self.names)

    def formats(self) -> dict[Literal["key", "value"], Format]:
        """The formats of the fields that are not bytes."""
        from ..formats import Avro, Json, Protobuf

        registry = self.registry()
        kinds: dict[str, type[Avro | Json | Protobuf]] = {"avro": Avro, "json": Json, "protobuf": Protobuf}
        chosen: dict[Literal["key", "value"], str] = {"key": self.key, "value": self.value}
        return {field: kinds[name](registry) for field, name in chosen.items() if name != "bytes"}

    def registry(self) -> SchemaRegistry:
        from ..formats import SchemaRegistry

        url = self.url or _local_registry()
        token = os.environ.get("HEADRACE_REGISTRY_TOKEN")
        password = None
        if self.user is not None:
            token = None
            password = os.environ.get("HEADRACE_REGISTRY_PASSWORD")
            if password is None and sys.stdin.isatty():
                password = click.prompt(f"Password of {self.user} at the schema registry", hide_input=True, err=True)
            if password is None:
                raise click.UsageError("--registry-user needs the password in HEADRACE_REGISTRY_PASSWORD")
        return SchemaRegistry(url, username=self.user, password=password, token=token, ca_file=self.ca_file)


def _local_registry() -> str:
    registry = read_status().registry
    if registry is None:
        raise click.UsageError(
            "no schema registry: name one with --registry URL (or in HEADRACE_REGISTRY), "
            "or start one here with `headrace up --registry`"
        )
    return registry.url


def typed_options(command: Command) -> Command:
    """Adds --value, --key, --registry, --registry-user and --registry-ca. The command receives `typed`."""

    @click.option(
        "--value", "value_format", type=_CHOICES, default="bytes", show_default=True, help="Format of values."
    )
    @click.option("--key", "key_format", type=_CHOICES, default="bytes", show_default=True, help="Format of keys.")
    @click.option(
        "--registry",
        envvar="HEADRACE_REGISTRY",
        metavar="URL",
        help="The schema registry, for json, avro and protobuf.  [default: that of `headrace up --registry`]",
    )
    @click.option(
        "--registry-user",
        envvar="HEADRACE_REGISTRY_USER",
        metavar="USER",
        help="Log in as this user; the password is in HEADRACE_REGISTRY_PASSWORD, or prompted for.",
    )
    @click.option("--registry-ca", type=click.Path(exists=True, dir_okay=False), help="A PEM file with CAs to trust.")
    @functools.wraps(command)
    def with_typed(
        *args: Any,
        value_format: str,
        key_format: str,
        registry: str | None,
        registry_user: str | None,
        registry_ca: str | None,
        **rest: Any,
    ) -> Any:
        typed = TypedFields(value_format, key_format, registry, registry_user, registry_ca)
        return command(*args, typed=typed, **rest)

    return with_typed


@dataclasses.dataclass(frozen=True, slots=True)
class DecodedRecord:
    """A record with decoded fields as JSON text, for `record_format.py`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def decoder(typed: TypedFields) -> Callable[[Records], list[DecodedRecord]]:
    """A function that decodes the records of a poll. A field that cannot be decoded is null, with a line on stderr."""
    formats = typed.formats()

    def decode(records: Records) -> list[DecodedRecord]:
        return list(_decoded(records.rows(value=formats.get("value"), key=formats.get("key"), errors="null"), formats))

    return decode


def _decoded(rows: Iterable[dict[str, Any]], formats: Iterable[str]) -> Iterator[DecodedRecord]:
    for row in rows:
        for field in formats:
            if (reason := row[f"{field}_error"]) is not None:
                place = f"{row['topic']}-{row['partition']}, offset {row['offset']}"
                say(f"{place}: the {field} cannot be decoded: {reason}")
            elif row[field] is not None:
                row[field] = JsonText(json.dumps(row[field], default=_plain).encode())
        fields = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
        yield DecodedRecord(*(row[name] for name in fields))


def _plain(value: Any) -> Any:
    """Values that JSON does not have, as `Json` reads them: bytes in base64, times in ISO 8601, decimals as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, (date, datetime, time)) else str(value)


def encoder(typed: TypedFields, topic: str) -> Callable[[dict[str, Any], str], None]:
    """A function that encodes the JSON texts in a record's key and value, in place. Absent fields get the defaults of
    an Avro schema. `where` is for errors."""
    import pyarrow

    from .._format import Source
    from ..formats import Avro, Json

    formats = typed.formats()
    readers = {field: Json(used.arrow_type(Source(topic, field))) for field, used in formats.items()}

    def encode(record: dict[str, Any], where: str) -> None:
        for field, used in formats.items():
            if record.get(field) is None:
                continue
            source, text = Source(topic, field), record[field]
            try:
                if isinstance(used, Avro):
                    text = used.fill_defaults(text, source)
                parsed = readers[field].decode(pyarrow.array([text], pyarrow.binary()), source)
                if parsed.errors:
                    raise RecordEncodeError(0, field, parsed.errors[0])
                record[field] = used.encode(parsed.column, source)[0].as_py()
            except RecordEncodeError as error:
                raise HeadraceError(f"{where}: the {field} does not fit the schema: {error.reason}") from None

    return encode
