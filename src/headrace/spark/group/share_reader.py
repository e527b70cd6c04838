"""`share.group.id=…`: micro-batches of records that a share group delivers (KIP-932, KIP-1206).

The reader on the driver is the member. It acquires the records of a batch, never more than maxOffsetsPerTrigger, and
none for a later batch. The tasks carry the records: nothing reads them from the log again, and a task that is retried
has the same ones.

    acquired     by latestOffset(), which then returns the offset of batch n + 1
    processed    the locks are renewed in the background, for at most max.poll.interval.ms
    accepted     by the next latestOffset(), which comes when the batch is complete
    released     if the query stops before that, fails, or is killed

A batch that is run again because the driver was killed reads nothing: its records were released, and are delivered
again in the following batches. (Other records in their place could be lost: a sink that has seen the number of the
batch ignores it.) So every record is delivered at least once. The records of a batch that was complete but not yet
accepted are delivered twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...errors import HeadraceError
from ...records import Records
from ...sync.share_consumer import ShareConsumer
from ...types import AcknowledgeType, TopicPartition
from ..checkpoint import CLIENT_ID_KEY, METRICS_KEY, check_schemas, with_schemas
from ..consumer_access import late_records
from ..error_boundary import error_boundary
from ..offset_lookup import OffsetLookup
from ..offset_range import Offsets
from ..options.consumer import with_unique_client_id
from ..options.group import SHARE_GROUP, GroupOptions
from ..options.parsers import OptionError
from ..options.source import SourceOptions, SubscribeStrategy
from ..schema import arrow_schema
from ..versions import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from ..worker.pickling import reduce_for_worker
from ..worker.rows import RowBuilder
from ..worker.tuning import exclude_modules_from_gc
from .sigterm import install_sigterm_handler

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)

DEFAULT_MAX_RECORDS = 10_000
"""Of a batch, without maxOffsetsPerTrigger."""
MAX_BATCH_BYTES = 64 * 2**20
"""Of a batch. One more fetch response, of at most fetch.max.bytes, may exceed it."""

# No topic can have these names, so that the checkpoint is not mistaken for offsets.
GROUP_KEY = "share:group"
BATCH_KEY = "share:batch"

_FIRST_POLL_TIMEOUT = 0.2  # for the first records of a batch; if there are none, the next trigger polls again
_NEXT_POLL_TIMEOUT = 0.02
# An AvailableNow query has all records when none arrive for this long. At first a new group has to learn where it
# starts, which can take a while after it has assigned its partitions.
_DRAINED_AFTER = 2.0
_DRAINED_AFTER_START = 5.0
_JOIN_TIMEOUT = 60.0
_JOIN_POLL_TIMEOUT = 0.2
_ACKNOWLEDGE_TIMEOUT = 10.0


class ShareInputPartition(InputPartition):
    """One task: some of the records of a batch, as an Arrow stream."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)


