"""JSON to typed columns, and back."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .._arguments import short_repr
from .._format import DecodedColumn, Format, Source
from ..errors import ConfigError
from ._conform import conform
from ._ddl import parse_ddl
from ._framing import framing_of
from ._json_schema import arrow_type_of
from ._kernel import JsonDecoder, as_cells, decoded, encode_json, encoded, load_pyarrow
from ._registry import RegisteredSchema, Registry
from ._subjects import SubjectSchemas, is_registry

if TYPE_CHECKING:
    import pyarrow


class Json(Format):
    """JSON text in UTF-8.

    `schema` says which columns to read:

    - a `pyarrow.Schema`, or a pyarrow type for values that are not objects
    - a Spark DDL text: `"road string, speed double, at timestamp, tags array<string>"`
    - a JSON Schema as text
    - a `SchemaRegistry`: the latest JSON Schema of the subject, when it is first needed

    With a registry, records have Confluent's `framing` by default, without one they have `none`. `subject` is
    `<topic>-value` or `<topic>-key` by default.
    """

    def __init__(
        self,
        schema: str | pyarrow.Schema | pyarrow.DataType | Registry,
        *,
        subject: str | None = None,
        framing: str | None = None,
    ) -> None:
        self._subjects: SubjectSchemas | None = None
        self._type: Any = None
        self._given = schema
        if is_registry(schema):
            self._subjects = SubjectSchemas(schema, subject, "JSON")  # type: ignore[arg-type]
        elif subject is not None:
            raise ConfigError("subject= needs a schema registry: Json(registry, subject=…)")
        else:
            self._type = _type_of(schema)
        self._framing_name = framing or ("none" if self._subjects is None else "confluent")
        self._framing = framing_of(self._framing_name)
        if self._type is not None:
            self._decoder(self._type)  # raises if JSON cannot be read as this type

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._subjects, self._type, self._given, self._framing_name)

    def __repr__(self) -> str:
        framing = "" if self._framing_name == "none" else f", framing={self._framing_name!r}"
        given = self._given if isinstance(self._given, str) or self._subjects is not None else str(self._type)
        return f"Json({given!r}{framing})"

    def arrow_type(self, source: Source) -> pyarrow.DataType:
        if self._subjects is None:
            return self._type
        return _type_of_registered(self._subjects.latest(source))

    def decode(self, cells: pyarrow.Array, source: Source) -> DecodedColumn:
        return decoded(self._decoder(self.arrow_type(source)).decode(as_cells(cells)))

    def prepare(self, cells: pyarrow.Array, source: Source) -> None:
        self.arrow_type(source)  # the subject's schema; nothing else is needed

    def encode(self, values: pyarrow.Array, source: Source) -> pyarrow.Array:
        """JSON without blanks, with all fields of the schema. With a registry, framed by the id of its schema."""
        schema_id = 0
        if self._subjects is not None:
            self._framing.check_writable()
            schema_id = self._subjects.latest(source).id
        elif self._framing.id_size:
            raise ConfigError(f"framing={self._framing_name!r} needs a schema id: give Json a SchemaRegistry to encode")
        values = conform(values, _written_type(self.arrow_type(source)), source.field)
        return encoded(encode_json(values, id_size=self._framing.id_size, schema_id=schema_id), source)

    def _decoder(self, data_type: Any) -> JsonDecoder:
        return _decoder(data_type, self._framing.id_size)


def _restore(subjects: SubjectSchemas | None, data_type: Any, given: Any, framing: str) -> Json:
    if subjects is None:
        restored = Json(data_type, framing=framing)
    else:
        restored = Json(subjects.registry, framing=framing)
        restored._subjects = subjects
    restored._given = given
    return restored


def _type_of(schema: Any) -> Any:
    pyarrow = load_pyarrow()
    if isinstance(schema, str):
        return arrow_type_of(schema) if schema.lstrip().startswith("{") else parse_ddl(schema)
    if isinstance(schema, pyarrow.Schema):
        return _nullable(pyarrow.struct(list(schema)))
    if isinstance(schema, pyarrow.DataType):
        return _nullable(schema)
    raise ConfigError(
        "the schema must be a pyarrow schema, a text such as 'road string, speed double', a JSON Schema, or a "
        f"SchemaRegistry, not {short_repr(schema)}"
    )


def _nullable(data_type: Any) -> Any:
    """The type with fields, items and values that may be null: what is missing in a record is null."""
    pyarrow = load_pyarrow()
    types = pyarrow.types
    if types.is_struct(data_type):
        return pyarrow.struct([pyarrow.field(field.name, _nullable(field.type)) for field in data_type])
    if types.is_list(data_type):
        return pyarrow.list_(_nullable(data_type.value_type))
    if types.is_large_list(data_type):
        return pyarrow.large_list(_nullable(data_type.value_type))
    if types.is_map(data_type):
        return pyarrow.map_(data_type.key_type, _nullable(data_type.item_type))
    return data_type


def _written_type(data_type: Any) -> Any:
    """The type that the encoder takes instead: without large types, whose JSON is the same."""
    pyarrow = load_pyarrow()
    types = pyarrow.types
    if types.is_struct(data_type):
        return pyarrow.struct([pyarrow.field(field.name, _written_type(field.type)) for field in data_type])
    if types.is_list(data_type) or types.is_large_list(data_type):
        return pyarrow.list_(_written_type(data_type.value_type))
    if types.is_map(data_type):
        return pyarrow.map_(data_type.key_type, _written_type(data_type.item_type))
    if types.is_large_string(data_type):
        return pyarrow.string()
    return pyarrow.binary() if types.is_large_binary(data_type) else data_type


# Decoders are immutable, and used by any thread.
@lru_cache(maxsize=64)
def _decoder(data_type: Any, id_size: int) -> JsonDecoder:
    try:
        return JsonDecoder(data_type.__arrow_c_schema__(), id_size=id_size)
    except TypeError as error:
        raise ConfigError(f"cannot read JSON as {data_type}: {error}") from None


@lru_cache(maxsize=64)
def _type_of_registered(schema: RegisteredSchema) -> Any:
    return arrow_type_of(schema.text, {each.name: each.text for each in schema.references})
