"""The columns of `format("headrace")`: those of Spark's `format("kafka")`, and `lane` (KIP-333)."""

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

from .options.group import has_lane_column
from .options.parsers import OptionError

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


def source_schema(given: Mapping[str, str]) -> StructType:
    """The schema with these options. Does not check them."""
    flags = [value for name, value in given.items() if name.lower() == "includeheaders"]
    headers = [_HEADERS] if flags and flags[-1].strip().lower() == "true" else []
    lane = [_LANE] if has_lane_column(given) else []
    return StructType([*_COLUMNS, *headers, *lane])


def check_schema(schema: StructType, given: Mapping[str, str]) -> None:
    """Raises OptionError if a user set another schema by .schema(…). Otherwise Spark passes that of source_schema()."""
    own = source_schema(given)
    if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in own]:
        raise OptionError(
            f"The schema of format('headrace') is fixed: remove .schema({schema.simpleString()!r}), and cast the "
            f"columns of {own.simpleString()} instead"
        )


def arrow_schema() -> Any:
    """The schema of the Arrow batches that tasks return, with all columns but `lane`. Spark expects timestamps in UTC,
    whatever the time zone of the session is."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(StructType([*_COLUMNS, _HEADERS]), timezone="UTC")
