"""The rows of a task as records: keys and values that have a format are encoded.

The driver encodes a column without rows before the tasks start. That finds columns that do not fit the schema, and
looks the schema up: tasks get its id with the format, and do not ask the registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DataType, StructType

from ..._format import Source
from ...errors import ConfigError
from ..formats import TypedColumns, TypedField, resolve_formats
from ..options.formats import FormatOptions
from ..options.parsers import OptionError
from ..options.sink import SinkOptions
from .columns import RECORD_COLUMNS, written_columns

if TYPE_CHECKING:
    import pyarrow


class RowEncoder:
    """Selects the columns to write, and encodes them. Picklable: Spark sends it to executors."""

    def __init__(self, columns: list[str], fields: tuple[str, ...] = (), typed: TypedColumns | None = None) -> None:
        self._columns = columns
        self._fields = fields  # of the value, if they are columns of their own
        self._typed = TypedColumns() if typed is None else typed

    def __reduce__(self) -> tuple[Any, ...]:
        return RowEncoder, (self._columns, self._fields, self._typed)

    def encode(self, batch: pyarrow.RecordBatch, topic: str | None) -> pyarrow.RecordBatch:
        """Raises RecordEncodeError for a row that does not fit the schema."""
        selected = batch.select(self._columns)
        for each in self._typed.fields:
            name = each.options.field
            values = _struct(batch, self._fields) if name == "value" and self._fields else selected.column(name)
            cells = encode_column(each, values, topic)
            if name in self._columns:
                selected = selected.set_column(self._columns.index(name), name, cells)
            else:
                selected = selected.append_column(name, cells)
        return selected


def plan_rows(schema: StructType, options: SinkOptions, formats: FormatOptions) -> RowEncoder:
    """On the driver, before the tasks start. Raises OptionError and SchemaRegistryError."""
    columns, fields = written_columns(schema, options.topic, [each.field for each in formats.fields])
    if not formats.fields:
        return RowEncoder(columns)
    types: dict[str, DataType] = {field.name: field.dataType for field in schema}
    if fields:
        types["value"] = StructType([field for field in schema if field.name in fields])
    for each in formats.fields:
        if each.field not in types:
            raise OptionError(
                f"{each.field}.format={each.kind}: there is no column {each.field}. Add it, or remove the option"
            )
    typed = resolve_formats(formats, None if options.topic is None else [options.topic], types)
    for field in typed.fields:
        if field.options.field == "value" and fields:
            _check_names(field, schema)
        _check_type(field, types, options.topic)
    return RowEncoder(columns, fields, typed)


def encode_column(each: TypedField, values: Any, topic: str | None) -> Any:
    from ..arrow_types import from_spark

    source = Source(topic or "", each.options.field)
    return each.format.encode(from_spark(values, each.format.arrow_type(source)), source)


def _check_names(each: TypedField, schema: StructType) -> None:
    """A column such as `timestamp` belongs to the record, and not to the value."""
    names = each.type.names if isinstance(each.type, StructType) else []
    for field in schema:
        if field.name in names and field.name in RECORD_COLUMNS:
            raise OptionError(
                f"The schema of the value has a field {field.name}, and a column {field.name} belongs to the record. "
                f"Select the fields of the value as a struct: struct({', '.join(names)}) AS value"
            )


def _check_type(each: TypedField, types: Mapping[str, DataType], topic: str | None) -> None:
    import pyarrow

    from ..arrow_types import arrow_type

    try:
        encode_column(each, pyarrow.array([], arrow_type(types[each.options.field])), topic)
    except OptionError:
        raise
    except ConfigError as error:
        raise OptionError(f"The columns do not fit the schema: {error}") from error


def _struct(batch: pyarrow.RecordBatch, names: tuple[str, ...]) -> Any:
    import pyarrow

    return pyarrow.StructArray.from_arrays(
        [batch.column(name) for name in names], fields=[batch.schema.field(name) for name in names]
    )
