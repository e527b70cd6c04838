"""The border to Spark: how errors leave the source, and what a reader logs when Spark first calls it.

Spark shows an error of a Python source as its whole traceback, with every cause above it. The source's own errors say
what is wrong in their message, so they leave without causes and without the frames that raised them: Spark then shows
the message within the first lines. All other exceptions are bugs, and keep their tracebacks.

Spark calls streamReader() twice for a query: once for the reader on the driver, once for the one that it sends to the
executors, of which it calls nothing on the driver. And when streamReader() raises, PySpark raises an UnboundLocalError
over it. So options are checked there, and what is wrong with them is raised or logged by the first call of a method.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from ..errors import HeadraceError

log = logging.getLogger(__name__)

Reader = TypeVar("Reader", bound=type)

_CALLS = (
    "initialOffset",
    "getDefaultReadLimit",
    "prepareForTriggerAvailableNow",
    "latestOffset",
    "reportLatestOffset",
    "partitions",
    "commit",
)
_TO_LOG = "_to_log"


def at_border(reader: Reader) -> Reader:
    """For the class of a reader: its methods, as Spark calls them."""
    for name in _CALLS:
        if name in vars(reader):
            setattr(reader, name, _guarded(vars(reader)[name]))
    reader.read = _guarded_read(vars(reader)["read"])  # type: ignore[attr-defined]
    return reader


def log_at_first_call(reader: object, warning: str | None) -> None:
    """A warning of the reader's options, if there is one. A reader that is sent to executors does not have it."""
    setattr(reader, _TO_LOG, warning)


def leave(error: Exception) -> NoReturn:
    """Raises it, as Spark should show it."""
    if not isinstance(error, (HeadraceError, TimeoutError)):
        raise error
    log.debug("an error for Spark", exc_info=error)
    raise error.with_traceback(None) from None


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        if (warning := vars(self).pop(_TO_LOG, None)) is not None:
            log.warning("%s", warning)
        try:
            return method(self, *args, **named)
        except Exception as error:  # noqa: BLE001  # it is raised again
            leave(error)

    return call


def _guarded_read(read: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(read)
    def call(self: Any, partition: InputPartition) -> Iterator[Any]:
        try:
            yield from read(self, partition)
        except Exception as error:  # noqa: BLE001  # it is raised again
            leave(error)

    return call


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """In place of a reader that could not be made: whatever Spark calls first raises why."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def initialOffset(self) -> dict[str, Any]:
        leave(self.error)

    def getDefaultReadLimit(self) -> ReadLimit:
        leave(self.error)

    def prepareForTriggerAvailableNow(self) -> None:
        leave(self.error)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        leave(self.error)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        leave(self.error)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        leave(self.error)
