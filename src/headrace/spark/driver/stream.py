"""Streaming queries: `spark.readStream.format("headrace")`.

Everything follows from the start offsets that Spark passes, so that a query that is restarted from its checkpoint plans
the same batches. The state of a reader (the end of an AvailableNow query, the time of the last batch, the group's
assignment) belongs to one run.

When Spark asks for the offset after `start`, everything before `start` is complete: it runs one batch at a time, and
repeats an interrupted one before it asks. It calls commit() later, when it has begun another batch, and not at the end
of a query. So a group learns from latestOffset() which offsets are done.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ..._machines.commit.offset_set import LAST_OFFSET, OffsetSet
from ...types import TopicPartition
from ..checkpoint import (
    CLIENT_ID_KEY,
    METRICS_KEY,
    NOT_STARTED,
    Checkpoint,
    DoneOffsets,
    check_schemas,
    noted_start,
    with_schemas,
    with_start,
    without_start,
)
from ..data_loss import Recreated, Truncated, classify_truncation, report_data_loss
from ..error_boundary import error_boundary
from ..group.integration import GroupIntegration
from ..group.ownership import BatchAssignment
from ..offset_lookup import OffsetLookup
from ..offset_range import Offsets
from ..options.group import MEMBERSHIP, GroupOptions
from ..options.offset_limits import EARLIEST, EarliestOrLatest
from ..options.parsers import OptionError
from ..options.source import SourceOptions
from ..versions import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow
from ..worker.pickling import reduce_for_worker
from ..worker.reader import read_range
from ..worker.rows import RowBuilder
from .batch_plan import plan_batch
from .lanes import DEFAULT_MAX_OFFSETS, partitions_to_jump
from .late_records import LateRecordCounter
from .tasks import StreamInputPartition, plan_tasks

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)


@error_boundary
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver as long as its query. Spark sends it to executors without its state."""

    def __init__(self, options: SourceOptions, rows: RowBuilder, group_options: GroupOptions) -> None:
        self._options = options
        self._rows = rows
        self._group_options = group_options
        self._group = GroupIntegration(options, group_options)
        delay = group_options.watermark_delay_ms
        self._late_records = None if delay is None else LateRecordCounter(options, delay)
        self._open_lookup: OffsetLookup | None = None
        self._is_restarted = True  # until the first batch is planned
        self._resumed: set[TopicPartition] = set()  # partitions that may jump to the end of their log (KIP-333)
        self._available_now_end: Offsets | None = None
        self._absent: set[TopicPartition] = set()  # partitions whose absence was reported
        self._latest: Offsets | None = None
        self._metrics: dict[str, int] = {}
        self._clock = time.monotonic
        self._last_batch_at = -math.inf  # of the batches that minOffsetsPerTrigger allowed

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_for_worker(StreamReader, self._options, self._rows, self._group_options)

    # -- offsets ---------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """A constant, since Spark asks again whenever it runs the first batch. latestOffset() decides where the query
        starts, and the end of the first batch has it."""
        return NOT_STARTED

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._group_options.lanes is not None:
            return ReadMaxRows(DEFAULT_MAX_OFFSETS)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        # So that latestOffset() recognizes trigger(once=True): only that asks a member for all that is available.
        return ReadMaxRows(LAST_OFFSET) if self._group_options.is_member else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._group.wait_for_assignment()
        self._available_now_end = self._lookup.existing_end_offsets()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self._group_options.is_member and isinstance(limit, ReadAllAvailable):
            raise OptionError(
                f"trigger(once=True) does not work with {MEMBERSHIP}=true: it runs one batch, and a newly assigned "
                f"partition needs one before it is read. Use availableNow=True"
            )
        if start == NOT_STARTED:
            return self._end_of_first_batch(limit)
        before = self._parse(start)
        end = self._end_of_batch(before, limit, is_new=False)
        found = start if end is None else self._noted(end)
        # Without new records, Spark must get what it has: another text would be another batch.
        return start if found == without_start(start) else found

    def _end_of_first_batch(self, limit: ReadLimit) -> dict[str, Any]:
        self._is_restarted = False
        found = self._lookup.resolve(self._options.starting, self._lookup.selected_partitions(), "starting")
        start = Checkpoint.from_offsets(found, unread=self._group_options.is_member)
        log.info("The query starts at %s", start.to_json())
        if self._group_options.is_member:
            # The group assigns partitions that are in the checkpoint. This batch reads nothing.
            self._update_metrics_without_plan(start)
            return self._noted(start)
        end = self._end_of_batch(start, limit, is_new=True) or start
        is_implied = self._options.starting == EarliestOrLatest(EARLIEST) and not any(found.values())
        return self._noted(end) if is_implied else with_start(self._noted(end), start)

    def _end_of_batch(self, before: Checkpoint, limit: ReadLimit, *, is_new: bool) -> Checkpoint | None:
        """None if there is no batch yet."""
        assignment = self._group.assign_next_batch(
            before, self._lookup.earliest_offsets, is_new=is_new, is_available_now=self._available_now_end is not None
        )
        if assignment is None:
            self._update_metrics_without_plan(before)
            return None
        existing = self._lookup.existing_end_offsets()
        latest = {tp: end for tp, end in self._ends_to_read(before, existing).items() if assignment.is_readable(tp)}
        self._report_absent(before, assignment, existing, latest)
        if not latest and before.done and assignment.readable is None:
            # An end without partitions would read all of them again when they are back.
            self._update_metrics_without_plan(before)
            return None
        begin, recreated = self._begin_of_batch(before, assignment, latest)
        assignment = dataclasses.replace(assignment, repositioned={**assignment.repositioned, **recreated})
        self._skip_deleted_backlog(begin)
        if self._is_restarted and assignment.readable is None:
            self._resumed |= set(begin)
        self._resumed |= assignment.resumed
        done = self._plan_batch(begin, latest, limit)
        self._update_metrics(latest, begin if done is None else done)
        if self._late_records is not None and (self._group_options.is_member or _has_backlog(begin, done)):
            ranges = Checkpoint(begin).ranges_to(Checkpoint(begin if done is None else done))
            self._metrics["lateRecords"] = self._late_records.count(before, ranges, self._lookup.offsets_since)
        if done is None and not assignment.repositioned:
            return None
        self._is_restarted = False
        return assignment.end_of_batch(before, begin if done is None else done)

    def _noted(self, offset: Checkpoint) -> dict[str, Any]:
        """As the checkpoint has it, with the schemas of typed columns."""
        return with_schemas(offset.to_json(), self._rows.typed)

    def _parse(self, offset: dict[str, Any]) -> Checkpoint:
        """Raises SchemaChangedError if the checkpoint was written with other columns."""
        check_schemas(offset, self._rows.typed)
        return Checkpoint.from_json(offset)

    def _ends_to_read(self, before: Checkpoint, existing: Offsets) -> Offsets:
        """Those that exist now, but not beyond the ends at the start of an AvailableNow query."""
        planned = self._available_now_end
        if planned is None:
            return existing
        found = {tp: end for tp, end in planned.items() if tp in existing}
        shorter = {tp: end for tp, end in found.items() if existing[tp] < end}
        for tp, log_ends in self._lookup.watermarks(self._lookup.still_behind(shorter)).items():
            if log_ends.high >= planned[tp]:
                continue  # a new leader has returned too low an end at first, or a transaction is open
            found[tp] = log_ends.high
            read_to = before.done[tp].frontier if tp in before.done else 0
            if read_to <= log_ends.high:  # otherwise the log ends before what was read, which is looked at later
                report_data_loss(
                    f"{tp} ended at offset {planned[tp]} when the query started, but its log ends at {log_ends.high} "
                    f"now: records were lost, or the topic was recreated",
                    self._options,
                )
                planned[tp] = log_ends.high  # reported once
        return found

    def _report_absent(
        self, before: Checkpoint, assignment: BatchAssignment, existing: Offsets, latest: Offsets
    ) -> None:
        """Partitions of the checkpoint that the query cannot read any more."""
        absent = {tp for tp in before.done if assignment.is_readable(tp)} - latest.keys()
        if assignment.readable is not None and self._available_now_end is not None:
            absent -= existing.keys()  # a group may assign partitions that are newer than an AvailableNow query
        for tp in sorted(absent - self._absent)[:1]:
            if self._options.strategy.selects(tp):
                found = f"{tp} was deleted, and some of its records may not have been read"
            else:
                found = f"{tp} is in the checkpoint, but the options do not select it any more: it is not read further"
            report_data_loss(found, self._options)
        self._absent = absent

    def _begin_of_batch(
        self, before: Checkpoint, assignment: BatchAssignment, latest: Offsets
    ) -> tuple[DoneOffsets, DoneOffsets]:
        """Where a batch begins: where the last one ended, and new partitions at their beginning, without absent ones.
        Also returns where recreated partitions begin in the batch after this one: a batch that read them now would
        end before it starts."""
        own = {tp: done for tp, done in before.done.items() if assignment.is_readable(tp)}
        begin = {tp: done for tp, done in own.items() if tp in latest}
        recreated = self._handle_truncation(begin, latest)
        begin = {tp: done for tp, done in begin.items() if tp not in recreated}
        return begin | self._beginning_of_new(latest.keys() - own.keys()), recreated

    def _handle_truncation(self, begin: DoneOffsets, latest: Offsets) -> DoneOffsets:
        """Checks logs that end before the offset that the query has read them to, and corrects `begin` and `latest`.
        Returns where recreated partitions begin."""
        behind = {tp: done.frontier for tp, done in begin.items() if latest[tp] < done.frontier}
        if not behind:
            return {}
        recreated: DoneOffsets = {}
        logs = self._lookup.watermarks(self._lookup.still_behind(behind))
        for tp, watermarks in logs.items():
            found = classify_truncation(tp, begin[tp], watermarks)
            if isinstance(found, Recreated):
                report_data_loss(found.message, self._options)
                recreated[tp] = OffsetSet(watermarks.low)
            elif isinstance(found, Truncated):
                report_data_loss(found.message, self._options)
                begin[tp], latest[tp] = found.done, watermarks.high
        return recreated

    def _beginning_of_new(self, new: Collection[TopicPartition]) -> DoneOffsets:
        """New partitions are read from their beginning."""
        found = self._lookup.earliest_offsets(sorted(new))
        for tp, offset in found.items():
            if offset > 0:
                report_data_loss(
                    f"{tp} is a new partition, but its log begins at {offset}: the records before were not read",
                    self._options,
                )
        return {tp: OffsetSet(offset) for tp, offset in found.items()}

    def _skip_deleted_backlog(self, begin: DoneOffsets) -> None:
        """Retention may delete records of a backlog before they are read. (At the frontier the task finds out.)"""
        for tp, first in self._lookup.earliest_offsets([tp for tp, done in begin.items() if done.holes]).items():
            if (low := begin[tp].low) < first:
                report_data_loss(
                    f"{tp}: the records of its backlog from offset {low} to before {first} were deleted", self._options
                )
                begin[tp] |= OffsetSet(first)

    def _plan_batch(self, begin: DoneOffsets, latest: Offsets, limit: ReadLimit) -> DoneOffsets | None:
        """The offsets that are done after the batch. None if it is too early for a batch (minOffsetsPerTrigger)."""
        options, lanes = self._options, self._group_options.lanes
        if isinstance(limit, ReadAllAvailable):
            return plan_batch(begin, latest, None, options.distribution)
        if options.min_offsets is not None and self._available_now_end is None:
            unread = sum(max(0, latest[tp] - done.frontier) + done.count_open for tp, done in begin.items())
            # As in Spark: the first batch of a run does not wait.
            is_due = self._clock() - self._last_batch_at >= options.max_trigger_delay
            if unread < options.min_offsets and not is_due:
                return None
            self._last_batch_at = self._clock()
        if lanes is None:
            return plan_batch(begin, latest, options.max_offsets, options.distribution)
        jumping = partitions_to_jump(begin, latest, self._resumed, lanes)
        done = plan_batch(begin, latest, options.max_offsets, options.distribution, lanes, jumping)
        self._resumed = {tp for tp in jumping if done[tp].frontier < latest[tp]}
        return done

    # -- progress --------------------------------------------------------------------------------------------------

    def _update_metrics(self, latest: Offsets, done: DoneOffsets) -> None:
        self._latest = latest
        self._metrics = {
            "liveLag": sum(max(0, latest[tp] - each.frontier) for tp, each in done.items()),
            "backlogOpen": sum(each.count_open for each in done.values()),
            **({} if self._late_records is None else {"lateRecords": 0}),
            **self._group.metrics(),
        }

    @property
    def count_unread(self) -> int:
        """The offsets that the batch that was planned last leaves unread."""
        return self._metrics["liveLag"] + self._metrics["backlogOpen"]

    def _update_metrics_without_plan(self, start: Checkpoint) -> None:
        """Reports even if nothing is planned yet: otherwise Spark's listeners get the text `None`."""
        owned = {} if self._group_options.is_member else start.done
        self._update_metrics({tp: each.frontier for tp, each in owned.items()}, owned)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if self._latest is None:
            return None
        found = Checkpoint.from_offsets(self._latest).to_json()
        if self._group_options.is_off:
            return found
        client_id = {} if self._group.client_id is None else {CLIENT_ID_KEY: self._group.client_id}
        return {**found, METRICS_KEY: self._metrics, **client_id}

    # -- batches ---------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        after = self._parse(end)
        before = self._start_of_first_batch(end, after) if start == NOT_STARTED else self._parse(start)
        new = self._beginning_of_new([tp for tp in after.done if tp not in after.unread and tp not in before.done])
        begin = Checkpoint({**before.done, **new})
        options = self._options
        tasks = plan_tasks(begin.ranges_to(after), options.min_partitions, options.max_records_per_partition)
        return [StreamInputPartition(each) for each in tasks]

    def _start_of_first_batch(self, end: dict[str, Any], after: Checkpoint) -> Checkpoint:
        """Whatever has changed since the first batch was planned, it starts where it did."""
        noted = noted_start(end)
        if noted is not None:
            return noted
        if self._options.starting != EarliestOrLatest(EARLIEST) and after.done.keys() - after.unread:
            raise OptionError(
                "The first batch of this checkpoint was planned but not completed, and the checkpoint does not say "
                "where it starts: Spark's own source planned it, or headrace 0.1.0, or startingOffsets was earliest. "
                "Let the source that planned it complete it, start the query with a new checkpoint, or set "
                "startingOffsets=earliest to read the batch from the beginning of the logs"
            )
        return Checkpoint.from_offsets(dict.fromkeys(after.done, 0))

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        for wanted in partition.value:
            lane = wanted.lane if self._group_options.include_lane else None
            yield from read_range(wanted.offsets, self._options, self._rows, lane)

    def commit(self, end: dict[str, Any]) -> None:
        self._group.commit_completed(Checkpoint.from_json(end))

    def stop(self) -> None:
        self._group.close()
        lookup, self._open_lookup = self._open_lookup, None
        if lookup is not None:
            lookup.close()

    @property
    def _lookup(self) -> OffsetLookup:
        if self._open_lookup is None:
            self._open_lookup = OffsetLookup(self._options)
        return self._open_lookup


def _has_backlog(*done: DoneOffsets | None) -> bool:
    """A query that is not a member only has one after its start, until it has read it."""
    return any(each.holes for some in done if some is not None for each in some.values())
