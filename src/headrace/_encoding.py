"""Tables with typed columns as tables of records: what `send_arrow(value=…)` sends. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ._format import FieldName, Format, Source
from .errors import ConfigError, RecordEncodeError

# A batch is encoded in parts: what is encoded waits in memory, beside buffer.memory, until the producer has room for
# it. So each encoded column also stays below the 2 GiB that Arrow's offsets reach: text in JSON may take six times its
# bytes.
_PART_BYTES = 4 * 2**20
_FIELD_BYTES = 32  # of a number or a word in JSON, at most, beside the name of its field

# The columns of records; all others are fields of the value if there is no column `value`.
_RECORD_COLUMNS = ("key", "headers", "timestamp", "partition", "topic", "offset", "timestampType", "lane")


def encoded_reader(data: Any, topic: str | None, formats: Mapping[FieldName, Format]) -> Any:
    """A `pyarrow.RecordBatchReader` with keys and values of bytes. It encodes a batch when it is read.

    Without a column `value`, all columns that are not those of a record are the fields of the value.
    """
    import pyarrow

    reader = data if isinstance(data, pyarrow.RecordBatchReader) else pyarrow.RecordBatchReader.from_stream(data)
    names = reader.schema.names
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ConfigError(f"there are two columns {min(repeated)}")
    if topic is None and "topic" not in names:
        raise ConfigError("send_arrow() needs a topic, or a column topic without nulls")
    if "key" in formats and "key" not in names:
        raise ConfigError("key= needs a column key")
    fields = () if "value" in names else tuple(name for name in names if name not in _RECORD_COLUMNS)
    if "value" in formats and "value" not in names and not fields:
        raise ConfigError("value= needs a column value, or columns that are its fields")
    encoding = _Encoding(topic, formats, fields)
    return pyarrow.RecordBatchReader.from_batches(encoding.schema(reader.schema), encoding.batches(reader))


class _Encoding:
    def __init__(self, topic: str | None, formats: Mapping[FieldName, Format], fields: tuple[str, ...]) -> None:
        self._topic = topic
        self._formats = formats
        self._fields = fields if "value" in formats else ()

    def schema(self, given: Any) -> Any:
        import pyarrow

        kept = [field for field in given if field.name not in self._fields and field.name not in self._formats]
        return pyarrow.schema([*kept, *(pyarrow.field(name, pyarrow.binary()) for name in self._formats)])

    def batches(self, reader: Any) -> Iterator[Any]:
        first_row = 0
        for batch in reader:
            for part in _parts(batch):
                for topic, of_topic, rows in self._by_topic(part):
                    yield self._encode(of_topic, topic, rows, first_row)
                first_row += part.num_rows

    def _by_topic(self, batch: Any) -> Iterator[tuple[str, Any, Any]]:
        """The topic, its rows, and their numbers in the batch (None: all)."""
        import pyarrow.compute

        if self._topic is not None or not batch.num_rows:
            yield self._topic or "", batch, None
            return
        topics = batch.column("topic").cast(pyarrow.string())
        for topic in topics.unique().to_pylist():
            if topic is None:
                raise ConfigError("send_arrow() needs a topic, or a column topic without nulls")
            rows = pyarrow.compute.indices_nonzero(pyarrow.compute.equal(topics, topic))
            yield topic, batch if len(rows) == batch.num_rows else batch.take(rows), rows

    def _encode(self, batch: Any, topic: str, rows: Any, first_row: int) -> Any:
        import pyarrow

        columns = {name: batch.column(name) for name in batch.schema.names if name not in self._fields}
        for field, used in self._formats.items():
            if field == "value" and self._fields:
                values = pyarrow.StructArray.from_arrays(
                    [batch.column(name) for name in self._fields],
                    fields=[batch.schema.field(name) for name in self._fields],
                )
            else:
                values = columns.pop(field)
            try:
                columns[field] = used.encode(values, Source(topic, field))
            except RecordEncodeError as error:
                row = error.row if rows is None else rows[error.row].as_py()
                raise RecordEncodeError(first_row + row, field, error.reason) from None
        schema = self.schema(batch.schema)
        return pyarrow.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _parts(batch: Any) -> Iterator[Any]:
    """The rows of a batch, as many at a time as have about `_PART_BYTES` when they are encoded."""
    rows = batch.num_rows
    row_bytes = batch.nbytes // max(1, rows) + sum(map(_field_bytes, batch.schema))
    step = max(1, _PART_BYTES // row_bytes)
    for begin in range(0, max(1, rows), step):
        yield batch.slice(begin, step)


def _field_bytes(field: Any) -> int:
    import pyarrow

    inner = sum(map(_field_bytes, field.type)) if pyarrow.types.is_struct(field.type) else _FIELD_BYTES
    return len(field.name) + inner
