"""Batch queries: `spark.read.format("headrace")`.

Spark calls partitions() once for a relation, that is for a DataFrame as load() returns it, and gives the tasks that it
gets to every scan of the relation, in this query and in later ones (PythonDataSourceV2 keeps them). Two rules follow:

- A pushed filter must not make a range smaller. Filters are of one scan, and other scans would get the same tasks:
  a union or a join of two filters would lose rows. So the reader leaves pushFilters() alone.
- What may change from query to query is resolved by the tasks, each for its partition, when they run: `earliest`,
  `latest` and times, and partitions that are new. Spark's own source resolves `earliest` and `latest` in its tasks as
  well ("late binding"), so a task that is repeated may read further than the first time, there as here. Offsets that
  are given as numbers are read as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..types import TopicPartition
from .border import at_border
from .data_loss import report_loss
from .logs import Logs
from .options import EARLIEST, Assigned, AtEnd, AtOffsets, SourceOptions, is_late, is_of_any, only
from .ranges import OffsetRange, split
from .reading import borrowed, read_range
from .unpacking import packed

if TYPE_CHECKING:
    import pyarrow


class RangeTask(InputPartition):
    """One task: a range as it was when it was planned, and which of its ends are resolved again when the task runs. A
    range of None reads nothing: Spark wants one task at least."""

    def __init__(self, wanted: OffsetRange | None, *, late_start: bool = False, late_end: bool = False) -> None:
        super().__init__(wanted)
        self.late_start = late_start
        self.late_end = late_end
        self.planned: frozenset[TopicPartition] | None = None
        """The partitions of all tasks, in the one task that reads those that are new."""


@at_border
class BatchReader(DataSourceReader):
    """Plans the ranges, once for a DataFrame."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def __reduce__(self) -> tuple[Any, ...]:
        return packed(BatchReader, self._options, self._schema)

    def partitions(self) -> list[InputPartition]:
        logs = Logs(self._options)
        try:
            ranges = self._ranges(logs)
        finally:
            logs.close()
        tasks = self._tasks(ranges) or [RangeTask(None)]
        if self._takes_new_partitions:
            tasks[-1].planned = frozenset(each.tp for each in ranges)
        return list(tasks)

    def _ranges(self, logs: Logs) -> list[OffsetRange]:
        chosen = logs.chosen()
        starts = logs.at(self._options.starting, chosen, "starting")
        ends = logs.at(self._options.ending, chosen, "ending")
        return self._there(logs, [OffsetRange(tp, starts[tp], ends[tp]) for tp in sorted(chosen)])

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

    def _tasks(self, ranges: list[OffsetRange]) -> list[RangeTask]:
        options = self._options
        pieces: dict[TopicPartition, list[OffsetRange]] = {}
        for piece in split(ranges, options.min_partitions, options.max_records_per_partition):
            pieces.setdefault(piece.tp, []).append(piece)
        tasks = []
        for each in ranges:
            late_start, late_end = is_late(options.starting, each.tp), is_late(options.ending, each.tp)
            own = pieces.get(each.tp, [])
            if not own and (late_start or late_end):
                own = [each]  # nothing now, and maybe something when it runs
            tasks += [
                RangeTask(piece, late_start=late_start and piece is own[0], late_end=late_end and piece is own[-1])
                for piece in own
            ]
        return tasks

    @property
    def _takes_new_partitions(self) -> bool:
        """Those that are added to a topic, and topics that match a pattern by now. Not where partitions are named."""
        bounds = (self._options.starting, self._options.ending)
        return not isinstance(self._options.strategy, Assigned) and all(is_of_any(each) for each in bounds)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, RangeTask)
        for wanted in self._resolved(partition):
            if wanted.size > 0:
                yield from read_range(wanted, self._options, self._schema.names)

    def _resolved(self, task: RangeTask) -> list[OffsetRange]:
        """What a task reads, with the offsets of now."""
        planned: OffsetRange | None = task.value
        if not (task.late_start or task.late_end or task.planned is not None):
            return [] if planned is None else [planned]
        with borrowed(self._options.settings) as consumer:
            logs = Logs(self._options, consumer)
            found = [] if planned is None else self._resolved_range(logs, planned, task)
            new = [] if task.planned is None else sorted(logs.present() - task.planned)
            return found + [OffsetRange(tp, self._start(logs, tp), self._end(logs, tp)) for tp in new]

    def _resolved_range(self, logs: Logs, planned: OffsetRange, task: RangeTask) -> list[OffsetRange]:
        tp, start, end = planned
        if not logs.has(tp):
            report_loss(f"{tp} is gone: it was deleted after the query was planned", self._options)
            return []
        if task.late_end:
            end = self._end(logs, tp)
        if task.late_start:
            start = self._start(logs, tp)
        elif end < start and (high := self._high(logs, tp, start)) < start:
            report_loss(f"{tp} is to be read from offset {start}, but its log ends at {high}", self._options)
        return [OffsetRange(tp, start, end)]

    def _high(self, logs: Logs, tp: TopicPartition, start: int) -> int:
        """Where the log itself ends: `latest` is before that while a transaction is open (read_committed), and a new
        leader may name an end that is too low at first."""
        return max(logs.not_before({tp: start})[tp], logs.bounds([tp])[tp].high)

    def _start(self, logs: Logs, tp: TopicPartition) -> int:
        return logs.at(only(self._options.starting, tp), [tp], "starting")[tp]

    def _end(self, logs: Logs, tp: TopicPartition) -> int:
        return logs.at(only(self._options.ending, tp), [tp], "ending")[tp]
