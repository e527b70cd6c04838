"""Batch queries: `spark.read.format("headrace")`.

Spark calls partitions() once for each relation, that is for each DataFrame that load() returns, and uses the returned
tasks for every scan of the relation, in this query and in later ones (PythonDataSourceV2 keeps them; that of PySpark
4.0 calls it for each scan). Two rules follow:

- A pushed filter must not make a range smaller. A filter belongs to one scan, and other scans would get the same tasks:
  a union or a join of two filters would lose rows. So the reader does not implement pushFilters().
- Tasks resolve what may change from query to query, each for its partition, when they run: `earliest`, `latest`,
  timestamps, and new partitions. Spark's own source also resolves `earliest` and `latest` in its tasks ("late
  binding"): in both, a task that is repeated may read further than the first time. Offsets that are given as numbers
  are read as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ...types import TopicPartition
from ..data_loss import report_data_loss
from ..error_boundary import error_boundary
from ..offset_lookup import OffsetLookup
from ..offset_range import OffsetRange
from ..options.offset_limits import (
    EARLIEST,
    EarliestOrLatest,
    SpecificOffsets,
    is_global,
    is_resolved_by_tasks,
    restrict_to_partition,
)
from ..options.source import AssignStrategy, OptionError, SourceOptions
from ..worker.pickling import reduce_for_worker
from ..worker.reader import borrow_consumer, read_range
from ..worker.rows import RowBuilder
from .ranges import split_ranges

if TYPE_CHECKING:
    import pyarrow


class BatchInputPartition(InputPartition):
    """One task: a range as it was planned, and which of its ends the task resolves again when it runs. A range of None
    reads nothing: Spark needs at least one task."""

    def __init__(self, wanted: OffsetRange | None, *, resolves_start: bool = False, resolves_end: bool = False) -> None:
        super().__init__(wanted)
        self.resolves_start = resolves_start
        self.resolves_end = resolves_end
        self.planned: frozenset[TopicPartition] | None = None
        """The partitions of all tasks, in the one task that reads new partitions."""


@error_boundary
class BatchReader(DataSourceReader):
    """Plans the ranges once for each DataFrame, and reads them in tasks."""

    def __init__(self, options: SourceOptions, rows: RowBuilder) -> None:
        self._options = options
        self._rows = rows

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_for_worker(BatchReader, self._options, self._rows)

    # -- on the driver ---------------------------------------------------------------------------------------------

    def partitions(self) -> list[InputPartition]:
        lookup = OffsetLookup(self._options)
        try:
            ranges = self._plan_ranges(lookup)
        finally:
            lookup.close()
        tasks = self._plan_tasks(ranges) or [BatchInputPartition(None)]
        if self._reads_new_partitions:
            tasks[-1].planned = frozenset(each.tp for each in ranges)
        return list(tasks)

    def _plan_ranges(self, lookup: OffsetLookup) -> list[OffsetRange]:
        selected = lookup.selected_partitions()
        starts = lookup.resolve(self._options.starting, selected, "starting")
        ends = lookup.resolve(self._options.ending, selected, "ending")
        for tp in sorted(selected):
            self._check_order(lookup, tp, starts[tp], ends[tp])
        return self._clip_to_logs(lookup, [OffsetRange(tp, starts[tp], ends[tp]) for tp in sorted(selected)])

    def _check_order(self, lookup: OffsetLookup, tp: TopicPartition, start: int, end: int) -> None:
        """Raises OptionError, as Spark's own source does, if the options mean an end before the start. The end of the
        log is not such an end."""
        limits = (self._options.starting, self._options.ending)
        if end < start and all(lookup.is_certain(limit, tp) for limit in limits):
            raise OptionError(
                f"The options mean offset {start} of {tp} as the start, and offset {end} as the end. Set an end that "
                f"is not before the start"
            )

    def _clip_to_logs(self, lookup: OffsetLookup, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """The part of the ranges that the logs have: the options may ask for more. (The tasks find out what is deleted
        later.)"""
        found = []
        partitions = [each.tp for each in ranges]
        starts_at_earliest = self._options.starting == EarliestOrLatest(EARLIEST)
        earliest = {} if starts_at_earliest else lookup.earliest_offsets(partitions)
        latest = lookup.latest_offsets(partitions) if isinstance(self._options.ending, SpecificOffsets) else {}
        for tp, start, end in ranges:
            first, last = earliest.get(tp, start), latest.get(tp, end)
            if start < first and start < end:
                report_data_loss(
                    f"{tp} should be read from offset {start}, but its log begins at {first}: records were deleted",
                    self._options,
                )
            if last < end:
                report_data_loss(f"{tp} should be read to offset {end}, but its log ends at {last}", self._options)
            found.append(OffsetRange(tp, max(start, first), min(end, last)))
        return found

    def _plan_tasks(self, ranges: list[OffsetRange]) -> list[BatchInputPartition]:
        options = self._options
        parts: dict[TopicPartition, list[OffsetRange]] = {}
        for part in split_ranges(ranges, options.min_partitions, options.max_records_per_partition):
            parts.setdefault(part.tp, []).append(part)
        tasks = []
        for each in ranges:
            resolves_start = is_resolved_by_tasks(options.starting, each.tp)
            resolves_end = is_resolved_by_tasks(options.ending, each.tp)
            own = parts.get(each.tp, [])
            if not own and (resolves_start or resolves_end):
                own = [each]  # empty now, but maybe not when the task runs
            tasks += [
                BatchInputPartition(
                    part,
                    resolves_start=resolves_start and part is own[0],
                    resolves_end=resolves_end and part is own[-1],
                )
                for part in own
            ]
        return tasks

    @property
    def _reads_new_partitions(self) -> bool:
        """Partitions that are added to a topic later, and new topics that match a pattern. Not if options name
        partitions."""
        limits = (self._options.starting, self._options.ending)
        return not isinstance(self._options.strategy, AssignStrategy) and all(map(is_global, limits))

    # -- in a task -------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, BatchInputPartition)
        for wanted in self._resolve(partition):
            if wanted.size > 0:
                yield from read_range(wanted, self._options, self._rows)

    def _resolve(self, task: BatchInputPartition) -> list[OffsetRange]:
        """The ranges that a task reads, with the current offsets."""
        planned: OffsetRange | None = task.value
        if not (task.resolves_start or task.resolves_end or task.planned is not None):
            return [] if planned is None else [planned]
        with borrow_consumer(self._options.settings) as consumer:
            lookup = OffsetLookup(self._options, consumer)
            found = [] if planned is None else self._resolve_range(lookup, planned, task)
            new = [] if task.planned is None else sorted(lookup.existing_partitions() - task.planned)
            return found + [OffsetRange(tp, self._start(lookup, tp), self._end(lookup, tp)) for tp in new]

    def _resolve_range(
        self, lookup: OffsetLookup, planned: OffsetRange, task: BatchInputPartition
    ) -> list[OffsetRange]:
        tp, start, end = planned
        if not lookup.partition_exists(tp):
            report_data_loss(f"{tp} was deleted after the query was planned", self._options)
            return []
        if task.resolves_end:
            end = self._end(lookup, tp)
        if task.resolves_start:
            start = self._start(lookup, tp)
        if task.resolves_start or task.resolves_end:
            self._check_order(lookup, tp, start, end)
        if not task.resolves_start and end < start and (high := self._high_watermark(lookup, tp, start)) < start:
            report_data_loss(f"{tp} should be read from offset {start}, but its log ends at {high}", self._options)
        return [OffsetRange(tp, start, end)]

    def _high_watermark(self, lookup: OffsetLookup, tp: TopicPartition, start: int) -> int:
        """The end of the log itself. `latest` is before it while a transaction is open (read_committed), and a new
        leader may return too low an end at first."""
        return max(lookup.confirm_latest_offsets({tp: start})[tp], lookup.watermarks([tp])[tp].high)

    def _start(self, lookup: OffsetLookup, tp: TopicPartition) -> int:
        return lookup.resolve(restrict_to_partition(self._options.starting, tp), [tp], "starting")[tp]

    def _end(self, lookup: OffsetLookup, tp: TopicPartition) -> int:
        return lookup.resolve(restrict_to_partition(self._options.ending, tp), [tp], "ending")[tp]
