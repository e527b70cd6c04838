"""Protobuf to typed columns, and back."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .._arguments import short_repr, whole_number_of
from .._format import DecodedColumn, Format, Source
from ..errors import ConfigError, SchemaRegistryError
from ._conform import conform
from ._framing import MOST_UNKNOWN, NOT_ASKED, framing_of
from ._kernel import ProtobufMessage, ProtobufSchema, as_cells, decoded, encoded, load_pyarrow, schema_ids
from ._registry import RegisteredSchema, Registry, SchemaReference
from ._subjects import SubjectSchemas, is_registry

if TYPE_CHECKING:
    import pyarrow

_MOST_WRITERS = 1000


class _GivenSchema(NamedTuple):
    """A schema that does not come from a registry. It can be pickled, and is a key of caches."""

    text: str = ""
    descriptors: bytes = b""
    """A FileDescriptorSet, if there is no text."""


class _Settings(NamedTuple):
    message: str | None
    framing: str
    type_reference: bool
    unsigned: bool
    recursion: int
    auto_register_schemas: bool


class Protobuf(Format):
    """Protobuf messages, proto2 and proto3.

    - `Protobuf(registry)`: each record begins with the id of its writer's schema. The columns are the fields of the
      latest schema of the subject, when it is first needed.
    - `Protobuf(registry, schema=…)`: the same, with the fields of your own schema.
    - `Protobuf(schema)`: records without an id.

    A schema is one of these:

    - a .proto text
    - a `pathlib.Path` of a .proto file or of a FileDescriptorSet (`protoc --include_imports --descriptor_set_out=…`)
    - the bytes of a FileDescriptorSet
    - a generated message class

    `message` is the full name of the message. By default, it is the class, or the first message of the schema.
    `subject` is `<topic>-value` or `<topic>-key` by default.

    With a registry, records have Confluent's `framing` by default, without one they have `none`. Between the schema id
    and the message, Confluent's serializers write indexes, and Apicurio's a `type_reference` with the name of the
    message. `framing` decides which of them is expected, unless `type_reference` says it.

    `unsigned=False` is for systems without unsigned integers, such as Spark: uint32 becomes int64, and uint64 becomes
    decimal(20, 0). `recursion` is how many times a message may be nested in itself. By default, recursive messages are
    refused. With `auto_register_schemas`, encoding registers a schema of your own that the subject does not have.
    """

    def __init__(
        self,
        source: Registry | str | bytes | Path | type,
        message: str | None = None,
        *,
        schema: str | bytes | Path | type | None = None,
        subject: str | None = None,
        framing: str | None = None,
        type_reference: bool | None = None,
        unsigned: bool = True,
        recursion: int = 0,
        auto_register_schemas: bool = False,
    ) -> None:
        subjects: SubjectSchemas | None = None
        if is_registry(source):
            subjects = SubjectSchemas(source, subject, "PROTOBUF")  # type: ignore[arg-type]
        elif schema is not None:
            raise ConfigError("give one schema, or a SchemaRegistry and a schema: Protobuf(registry, schema=…)")
        elif subject is not None or auto_register_schemas:
            raise ConfigError("subject= and auto_register_schemas= need a schema registry: Protobuf(registry, …)")
        else:
            schema = source  # type: ignore[assignment]
        recursion = whole_number_of("recursion", recursion)
        if recursion < 0:
            raise ConfigError(f"recursion={recursion} is negative: use 0 to refuse recursive messages")
        framing = framing or ("none" if subjects is None else "confluent")
        if type_reference is None:
            type_reference = framing.startswith("apicurio")
        if message is None and isinstance(schema, type) and hasattr(schema, "DESCRIPTOR"):
            message = schema.DESCRIPTOR.full_name
        settings = _Settings(message, framing, type_reference, unsigned, recursion, auto_register_schemas)
        self._set(None if schema is None else _given_schema(schema), subjects, settings)
        if self._given is not None:
            self._message(self._given)  # raises if the schema cannot be read

    def _set(self, given: _GivenSchema | None, subjects: SubjectSchemas | None, settings: _Settings) -> None:
        self._given = given
        self._subjects = subjects
        self._settings = settings
        self._framing = framing_of(settings.framing)
        # By subject. Two threads may both ask the registry, which gives both the same answer.
        self._registered_schemas: dict[str, RegisteredSchema] = {}
        self._known_writers: dict[int, ProtobufSchema] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._given, self._subjects, self._settings)

    def __repr__(self) -> str:
        parts = [] if self._subjects is None else [repr(self._subjects.registry)]
        if self._subjects is None or self._settings.message is not None:
            parts.append(f"message={self._settings.message!r}")
        if self._settings.framing != "none":
            parts.append(f"framing={self._settings.framing!r}")
        return f"Protobuf({', '.join(parts)})"

    def arrow_type(self, source: Source) -> pyarrow.DataType:
        return _arrow_type(self._message(self._reader(source)))

    def decode(self, cells: pyarrow.Array, source: Source) -> DecodedColumn:
        return self.decode_prepared(cells, source, self.prepare(cells, source))

    def prepare(self, cells: pyarrow.Array, source: Source) -> tuple[ProtobufMessage, dict[int, ProtobufSchema | str]]:
        return self._message(self._reader(source)), self._writers(as_cells(cells))

    def decode_prepared(self, cells: pyarrow.Array, source: Source, prepared: Any) -> DecodedColumn:
        message, writers = prepared
        return decoded(
            message.decode(
                as_cells(cells),
                id_size=self._framing.id_size,
                type_reference=self._settings.type_reference,
                schemas=writers,
            )
        )

    def encode(self, values: pyarrow.Array, source: Source) -> pyarrow.Array:
        self._framing.check_writable()
        reader = self._reader(source)
        message = self._message(reader)
        values = conform(values, _arrow_type(message), source.field)
        registered = reader if isinstance(reader, RegisteredSchema) else self._registered(reader, source)
        try:
            result = message.encode(
                values,
                id_size=self._framing.id_size,
                schema_id=0 if registered is None else registered.id,
                type_reference=self._settings.type_reference,
                schema=_compiled(registered or reader),
            )
        except ValueError as e:
            raise ConfigError(f"cannot encode as {message.name}: {e}") from None
        return encoded(result, source)

    def _reader(self, source: Source) -> _GivenSchema | RegisteredSchema:
        """The schema of the columns."""
        if self._given is not None:
            return self._given
        assert self._subjects is not None
        return self._subjects.latest(source)

    def _message(self, schema: _GivenSchema | RegisteredSchema) -> ProtobufMessage:
        settings = self._settings
        return _message(schema, settings.message, settings.unsigned, settings.recursion)

    def _writers(self, cells: Any) -> dict[int, ProtobufSchema | str]:
        """The schemas of a column's records. Raises SchemaRegistryError if the registry is unavailable."""
        # A type reference names the message, so that no schema is needed.
        if self._settings.type_reference or not self._framing.id_size:
            return {}
        found: dict[int, ProtobufSchema | str] = {}
        unknown = 0
        for schema_id in schema_ids(cells, id_size=self._framing.id_size):
            known = self._known_writers.get(schema_id)
            if known is None and unknown >= MOST_UNKNOWN:
                found[schema_id] = NOT_ASKED
                continue
            found[schema_id] = writer = self._writer(schema_id) if known is None else known
            unknown += isinstance(writer, str)
        return found

    def _writer(self, schema_id: int) -> ProtobufSchema | str:
        """The schema of records with this id, or why they cannot be decoded."""
        if self._subjects is None:
            assert self._given is not None
            return _compiled(self._given)
        if (refusal := self._framing.refusal(schema_id)) is not None:
            return refusal
        try:
            found = self._subjects.registry.schema(schema_id, self._framing.id_kind)
        except SchemaRegistryError as e:
            if e.scope == "registry":
                raise
            return str(e)  # not kept: the schema may be registered or allowed later
        if found.kind != "PROTOBUF":
            return f"schema {schema_id} is {found.kind}, not PROTOBUF"
        try:
            compiled = _compiled(found)
        except ConfigError as e:
            return f"schema {schema_id} cannot be read: {e}"
        if len(self._known_writers) >= _MOST_WRITERS:
            self._known_writers = {}
        self._known_writers[schema_id] = compiled
        return compiled

    def _registered(self, schema: _GivenSchema, source: Source) -> RegisteredSchema | None:
        """The schema in the registry, for the id of encoded records. Raises SchemaRegistryError."""
        if not self._framing.id_size:
            return None
        if self._subjects is None:
            raise ConfigError("the framing needs a schema id: use Protobuf(registry, …), or framing='none'")
        subject = self._subjects.subject_of(source)
        if subject in self._registered_schemas:
            return self._registered_schemas[subject]
        registry = self._subjects.registry
        find = registry.register if self._settings.auto_register_schemas else registry.look_up
        *imports, main = _registered_texts(schema)
        references: tuple[SchemaReference, ...] = ()
        for name, text in imports:
            found = find(name, text, "PROTOBUF", references)
            if found.version is None:  # some registries only return the id of a schema that they register
                found = registry.look_up(name, text, "PROTOBUF", references)
            references += (SchemaReference(name, text, name, found.version or 0),)
        registered = find(subject, main[1], "PROTOBUF", references)
        self._registered_schemas[subject] = registered
        return registered


