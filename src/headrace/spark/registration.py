"""The source as `headrace.spark.register()` registers it, for sessions that do not find it by themselves.

Spark sends the registered class to Python workers. It is pickled by value, as are the functions of `worker.pickling`:
a worker without headrace then reports what to do.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping

from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .worker.pickling import headrace_missing


class RegisteredSource(DataSource):
    """Creates a HeadraceSource where it runs, and forwards every call to it."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        try:
            from .source import HeadraceSource
        except ImportError as error:
            raise headrace_missing(error) from None
        self._source = HeadraceSource(options)

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        return self._source.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source.reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return self._source.streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return self._source.writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return self._source.streamWriter(schema, overwrite)


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
