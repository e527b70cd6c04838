"""What each version of PySpark offers to a source and a sink. All knowledge of versions is here.

    4.0   sources and sinks in Python, for batch and streaming queries
    4.1   DataSourceStreamArrowWriter; Declarative Pipelines
    4.2   admission control: latestOffset(start, limit), SupportsTriggerAvailableNow and reportLatestOffset()

The API is probed, and the version is not compared: some vendors add parts of a newer API to an older version.
docs/spark.md has a table of these versions, which a test compares with this module.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import pyspark
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from .options.parsers import OptionError, lowercase_names

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_ADMISSION_CONTROL = True
except ImportError:
    HAS_ADMISSION_CONTROL = False

    class ReadLimit:  # type: ignore[no-redef]
        """As in PySpark 4.2, as are the classes below."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        pass

    @dataclasses.dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        max_rows: int

    @dataclasses.dataclass
    class ReadMinRows(ReadLimit):  # type: ignore[no-redef]
        min_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


if hasattr(datasource, "DataSourceStreamArrowWriter"):
    DataSourceStreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(  # type: ignore[misc, no-redef]
        datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter
    ):
        """PySpark 4.0 passes Arrow batches to every DataSourceArrowWriter, also to that of a stream."""


__all__ = [
    "ADMISSION_CONTROL",
    "HAS_ADMISSION_CONTROL",
    "OPTIONS_SINCE",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "check_stream_options",
    "needs_admission_control",
    "utc_arrow_schema",
]

ADMISSION_CONTROL = "4.2"
OPTIONS_SINCE = {
    "group.membership": (ADMISSION_CONTROL, "a member has to know the trigger of its query"),
    "share.group.id": (ADMISSION_CONTROL, "a member of a share group has to know the trigger of its query"),
    "watermarkDelay": (ADMISSION_CONTROL, "a source reports no metrics before that"),
}
"""The options of streaming queries that PySpark 4.0 does not have: the version, and the reason."""


def utc_arrow_schema(schema: StructType) -> Any:
    """Spark's schema as Arrow's, with timestamps in UTC. That is the default of PySpark 4.0 and 4.1 only."""
    from pyspark.sql.pandas.types import to_arrow_schema

    timezone: dict[str, Any] = (
        {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    )
    return to_arrow_schema(schema, **timezone)


def check_stream_options(given: Mapping[str, str]) -> None:
    """Raises OptionError if this PySpark does not have what an option needs."""
    if HAS_ADMISSION_CONTROL:
        return
    options = lowercase_names(given)
    for name, (_, reason) in OPTIONS_SINCE.items():
        if options.get(name.lower(), "false").strip().lower() != "false":
            raise needs_admission_control(name, reason)


def needs_admission_control(what: str, reason: str) -> OptionError:
    return OptionError(f"{what} needs PySpark {ADMISSION_CONTROL} or newer: {reason}. This is {pyspark.__version__}")