def _restore(given: _GivenSchema | None, subjects: SubjectSchemas | None, settings: _Settings) -> Protobuf:
    restored = Protobuf.__new__(Protobuf)
    restored._set(given, subjects, settings)
    return restored


def _given_schema(given: Any) -> _GivenSchema:
    if isinstance(given, str):
        return _GivenSchema(text=given)
    if isinstance(given, bytes):
        return _GivenSchema(descriptors=given)
    if isinstance(given, Path):
        return _GivenSchema(text=given.read_text()) if given.suffix == ".proto" else _given_schema(given.read_bytes())
    if isinstance(given, type) and hasattr(given, "DESCRIPTOR"):
        files = dict(_files(given.DESCRIPTOR.file))
        # The field `file` (1) of a FileDescriptorSet, once for each file.
        return _GivenSchema(descriptors=b"".join(b"\x0a" + _varint(len(each)) + each for each in files.values()))
    raise ConfigError(
        "the schema must be a SchemaRegistry, a .proto text, a pathlib.Path, the bytes of a FileDescriptorSet or a "
        f"generated message class, not {short_repr(given)}"
    )


def _files(descriptor: Any) -> Iterable[tuple[str, bytes]]:
    """A file of generated messages after all files that it imports."""
    for each in descriptor.dependencies:
        yield from _files(each)
    yield descriptor.name, descriptor.serialized_pb


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


