"""Typed columns and decoded rows of `Records`. `records.py` imports this on first use: it needs pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from ._arguments import short_repr
from ._decoded_values import Batch, DecodedValues, Deserializer
from ._format import DecodedColumn, FieldName, Format, Source
from .errors import ConfigError, RecordDecodeError
from .types import TopicPartition

Errors = Literal["raise", "null"]

_ROWS_AT_A_TIME = 1024


def check_errors(errors: object) -> None:
    if errors not in ("raise", "null"):
        raise ConfigError(f'errors={short_repr(errors)}: must be "raise" or "null"')


def check_format(given: object, name: str) -> None:
    if given is not None and not isinstance(given, Format):
        hint = ": a function decodes record by record, so call rows() with it" if callable(given) else ""
        raise TypeError(f"{name} must be a format such as headrace.formats.Json, not {short_repr(given)}{hint}")


def check_deserializer(given: object, name: str) -> None:
    if given is not None and not isinstance(given, Format) and not callable(given):
        raise TypeError(
            f"{name} must be a format such as headrace.formats.Json, or a function, not {short_repr(given)}"
        )


def typed_table(
    reader: Iterable[Any], schema: Any, formats: Mapping[FieldName, Format], *, flatten: bool, errors: Errors
) -> Any:
    """A table with decoded columns instead of those of bytes. `reader` has Arrow batches of one topic each."""
    import pyarrow

    batches = []
    last: tuple[str, Any] | None = None
    for batch in reader:
        if not batch.num_rows:
            continue
        found = _typed_batch(batch, formats, errors)
        topic = batch.column("topic")[0].as_py()
        made = _columns(found, flatten)
        if last is not None and made.schema != last[1]:
            raise ConfigError(
                f"the topics {last[0]} and {topic} have different columns: select one partition or topic with "
                "records[TopicPartition(…)], or give the format one schema for both"
            )
        last = topic, made.schema
        batches.append(made)
    if last is None:
        columns = {name: pyarrow.array([], schema.field(name).type) for name in schema.names}
        for field, each in formats.items():
            columns[field] = pyarrow.array([], _known_type(each, field))
            if errors == "null":
                columns[f"{field}_error"] = pyarrow.array([], pyarrow.string())
        empty = _columns(columns, flatten and any(pyarrow.types.is_struct(columns[field].type) for field in formats))
        return pyarrow.Table.from_batches([empty])
    return pyarrow.Table.from_batches(batches)


def _known_type(used: Format, field: FieldName) -> Any:
    """The type of a column without rows, and so without a topic. It is null if it depends on the topic."""
    import pyarrow

    try:
        return used.arrow_type(Source("", field))
    except ConfigError:
        return pyarrow.null()


def _typed_batch(batch: Any, formats: Mapping[FieldName, Format], errors: Errors) -> dict[str, Any]:
    """The columns of a batch, those of `formats` decoded, with the reasons after them."""
    import pyarrow

    topic = batch.column("topic")[0].as_py()
    results = {field: used.decode(batch.column(field), Source(topic, field)) for field, used in formats.items()}
    if errors == "raise":
        _raise_first(batch, results)
    columns = {name: results[name].column if name in results else batch.column(name) for name in batch.schema.names}
    if errors == "null":
        for field, result in results.items():
            reasons = [result.errors.get(row) for row in range(batch.num_rows)] if result.errors else None
            columns[f"{field}_error"] = (
                pyarrow.nulls(batch.num_rows, pyarrow.string())
                if reasons is None
                else pyarrow.array(reasons, pyarrow.string())
            )
    return columns


def _raise_first(batch: Any, results: Mapping[FieldName, DecodedColumn]) -> None:
    bad = [(next(iter(result.errors)), field) for field, result in results.items() if result.errors]
    if bad:
        row, field = min(bad)
        raise _error_of(batch, row, field, results[field].errors[row])


def _error_of(batch: Any, row: int, field: FieldName, reason: str) -> RecordDecodeError:
    topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
    return RecordDecodeError(TopicPartition(topic, partition), offset, field, reason)


def _columns(columns: dict[str, Any], flatten: bool) -> Any:
    """The columns as a batch. With `flatten`, the fields of decoded structs are columns in the place of their struct. A
    field with the name of another column gets `value_` or `key_` before its name."""
    import pyarrow

    if not flatten:
        return pyarrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    spread = [field for field in _SPREAD_ORDER if pyarrow.types.is_struct(columns[field].type)]
    if not spread:
        types = " and ".join(f"the {field} is {columns[field].type}" for field in _SPREAD_ORDER)
        raise ConfigError(f"flatten=True needs a struct, but {types}")
    taken = {name for name in columns if name not in spread}
    parts: dict[str, list[tuple[str, Any]]] = {}
    for field in spread:
        array = columns[field]
        named = []
        for index, child in enumerate(array.flatten()):
            name = array.type.field(index).name
            if name in taken:
                name = f"{field}_{name}"
            if name in taken:
                raise ConfigError(f"flatten=True makes two columns {name}: use flatten=False, or rename the field")
            taken.add(name)
            named.append((name, child))
        parts[field] = named
    pairs = [pair for name, array in columns.items() for pair in parts.get(name, [(name, array)])]
    return pyarrow.RecordBatch.from_arrays([array for _, array in pairs], names=[name for name, _ in pairs])


# The value's fields keep their names if the key has fields of the same names.
_SPREAD_ORDER: tuple[FieldName, ...] = ("value", "key")


def decoded_rows(
    batches: Iterable[Batch],
    deserializers: Mapping[FieldName, Deserializer],
    errors: Errors,
    to_arrow: Callable[[Batch], Any],
) -> Iterator[dict[str, Any]]:
    """One dictionary for each record."""
    for whole in batches:
        for begin in range(0, len(whole), _ROWS_AT_A_TIME):
            batch = whole.slice(begin, _ROWS_AT_A_TIME)
            columns = {field: DecodedValues(batch, field, used, to_arrow) for field, used in deserializers.items()}
            for index, record in enumerate(batch):
                row: dict[str, Any] = {
                    "key": record.raw_key,
                    "value": record.raw_value,
                    "topic": record.topic,
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp": record.timestamp,
                    "timestamp_type": record.timestamp_type,
                    "headers": record.headers,
                }
                for field, column in columns.items():
                    value, error = column.get(index, row[field])
                    if error is not None and errors == "raise":
                        raise error
                    row[field] = value
                    if errors == "null":
                        row[f"{field}_error"] = None if error is None else error.reason
                yield row
