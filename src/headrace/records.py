"""The records that `poll()` returns: stored in columns, accessible as a sequence of `Record`s or as an Arrow stream.

Only this module imports the native decoder. (`_record_batch.py` imports the encoder, `sync` a lock.)
"""

from __future__ import annotations

import functools
import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from ._arguments import short_repr
from ._native import (
    Batch,
    DecodeError,
    Record,
    arrow_batches,
    arrow_schema,
    arrow_stream,
    decode,
    decode_all,
    next_offset,
)
from .errors import ConfigError
from .types import TopicPartition

if TYPE_CHECKING:
    import pyarrow

    from ._decoded_values import Deserializer
    from ._format import FieldName, Format
    from ._typed import Errors

__all__ = ["Batch", "DecodeError", "Record", "Records", "decode", "decode_all", "deserialized", "next_offset"]


_nbytes_of = operator.attrgetter("nbytes")
_NONE: frozenset[TopicPartition] = frozenset()
_Used = TypeVar("_Used")


class Records:
    """An immutable sequence of records, grouped by partition; within a partition, in log order.

    Index and slice it like a list, or select one partition with `records[TopicPartition("t", 0)]`. None of these
    copies data. `Record` objects are created as you iterate.

    It is also an Arrow stream: `pyarrow.table(records)`, `polars.DataFrame(records)`, DuckDB and pandas accept it
    directly. The columns are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
    timestampType, headers. Headers are null if a record has none. A missing timestamp is -1 ms, as in Spark. The stream
    also has `binary_view` or `large_binary` columns, for a consumer that requests them by a schema.
    """

    # Not a collections.abc.Sequence: polars would treat it as rows before it looks for an Arrow stream.
    __slots__ = ("_batches", "_ends", "_len", "lost", "to_be_revoked")

    EMPTY: ClassVar[Records]

    to_be_revoked: frozenset[TopicPartition]
    """The partitions that the next poll() revokes, unless the revoke is delayed (KIP-983)."""
    lost: frozenset[TopicPartition]
    """The partitions that were lost since the last poll() that returned. Other members may already consume them. One
    that was assigned again meanwhile is included: records that you got of it before may be delivered again."""

    def __init__(self, batches: Sequence[Batch] = ()) -> None:
        self._batches = tuple(batches)
        self._len = sum(map(len, self._batches))
        self._ends: list[int] | None = None
        self.to_be_revoked = self.lost = _NONE

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self._batches)

    @overload
    def __getitem__(self, key: int) -> Record: ...
    @overload
    def __getitem__(self, key: slice | TopicPartition) -> Records: ...
    def __getitem__(self, key: int | slice | TopicPartition) -> Record | Records:
        if isinstance(key, tuple):
            if len(key) != 2 or not isinstance(key[0], str) or not isinstance(key[1], int):
                raise TypeError(f"records of a partition are selected by (topic, number), not {short_repr(key)}")
            return Records([b for b in self._batches if b.partition == key[1] and b.topic == key[0]])
        if isinstance(key, slice):
            start, stop, step = key.indices(self._len)
            if step != 1:
                raise ValueError("records can only be sliced with a step of 1")
            return self._window(start, max(start, stop))
        if not isinstance(key, int):
            key = _index(key)
        index = key + self._len if key < 0 else key
        if not 0 <= index < self._len:
            raise IndexError("record index out of range")
        ends = self._batch_ends()
        at = bisect_right(ends, index)
        # The index counts from the end of the batch, so it is negative.
        return self._batches[at][index - ends[at]]

    def _batch_ends(self) -> list[int]:
        """The index, into all records, at which each batch ends."""
        if self._ends is None:
            self._ends = list(accumulate(map(len, self._batches)))
        return self._ends

    def _window(self, start: int, stop: int) -> Records:
        batches = []
        begin = 0
        for batch in self._batches:
            end = begin + len(batch)
            if begin < stop and start < end:
                first = max(start - begin, 0)
                batches.append(batch.slice(first, min(stop, end) - begin - first))
            begin = end
        return Records(batches)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions of these records, in order of appearance."""
        return tuple(dict.fromkeys(TopicPartition(b.topic, b.partition) for b in self._batches if len(b)))

    @property
    def nbytes(self) -> int:
        """The memory used by the records, in bytes."""
        return sum(map(_nbytes_of, self._batches))

    def to_arrow(
        self,
        *,
        value: Format | None = None,
        key: Format | None = None,
        flatten: bool = False,
        errors: Errors = "raise",
        lane: bool = False,
    ) -> pyarrow.Table:
        """Return the records as a pyarrow Table. `lane=True` adds the column `lane`.

        The few records that a small poll has of each partition become one chunk. Large ones are not copied.

        `value` and `key` are formats (`headrace.formats`): the column then has the format's type instead of bytes. With
        `flatten=True`, the fields of decoded structs become columns of their own. A field with the name of another
        column gets `value_` or `key_` before its name.

        `errors="raise"` raises RecordDecodeError for the first record that cannot be decoded. `errors="null"` makes
        such keys or values null, and adds the columns `value_error` and `key_error` with the reasons. If a schema
        registry cannot be reached, SchemaRegistryError is raised; the call can be repeated.

        Raises ImportError if pyarrow is not installed.
        """
        for name, flag in (("lane", lane), ("flatten", flatten)):
            if not isinstance(flag, bool):
                raise TypeError(f"{name} must be True or False, not {short_repr(flag)}")
        try:
            import pyarrow
        except ImportError as e:
            raise ImportError("to_arrow() needs pyarrow: pip install 'headrace[arrow]'") from e
        if value is None and key is None:
            if flatten or errors != "raise":
                raise ConfigError("flatten= and errors= need value= or key=, the format of the records")
            # Not pyarrow.table(self): a stream costs 5 µs for its schema, and pandas is imported, if installed, to
            # check whether the argument is a DataFrame.
            schema = _pyarrow_schema(lane)
            import_batch = pyarrow.RecordBatch._import_from_c  # nothing public takes a known schema
            batches = arrow_batches(self._batches, lane=lane, import_batch=import_batch, schema=schema)
            return pyarrow.Table.from_batches(batches, schema)
        from ._typed import check_errors, check_format, typed_table

        check_errors(errors)
        check_format(value, "value")
        check_format(key, "key")
        stream = pyarrow.RecordBatchReader.from_stream(_WithLane(self._batches) if lane else self)
        return typed_table(stream, stream.schema, _given(value, key), flatten=flatten, errors=errors)

    def rows(
        self, *, value: Deserializer | None = None, key: Deserializer | None = None, errors: Errors = "raise"
    ) -> Iterator[dict[str, Any]]:
        """Return an iterator of dictionaries: key, value, topic, partition, offset, timestamp, timestamp_type, headers.

        `value` and `key` are formats (`headrace.formats`), or functions that take bytes, such as `json.loads`. Null is
        None, and is not given to the function. With `errors="raise"`, the iterator raises RecordDecodeError when it
        reaches a record that cannot be decoded; the cause is what the function raised. `errors="null"` makes such keys
        or values None, and adds `value_error` and `key_error` to all rows.
        """
        from ._typed import check_deserializer, check_errors, decoded_rows

        check_errors(errors)
        check_deserializer(value, "value")
        check_deserializer(key, "key")
        return decoded_rows(self._batches, _given(value, key), errors, _to_arrow)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return arrow_stream(self._batches, lane=False, requested_schema=requested_schema)

    def __arrow_c_schema__(self) -> object:
        return arrow_schema(lane=False)

    def __repr__(self) -> str:
        parts = ", ".join(f"{tp}: {len(self[tp])}" for tp in self.partitions)
        return f"<Records: {self._len}{f' ({parts})' if parts else ''}>"


Records.EMPTY = Records()


@functools.cache
def _pyarrow_schema(lane: bool) -> pyarrow.Schema:
    import pyarrow

    return pyarrow.schema(_WithLane(()) if lane else Records.EMPTY)


def _given(value: _Used | None, key: _Used | None) -> dict[FieldName, _Used]:
    found: dict[FieldName, _Used] = {}
    if value is not None:
        found["value"] = value
    if key is not None:
        found["key"] = key
    return found


def deserialized(batch: Batch, value: Deserializer | None, key: Deserializer | None) -> Batch:
    """The batch with records whose `value` and `key` are decoded on access. Blocks if formats ask a schema registry."""
    from ._decoded_values import BatchDeserializer

    deserializer = BatchDeserializer(batch, _given(value, key), _to_arrow)
    if len(batch):
        deserializer.prepare()
    return batch.deserialized(deserializer)


def _to_arrow(batch: Batch) -> pyarrow.Table:
    return Records([batch]).to_arrow()


def _index(key: Any) -> int:
    try:
        return operator.index(key)
    except TypeError:
        raise TypeError(
            f"records are indexed by a number, a slice or a TopicPartition, not {short_repr(key)}"
        ) from None


class _WithLane:
    """An Arrow stream with the additional column `lane`."""

    __slots__ = ("_batches",)

    def __init__(self, batches: tuple[Batch, ...]) -> None:
        self._batches = batches

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return arrow_stream(self._batches, lane=True, requested_schema=requested_schema)

    def __arrow_c_schema__(self) -> object:
        return arrow_schema(lane=True)


def _restore_record(
    topic: str,
    partition: int,
    offset: int,
    timestamp: int,
    timestamp_type: int,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
    lane: str | None,
    leader_epoch: int,
    delivery_count: int | None = None,
) -> Record:
    """Restores a pickled `Record`."""
    return Record(
        topic,
        partition,
        offset,
        timestamp=timestamp,
        timestamp_type=timestamp_type,
        key=key,
        value=value,
        headers=headers,
        lane=lane,
        leader_epoch=leader_epoch,
        delivery_count=delivery_count,
    )
