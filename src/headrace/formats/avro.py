"""Avro to typed columns, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .._arguments import short_repr
from .._format import DecodedColumn, Format, Source
from ..errors import ConfigError, RecordEncodeError, SchemaRegistryError
from ._conform import conform
from ._framing import MOST_UNKNOWN, NOT_ASKED, framing_of
from ._kernel import (
    AvroDecoder,
    AvroPlan,
    AvroSchema,
    as_cells,
    decoded,
    encode_avro,
    encoded,
    load_pyarrow,
    schema_ids,
)
from ._registry import RegisteredSchema, Registry, SchemaReference
from ._subjects import SubjectSchemas, is_registry

if TYPE_CHECKING:
    import pyarrow

_MOST_PLANS = 1000
_Reader = tuple[str, tuple[SchemaReference, ...]]  # a schema, and the schemas that it refers to


class Avro(Format):
    """Avro, by the writer's schema of each record, as columns of one reader's schema.

    - `Avro(registry)`: each record begins with the id of its writer's schema. The reader's schema is the latest one of
      the subject, when it is first needed.
    - `Avro(registry, schema)`: the same, with your own reader's schema.
    - `Avro(schema)`: records without an id, all written with this schema. With `writer_schema`, that is the schema
      they were written with, and `schema` the reader's.

    A schema is JSON text, or a dictionary. `framing` is `confluent` by default with a registry: a zero byte and an id
    of 4 bytes. Apicurio's serializers before version 3 have `apicurio` (a global id of 8 bytes) or `apicurio-content`.
    `subject` is `<topic>-value` or `<topic>-key` by default.

    To encode, the schema must be registered; `auto_register_schemas=True` registers it.
    """

    def __init__(
        self,
        source: Registry | str | Mapping[str, Any] | list[Any],
        schema: str | Mapping[str, Any] | list[Any] | None = None,
        *,
        writer_schema: str | Mapping[str, Any] | list[Any] | None = None,
        subject: str | None = None,
        framing: str | None = None,
        auto_register_schemas: bool = False,
    ) -> None:
        self._subjects: SubjectSchemas | None = None
        if is_registry(source):
            self._subjects = SubjectSchemas(source, subject, "AVRO")  # type: ignore[arg-type]
        elif schema is not None:
            raise ConfigError("give one schema, or a SchemaRegistry and a schema: Avro(registry, schema)")
        elif subject is not None or auto_register_schemas:
            raise ConfigError("subject= and auto_register_schemas= need a schema registry: Avro(registry, …)")
        else:
            schema = source  # type: ignore[assignment]
        self._framing_name = framing or ("none" if self._subjects is None else "confluent")
        self._framing = framing_of(self._framing_name)
        if self._framing.id_size and self._subjects is None:
            raise ConfigError(f"framing={framing!r} needs a schema registry: Avro(registry, …)")
        if self._subjects is not None and (writer_schema is not None or not self._framing.id_size):
            raise ConfigError(
                "with a registry, each record has its writer's schema: leave out writer_schema and framing"
            )
        self._reader_text = None if schema is None else _text_of(schema)
        self._writer_text = None if writer_schema is None else _text_of(writer_schema)
        self._auto_register = auto_register_schemas
        self._plans: dict[tuple[str, int], AvroPlan | str] = {}
        for text in (self._reader_text, self._writer_text):
            if text is not None:
                _schema(text, ())
        if self._writer_text is not None:
            self._plain_plan()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}

    def __repr__(self) -> str:
        given = [] if self._subjects is None else [repr(self._subjects.registry)]
        given += [short_repr(self._reader_text)] if self._reader_text is not None else []
        return f"Avro({', '.join(given)}, framing={self._framing_name!r})"

    def arrow_type(self, source: Source) -> pyarrow.DataType:
        return _arrow_type(*self._reader(source))

    def decode(self, cells: pyarrow.Array, source: Source) -> DecodedColumn:
        return self.decode_prepared(cells, source, self.prepare(cells, source))

    def prepare(self, cells: pyarrow.Array, source: Source) -> tuple[AvroDecoder, dict[int, AvroPlan | str]]:
        reader = self._reader(source)
        return _decoder(*reader, self._framing.id_size), self._plans_for(as_cells(cells), reader)

    def decode_prepared(self, cells: pyarrow.Array, source: Source, prepared: Any) -> DecodedColumn:
        decoder, plans = prepared
        return decoded(decoder.decode(as_cells(cells), plans))

    def encode(self, values: pyarrow.Array, source: Source) -> pyarrow.Array:
        schema_id, text, references = 0, *self._reader(source)
        if self._subjects is not None:
            schema_id = self._written_id(source)
        elif self._writer_text is not None:
            text, references = self._writer_text, ()
        values = conform(values, _arrow_type(text, references), source.field)
        result = encode_avro(_schema(text, references), values, id_size=self._framing.id_size, schema_id=schema_id)
        return encoded(result, source)

    def fill_defaults(self, text: bytes, source: Source) -> bytes:
        """JSON of a value, as `Json` reads it for `arrow_type`, with the schema's defaults for fields that are absent.

        Raises RecordEncodeError for a field that is absent, has no default and does not allow null.
        """
        schema = _schema(*self._reader(source))
        try:
            return schema.fill_defaults(text.decode()).encode()
        except UnicodeError:
            return text  # whoever reads it reports that it is not UTF-8
        except ValueError as error:
            raise RecordEncodeError(0, source.field, str(error)) from None

    def _reader(self, source: Source) -> _Reader:
        """The text of the reader's schema, and the schemas that it refers to."""
        if self._reader_text is not None:
            return self._reader_text, ()
        assert self._subjects is not None
        found = self._subjects.latest(source)
        return found.text, found.references

    def _written_id(self, source: Source) -> int:
        assert self._subjects is not None
        self._framing.check_writable()
        if self._reader_text is None:
            return self._subjects.latest(source).id
        return self._subjects.id_of(source, self._reader_text, register=self._auto_register)

    def _plans_for(self, cells: Any, reader: _Reader) -> dict[int, AvroPlan | str]:
        if self._subjects is None:
            return {0: self._plain_plan()}
        plans: dict[int, AvroPlan | str] = {}
        unknown = 0
        for schema_id in schema_ids(cells, id_size=self._framing.id_size):
            if unknown >= MOST_UNKNOWN:
                plans[schema_id] = self._plans.get((reader[0], schema_id), NOT_ASKED)
                continue
            plans[schema_id] = found = self._plan(schema_id, reader)
            unknown += isinstance(found, str)
        return plans

    def _plain_plan(self) -> AvroPlan:
        reader = self._reader_text or ""
        try:
            return _plan_of(_schema(self._writer_text or reader, ()), _schema(reader, ()))
        except ValueError as error:
            raise ConfigError(f"writer_schema cannot be read with the schema: {error}") from None

    def _plan(self, schema_id: int, reader: _Reader) -> AvroPlan | str:
        """How to read records with this id, or why they cannot be read."""
        key = reader[0], schema_id
        found = self._plans.get(key)
        if found is not None:
            return found
        if (refusal := self._framing.refusal(schema_id)) is not None:
            return refusal
        assert self._subjects is not None
        try:
            writer = self._subjects.registry.schema(schema_id, self._framing.id_kind)
        except SchemaRegistryError as error:
            if error.scope == "registry":
                raise
            return str(error)  # not kept: the schema may be registered or allowed later
        found = _resolved(writer, schema_id, reader)
        if len(self._plans) >= _MOST_PLANS:
            self._plans = {}
        self._plans[key] = found
        return found


