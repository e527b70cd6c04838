"""`send_arrow`: encodes Arrow data natively, and passes the batches to the sender.

    read an Arrow batch -> know its topic -> reserve memory -> encode some rows -> add the batches -> …

- The data is read one Arrow batch at a time, after all rows of the one before were encoded and added.
- Rows are encoded into reserved memory only, so parallel calls stay within buffer.memory together. A call that has to
  wait passes its partial batches on and releases its memory first: calls that keep memory while they wait for more
  would wait for each other.
- Before each step, the number of partitions is looked up again. A row whose partition is not known waits for new
  metadata, as in `send`.

The steps are a generator, which yields what blocks. `Producer` does that on its caller's thread, `AsyncProducer` awaits
it.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any

from ..._arguments import short_repr, topic_of
from ..._format import FieldName, Format
from ..._record_batch import ColumnEncoder, EncodedBatch, ProducerBatch, RowError
from ...errors import ConfigError, HeadraceError, RecordTooLargeError
from ...records import Records
from ..flag import Flag
from .bulk import Deliveries
from .parts import ProducerParts

_CHUNK = 4 * 2**20  # bytes to encode at a time


@dataclasses.dataclass(frozen=True, slots=True)
class FlagWait:
    """For a flag. `error` makes the error to raise if it is not set by the deadline."""

    flag: Flag
    deadline: float
    error: Callable[[], HeadraceError]


@dataclasses.dataclass(frozen=True, slots=True)
class BlockingCall:
    """A function that may block, because it reads or encodes the user's data. Its result is sent back."""

    function: Callable[[], Any]


Steps = Generator[FlagWait | BlockingCall, Any, None]


def send_columns(
    parts: ProducerParts,
    topic: str | None,
    data: object,
    value: Format | None,
    key: Format | None,
    deliveries: Deliveries,
) -> Steps:
    """Whoever performs a step throws its exception into the generator."""
    steps = _send_columns(parts, topic, data, value, key, deliveries)
    return steps if parts.telemetry is None else parts.telemetry.send_columns(topic, deliveries, steps)


def is_in_memory(data: object, value: Format | None, key: Format | None) -> bool:
    """Whether no call of `send_columns` blocks for long: nothing computes the data meanwhile, and no format asks a
    registry."""
    if value is not None or key is not None:
        return False
    pyarrow = sys.modules.get("pyarrow")  # whoever has its objects has imported it
    return isinstance(data, Records) or (pyarrow is not None and isinstance(data, (pyarrow.Table, pyarrow.RecordBatch)))


def _send_columns(
    parts: ProducerParts,
    topic: str | None,
    data: object,
    value: Format | None,
    key: Format | None,
    deliveries: Deliveries,
) -> Steps:
    parts.guard.check()
    if topic is not None:
        topic_of(topic, "topic")
    parts.lifecycle.start()
    ignored = [] if topic is None else ["topic"]
    is_of_kafka = isinstance(data, Records)
    if is_of_kafka:  # their partitions are those of the topic that they were read from
        ignored.append("partition")
    if value is not None or key is not None:
        data = yield BlockingCall(functools.partial(_encoded_columns, topic, data, value, key))
    open_data = functools.partial(ColumnEncoder, data, default_timestamp=0, ignored=ignored, is_of_kafka=is_of_kafka)
    encoder = yield BlockingCall(open_data)
    sending = _ColumnSending(parts, encoder, deliveries)
    try:
        while (found := (yield BlockingCall(encoder.next_topic))) is not None:
            name = found or topic
            if name is None:
                raise ConfigError("send_arrow() needs a topic, or a column topic without nulls")
            yield from sending.send_rows(name)
    finally:
        sending.release()


