"""`format("headrace")`: the entry for Spark."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, MutableMapping
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
from .tables import kept_options, options_of_table, with_options
from .unused_options import said_of_unused

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
        of_table = options_of_table(self._given.values)
        if of_table is None:
            return _schema(self._given.values)
        return with_options(_schema(of_table), of_table)

    def reader(self, schema: StructType) -> DataSourceReader:
        from .border import leave

        _let_speak()
        try:
            return self._batch_reader(schema)
        except Exception as error:  # noqa: BLE001  # it is raised again
            leave(error)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .border import RefusedReader

        _let_speak()
        try:
            return self._stream_reader(schema)
        except Exception as error:  # noqa: BLE001  # it is raised when Spark calls the reader
            return RefusedReader(error)

    def _batch_reader(self, schema: StructType) -> DataSourceReader:
        from .batch import BatchReader
        from .border import log_at_first_call

        given = self._all_given(schema)
        refuse_in_batch(given)
        options = SourceOptions.of(given, streaming=False)
        _check_schema(schema, given)
        reader = BatchReader(options, schema)
        log_at_first_call(reader, said_of_unused(given, None))
        return reader

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        from .border import log_at_first_call
        from .shares import ShareReader
        from .streaming import StreamReader

        given = self._all_given(schema)
        options = SourceOptions.of(given, streaming=True)
        groups = GroupOptions.of(given, options)
        _check_schema(schema, given)
        reader = (ShareReader if groups.share_group else StreamReader)(options, schema, groups)
        log_at_first_call(reader, said_of_unused(given, groups))
        return reader

    def _all_given(self, schema: StructType) -> dict[str, str]:
        """With those of the table that is read. Raises OptionError."""
        found = kept_options(schema) | self._given.values
        if not found:
            raise OptionError(
                "no options were given. (A table has its options if it was made without columns: CREATE TABLE name "
                "USING headrace OPTIONS (…))"
            )
        return found


def _schema(given: Mapping[str, str]) -> StructType:
    flags = [value for name, value in given.items() if name.lower() == "includeheaders"]
    with_headers = bool(flags) and flags[-1].strip().lower() == "true"
    lane = [_LANE] if has_lane(given) else []
    return StructType([*_COLUMNS, *([_HEADERS] if with_headers else []), *lane])


def _check_schema(schema: StructType, given: Mapping[str, str]) -> None:
    """Spark hands over what schema() says, or what a user has set by .schema(…)."""
    own = _schema(given)
    if [(each.name, each.dataType) for each in schema] != [(each.name, each.dataType) for each in own]:
        raise OptionError(
            f"the schema is a fixed one and cannot be set: leave .schema({schema.simpleString()!r}) out, and cast "
            f"the columns of {own.simpleString()}"
        )


def _let_speak() -> None:
    """Spark plans in Python workers, whose standard error is in the driver's log. Warnings go there, in Spark's format.
    Spark does not tell a worker the level of setLogLevel(): so nothing below a warning is shown, as by Spark itself
    unless it is asked for. A logger that has a level or a handler of its own keeps it."""
    log = logging.getLogger(__package__)
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
