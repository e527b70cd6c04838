"""The columns of a DataFrame that is written. They are the same as those of Spark's own Kafka sink.

    column     type                                      if it is missing
    value      string or binary                          error
    key        string or binary                          no key
    headers    array<struct<key:string,value:binary>>    no headers
    topic      string                                    the option topic, which has precedence over the column
    partition  int                                       chosen by the producer

With value.format or key.format, the column has any type that fits the schema. If there is no column `value` then, all
other columns are the fields of the value.

Otherwise other columns are ignored. A null in `topic` is an error of the task that finds it.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from ..options.parsers import OptionError

TOPIC = "topic"
_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_TYPES: dict[str, tuple[DataType, ...]] = {
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (_HEADERS,),
    TOPIC: (StringType(),),
    "partition": (IntegerType(),),
}


RECORD_COLUMNS = (*_TYPES, "offset", "timestamp", "timestampType", "lane", "key_error", "value_error")
"""Columns that are not fields of a value without a column of its own: those of the sink and those of the source."""


def written_columns(
    schema: StructType, topic: str | None, formatted: Collection[str] = ()
) -> tuple[list[str], tuple[str, ...]]:
    """The names of the columns to write, and those of the value's fields if they are columns of their own. `formatted`
    are the columns that a format encodes. Raises OptionError."""
    found = [field for field in schema if field.name in _TYPES and not (field.name == TOPIC and topic is not None)]
    names = [field.name for field in found]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"The column {name} exists twice. Drop or rename one of them")
    if TOPIC not in names and topic is None:
        raise OptionError("No topic is given. Set the option topic, or add a column topic")
    fields: tuple[str, ...] = ()
    if "value" not in names and "value" in formatted:
        fields = tuple(name for name in schema.names if name not in RECORD_COLUMNS)
    if "value" not in names and not fields:
        raise OptionError(
            f"The column value is missing: the columns are {', '.join(schema.fieldNames()) or 'none'}. Select the "
            f"content of the records as value"
        )
    for field in found:
        allowed = _TYPES[field.name]
        if field.name not in formatted and not any(_is_same(field.dataType, each) for each in allowed):
            types = " or ".join(each.simpleString() for each in allowed)
            hint = f", set {field.name}.format," if field.name in ("key", "value") else ""
            raise OptionError(
                f"The column {field.name} is {field.dataType.simpleString()}, but must be {types}. Cast it{hint} or "
                f"convert it with to_json()"
            )
    return names, fields


def _is_same(given: DataType, allowed: DataType) -> bool:
    """Compares types regardless of nullability and collation."""
    if isinstance(allowed, ArrayType):
        return given.simpleString() == allowed.simpleString()
    return isinstance(given, type(allowed))