class _ColumnSending:
    def __init__(self, parts: ProducerParts, encoder: ColumnEncoder, deliveries: Deliveries) -> None:
        self._config = parts.config
        self._accumulator = parts.accumulator
        self._encoder = encoder
        self._deliveries = deliveries
        self._room = parts.accumulator.memory.reservation()
        self._chunk = max(1, min(_CHUNK, parts.config.buffer_memory // 4))

    def release(self) -> None:
        self._accumulator.release(self._room)

    def send_rows(self, topic: str) -> Steps:
        """All rows of the topic in the current Arrow batch."""
        refused = -1
        since = self._accumulator.metadata_version
        while (size := self._encoder.next_size) is not None:
            if size <= self._accumulator.limits.largest:  # otherwise the encoder refuses the row
                yield from self._reserve(topic, size)
            yield from self._know(topic)
            try:
                encoded = yield BlockingCall(functools.partial(self._encode, topic))
            except RowError as error:
                if error.size is not None:
                    self._refuse(error)
                if error.partition is None:
                    raise
                if refused != error.row:
                    refused, since = error.row, self._accumulator.metadata_version
                if not (yield from self._know_partition(topic, error.partition, since)):
                    raise
            else:
                self._add(topic, encoded)

    def _reserve(self, topic: str, size: int) -> Steps:
        """Memory for the next row at least, beside the batches that are not full."""
        deadline = self._deadline
        while True:
            begun = self._encoder.open_bytes
            flag = self._accumulator.reserve(self._room, begun + size, begun + self._chunk)
            if flag is None:
                return
            self._add(topic, self._encoder.finish())
            self.release()
            error = functools.partial(self._accumulator.timeout_error, topic)
            yield self._wait(flag, deadline, error)

    def _know(self, topic: str) -> Steps:
        since, deadline = self._accumulator.metadata_version, self._deadline
        while (flag := self._accumulator.know_topic(topic, since)) is not None:
            yield self._wait(flag, deadline, functools.partial(self._accumulator.timeout_error, topic))

    def _know_partition(self, topic: str, partition: int, since: int) -> Generator[FlagWait | BlockingCall, Any, bool]:
        """Whether the topic has the partition now, or may have got it: the row is tried again."""
        deadline = self._deadline
        while (flag := self._accumulator.know_partition(topic, partition, since)) is not None:
            self.release()  # every row before this one was added
            yield self._wait(flag, deadline, functools.partial(self._accumulator.timeout_error, topic, partition))
        return 0 <= partition < self._accumulator.partition_count(topic)

    @property
    def _deadline(self) -> float:
        return time.monotonic() + self._config.max_block_ms / 1000

    def _wait(self, flag: Flag, deadline: float, error: Callable[[], HeadraceError]) -> FlagWait:
        if time.monotonic() >= deadline:
            raise error()
        return FlagWait(flag, deadline, error)

    def _encode(self, topic: str) -> list[tuple[int, EncodedBatch, int, int, int]]:
        accumulator, config, encoder = self._accumulator, self._config, self._encoder
        batch_size = accumulator.largest_batch
        encoder.default_timestamp = int(time.time() * 1000)
        return encoder.encode(
            partition_count=accumulator.partition_count(topic),
            partitioner=accumulator.key_hash,
            ignores_empty_key=accumulator.key_hash == "crc32",
            sticky=accumulator.draw_partitions(topic, self._chunk // batch_size + 1),
            batch_size=batch_size,
            max_record_size=accumulator.limits.largest,
            codec=config.compression_type,
            level=config.compression_level,
            max_bytes=self._chunk,
            room=self._room.held,
        )

    def _refuse(self, error: RowError) -> None:
        assert error.size is not None
        try:
            self._accumulator.limits.check(error.size, f"row {error.row}: the record")
        except RecordTooLargeError as failure:
            raise failure from error

    def _add(self, topic: str, encoded: Iterable[tuple[int, EncodedBatch, int, int, int]]) -> None:
        now = time.monotonic()
        waiting = self._accumulator.waiting
        batches = [
            ProducerBatch.of_encoded(topic, partition, now, waiting, batch, count, size)
            for partition, batch, count, size, _ in encoded
        ]
        if batches:
            self._accumulator.add_encoded(batches, self._room)
            self._deliveries.add_batches(batches)


def _encoded_columns(topic: str | None, data: object, value: Format | None, key: Format | None) -> Any:
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
    return encoded_reader(data, topic, formats)