# Schemas and messages are immutable, and used by any thread.
@lru_cache(maxsize=256)
def _compiled(schema: _GivenSchema | RegisteredSchema) -> ProtobufSchema:
    try:
        if isinstance(schema, RegisteredSchema):
            return ProtobufSchema.from_text(schema.text, [(each.name, each.text) for each in schema.references])
        if schema.text:
            return ProtobufSchema.from_text(schema.text, [])
        return ProtobufSchema.from_descriptors(schema.descriptors)
    except ValueError as e:
        raise ConfigError(f"the Protobuf schema is invalid: {e}") from None


@lru_cache(maxsize=256)
def _message(
    schema: _GivenSchema | RegisteredSchema, name: str | None, unsigned: bool, recursion: int
) -> ProtobufMessage:
    try:
        return ProtobufMessage(_compiled(schema), name, unsigned=unsigned, recursion=recursion)
    except ValueError as e:
        raise ConfigError(f"the Protobuf schema cannot be read as columns: {e}") from None


@lru_cache(maxsize=256)
def _arrow_type(message: ProtobufMessage) -> Any:
    pyarrow = load_pyarrow()
    nothing = message.decode(pyarrow.array([], pyarrow.binary()), id_size=0, type_reference=False, schemas={})
    return decoded(nothing).column.type


def _registered_texts(schema: _GivenSchema) -> list[tuple[str, str]]:
    """The names and texts of imported files, and at last of the schema itself, in the forms that registries accept."""
    if schema.text:
        return [("", schema.text)]
    return [(name, base64.b64encode(file).decode()) for name, file in _compiled(schema).files()]
