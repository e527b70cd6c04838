"""What a task does: it reads one range and yields Arrow batches.

A worker process keeps its consumer from task to task, with its connections; Spark makes workers by fork(), so a
consumer belongs to the process that made it. Nothing is fetched beyond the end of a range.

What a worker holds is bounded: what the consumer has fetched ahead (`kafka.queued.max.bytes`), and the Arrow batch that
is being sent, of at most so many rows and bytes (one record may be larger).
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..errors import HeadraceError, OffsetOutOfRangeError, OffsetResetError
from ..records import Records
from ..sync import Consumer
from . import inside
from .data_loss import report_loss
from .garbage import spare_the_modules
from .options import SourceOptions
from .ranges import OffsetRange
from .source import arrow_schema

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)

# Of an Arrow batch: enough to be fast, little enough for the memory of an executor, which holds it outside of the heap.
_ROWS = 50_000
_BYTES = 16 * 2**20
# A task reads one partition: in larger steps than a consumer of many, so that its Arrow batches are larger.
_FETCH_BYTES = 4 * 2**20
_POLL = 0.5
_ANSWERS_WITHIN = 10.0

# Idle consumers of this process, by their settings, the last used last. Only its main thread is here: a worker has one
# task at a time.
_MOST_IDLE = 4
_idle: dict[tuple[int, tuple[tuple[str, str], ...]], Consumer] = {}


def read_range(wanted: OffsetRange, options: SourceOptions, columns: list[str]) -> Iterator[pyarrow.RecordBatch]:
    """Raises DataLossError; TimeoutError when nothing comes for kafkaConsumer.pollTimeoutMs."""
    import pyarrow

    spare_the_modules()
    schema = arrow_schema()
    with borrowed(options.settings) as consumer:
        for records in _records(consumer, wanted, options):
            for batch in pyarrow.RecordBatchReader.from_stream(records, schema=schema):
                yield from _bounded(batch.select(columns))


def _bounded(batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
    """In halves, while it is too large. Nothing is copied."""
    if batch.nbytes <= _BYTES or batch.num_rows < 2:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _bounded(batch.slice(0, middle))
    yield from _bounded(batch.slice(middle))


def _records(consumer: Consumer, wanted: OffsetRange, options: SourceOptions) -> Iterator[Records]:
    tp = wanted.tp
    consumer.assign([tp])
    inside.read_range(consumer, tp, wanted.start, wanted.end)
    position = wanted.start
    deadline = time.monotonic() + options.poll_timeout
    while position < wanted.end:
        try:
            records = consumer.poll(_POLL, max_records=_ROWS)
        except OffsetOutOfRangeError as error:
            position = _pass_over(consumer, wanted, position, options, error)
            continue
        except OffsetResetError as error:
            # The topic is not the one that this consumer knows by this name: it was made again, or cut short.
            if position > wanted.start:
                report_loss(f"{tp} is not the log any more that was read to offset {position}", options, error)
            inside.read_range(consumer, tp, position, wanted.end)
            continue
        reached = consumer.position(tp)
        if reached == position and time.monotonic() > deadline:
            _explain_silence(consumer, wanted, position, options)
            return
        if len(records):
            yield records
        if reached > position:  # a consumer of the records that takes its time does not count
            position = reached
            deadline = time.monotonic() + options.poll_timeout


def _pass_over(
    consumer: Consumer, wanted: OffsetRange, position: int, options: SourceOptions, error: OffsetOutOfRangeError
) -> int:
    """Retention was faster, or the log ends before the range does."""
    tp = wanted.tp
    begins = consumer.beginning_offsets([tp])[tp]
    gone = min(begins, wanted.end) if begins > position else wanted.end
    report_loss(f"{tp}: the records from {position} to before {gone} are not in the log any more", options, error)
    if not position < begins < wanted.end:
        return wanted.end
    inside.read_range(consumer, tp, begins, wanted.end)
    return begins


def _explain_silence(consumer: Consumer, wanted: OffsetRange, position: int, options: SourceOptions) -> None:
    """Nothing comes of the rest of a range. It may be gone: the topic was deleted since the batch was planned, or its
    log ends here since an election lost records. Raises TimeoutError if that is not so."""
    tp = wanted.tp
    late = TimeoutError(
        f"nothing came of {tp} at offset {position} for {options.poll_timeout:g} s: is its broker there? "
        f"kafkaConsumer.pollTimeoutMs is how long to wait"
    )
    try:
        there = {info.partition for info in consumer.partitions_for_topic(tp.topic, timeout=_ANSWERS_WITHIN)}
        end = consumer.watermarks(tp, timeout=_ANSWERS_WITHIN).high if tp.partition in there else None
    except HeadraceError as error:
        raise late from error
    rest = f"records from {position} to before {wanted.end}"
    if end is None:
        report_loss(f"{tp} is gone: it was deleted, and its {rest} were not read", options, late)
    elif end <= position:
        report_loss(f"{tp} ends at offset {end}: the {rest} are not in the log any more", options, late)
    else:
        raise late


@contextlib.contextmanager
def borrowed(settings: Mapping[str, str]) -> Iterator[Consumer]:
    """This worker's consumer with these settings. One that has failed is closed."""
    consumer = _idle.pop(_key(settings), None)
    if consumer is None:
        consumer = reading_consumer(settings)
    try:
        yield consumer
    except BaseException:
        consumer.close()
        raise
    _give_back(settings, consumer)


def reading_consumer(settings: Mapping[str, str]) -> Consumer:
    return Consumer(
        {"max.partition.fetch.bytes": _FETCH_BYTES, **settings},
        enable_auto_commit=False,
        auto_offset_reset="none",
        allow_auto_create_topics=False,
    )


def _give_back(settings: Mapping[str, str], consumer: Consumer) -> None:
    consumer.assign([])
    _idle[_key(settings)] = consumer
    own = [key for key in _idle if key[0] == os.getpid()]
    if len(own) > _MOST_IDLE:
        _idle.pop(own[0]).close()


def _key(settings: Mapping[str, str]) -> tuple[int, tuple[tuple[str, str], ...]]:
    return os.getpid(), tuple(sorted(settings.items()))
