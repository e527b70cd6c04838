"""The columns of `format("headrace")`: those of Spark's `format("kafka")`, `lane` (KIP-333), and typed ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .formats import TypedColumns, TypedField, struct_fields
from .options.formats import FormatOptions
from .options.group import has_lane_column
from .options.parsers import OptionError
from .versions import utc_arrow_schema

LANE = "lane"

_COLUMNS = [
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
]
_HEADERS = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)
_LANE = StructField(LANE, StringType())


def source_schema(given: Mapping[str, str], options: FormatOptions, typed: TypedColumns) -> StructType:
    """The schema with these options. Checks only those of formats, and raises OptionError."""
    flags = [value for name, value in given.items() if name.lower() == "includeheaders"]
    headers = [_HEADERS] if flags and flags[-1].strip().lower() == "true" else []
    lane = [_LANE] if has_lane_column(given) else []
    reasons = [error_column(each.options.field) for each in typed.fields] if options.is_permissive else []
    plain = [*_COLUMNS, *headers, *lane, *(StructField(name, StringType()) for name in reasons)]
    spread = {each.options.field for each in typed.fields if each.options.flatten}
    taken = {field.name.lower(): "the source's" for field in plain if field.name not in spread}
    found: list[StructField] = []
    for field in plain:
        each = typed.of(field.name)
        if each is None:
            found.append(field)
        elif each.options.flatten:
            found += _spread(each, taken)
        else:
            found.append(StructField(field.name, each.type))
    return StructType(found if options.columns is None else _select(found, options.columns))


def _spread(each: TypedField, taken: dict[str, str]) -> list[StructField]:
    """The fields of a struct as columns. `taken` are the names of other columns: Spark ignores their case."""
    name = each.options.field
    found = []
    for field in struct_fields(each):
        if field.name.lower() in taken:
            raise OptionError(
                f"{name}.flatten=true: the {name} has a field {field.name}, and {taken[field.name.lower()]} column has "
                f"the same name. Set {name}.flatten=false, and select the fields that you need from the column {name}"
            )
        taken[field.name.lower()] = f"the {name}'s"
        found.append(StructField(field.name, field.dataType))
    return found


def _select(found: list[StructField], names: tuple[str, ...]) -> list[StructField]:
    by_name = {field.name.lower(): field for field in found}
    for name in names:
        if name.lower() not in by_name:
            known = ", ".join(field.name for field in found)
            raise OptionError(f"columns: there is no column {name}. The columns of this query are {known}")
        if sum(each.lower() == name.lower() for each in names) > 1:
            raise OptionError(f"columns names {name} twice. Remove one")
    return [by_name[name.lower()] for name in names]


def error_column(field: str) -> str:
    """The column with the reason why a key or value cannot be decoded."""
    return f"{field}_error"


def check_schema(schema: StructType, own: StructType) -> None:
    """Raises OptionError if a user set another schema by .schema(…). Otherwise Spark passes `own`."""
    if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in own]:
        raise OptionError(
            f"The schema of format('headrace') is fixed: remove .schema({schema.simpleString()!r}). To decode values, "
            f"set value.format and value.schema; or cast the columns of {own.simpleString()}"
        )


def arrow_schema() -> Any:
    """The schema of the Arrow batches that tasks return, with all columns but `lane`. Spark expects timestamps in UTC,
    whatever the time zone of the session is."""
    return utc_arrow_schema(StructType([*_COLUMNS, _HEADERS]))
