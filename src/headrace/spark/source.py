"""`format("headrace")`: the entry for Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
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

from .options import SourceOptions

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


class HeadraceSource(DataSource):
    """Reads Kafka topics, with the options and the schema of Spark's `format("kafka")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._given = _Hidden({str(name): str(value) for name, value in options.items()})

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        flags = [value for name, value in self._given.values.items() if name.lower() == "includeheaders"]
        with_headers = bool(flags) and flags[-1].strip().lower() == "true"
        return StructType([*_COLUMNS, *([_HEADERS] if with_headers else [])])

    def reader(self, schema: StructType) -> DataSourceReader:
        from .batch import BatchReader

        return BatchReader(SourceOptions.of(self._given.values, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .streaming import StreamReader

        return StreamReader(SourceOptions.of(self._given.values, streaming=True), schema)


@dataclasses.dataclass(frozen=True)
class _Hidden:
    """Options may hold secrets: they are not shown."""

    values: dict[str, str] = dataclasses.field(repr=False)


def arrow_schema() -> Any:
    """All columns, as Spark checks them: in UTC, whatever the session's time zone is."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(StructType([*_COLUMNS, _HEADERS]), timezone="UTC")
