"""The boundary to Spark: how errors of a reader reach Spark, and what a reader logs when Spark first calls it.

Spark shows an error of a Python source with its whole traceback, and with those of all its causes. The source's own
errors say what is wrong in their message. So they are raised without causes and without the frames that raised them:
Spark then shows the message within the first lines. All other exceptions are bugs and keep their tracebacks.

Spark calls streamReader() twice for a query: for the reader on the driver, and for the one that it sends to the
executors, whose methods it never calls on the driver. And if streamReader() raises, PySpark replaces the error by an
UnboundLocalError. So streamReader() checks the options, and the first call of one of the reader's methods raises the
error or logs the warning.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ..errors import HeadraceError
from .versions import ReadLimit, SupportsTriggerAvailableNow

log = logging.getLogger(__name__)

Reader = TypeVar("Reader", bound=type)

_METHODS = (
    "initialOffset",
    "getDefaultReadLimit",
    "prepareForTriggerAvailableNow",
    "latestOffset",
    "reportLatestOffset",
    "partitions",
    "commit",
)
_WARNING = "_warning_to_log"


def error_boundary(reader: Reader) -> Reader:
    """Decorates the class of a reader: wraps the methods that Spark calls."""
    for name in _METHODS:
        if name in vars(reader):
            setattr(reader, name, _wrap(vars(reader)[name]))
    reader.read = _wrap_read(vars(reader)["read"])  # type: ignore[attr-defined]
    return reader


def sink_boundary(writer: Reader) -> Reader:
    """Decorates the class of a writer."""
    for name in ("write", "commit", "abort"):
        if name in vars(writer):
            setattr(writer, name, _wrap(vars(writer)[name]))
    return writer


def log_on_first_call(reader: object, warning: str | None) -> None:
    """Makes the reader log the warning when Spark first calls it. A reader that is sent to executors drops it."""
    setattr(reader, _WARNING, warning)


def raise_to_spark(error: Exception) -> NoReturn:
    """Raises the error as Spark should show it."""
    if not isinstance(error, (HeadraceError, TimeoutError)):
        raise error
    log.debug("An error is raised to Spark without its causes", exc_info=error)
    raise error.with_traceback(None) from None


def _wrap(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        if (warning := vars(self).pop(_WARNING, None)) is not None:
            log.warning("%s", warning)
        try:
            return method(self, *args, **named)
        except Exception as error:  # noqa: BLE001  # it is raised again
            raise_to_spark(error)

    return call


def _wrap_read(read: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(read)
    def call(self: Any, partition: InputPartition) -> Iterator[Any]:
        try:
            yield from read(self, partition)
        except Exception as error:  # noqa: BLE001  # it is raised again
            raise_to_spark(error)

    return call


class FailedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Replaces a reader that could not be created: the first method that Spark calls raises the error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def initialOffset(self) -> dict[str, Any]:
        raise_to_spark(self.error)

    def getDefaultReadLimit(self) -> ReadLimit:
        raise_to_spark(self.error)

    def prepareForTriggerAvailableNow(self) -> None:
        raise_to_spark(self.error)

    def latestOffset(self, *_start_and_limit: Any) -> dict[str, Any]:  # nothing before PySpark 4.2
        raise_to_spark(self.error)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise_to_spark(self.error)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise_to_spark(self.error)
