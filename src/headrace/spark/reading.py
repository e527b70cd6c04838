"""What a task does: it reads one range and yields Arrow batches.

A worker process keeps its consumer from task to task, with its connections; Spark makes workers by fork(), so a
consumer belongs to the process that made it. Nothing is fetched beyond the end of a range.

What a worker holds is bounded: what the consumer has fetched ahead (`kafka.queued.max.bytes`), and the Arrow batch that
is being sent, of at most so many rows and bytes (one record may be larger).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..errors import HeadraceError, OffsetOutOfRangeError, OffsetResetError
from ..records import Records
from ..sync import Consumer
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
_FETCH_BYTES = 2 * 2**20
_POLL = 0.5

# Idle consumers of this process, by their settings, the last used last. Only its main thread is here: a worker has one
# task at a time.
_MOST_IDLE = 4
_idle: dict[tuple[int, tuple[tuple[str, str], ...]], Consumer] = {}


class DataLossError(HeadraceError):
    """Records of a range are not in the log any more, and failOnDataLoss is true."""


def read_range(wanted: OffsetRange, options: SourceOptions, columns: list[str]) -> Iterator[pyarrow.RecordBatch]:
    """Raises DataLossError; TimeoutError when nothing comes for kafkaConsumer.pollTimeoutMs."""
    import pyarrow

    schema = arrow_schema()
    consumer = _borrow(options.settings)
    try:
        for records in _records(consumer, wanted, options):
            for batch in pyarrow.RecordBatchReader.from_stream(records, schema=schema):
                yield from _bounded(batch.select(columns))
    except BaseException:
        consumer.close()
        raise
    _give_back(options.settings, consumer)


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
    consumer._aio._intake.read_range(tp, wanted.start, wanted.end)
    deadline = time.monotonic() + options.poll_timeout
    position = wanted.start
    while position < wanted.end:
        try:
            records = consumer.poll(_POLL, max_records=_ROWS)
        except OffsetOutOfRangeError as error:
            position = _pass_over(consumer, wanted, position, options, error)
            continue
        except OffsetResetError as error:
            # The topic is not the one that this consumer knows by this name: it was made again, or cut short.
            if position > wanted.start:
                _lost(f"{tp} is not the log any more that was read to offset {position}", options, error)
            consumer._aio._intake.read_range(tp, position, wanted.end)
            continue
        reached = consumer.position(tp)
        if reached > position:
            position = reached
            deadline = time.monotonic() + options.poll_timeout
        elif time.monotonic() > deadline:
            raise TimeoutError(
                f"nothing came of {tp} at offset {position} for {options.poll_timeout:g} s: is its broker there? "
                f"kafkaConsumer.pollTimeoutMs is how long to wait"
            )
        if len(records):
            yield records


def _pass_over(
    consumer: Consumer, wanted: OffsetRange, position: int, options: SourceOptions, error: OffsetOutOfRangeError
) -> int:
    """Retention was faster, or the log ends before the range does."""
    tp = wanted.tp
    begins = consumer.beginning_offsets([tp])[tp]
    gone = min(begins, wanted.end) if begins > position else wanted.end
    _lost(f"{tp}: the records from {position} to before {gone} are not in the log any more", options, error)
    if not position < begins < wanted.end:
        return wanted.end
    consumer._aio._intake.read_range(tp, begins, wanted.end)
    return begins


def _lost(text: str, options: SourceOptions, error: HeadraceError) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(f"{text}. With failOnDataLoss=false the query goes on") from error
    log.warning("%s", text)


def _borrow(settings: Mapping[str, str]) -> Consumer:
    consumer = _idle.pop(_key(settings), None)
    if consumer is not None:
        return consumer
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
