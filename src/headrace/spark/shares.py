"""`share.group.id=…`: micro-batches of records that a share group gives (KIP-932, KIP-1206).

The reader on the driver is the member. It acquires what a batch has, never more than maxOffsetsPerTrigger records and
none for a later batch. The tasks carry these records: nobody reads them from the log again, and a task that is tried
again has the same.

    acquired     by latestOffset(), which then says: batch n + 1
    at work      the locks are renewed in the background, for max.poll.interval.ms at most
    accepted     by the next latestOffset(): it comes when the batch is complete
    released     when the query ends before that, fails, or is killed

A batch that is run again, since the driver was killed, reads nothing: what it had was released, and comes again in the
batches that follow. (Other records in its place could be lost: a sink that has seen the batch's number ignores it.) So
every record is delivered at least once, and those of a batch that was complete but not accepted yet come twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ..acknowledge import AcknowledgeType
from ..errors import HeadraceError
from ..records import Records
from ..sync.share_consumer import ShareConsumer
from ..types import TopicPartition
from .border import at_border
from .checkpoint import CLIENT, METRICS
from .consumer_settings import with_own_client
from .ending import end_in_order
from .garbage import spare_the_modules
from .group_options import SHARE, GroupOptions
from .inside import late_records
from .logs import Logs
from .option_values import OptionError
from .options import SourceOptions, Subscribed
from .ranges import Offsets
from .source import arrow_schema
from .unpacking import packed

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)

MOST_RECORDS = 10_000
"""Of a batch, without maxOffsetsPerTrigger."""
MOST_BYTES = 64 * 2**20
"""Of a batch: what is acquired beyond it is one more answer of a broker, of fetch.max.bytes at most."""

# Names that no topic can have: so nobody takes this for offsets.
GROUP = "share:group"
BATCH = "share:batch"

_FIRST = 0.2  # seconds to wait for the first records of a batch; the trigger comes again
_MORE = 0.02  # and for more of them
# An AvailableNow query has all that there is when nothing comes for so long. At first a group that is new has to learn
# where it starts, which can take a while after it has assigned its partitions.
_DRY = 2.0
_DRY_AT_FIRST = 5.0
_JOINS_WITHIN = 60.0
_JOINING = 0.2
_ACCEPTED_WITHIN = 10.0


class RecordsTask(InputPartition):
    """Some of the records of a batch, as an Arrow stream."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)


@at_border
class ShareReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver as long as its query."""

    def __init__(self, options: SourceOptions, schema: StructType, groups: GroupOptions) -> None:
        self._options = options
        self._schema = schema
        self._groups = groups
        self._settings = with_own_client(groups.settings)
        self._consumer: ShareConsumer | None = None
        self._held: list[Records] = []  # of the batch that is planned or runs
        self._number: int | None = None  # of that batch
        self._ends: Offsets | None = None  # of an AvailableNow query
        self._has_begun = False  # records have come

    def __reduce__(self) -> tuple[Any, ...]:
        return packed(ShareReader, self._options, self._schema, self._groups)

    # -- offsets ---------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        logs = Logs(self._options)
        try:
            self._ends = logs.latest(logs.chosen())
        finally:
            logs.close()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if isinstance(limit, ReadAllAvailable):  # the default limit is another one
            raise OptionError(
                f"trigger(once=True) has one batch, and with {SHARE} it is accepted by the next: use availableNow=True"
            )
        number = self._number_in(start)
        if self._number == number + 1:
            return self._offset(number + 1)  # Spark has not begun it
        self._acknowledge(AcknowledgeType.ACCEPT)
        self._held = self._acquired()
        if self._is_over:
            self._acknowledge(AcknowledgeType.RELEASE)
        if not self._held:
            return start
        self._number = number + 1
        return self._offset(self._number)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return {METRICS: {"locksHeld": self._locks}, CLIENT: self._settings["client.id"]}

    @property
    def _locks(self) -> int:
        """All that the member has locked, be it of this batch or not."""
        if self._consumer is None:
            return 0
        figures = self._consumer.metrics()
        return int(figures["in_hand"] + figures["buffered_records"])

    def _offset(self, number: int) -> dict[str, Any]:
        return {GROUP: self._groups.share_group, BATCH: number}

    def _number_in(self, offset: dict[str, Any]) -> int:
        if BATCH not in offset:
            raise ValueError(f"the checkpoint has {offset!r}: it is of a query without share.group.id")
        return int(offset[BATCH])

    @property
    def _most(self) -> int:
        return self._options.max_offsets or MOST_RECORDS

    # -- records ---------------------------------------------------------------------------------------------------

    def _acquired(self) -> list[Records]:
        """The records of one batch."""
        found: list[Records] = []
        if self._ends is not None and not self._has_begun:
            self._join(found)
        patience = _FIRST if self._ends is None else _DRY if self._has_begun else _DRY_AT_FIRST
        count, size = sum(map(len, found)), sum(records.nbytes for records in found)
        while count < self._most and size < MOST_BYTES:
            limit = self._most - count
            # The fetch of a poll that returns nothing is still under way. Records that it brings belong to this batch:
            # left for the next one, they would be locked for as long as this one runs.
            records = self._member.poll(_MORE if found else patience, max_records=limit)
            records = records if len(records) else late_records(self._member, limit)
            if not len(records):
                break
            found.append(records)
            count += len(records)
            size += records.nbytes
        self._has_begun = self._has_begun or bool(found)
        return found

    def _join(self, found: list[Records]) -> None:
        """Waits for the first assignment. Records may already come meanwhile."""
        deadline = time.monotonic() + _JOINS_WITHIN
        while not found and not self._member.metrics()["partitions"] and time.monotonic() < deadline:
            records = self._member.poll(_JOINING, max_records=self._most)
            if len(records):
                found.append(records)

    @property
    def _is_over(self) -> bool:
        """Whether all that was acquired is younger than an AvailableNow query."""
        ends = self._ends
        return ends is not None and all(
            record.offset >= ends.get(TopicPartition(record.topic, record.partition), 0)
            for records in self._held
            for record in records
        )

    def _acknowledge(self, kind: AcknowledgeType) -> None:
        """What cannot be acknowledged any more, since its lock has ended, comes again."""
        held, self._held, self._number = self._held, [], None
        if not held:
            return
        for records in held:
            self._member.acknowledge(records, kind)
        for tp, error in self._member.commit(timeout=_ACCEPTED_WITHIN).items():
            if error is not None:
                log.warning("records of %s that were read come again: %s", tp, error)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._number != self._number_in(end):
            log.info("batch %s is run again: what it had comes again, in others", end[BATCH])
            return []
        return [RecordsTask(_stream(records)) for records in self._held]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        spare_the_modules()
        with pyarrow.ipc.open_stream(partition.value) as stream:
            for batch in stream:
                yield batch.select(self._schema.names)

    def stop(self) -> None:
        """What was not accepted is released by it."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            try:
                consumer.close()
            except HeadraceError as error:
                log.warning("leaving the share group: %s", error)

    @property
    def _member(self) -> ShareConsumer:
        if self._consumer is None:
            end_in_order()
            self._consumer = ShareConsumer(
                self._settings,
                max_poll_records=self._most,
                share_acknowledgement_mode="explicit",
                share_acquire_mode="record_limit",
                renew="auto",
            )
            assert isinstance(self._options.strategy, Subscribed)
            self._consumer.subscribe(self._options.strategy.topics)
        return self._consumer


def _stream(records: Records) -> bytes:
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    batches = pyarrow.RecordBatchReader.from_stream(records, schema=arrow_schema())
    with pyarrow.ipc.new_stream(sink, batches.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())