@error_boundary
class ShareReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver as long as its query, and is the member of the share group."""

    def __init__(self, options: SourceOptions, rows: RowBuilder, group_options: GroupOptions) -> None:
        self._options = options
        self._rows = rows
        self._group_options = group_options
        self._settings = with_unique_client_id(group_options.settings)
        self._consumer: ShareConsumer | None = None
        self._acquired: list[Records] = []  # of the batch that is planned or runs
        self._batch_number: int | None = None  # of that batch
        self._available_now_end: Offsets | None = None
        self._has_received = False

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_for_worker(ShareReader, self._options, self._rows, self._group_options)

    # -- offsets ---------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._max_records)

    def prepareForTriggerAvailableNow(self) -> None:
        lookup = OffsetLookup(self._options)
        try:
            self._available_now_end = lookup.latest_offsets(lookup.selected_partitions())
        finally:
            lookup.close()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if isinstance(limit, ReadAllAvailable):  # of trigger(once=True) only: getDefaultReadLimit() returns another one
            raise OptionError(
                f"trigger(once=True) does not work with {SHARE_GROUP}: it runs one batch, and records are accepted "
                f"only by the batch after theirs. Use availableNow=True"
            )
        number = self._parse_batch_number(start)
        if self._batch_number == number + 1:
            return self._offset(number + 1)  # Spark has not begun it yet
        self._acknowledge(AcknowledgeType.ACCEPT)
        self._acquired = self._acquire_batch()
        if self._is_beyond_available_now:
            self._acknowledge(AcknowledgeType.RELEASE)
        if not self._acquired:
            return start
        self._batch_number = number + 1
        return self._offset(self._batch_number)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return {METRICS_KEY: {"locksHeld": self._locks_held}, CLIENT_ID_KEY: self._settings["client.id"]}

    @property
    def _locks_held(self) -> int:
        """All records that the member has locked, including those that are not part of this batch."""
        if self._consumer is None:
            return 0
        figures = self._consumer.metrics()
        return int(figures["in_hand"] + figures["buffered_records"])

    def _offset(self, number: int) -> dict[str, Any]:
        return with_schemas({GROUP_KEY: self._group_options.share_group, BATCH_KEY: number}, self._rows.typed)

    def _parse_batch_number(self, offset: dict[str, Any]) -> int:
        if BATCH_KEY not in offset:
            raise ValueError(
                f"The checkpoint is that of a query without {SHARE_GROUP}: it contains {offset!r}. Start the query "
                f"with a new checkpoint"
            )
        check_schemas(offset, self._rows.typed)
        return int(offset[BATCH_KEY])

    @property
    def _max_records(self) -> int:
        return self._options.max_offsets or DEFAULT_MAX_RECORDS

    # -- records ---------------------------------------------------------------------------------------------------

    def _acquire_batch(self) -> list[Records]:
        """The records of one batch."""
        found: list[Records] = []
        if self._available_now_end is not None and not self._has_received:
            self._wait_for_assignment(found)
        count, size = sum(map(len, found)), sum(records.nbytes for records in found)
        while count < self._max_records and size < MAX_BATCH_BYTES:
            limit = self._max_records - count
            # The fetch of a poll that returns nothing is still in flight. Its records belong to this batch: if they
            # were left for the next one, they would be locked for as long as this one runs.
            records = self._member.poll(_NEXT_POLL_TIMEOUT if found else self._first_poll_timeout, max_records=limit)
            records = records if len(records) else late_records(self._member, limit)
            if not len(records):
                break
            found.append(records)
            count += len(records)
            size += records.nbytes
        self._has_received = self._has_received or bool(found)
        return found

    @property
    def _first_poll_timeout(self) -> float:
        if self._available_now_end is None:
            return _FIRST_POLL_TIMEOUT
        return _DRAINED_AFTER if self._has_received else _DRAINED_AFTER_START

    def _wait_for_assignment(self, found: list[Records]) -> None:
        """Waits for the first assignment. Adds records that arrive meanwhile."""
        deadline = time.monotonic() + _JOIN_TIMEOUT
        while not found and not self._member.metrics()["partitions"] and time.monotonic() < deadline:
            records = self._member.poll(_JOIN_POLL_TIMEOUT, max_records=self._max_records)
            if len(records):
                found.append(records)

    @property
    def _is_beyond_available_now(self) -> bool:
        """Whether all acquired records are newer than the start of an AvailableNow query."""
        ends = self._available_now_end
        return ends is not None and all(
            record.offset >= ends.get(TopicPartition(record.topic, record.partition), 0)
            for records in self._acquired
            for record in records
        )

    def _acknowledge(self, kind: AcknowledgeType) -> None:
        """Records whose lock has expired cannot be acknowledged, and are delivered again."""
        acquired, self._acquired, self._batch_number = self._acquired, [], None
        if not acquired:
            return
        for records in acquired:
            self._member.acknowledge(records, kind)
        for tp, error in self._member.commit(timeout=_ACKNOWLEDGE_TIMEOUT).items():
            if error is not None:
                log.warning("Records of %s that the query has read will be delivered again: %s", tp, error)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._batch_number != self._parse_batch_number(end):
            log.info("Batch %s is run again without records: they are delivered in later batches", end[BATCH_KEY])
            return []
        return [ShareInputPartition(_to_arrow_stream(records)) for records in self._acquired]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        exclude_modules_from_gc()
        with pyarrow.ipc.open_stream(partition.value) as stream:
            for batch in stream:
                if batch.num_rows:
                    yield self._rows.build(batch)

    def stop(self) -> None:
        """Releases the records that were not accepted."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            try:
                consumer.close()
            except HeadraceError as error:
                log.warning("Cannot leave the share group %r cleanly: %s", self._group_options.share_group, error)

    @property
    def _member(self) -> ShareConsumer:
        if self._consumer is None:
            install_sigterm_handler()
            self._consumer = ShareConsumer(
                self._settings,
                max_poll_records=self._max_records,
                share_acknowledgement_mode="explicit",
                share_acquire_mode="record_limit",
                renew="auto",
            )
            assert isinstance(self._options.strategy, SubscribeStrategy)
            self._consumer.subscribe(self._options.strategy.topics)
        return self._consumer


def _to_arrow_stream(records: Records) -> bytes:
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    batches = pyarrow.RecordBatchReader.from_stream(records, schema=arrow_schema())
    with pyarrow.ipc.new_stream(sink, batches.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())
