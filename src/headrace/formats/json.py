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
from ._json_fields import nullable, written
from ._json_schema import field_of
from ._kernel import JsonDecoder, as_cells, decoded, encode_json, encoded, load_pyarrow
from ._registry import RegisteredSchema, Registry
from ._subjects import SubjectSchemas, is_registry
from ._zones import names

if TYPE_CHECKING:
    import pyarrow


class Json(Format):
    """JSON text in UTF-8.

    `schema` says which columns to read:

    - a `pyarrow.Schema`, or a pyarrow type for values that are not objects
    - a Spark DDL text: `"road string, speed double, at timestamp, tags array<string>"`
    - a JSON Schema as text
    - a `SchemaRegistry`: the latest JSON Schema of the subject, when it is first needed

    All columns may be null, because a field may be missing in a record. To encode, a JSON Schema says whether a null is
    written or leaves its field out, or is an error; otherwise it is written, unless the field of the pyarrow schema is
    not nullable.

    With a registry, records have Confluent's `framing` by default, without one they have `none`. `subject` is
    `<topic>-value` or `<topic>-key` by default.

    `timezone` is the zone of timestamps without a zone, in columns of instants (`timestamp`): a name such as
    `Europe/Berlin`, or an offset such as `+01:00`.
    """

    def __init__(
        self,
        schema: str | pyarrow.Schema | pyarrow.DataType | Registry,
        *,
        subject: str | None = None,
        framing: str | None = None,
        timezone: str = "UTC",
    ) -> None:
        self._subjects: SubjectSchemas | None = None
        self._field: Any = None  # the type, with the rules for writing
        self._type: Any = None
        self._given = schema
        if is_registry(schema):
            self._subjects = SubjectSchemas(schema, subject, "JSON")  # type: ignore[arg-type]
        elif subject is not None:
            raise ConfigError("subject= needs a schema registry: Json(registry, subject=…)")
        else:
            self._field = _field_of(schema)
            self._type = nullable(self._field.type)
        self._framing_name = framing or ("none" if self._subjects is None else "confluent")
        self._framing = framing_of(self._framing_name)
        self._timezone = timezone
        if self._type is not None:
            self._decoder(self._type)  # raises if JSON cannot be read as this type

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._subjects, self._field, self._given, self._framing_name, self._timezone)

    def __repr__(self) -> str:
        framing = "" if self._framing_name == "none" else f", framing={self._framing_name!r}"
        timezone = "" if self._timezone == "UTC" else f", timezone={self._timezone!r}"
        given = self._given if isinstance(self._given, str) or self._subjects is not None else str(self._type)
        return f"Json({given!r}{framing}{timezone})"

    def with_timezone(self, timezone: str) -> Json:
        """The same format with another zone."""
        return _restore(self._subjects, self._field, self._given, self._framing_name, timezone)

    def arrow_type(self, source: Source) -> pyarrow.DataType:
        if self._subjects is None:
            return self._type
        return nullable(_registered_field(self._subjects.latest(source)).type)

    def decode(self, cells: pyarrow.Array, source: Source) -> DecodedColumn:
        return self.decode_prepared(cells, source, self.prepare(cells, source))

    def prepare(self, cells: pyarrow.Array, source: Source) -> JsonDecoder:
        return self._decoder(self.arrow_type(source))  # the subject's schema; nothing else is needed

    def decode_prepared(self, cells: pyarrow.Array, source: Source, prepared: Any) -> DecodedColumn:
        return decoded(prepared.decode(as_cells(cells)))

    def encode(self, values: pyarrow.Array, source: Source) -> pyarrow.Array:
        """JSON without blanks. With a registry, framed by the id of its schema."""
        schema_id, field = 0, self._field
        if self._subjects is not None:
            self._framing.check_writable()
            latest = self._subjects.latest(source)
            schema_id, field = latest.id, _registered_field(latest)
        elif self._framing.id_size:
            raise ConfigError(f"framing={self._framing_name!r} needs a schema id: give Json a SchemaRegistry to encode")
        field = written(field)
        values = conform(values, nullable(field.type), source.field)
        capsule = field.__arrow_c_schema__()
        return encoded(encode_json(values, capsule, id_size=self._framing.id_size, schema_id=schema_id), source)

    def _decoder(self, data_type: Any) -> JsonDecoder:
        # Without instants, no zone is needed, and no database of zones.
        return _decoder(data_type, self._framing.id_size, self._timezone if _has_instants(data_type) else "UTC")


def _restore(subjects: SubjectSchemas | None, field: Any, given: Any, framing: str, timezone: str) -> Json:
    if subjects is None:
        restored = Json(field.type, framing=framing, timezone=timezone)
        restored._field = field
    else:
        restored = Json(subjects.registry, framing=framing, timezone=timezone)
        restored._subjects = subjects
    restored._given = given
    return restored


def _field_of(schema: Any) -> Any:
    pyarrow = load_pyarrow()
    if isinstance(schema, str):
        return field_of(schema) if schema.lstrip().startswith("{") else pyarrow.field("", parse_ddl(schema))
    if isinstance(schema, pyarrow.Schema):
        return pyarrow.field("", pyarrow.struct(list(schema)))
    if isinstance(schema, pyarrow.DataType):
        return pyarrow.field("", schema)
    raise ConfigError(
        "the schema must be a pyarrow schema, a text such as 'road string, speed double', a JSON Schema, or a "
        f"SchemaRegistry, not {short_repr(schema)}"
    )


# Decoders are immutable, and used by any thread.
@lru_cache(maxsize=64)
def _decoder(data_type: Any, id_size: int, timezone: str) -> JsonDecoder:
    try:
        return JsonDecoder(data_type.__arrow_c_schema__(), id_size=id_size, timezone=timezone)
    except LookupError:
        hint = "" if names() else ". This machine has no time-zone database: pip install tzdata"
        raise ConfigError(
            f"timezone={short_repr(timezone)} is unknown. Use a name such as Europe/Berlin, or an offset such as "
            f"+01:00{hint}"
        ) from None
    except TypeError as error:
        raise ConfigError(f"cannot read JSON as {data_type}: {error}") from None


def _has_instants(data_type: Any) -> bool:
    types = load_pyarrow().types
    if types.is_timestamp(data_type):
        return data_type.tz is not None
    return any(_has_instants(data_type.field(index).type) for index in range(data_type.num_fields))


@lru_cache(maxsize=64)
def _registered_field(schema: RegisteredSchema) -> Any:
    return field_of(schema.text, {each.name: each.text for each in schema.references})
