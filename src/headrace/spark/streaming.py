"""Streaming queries: `spark.readStream.format("headrace")`.

Everything follows from the start offsets that Spark hands over, so that a query that is restarted from its checkpoint
plans the same batches. What is remembered (the end of an AvailableNow query, when a batch was last made, what a group
has given) is of one run.

When Spark asks for the offset after `start`, all before `start` is complete: it runs one batch at a time, and does one
that was interrupted again before it asks. It calls commit() later, when it has begun another batch, and not at the end
of a query. So it is by latestOffset() that a group learns what is done.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Collection, Iterator, Sequence
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

from ..offsets import LAST_OFFSET, OffsetSet
from ..types import TopicPartition
from .border import at_border
from .checkpoint import CLIENT, METRICS, Checkpoint, Done
from .data_loss import report_loss
from .group_options import MEMBERSHIP, GroupOptions
from .grouping import Grouping
from .lane_tasks import LANE, LaneTask, in_tasks, with_lane
from .lanes import MOST_BESIDE_BACKLOG, planned, to_jump
from .lateness import Lateness
from .logs import Logs
from .option_values import OptionError
from .options import LATEST, AtEnd, AtOffsets, SourceOptions
from .ownership import Portion
from .ranges import Offsets
from .reading import read_range
from .shortened import CutShort, MadeAgain, what_happened
from .unpacking import packed

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)


@at_border
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver as long as its query. What executors get of it is the options and the schema."""

    def __init__(self, options: SourceOptions, schema: StructType, groups: GroupOptions) -> None:
        self._options = options
        self._schema = schema
        self._groups = groups
        self._grouping = Grouping(options, groups)
        delay = groups.watermark_delay_ms
        self._lateness = None if delay is None else Lateness(options, delay)
        self._logs: Logs | None = None
        self._initial: dict[str, Any] | None = None  # of a query that is new, until its first batch is planned
        self._is_restarted = True  # until the first batch is planned
        self._arrived: set[TopicPartition] = set()
        self._target: Offsets | None = None  # of an AvailableNow query
        self._latest: Offsets | None = None
        self._metrics: dict[str, int] = {}
        self._clock = time.monotonic
        self._last_batch = -math.inf  # of those that minOffsetsPerTrigger has let through

    def __reduce__(self) -> tuple[Any, ...]:
        return packed(StreamReader, self._options, self._schema, self._groups)

    # -- offsets ---------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        found = self._kafka.at(self._options.starting, self._kafka.chosen(), "starting")
        initial = Checkpoint.plain(found, unread=self._groups.is_member).to_json()
        log.info("the query starts at %s", initial)
        self._initial = initial
        return initial

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._groups.lanes is not None:
            return ReadMaxRows(MOST_BESIDE_BACKLOG)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        # Only trigger(once=True) asks a member for all that is available: so it is known.
        return ReadMaxRows(LAST_OFFSET) if self._groups.is_member else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._grouping.prepare()
        self._target = self._kafka.ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self._groups.is_member and isinstance(limit, ReadAllAvailable):
            raise OptionError(
                f"trigger(once=True) has one batch, and with {MEMBERSHIP}=true a partition takes one to arrive: use "
                f"availableNow=True"
            )
        is_new, self._initial = start == self._initial, None
        self._is_restarted = self._is_restarted and not is_new
        before = Checkpoint.read(start)
        if is_new and self._starts_anew:
            self._note_start(before)
            return start
        portion = self._grouping.look(before, self._kafka.earliest, is_new=is_new, is_last=self._target is not None)
        if portion is None:
            self._note_start(before)
            return start
        latest = {tp: end for tp, end in self._ends().items() if portion.has(tp)}
        begins, again = self._begins(before, portion, latest)
        portion = dataclasses.replace(portion, placed={**portion.placed, **again})
        self._pass_over_deleted(begins)
        if self._is_restarted and portion.readable is None:
            self._arrived |= set(begins)
        self._arrived |= portion.arrived
        done = self._planned(begins, latest, limit)
        self._note(latest, begins if done is None else done)
        if self._lateness is not None and (self._groups.is_member or _has_backlog(begins, done)):
            ranges = Checkpoint(begins).ranges_to(Checkpoint(begins if done is None else done))
            self._metrics["lateRecords"] = self._lateness.count(before, ranges, self._kafka.since)
        if done is None and not portion.placed:
            return start
        self._is_restarted = False
        return portion.rest(before, begins if done is None else done).to_json()

    @property
    def _starts_anew(self) -> bool:
        """Whether a first batch that is run again would find another start. Then it reads nothing, and its end, which
        the checkpoint has, is where the second one begins."""
        starting = self._options.starting
        if self._groups.is_member or self._options.falls_back_to_latest:
            return True
        return LATEST in starting.offsets.values() if isinstance(starting, AtOffsets) else starting == AtEnd(LATEST)

    def _ends(self) -> Offsets:
        return self._kafka.ends() if self._target is None else self._target

    def _begins(self, before: Checkpoint, portion: Portion, latest: Offsets) -> tuple[Done, Done]:
        """Where a batch begins: where the last one ended, and partitions that are new at their beginning. Deleted ones
        are gone. And where those begin, in the batch after this one, that were made again: a batch that reads them
        would be one that ends before it starts."""
        own = {tp: done for tp, done in before.done.items() if portion.has(tp)}
        gone = own.keys() - latest.keys()
        if gone and portion.readable is not None and self._target is not None:
            gone -= self._kafka.present()  # what a group gives may be younger than an AvailableNow query
        if gone:
            report_loss(f"{min(gone)} is gone: it was deleted, and records of it may not have been read", self._options)
        begins = {tp: done for tp, done in own.items() if tp in latest}
        again = self._after_shortening(begins, latest)
        begins = {tp: done for tp, done in begins.items() if tp not in again}
        return begins | self._first_of(latest.keys() - own.keys()), again

    def _after_shortening(self, begins: Done, latest: Offsets) -> Done:
        """Looks at logs that end before the place where the query stands, and changes both. Returns where those begin
        that were made again."""
        behind = {tp: done.frontier for tp, done in begins.items() if latest[tp] < done.frontier}
        if not behind:
            return {}
        again: Done = {}
        ends = self._kafka.not_before(behind)
        logs = self._kafka.bounds([tp for tp, end in ends.items() if end < behind[tp]])
        for tp, log in logs.items():
            found = what_happened(tp, begins[tp], log)
            if isinstance(found, MadeAgain):
                report_loss(found.said, self._options)
                again[tp] = OffsetSet(log.low)
            elif isinstance(found, CutShort):
                report_loss(found.said, self._options)
                begins[tp], latest[tp] = found.done, log.high
        return again

    def _first_of(self, new: Collection[TopicPartition]) -> Done:
        """Partitions that are new begin at their beginning."""
        found = self._kafka.earliest(sorted(new))
        for tp, offset in found.items():
            if offset > 0:
                report_loss(
                    f"{tp} is new, and its log begins at {offset}: records before it were not read", self._options
                )
        return {tp: OffsetSet(offset) for tp, offset in found.items()}

    def _pass_over_deleted(self, begins: Done) -> None:
        """Retention can be faster than the work on a backlog. (At the frontier it is found out when it is read.)"""
        for tp, first in self._kafka.earliest([tp for tp, done in begins.items() if done.holes]).items():
            if (low := begins[tp].low) < first:
                report_loss(f"{tp}: records of its backlog, from {low} to before {first}, were deleted", self._options)
                begins[tp] |= OffsetSet(first)

    def _planned(self, begins: Done, latest: Offsets, limit: ReadLimit) -> Done | None:
        """What is done after the batch. None if there is none yet."""
        options, lanes = self._options, self._groups.lanes
        if isinstance(limit, ReadAllAvailable):
            return planned(begins, latest, None, options.shares)
        if options.min_offsets is not None and self._target is None:
            waiting = sum(max(0, latest[tp] - done.frontier) + done.count_open for tp, done in begins.items())
            # As in Spark: the first batch of a run does not wait.
            is_due = self._clock() - self._last_batch >= options.max_trigger_delay
            if waiting < options.min_offsets and not is_due:
                return None
            self._last_batch = self._clock()
        if lanes is None:
            return planned(begins, latest, options.max_offsets, options.shares)
        jumping = to_jump(begins, latest, self._arrived, lanes)
        done = planned(begins, latest, options.max_offsets, options.shares, lanes, jumping)
        self._arrived = {tp for tp in jumping if done[tp].frontier < latest[tp]}
        return done

    # -- what Spark shows ------------------------------------------------------------------------------------------

    def _note(self, latest: Offsets, done: Done) -> None:
        self._latest = latest
        self._metrics = {
            "liveLag": sum(max(0, latest[tp] - each.frontier) for tp, each in done.items()),
            "backlogOpen": sum(each.count_open for each in done.values()),
            **({} if self._lateness is None else {"lateRecords": 0}),
            **self._grouping.metrics(),
        }

    def _note_start(self, start: Checkpoint) -> None:
        """Nothing is planned yet. It is shown all the same: Spark's listeners get no report as the text `None`."""
        owned = {} if self._groups.is_member else start.done
        self._note({tp: each.frontier for tp, each in owned.items()}, owned)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if self._latest is None:
            return None
        found = Checkpoint.plain(self._latest).to_json()
        if self._groups.is_off:
            return found
        client = {} if self._grouping.client is None else {CLIENT: self._grouping.client}
        return {**found, METRICS: self._metrics, **client}

    # -- batches ---------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        is_new, self._initial = start == self._initial, None
        if is_new and self._starts_anew:
            return []
        before, after = Checkpoint.read(start), Checkpoint.read(end)
        new = self._first_of([tp for tp in after.done if tp not in after.unread and tp not in before.done])
        begins = Checkpoint({**before.done, **new})
        options = self._options
        tasks = in_tasks(begins.ranges_to(after), options.min_partitions, options.max_records_per_partition)
        return [LaneTask(each) for each in tasks]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        columns = [name for name in self._schema.names if name != LANE]
        for wanted in partition.value:
            found = read_range(wanted.offsets, self._options, columns)
            yield from with_lane(found, wanted.lane) if self._groups.include_lane else found

    def commit(self, end: dict[str, Any]) -> None:
        self._grouping.completed(Checkpoint.read(end))

    def stop(self) -> None:
        self._grouping.close()
        logs, self._logs = self._logs, None
        if logs is not None:
            logs.close()

    @property
    def _kafka(self) -> Logs:
        if self._logs is None:
            self._logs = Logs(self._options)
        return self._logs


def _has_backlog(*done: Done | None) -> bool:
    """A query that is no member has one only from its start on, until it is worked off."""
    return any(each.holes for some in done if some is not None for each in some.values())
