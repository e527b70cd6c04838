"""Streaming queries: `spark.readStream.format("headrace")`.

Everything follows from the start offsets that Spark hands over, so that a query that is restarted from its checkpoint
plans the same batches. What is remembered (the end of an AvailableNow query, when a batch was last made) is of one run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from .batch import RangeTask
from .logs import Logs
from .options import SourceOptions
from .ranges import OffsetRange, Offsets, from_json, limited, split, to_json
from .reading import DataLossError, read_range

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver as long as its query. What executors get of it is the options and the schema."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._logs: Logs | None = None
        self._target: Offsets | None = None  # of an AvailableNow query
        self._latest: Offsets | None = None
        self._last_batch = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"], state["_schema"])  # type: ignore[misc]

    # -- offsets ---------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        found = self._kafka.at(self._options.starting, self._kafka.partitions(), "starting")
        log.info("the query starts at %s", to_json(found))
        return to_json(found)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._kafka.latest(self._kafka.partitions())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = from_json(start)
        latest = self._target if self._target is not None else self._kafka.latest(self._kafka.partitions())
        self._latest = latest
        begins = self._begins(before, latest)
        end = {tp: max(latest[tp], begins[tp]) for tp in begins}
        if isinstance(limit, ReadAllAvailable):
            return to_json(end)
        options = self._options
        waiting = sum(end[tp] - begins[tp] for tp in begins)
        is_young = time.monotonic() - self._last_batch < options.max_trigger_delay
        if waiting < (options.min_offsets or 0) and self._target is None and is_young:
            return start
        if options.max_offsets is not None:
            end = limited(begins, end, options.max_offsets, options.shares)
        if end != before:
            self._last_batch = time.monotonic()
        return to_json(end)

    def _begins(self, before: Offsets, latest: Offsets) -> Offsets:
        """Where a batch begins: where the last one ended; new partitions at their beginning. Deleted ones are gone."""
        if gone := sorted(set(before) - set(latest)):
            self._lost(f"{gone[0]} is gone: it was deleted, and records of it may not have been read")
        begins = {tp: offset for tp, offset in before.items() if tp in latest}
        for tp, offset in begins.items():
            if latest[tp] < offset:
                self._lost(f"{tp} was read to offset {offset}, and its log ends at {latest[tp]}: it was made again")
        new = sorted(set(latest) - set(before))
        for tp, offset in self._kafka.earliest(new).items():
            if offset > 0:
                self._lost(f"{tp} is new, and its log begins at {offset}: records before it were not read")
            begins[tp] = offset
        return begins

    def _lost(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}. With failOnDataLoss=false the query goes on")
        log.warning("%s", text)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else to_json(self._latest)

    # -- batches ---------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before, after = from_json(start), from_json(end)
        new = [tp for tp in after if tp not in before]
        begins = before | (self._kafka.earliest(new) if new else {})
        ranges = [OffsetRange(tp, begins[tp], after[tp]) for tp in sorted(after)]
        tasks = split(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        return [RangeTask(each) for each in tasks]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return read_range(partition.value, self._options, self._schema.names)

    def stop(self) -> None:
        logs, self._logs = self._logs, None
        if logs is not None:
            logs.close()

    @property
    def _kafka(self) -> Logs:
        if self._logs is None:
            self._logs = Logs(self._options)
        return self._logs
