"""`watermarkDelay=…`: how many records of a batch the query's watermark drops (KIP-333).

Stateful operators drop rows that are not newer than a watermark, without an error. Records of a backlog are read after
newer ones, so most of them are dropped. A source does not see the query's plan: the user repeats the delay of
`withWatermark` as an option, and the query's progress counts the records.

    newest      the timestamp of the last record that was read of each partition; one small fetch for each
    watermark   the newest of all partitions, less the delay. A batch drops by the watermark that the batch before it
                had (SPARK-40925): by what was read two batches ago
    late        offsets of the batch before the first record that is newer than the watermark, by Kafka's time index

The count is a lower bound, and exact where timestamps ascend within a partition: all that is counted is late. Of the
first batch of a run nothing is counted, since nobody knows what the one before it had read.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Sequence

from ..errors import HeadraceError
from ..types import TopicPartition
from .checkpoint import Checkpoint, LaneRange
from .data_loss import DataLossError
from .options import SourceOptions
from .ranges import OffsetRange, Offsets
from .reading import read_range

log = logging.getLogger(__name__)

_BACK = (1, 16, 256)  # offsets: the last of a log may have no record, as a transaction's end has none
_ANSWERS_WITHIN = 10.0


class Lateness:
    """Belongs to the thread of Spark's calls."""

    def __init__(self, options: SourceOptions, delay_ms: int) -> None:
        # A fetch then has one batch of the producer, not all that follows.
        settings = {**options.settings, "max.partition.fetch.bytes": "1"}
        timeout = min(options.poll_timeout, _ANSWERS_WITHIN)
        self._options = dataclasses.replace(options, settings=settings, poll_timeout=timeout, fail_on_data_loss=True)
        self._delay = delay_ms
        self._seen: Offsets = {}
        self._newest: int | None = None  # it never falls, as a watermark does not
        self._before: int | None = None  # the newest when the batch before this one began
        self._has_warned = False

    def count(
        self,
        start: Checkpoint,
        ranges: Sequence[LaneRange],
        since: Callable[[int, Collection[TopicPartition]], Offsets],
    ) -> int:
        """Of a batch that begins at `start` and reads `ranges`. `since` tells the first offset at or after a time."""
        try:
            self._look(start)
            before, self._before = self._before, self._newest
            if before is None or not ranges:
                return 0
            newer = since(max(0, before - self._delay + 1), {each.tp for each in ranges})
        except (HeadraceError, TimeoutError) as error:  # a figure that cannot be had does not stop the query
            log.info("the records older than the watermark are not counted: %s", error)
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

    def _look(self, start: Checkpoint) -> None:
        for tp, done in start.done.items():
            end = done.frontier
            if tp in start.unread or self._seen.get(tp, 0) == end:
                continue
            found = next(filter(None, (self._timestamps(tp, end - back, end) for back in _BACK)), [])
            self._newest = max((each for each in (self._newest, *found) if each is not None), default=None)
            self._seen[tp] = end

    def _timestamps(self, tp: TopicPartition, start: int, end: int) -> list[int]:
        """Of records that are still there."""
        wanted = OffsetRange(tp, max(0, start), end)
        try:
            batches = list(read_range(wanted, self._options, ["timestamp"]))
        except DataLossError:  # not of this batch
            return []
        return [value.value // 1000 for batch in batches for value in batch.column(0) if value.is_valid]
