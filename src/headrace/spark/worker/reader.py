"""A task: it reads one range of offsets and yields Arrow batches.

A worker process keeps its consumer, with its connections, from task to task. Spark creates workers by fork(), so a
consumer belongs to the process that created it. Nothing is fetched beyond the end of a range.

The memory of a worker is bounded: by what the consumer has fetched ahead (`kafka.queued.max.bytes`), and by the Arrow
batch that is being sent, which has a maximum of rows and bytes (a single record may be larger).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...errors import HeadraceError, OffsetOutOfRangeError, OffsetResetError
from ...records import Records
from ...sync import Consumer
from .. import consumer_access
from ..data_loss import report_data_loss
from ..offset_range import OffsetRange
from ..options.source import SourceOptions
from ..schema import arrow_schema
from .rows import RowBuilder
from .tuning import exclude_modules_from_gc

if TYPE_CHECKING:
    import pyarrow

# Limits of an Arrow batch: large enough to be fast, small enough for the memory of an executor, which holds it outside
# of the heap.
_MAX_ROWS = 50_000
_MAX_BYTES = 16 * 2**20
# A task reads one partition. It fetches more at a time than a consumer of many, so that its Arrow batches are larger.
_FETCH_BYTES = 4 * 2**20
_POLL_TIMEOUT = 0.5
_STALL_CHECK_TIMEOUT = 10.0

# Idle consumers by process and settings, the most recently used last. Only the main thread of a worker accesses them:
# a worker runs one task at a time.
_MAX_IDLE_CONSUMERS = 4
_idle_consumers: dict[tuple[int, tuple[tuple[str, str], ...]], Consumer] = {}


def read_range(
    wanted: OffsetRange, options: SourceOptions, rows: RowBuilder, lane: str | None = None
) -> Iterator[pyarrow.RecordBatch]:
    """Raises DataLossError, TimeoutError if no records arrive for kafkaConsumer.pollTimeoutMs, and what RowBuilder
    raises."""
    import pyarrow

    exclude_modules_from_gc()
    schema = arrow_schema()
    with borrow_consumer(options.settings) as consumer:
        for records in _poll_range(consumer, wanted, options):
            for batch in pyarrow.RecordBatchReader.from_stream(records, schema=schema):
                for part in _split_by_bytes(batch):
                    # Decoded records may take more memory than their bytes.
                    yield from _split_by_bytes(rows.build(part, lane))


def _split_by_bytes(batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
    """Halves the batch until each part is small enough. Copies nothing."""
    if batch.nbytes <= _MAX_BYTES or batch.num_rows < 2:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _split_by_bytes(batch.slice(0, middle))
    yield from _split_by_bytes(batch.slice(middle))


def _poll_range(consumer: Consumer, wanted: OffsetRange, options: SourceOptions) -> Iterator[Records]:
    tp = wanted.tp
    consumer.assign([tp])
    consumer_access.read_range(consumer, tp, wanted.start, wanted.end)
    position = wanted.start
    deadline = time.monotonic() + options.poll_timeout
    while position < wanted.end:
        try:
            records = consumer.poll(_POLL_TIMEOUT, max_records=_MAX_ROWS)
        except OffsetOutOfRangeError as error:
            position = _skip_missing(consumer, wanted, position, options, error)
            continue
        except OffsetResetError as error:
            # The topic was recreated or truncated since this consumer last read it: a kept consumer knows the former
            # topic of this name. A loss only if this task has read from that one.
            if position > wanted.start:
                report_data_loss(f"{tp} was recreated or truncated after offset {position}", options, error)
            consumer_access.read_range(consumer, tp, position, wanted.end)
            continue
        reached = consumer.position(tp)
        if reached == position and time.monotonic() > deadline:
            _report_missing_or_raise(consumer, wanted, position, options)
            return
        if len(records):
            yield records
        if reached > position:  # set after the yield: the time that the sink takes does not count
            position = reached
            deadline = time.monotonic() + options.poll_timeout


def _skip_missing(
    consumer: Consumer, wanted: OffsetRange, position: int, options: SourceOptions, error: OffsetOutOfRangeError
) -> int:
    """Retention deleted records, or the log ends before the range does. Returns the offset to resume at."""
    tp = wanted.tp
    beginning = consumer.beginning_offsets([tp])[tp]
    missing_to = min(beginning, wanted.end) if beginning > position else wanted.end
    report_data_loss(
        f"{tp}: the records from offset {position} to before {missing_to} are no longer in the log", options, error
    )
    if not position < beginning < wanted.end:
        return wanted.end
    consumer_access.read_range(consumer, tp, beginning, wanted.end)
    return beginning


def _report_missing_or_raise(consumer: Consumer, wanted: OffsetRange, position: int, options: SourceOptions) -> None:
    """No records arrive for the rest of a range. It may not exist: the topic was deleted since the batch was planned,
    or its log ends here since an election lost records. Raises TimeoutError otherwise."""
    tp = wanted.tp
    stalled = TimeoutError(
        f"No records of {tp} arrived from offset {position} on for {options.poll_timeout:g} s "
        f"(kafkaConsumer.pollTimeoutMs). Check that the leader of the partition is running, or raise the timeout"
    )
    try:
        existing = {info.partition for info in consumer.partitions_for_topic(tp.topic, timeout=_STALL_CHECK_TIMEOUT)}
        end = consumer.watermarks(tp, timeout=_STALL_CHECK_TIMEOUT).high if tp.partition in existing else None
    except HeadraceError as error:
        raise stalled from error
    rest = f"records from offset {position} to before {wanted.end}"
    if end is None:
        report_data_loss(f"{tp} was deleted, and its {rest} were not read", options, stalled)
    elif end <= position:
        report_data_loss(f"{tp} ends at offset {end}: the {rest} are no longer in the log", options, stalled)
    else:
        raise stalled


@contextlib.contextmanager
def borrow_consumer(settings: Mapping[str, str]) -> Iterator[Consumer]:
    """This worker's consumer with these settings. Closes it if the block raises."""
    consumer = _idle_consumers.pop(_key(settings), None)
    if consumer is None:
        consumer = create_task_consumer(settings)
    try:
        yield consumer
    except BaseException:
        consumer.close()
        raise
    _return_consumer(settings, consumer)


def create_task_consumer(settings: Mapping[str, str]) -> Consumer:
    return Consumer(
        {"max.partition.fetch.bytes": _FETCH_BYTES, **settings},
        enable_auto_commit=False,
        auto_offset_reset="none",
        allow_auto_create_topics=False,
    )


def _return_consumer(settings: Mapping[str, str], consumer: Consumer) -> None:
    consumer.assign([])
    _idle_consumers[_key(settings)] = consumer
    own = [key for key in _idle_consumers if key[0] == os.getpid()]
    if len(own) > _MAX_IDLE_CONSUMERS:
        _idle_consumers.pop(own[0]).close()


def _key(settings: Mapping[str, str]) -> tuple[int, tuple[tuple[str, str], ...]]:
    return os.getpid(), tuple(sorted(settings.items()))