def _resolved(writer: RegisteredSchema, schema_id: int, reader: _Reader) -> AvroPlan | str:
    if writer.kind != "AVRO":
        return f"the schema with id {schema_id} is {writer.kind}, not AVRO"
    try:
        return _plan_of(_schema(writer.text, writer.references), _schema(*reader))
    except (ValueError, ConfigError) as error:
        return f"the writer's schema with id {schema_id} cannot be read with the reader's schema: {error}"


def _plan_of(writer: AvroSchema, reader: AvroSchema) -> AvroPlan:
    return AvroPlan(writer, reader)


def _text_of(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    if isinstance(schema, (Mapping, list)):
        return json.dumps(schema)
    raise ConfigError(f"an Avro schema must be JSON text or a dictionary, not {short_repr(schema)}")


@lru_cache(maxsize=256)
def _schema(text: str, references: tuple[SchemaReference, ...]) -> AvroSchema:
    try:
        return AvroSchema(text, [each.text for each in references])
    except ValueError as error:
        raise ConfigError(str(error)) from None


@lru_cache(maxsize=256)
def _arrow_type(text: str, references: tuple[SchemaReference, ...]) -> Any:
    schema = _schema(text, references)
    return load_pyarrow().field(schema).type


@lru_cache(maxsize=256)
def _decoder(text: str, references: tuple[SchemaReference, ...], id_size: int) -> AvroDecoder:
    return AvroDecoder(_schema(text, references), id_size=id_size)
