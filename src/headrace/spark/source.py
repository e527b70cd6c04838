"""`format("headrace")`: the entry point for Spark."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .formats import TypedColumns, pinned_options, resolve_formats
from .options.formats import FormatOptions
from .options.group import GroupOptions, reject_in_batch
from .options.parsers import OptionError
from .options.sink import SinkOptions, unused_sink_options
from .options.source import SourceOptions, named_topics
from .options.table import check_table_options, created_table_options, read_table_options, with_table_options
from .options.unused import unused_options_warning
from .schema import check_schema, source_schema
from .versions import HAS_ADMISSION_CONTROL, check_stream_options

if TYPE_CHECKING:
    from .driver.legacy_stream import LegacyStreamReader
    from .driver.stream import StreamReader
    from .group.share_reader import ShareReader
    from .sink.encoding import RowEncoder
    from .worker.rows import RowBuilder

log = logging.getLogger(__name__)


class HeadraceSource(DataSource):
    """Reads and writes Kafka topics, with the options and the columns of Spark's `format("kafka")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._given = _SecretOptions({str(name): str(value) for name, value in options.items()})
        # Spark calls streamWriter() of a new source before the tasks of a micro-batch start, and that of an unpickled
        # one after they have ended. An exactly-once write is planned before.
        self._is_copy = False
        self._typed: TypedColumns | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _is_copy=True)

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        from .error_boundary import raise_to_spark

        try:
            return self._schema()
        except Exception as error:  # noqa: BLE001  # it is raised again
            raise_to_spark(error)

    def _schema(self) -> StructType:
        table_options = created_table_options(self._given.values)
        if table_options is None:
            return self._own_schema(self._given.values)
        check_table_options(table_options)
        schema = self._own_schema(table_options)
        assert self._typed is not None
        return with_table_options(schema, table_options | pinned_options(self._typed))

    def _own_schema(self, given: Mapping[str, str]) -> StructType:
        """The schema with these options. Typed columns are those of the first call, which is load(): Spark pickles this
        source afterwards, and so they stay the same in all copies."""
        options = FormatOptions.parse(given)
        if self._typed is None:
            self._typed = resolve_formats(options, named_topics(given) if options.fields else None)
        return source_schema(given, options, self._typed)

    def reader(self, schema: StructType) -> DataSourceReader:
        from .error_boundary import raise_to_spark

        _ensure_log_handler()
        try:
            return self._batch_reader(schema)
        except Exception as error:  # noqa: BLE001  # it is raised again
            raise_to_spark(error)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .error_boundary import FailedStreamReader

        _ensure_log_handler()
        try:
            return self._stream_reader(schema)
        except Exception as error:  # noqa: BLE001  # it is raised when Spark calls the reader
            return FailedStreamReader(error)

    def _batch_reader(self, schema: StructType) -> DataSourceReader:
        from .driver.batch import BatchReader
        from .error_boundary import log_on_first_call

        given = self._all_options(schema)
        reject_in_batch(given)
        options = SourceOptions.parse(given, streaming=False)
        reader = BatchReader(options, self._rows(schema, given))
        log_on_first_call(reader, unused_options_warning(given, None))
        return reader

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        from .error_boundary import log_on_first_call

        given = self._all_options(schema)
        options = SourceOptions.parse(given, streaming=True)
        group_options = GroupOptions.parse(given, options)
        check_stream_options(given)
        rows = self._rows(schema, given)
        reader = _stream_reader_class(group_options)(options, rows, group_options)
        log_on_first_call(reader, unused_options_warning(given, group_options))
        return reader

    def _rows(self, schema: StructType, given: Mapping[str, str]) -> RowBuilder:
        from .worker.rows import RowBuilder

        check_schema(schema, self._own_schema(given))
        assert self._typed is not None
        return RowBuilder(schema, self._typed, is_permissive=FormatOptions.parse(given).is_permissive)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .error_boundary import raise_to_spark

        _ensure_log_handler()
        try:
            return self._batch_writer(schema, overwrite)
        except Exception as error:  # noqa: BLE001  # it is raised again
            raise_to_spark(error)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """`overwrite` (output mode complete) makes no difference, as for Spark's sink: every row is a record."""
        from .error_boundary import raise_to_spark

        _ensure_log_handler()
        try:
            return self._stream_writer(schema)
        except Exception as error:  # noqa: BLE001  # it is raised again
            raise_to_spark(error)

    def _batch_writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .sink.writers import BatchWriter, plan_batch

        if overwrite:
            raise OptionError("A topic cannot be overwritten. Use .mode('append')")
        options, rows = self._sink_options(schema)
        return BatchWriter(options, rows, plan_batch(options, is_job=True))

    def _stream_writer(self, schema: StructType) -> DataSourceStreamWriter:
        from .sink.writers import StreamWriter, plan_batch

        options, rows = self._sink_options(schema)
        plan = None if self._is_copy else plan_batch(options, is_job=False)
        return StreamWriter(options, rows, plan)

    def _sink_options(self, schema: StructType) -> tuple[SinkOptions, RowEncoder]:
        from .sink.encoding import RowEncoder, plan_rows

        given = read_table_options(schema) | self._given.values
        options = SinkOptions.parse(given)
        _warn_of_unused(tuple(unused_sink_options(given)))
        # A copy only commits.
        return options, RowEncoder([]) if self._is_copy else plan_rows(schema, options, FormatOptions.parse(given))

    def _all_options(self, schema: StructType) -> dict[str, str]:
        """The options of this read and, if it reads a table, those of the table. Raises OptionError."""
        found = read_table_options(schema) | self._given.values
        if not found:
            raise OptionError(
                "No options were given: kafka.bootstrap.servers and one of subscribe, subscribePattern and assign are "
                "needed. (A table keeps its options only if it was created without columns: CREATE TABLE name USING "
                "headrace OPTIONS (…))"
            )
        return found


def _stream_reader_class(group_options: GroupOptions) -> type[StreamReader | ShareReader | LegacyStreamReader]:
    if group_options.share_group:
        from .group.share_reader import ShareReader

        return ShareReader
    if HAS_ADMISSION_CONTROL:
        from .driver.stream import StreamReader

        return StreamReader
    from .driver.legacy_stream import LegacyStreamReader

    return LegacyStreamReader


@functools.cache
def _warn_of_unused(names: tuple[str, ...]) -> None:
    """Once in a process: Spark creates the writer of a stream for every micro-batch."""
    if names:
        log.warning("These options are accepted but have no effect: %s", ", ".join(names))


def _ensure_log_handler() -> None:
    """Spark plans in Python workers, whose standard error is part of the driver's log. Warnings are written there, in
    Spark's format. Spark does not pass the level of setLogLevel() to workers, so nothing below a warning is shown, as
    by Spark itself by default. A logger that has a level or a handler of its own keeps it."""
    package_log = logging.getLogger(__package__)
    if not package_log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"))
        package_log.addHandler(handler)


@dataclasses.dataclass(frozen=True)
class _SecretOptions:
    """Options may contain secrets: the repr does not show them."""

    values: dict[str, str] = dataclasses.field(repr=False)
