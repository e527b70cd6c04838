"""Batch queries: `spark.read.format("headrace")`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from .data_loss import report_loss
from .filters import Pruning
from .logs import Logs
from .options import EARLIEST, AtEnd, AtOffsets, SourceOptions
from .ranges import OffsetRange, Offsets, split
from .reading import read_range
from .unpacking import packed

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)


class RangeTask(InputPartition):
    """One task. A range of None reads nothing: Spark wants one task at least."""

    def __init__(self, wanted: OffsetRange | None) -> None:
        super().__init__(wanted)


class BatchReader(DataSourceReader):
    """Plans the ranges once, when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pruning = Pruning()

    def __reduce__(self) -> tuple[Any, ...]:
        return packed(BatchReader, self._options, self._schema)

    @property
    def pushFilters(self) -> Any:
        """Spark refuses a reader that overrides this while spark.sql.python.filterPushdown.enabled is off, as it is by
        default. This one works either way: it looks like the inherited method and is called only when it is on."""
        return _PushFilters(self)

    def push(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        kept = list(filters)
        self._pruning = Pruning(kept)
        return kept

    def partitions(self) -> list[InputPartition]:
        logs = Logs(self._options)
        try:
            ranges = self._ranges(logs)
        finally:
            logs.close()
        tasks = split(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        return [RangeTask(each) for each in tasks] or [RangeTask(None)]

    def _ranges(self, logs: Logs) -> list[OffsetRange]:
        chosen = logs.chosen()
        starts = logs.at(self._options.starting, chosen, "starting")
        ends = logs.at(self._options.ending, chosen, "ending")
        whole = self._there(logs, [OffsetRange(tp, starts[tp], ends[tp]) for tp in sorted(chosen)])
        kept = [self._pruning.cut(each) for each in whole if self._pruning.keeps(each.tp)]
        if (since := self._pruning.since) is not None:
            first: Offsets = logs.since(since, [each.tp for each in kept])
            kept = [OffsetRange(each.tp, max(each.start, first[each.tp]), each.end) for each in kept]
        kept = [each for each in kept if each.size > 0]
        before, after = sum(max(0, each.size) for each in whole), sum(each.size for each in kept)
        if after < before:
            saved = (before - after) / before
            log.info(
                "filters save %.1f %%: %d of %d offsets are read, in %d of %d partitions",
                *(100 * saved, after, before, len(kept), len(whole)),
            )
        return kept

    def _there(self, logs: Logs, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """What the logs have of it: the options may ask for more. (What goes later is found out when it is read.)"""
        found = []
        begins = {} if self._options.starting == AtEnd(EARLIEST) else logs.earliest([each.tp for each in ranges])
        ends = logs.latest([each.tp for each in ranges]) if isinstance(self._options.ending, AtOffsets) else {}
        for tp, start, end in ranges:
            first, last = begins.get(tp, start), ends.get(tp, end)
            if start < first and start < end:
                report_loss(
                    f"{tp} is to be read from offset {start}, but its log begins at {first}: records were deleted",
                    self._options,
                )
            if last < end:
                report_loss(f"{tp} is to be read to offset {end}, but its log ends at {last}", self._options)
            found.append(OffsetRange(tp, max(start, first), min(end, last)))
        return found

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if partition.value is None:
            return iter(())
        return read_range(partition.value, self._options, self._schema.names)


class _PushFilters:
    """Spark compares `__func__` to see whether the method is overridden."""

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.push(filters)
