"""`watermarkDelay=…`: counts the records of a batch that the query's watermark drops (KIP-333).

Stateful operators drop rows that are not newer than a watermark, without an error. Records of a backlog are read after
newer ones, so most of them are dropped. A source does not see the query's plan: the user repeats the delay of
`withWatermark` as an option, and the query's progress has the count.

    newest      the timestamp of the last record that was read of each partition; takes one small fetch for each
    watermark   the newest of all partitions, minus the delay. A batch drops rows by the watermark of the batch before
                it (SPARK-40925), so by what was read two batches ago
    late        the offsets of the batch before the first record that is newer than the watermark, by Kafka's time index

The count is a lower bound: every counted record is late. It is exact if timestamps ascend within each partition. The
first batch of a run counts nothing, since the source does not know what the batch before it had read.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Sequence

from pyspark.sql.types import StructField, StructType, TimestampType

from ...errors import HeadraceError
from ...types import TopicPartition
from ..checkpoint import Checkpoint, LaneRange
from ..data_loss import DataLossError
from ..formats import TypedColumns
from ..offset_range import OffsetRange, Offsets
from ..options.source import SourceOptions
from ..worker.reader import read_range
from ..worker.rows import RowBuilder

log = logging.getLogger(__name__)

# How many offsets before the end to look for a record: the last ones may have none, such as the end of a transaction.
_LOOK_BACK = (1, 16, 256)
_FETCH_TIMEOUT = 10.0
_TIMESTAMPS = RowBuilder(StructType([StructField("timestamp", TimestampType())]), TypedColumns())


class LateRecordCounter:
    """Belongs to the thread of Spark's calls."""

    def __init__(self, options: SourceOptions, delay_ms: int) -> None:
        # A fetch then returns one batch of the producer, and not all that follow.
        settings = {**options.settings, "max.partition.fetch.bytes": "1"}
        timeout = min(options.poll_timeout, _FETCH_TIMEOUT)
        self._options = dataclasses.replace(options, settings=settings, poll_timeout=timeout, fail_on_data_loss=True)
        self._delay_ms = delay_ms
        self._looked_at: Offsets = {}
        self._newest: int | None = None  # never decreases, as a watermark does not
        self._newest_before: int | None = None  # at the start of the previous batch
        self._has_warned = False

    def count(
        self,
        start: Checkpoint,
        ranges: Sequence[LaneRange],
        offsets_since: Callable[[int, Collection[TopicPartition]], Offsets],
    ) -> int:
        """The late records of a batch that starts at `start` and reads `ranges`. `offsets_since` looks up the first
        offset at or after a timestamp."""
        try:
            self._update_newest(start)
            before, self._newest_before = self._newest_before, self._newest
            if before is None or not ranges:
                return 0
            newer = offsets_since(max(0, before - self._delay_ms + 1), {each.tp for each in ranges})
        except (HeadraceError, TimeoutError) as error:  # a count that cannot be determined does not stop the query
            log.info("Cannot count the records that are older than the watermark: %s", error)
            return 0
        late = sum(max(0, min(each.end, newer[each.tp]) - each.start) for each in ranges)
        if late and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%d records of the next batch are older than the watermark of this query (watermarkDelay): its "
                "stateful operators drop them. The query's progress counts them as lateRecords",
                late,
            )
        return late

    def _update_newest(self, start: Checkpoint) -> None:
        for tp, done in start.done.items():
            end = done.frontier
            if tp in start.unread or self._looked_at.get(tp, 0) == end:
                continue
            found = next(filter(None, (self._timestamps(tp, end - back, end) for back in _LOOK_BACK)), [])
            self._newest = max((each for each in (self._newest, *found) if each is not None), default=None)
            self._looked_at[tp] = end

    def _timestamps(self, tp: TopicPartition, start: int, end: int) -> list[int]:
        """Of the records that still exist."""
        wanted = OffsetRange(tp, max(0, start), end)
        try:
            batches = list(read_range(wanted, self._options, _TIMESTAMPS))
        except DataLossError:  # these records are not part of this batch
            return []
        return [value.value // 1000 for batch in batches for value in batch.column(0) if value.is_valid]
