"""Sending many records at once: `send_all` and `send_arrow`, and the deliveries of their records."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from typing import Any

from ..._arguments import short_repr, topic_of
from ..._format import FieldName, Format
from ..._record_batch import ColumnEncoder, Delivery, ProducerBatch, RowError
from ...errors import ConfigError, HeadraceError, RecordTooLargeError
from ...records import Records
from ..flag import Flag
from .accumulator import Accumulator
from .delivery import DeliveryWaiting
from .parts import ProducerParts

_CHUNK = 4 * 2**20  # bytes to encode at a time


class Deliveries:
    """The deliveries of many records. Await it or call `result()` to wait until all of them are delivered."""

    def __init__(self, waiting: DeliveryWaiting) -> None:
        self._waiting = waiting
        self._batches: dict[ProducerBatch, None] = {}
        self._last: ProducerBatch | None = None
        self._count = 0

    def __len__(self) -> int:
        """The number of records."""
        return self._count

    def add(self, delivery: Delivery) -> None:
        """Adds the record of a delivery. For the producer."""
        batch = delivery._batch
        if batch is not self._last:  # most records are in the batch of the previous one
            self._batches[batch] = None
            self._last = batch
        self._count += 1

    def add_batches(self, batches: Iterable[ProducerBatch]) -> None:
        """Adds all records of these batches. For the producer."""
        for batch in batches:
            self._batches[batch] = None
            self._count += len(batch)

    @property
    def is_done(self) -> bool:
        """Whether every record was delivered, or has failed."""
        return all(batch.is_done for batch in self._leaves())

    @property
    def error(self) -> HeadraceError | None:
        """Why a record was not delivered: the first such error, or None."""
        return next((batch.error for batch in self._leaves() if batch.error is not None), None)

    def result(self, timeout: float | None = None) -> int:
        """Waits until all records are delivered, and returns their number. Raises the error of the first record that
        was not delivered, and RequestTimeoutError after `timeout` seconds."""
        self._waiting.wait_for(self._batches, timeout)
        return self._outcome()

    def __await__(self) -> Generator[Any, None, int]:
        yield from self._waiting.wait_for_async(self._batches).__await__()
        return self._outcome()

    def _outcome(self) -> int:
        errors = [batch.error for batch in self._leaves() if batch.error is not None]
        if errors:
            self._waiting.seen(errors)
            raise errors[0].with_traceback(None)
        return self._count

    def _leaves(self) -> Iterator[ProducerBatch]:
        """The batches that have the records now. Some may have been split."""
        remaining = list(self._batches)[::-1]
        while remaining:
            batch = remaining.pop()
            if parts := batch.parts:
                remaining.extend(reversed(parts))
            else:
                yield batch


def send_columns(
    parts: ProducerParts, topic: str | None, data: object, deliveries: Deliveries
) -> Generator[tuple[str, Flag, float], None, None]:
    """`_send_columns`, traced if something is installed for that."""
    steps = _send_columns(parts, topic, data, deliveries)
    return steps if parts.telemetry is None else parts.telemetry.send_columns(topic, deliveries, steps)


def _send_columns(
    parts: ProducerParts, topic: str | None, data: object, deliveries: Deliveries
) -> Generator[tuple[str, Flag, float], None, None]:
    """Encodes Arrow data and passes it to the sender. Yields a topic, a flag to wait for before more of its records can
    be sent, and the deadline: max.block.ms after the last records of the topic were sent. Raises the timeout error
    itself if the flag is set but the topic is still missing from the metadata."""
    parts.guard.check()
    if topic is not None:
        topic_of(topic, "topic")
    accumulator, config = parts.accumulator, parts.config
    parts.lifecycle.start()
    ignored = [] if topic is None else ["topic"]
    if isinstance(data, Records):  # their partitions are those of the topic that they were read from
        ignored.append("partition")
    encoder = ColumnEncoder(data, default_timestamp=int(time.time() * 1000), ignored=ignored)
    chunk = max(1, min(_CHUNK, config.buffer_memory // 4))
    batch_size = accumulator.largest_batch
    while (found := encoder.next_topic()) is not None:
        name = found or topic
        if name is None:
            raise ConfigError("send_arrow() needs a topic, or a column topic without nulls")
        since = accumulator.metadata_version
        deadline = time.monotonic() + config.max_block_ms / 1000
        while (flag := accumulator.know_topic(name, since)) is not None:
            _check_deadline(accumulator, name, deadline)
            yield name, flag, deadline
        count = accumulator.partition_count(name)
        while True:
            deadline = time.monotonic() + config.max_block_ms / 1000
            while (flag := accumulator.make_room(2 * chunk)) is not None:  # plus batches that are not full
                _check_deadline(accumulator, name, deadline)
                yield name, flag, deadline
            try:
                encoded = encoder.encode(
                    partition_count=count,
                    partitioner=accumulator.key_hash,
                    ignores_empty_key=accumulator.key_hash == "crc32",
                    sticky=accumulator.draw_partitions(name, chunk // batch_size + 1),
                    batch_size=batch_size,
                    max_request_size=config.max_request_size,
                    codec=config.compression_type,
                    level=config.compression_level,
                    max_bytes=chunk,
                )
            except RowError as error:
                if error.size is None:
                    raise
                raise RecordTooLargeError(str(error)) from error
            if not encoded:
                break
            now = time.monotonic()
            batches = [
                ProducerBatch.of_encoded(name, partition, now, accumulator.waiting, batch, count_of, size)
                for partition, batch, count_of, size, _ in encoded
            ]
            accumulator.add_encoded(batches)
            deliveries.add_batches(batches)


def encoded_columns(topic: str | None, data: object, value: Format | None, key: Format | None) -> Any:
    """Arrow data with encoded values and keys, as a `pyarrow.RecordBatchReader`. Encoding may ask a registry, and so
    block."""
    from ..._encoding import encoded_reader

    formats: dict[FieldName, Format] = {}
    for name, given in (("value", value), ("key", key)):
        if given is None:
            continue
        if not isinstance(given, Format):
            raise TypeError(f"{name} must be a format such as headrace.formats.Json, not {short_repr(given)}")
        formats["value" if name == "value" else "key"] = given
    if topic is not None:
        topic_of(topic, "topic")
    return encoded_reader(data, topic, formats)


def _check_deadline(accumulator: Accumulator, topic: str, deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise accumulator.timeout_error(topic)


def arguments_of(row: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `send` for a row of `send_all`."""
    if unknown := row.keys() - _ARGUMENTS:
        names = ", ".join(sorted(map(str, unknown)))
        raise TypeError(f"a row may have {', '.join(_ARGUMENTS)}, but not {names}: {short_repr(row)}")
    return {"value": None, **row}


_ARGUMENTS = ("value", "key", "headers", "timestamp", "partition")
