"""The rows of a task: Arrow batches of records with the columns that the query has, decoded by their formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from ..._format import Source
from ...errors import RecordDecodeError
from ...types import TopicPartition
from ..formats import TypedColumns, TypedField, in_time_zone, struct_fields
from ..schema import LANE, error_column
from ..time_zone import session_time_zone

if TYPE_CHECKING:
    import pyarrow


class RowBuilder:
    """Turns batches of records into batches of rows. Picklable: Spark sends it to executors."""

    def __init__(self, schema: StructType, typed: TypedColumns, *, is_permissive: bool = False) -> None:
        self._schema = schema
        self.typed = typed
        self._is_permissive = is_permissive
        names = set(schema.names)
        # A key or value that is in no column of the query is not decoded.
        self._decoded = [each for each in typed.fields if names & _columns_of(each)]
        self._time_zone: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._schema, self.typed, self._is_permissive)

    def build(self, batch: pyarrow.RecordBatch, lane: str | None = None) -> pyarrow.RecordBatch:
        """The records have one topic, and are at least one. Raises RecordDecodeError with mode=FAILFAST, and for a
        timestamp that Spark cannot have; and SchemaRegistryError."""
        names = self._schema.names
        if "timestamp" in names:
            _check_timestamps(batch)
        if not self._decoded and lane is None:
            return batch.select(names)
        import pyarrow

        self._follow_session()
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if lane is not None:
            columns[LANE] = pyarrow.repeat(pyarrow.scalar(lane, pyarrow.string()), batch.num_rows)
        for each in self._decoded:
            columns |= self._decode(each, batch)
        return pyarrow.RecordBatch.from_arrays([columns[name] for name in names], names=names)

    def _follow_session(self) -> None:
        """The session's time zone may be set between two actions: only tasks know it."""
        zone = session_time_zone() or self.typed.default_time_zone
        if zone != self._time_zone:
            self._decoded = [in_time_zone(each, zone) for each in self._decoded]
            self._time_zone = zone

    def _decode(self, each: TypedField, batch: pyarrow.RecordBatch) -> dict[str, Any]:
        """The columns of a key or value, and of the reasons."""
        import pyarrow

        field = each.options.field
        found = each.format.decode(batch.column(field), Source(batch.column("topic")[0].as_py(), field))
        column, errors = _to_spark(found.column, each, found.errors)
        if errors and not self._is_permissive:
            row = min(errors)
            topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
            raise RecordDecodeError(TopicPartition(topic, partition), offset, field, errors[row])
        columns: dict[str, Any] = {}
        if self._is_permissive:  # otherwise the other one of key and value may have a field with this name
            reasons = [errors.get(row) for row in range(batch.num_rows)] if errors else None
            columns[error_column(field)] = (
                pyarrow.nulls(batch.num_rows, pyarrow.string())
                if reasons is None
                else pyarrow.array(reasons, pyarrow.string())
            )
        if each.options.flatten:
            # Not field(): a field of a null struct is null.
            return columns | dict(zip(struct_fields(each).names, column.flatten(), strict=True))
        return columns | {field: column}


def _check_timestamps(batch: pyarrow.RecordBatch) -> None:
    """A record has milliseconds, and Spark microseconds: the native module replaces what is too large by the largest
    or smallest value. Like Spark's own source, a query fails, and does not return another time."""
    import pyarrow
    import pyarrow.compute as pc

    times = batch.column("timestamp").cast(pyarrow.int64())
    bounds = pc.min_max(times).as_py()
    limits = [limit for limit in (-(2**63), 2**63 - 1) if limit in bounds.values()]
    if not limits:
        return
    row = pc.index(times, limits[0]).as_py()
    topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
    raise RecordDecodeError(
        TopicPartition(topic, partition),
        offset,
        "timestamp",
        "it is beyond Spark's type, which ends in the year 294247. To read the topic without timestamps, set the "
        "option columns to the columns that you need, such as key,value",
    )


def _unpickled(schema: StructType, typed: TypedColumns, is_permissive: bool) -> RowBuilder:
    return RowBuilder(schema, typed, is_permissive=is_permissive)


def _columns_of(each: TypedField) -> set[str]:
    field = each.options.field
    return {error_column(field), *(struct_fields(each).names if each.options.flatten else [field])}


def _to_spark(column: Any, each: TypedField, errors: Mapping[int, str]) -> tuple[Any, dict[int, str]]:
    """The column in Spark's type. A value that Spark cannot have, such as a timestamp in the year 300,000, is an error
    of its record."""
    import pyarrow

    from ..arrow_types import arrow_type, to_spark

    wanted = arrow_type(each.type)
    found = dict(errors)
    try:
        return to_spark(column, wanted), found
    except pyarrow.ArrowInvalid:
        pass
    rows = []
    for row in range(len(column)):
        try:
            rows.append(to_spark(column.slice(row, 1), wanted))
        except pyarrow.ArrowInvalid as error:
            found[row] = f"Spark's type cannot have the value: {error}"
            rows.append(pyarrow.nulls(1, wanted))
    return pyarrow.concat_arrays(rows), found
