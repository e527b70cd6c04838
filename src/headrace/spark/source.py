"""`format("headrace")`: the entry for Spark."""

from __future__ import annotations

import dataclasses
import logging
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

from .group_options import GroupOptions, has_lane, refuse_in_batch
from .option_values import OptionError
from .options import SourceOptions
from .unused_options import log_unused

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
_LANE = StructField("lane", StringType())


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
        lane = [_LANE] if has_lane(self._given.values) else []
        return StructType([*_COLUMNS, *([_HEADERS] if with_headers else []), *lane])

    def reader(self, schema: StructType) -> DataSourceReader:
        from .batch import BatchReader

        _let_speak()
        refuse_in_batch(self._given.values)
        options = SourceOptions.of(self._given.values, streaming=False)
        self._check_schema(schema)
        log_unused(self._given.values, None)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .shares import ShareReader
        from .streaming import StreamReader

        _let_speak()
        options = SourceOptions.of(self._given.values, streaming=True)
        groups = GroupOptions.of(self._given.values, options)
        self._check_schema(schema)
        log_unused(self._given.values, groups)
        return (ShareReader if groups.share_group else StreamReader)(options, schema, groups)

    def _check_schema(self, given: StructType) -> None:
        """Spark hands over what schema() says, or what a user has set by .schema(…)."""
        own = self.schema()
        if [(each.name, each.dataType) for each in given] != [(each.name, each.dataType) for each in own]:
            raise OptionError(
                f"the schema is a fixed one and cannot be set: leave .schema({given.simpleString()!r}) out, and cast "
                f"the columns of {own.simpleString()}"
            )


def _let_speak() -> None:
    """Spark plans in Python workers whose logging is as Python has it: warnings go to stderr, and so into the driver's
    log, and the rest nowhere. What this source has to say is little, and some of it is asked for."""
    log = logging.getLogger(__package__)
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"))
        log.addHandler(handler)


@dataclasses.dataclass(frozen=True)
class _Hidden:
    """Options may hold secrets: they are not shown."""

    values: dict[str, str] = dataclasses.field(repr=False)


def arrow_schema() -> Any:
    """All columns, as Spark checks them: in UTC, whatever the session's time zone is."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(StructType([*_COLUMNS, _HEADERS]), timezone="UTC")
