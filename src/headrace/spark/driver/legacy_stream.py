"""Streaming queries with PySpark 4.0 and 4.1, whose latestOffset() gets neither a start nor a limit.

This reader keeps the start itself: a batch starts where the last one ended. Spark either runs a batch up to the offset
that latestOffset() returned, or fails the query. And before a restarted query calls latestOffset(), Spark calls
partitions(end, end) with the last end in the checkpoint. The query repeats an interrupted batch up to there, and
continues there. So batches are as exact as with a start from Spark:

    new query     latestOffset  initialOffset  partitions(initial, end)  latestOffset  partitions(end, next)  …
    restarted     partitions(end, end)  [partitions(start, end)]  latestOffset  partitions(end, next)  …

The triggers availableNow and once run one batch, in the same way. The reader cannot recognize them, so it logs a
warning if the first batch of a run leaves records unread.

Spark can also wrap a source for availableNow (triggerAvailableNowWrapper). Then it asks for the end of a restarted
query before the reader knows the start, so that the query could go back. The reader recognizes the order of the calls,
and rejects them before a task reads:

    new query     latestOffset  initialOffset  latestOffset  initialOffset  …
    restarted     latestOffset  partitions(end, end)  …
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ..error_boundary import error_boundary
from ..options.group import GroupOptions
from ..options.source import SourceOptions
from ..versions import ADMISSION_CONTROL, needs_admission_control
from ..worker.rows import RowBuilder
from .stream import StreamReader

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)


@error_boundary
class LegacyStreamReader(DataSourceStreamReader):
    """Calls a StreamReader as PySpark 4.2 does. Only the StreamReader is sent to executors."""

    def __init__(self, options: SourceOptions, rows: RowBuilder, group_options: GroupOptions) -> None:
        self._reader = StreamReader(options, rows, group_options)
        self._start: dict[str, Any] | None = None  # of the next batch
        self._has_planned = False
        self._awaits_first_batch = False  # whether the query is new, and Spark has not planned tasks yet
        self._has_repeated = False
        self._initial_calls = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reader.__reduce__()

    def initialOffset(self) -> dict[str, Any]:
        self._initial_calls += 1
        if self._initial_calls > 1:
            raise _wrapper_error()
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        if self._start is None:
            self._awaits_first_batch = True
            self._start = self._plan(self._reader.initialOffset())
        elif self._awaits_first_batch and not self._has_repeated:
            # The wrapper, or a batch whose tasks Spark has optimized away. The next call tells which one it is.
            self._has_repeated = True
        else:
            self._start = self._plan(self._start)
        return self._start

    def _plan(self, start: dict[str, Any]) -> dict[str, Any]:
        end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        if not self._has_planned and (unread := self._reader.count_unread):
            log.warning(
                "The first batch of this run leaves %d offsets to later batches. If the trigger is availableNow or "
                "once, they are left to the next run: before PySpark %s, these triggers run a single batch",
                *(unread, ADMISSION_CONTROL),
            )
        self._has_planned = True
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._start is None:
            self._start = end
        elif self._awaits_first_batch and not self._initial_calls:
            raise _wrapper_error()
        self._awaits_first_batch = False
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()


def _wrapper_error() -> Exception:
    return needs_admission_control(
        "spark.sql.streaming.triggerAvailableNowWrapper.enabled=true",
        "the query could read records a second time. Set it to false: the trigger then runs one batch",
    )
