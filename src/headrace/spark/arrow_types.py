"""Types of decoded columns as Spark's types, in both directions.

| Arrow | Spark |
|---|---|
| bool, int8 to int64, float, double, string, binary, date, decimal up to 38 digits | the same |
| uint8, uint16, uint32; uint64 | smallint, int, bigint; decimal(20,0) |
| half float | float |
| timestamp with a time zone; without | timestamp; timestamp_ntz. Nanoseconds are rounded down to microseconds |
| time | bigint, the microseconds since midnight |
| duration | interval day to second |
| interval (Avro's duration) | struct<months int, days int, microseconds bigint> |
| dictionary, run-end encoded, extension | the type of its values |
| list, map, struct | array, map, struct |
"""

from __future__ import annotations

from typing import Any

import pyarrow
import pyarrow.compute
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ..errors import ConfigError
from .options.parsers import OptionError
from .versions import utc_arrow_schema

_types = pyarrow.types
_MAX_DIGITS = 38
_MAX_MICROSECONDS = (2**63 - 1) // 1000  # of an interval, which has nanoseconds in Arrow
_SIMPLE: tuple[tuple[Any, DataType], ...] = (
    (_types.is_null, NullType()),
    (_types.is_boolean, BooleanType()),
    (_types.is_int8, ByteType()),
    (_types.is_int16, ShortType()),
    (_types.is_int32, IntegerType()),
    (_types.is_int64, LongType()),
    (_types.is_uint8, ShortType()),
    (_types.is_uint16, IntegerType()),
    (_types.is_uint32, LongType()),
    (_types.is_uint64, DecimalType(20, 0)),
    (_types.is_float16, FloatType()),
    (_types.is_float32, FloatType()),
    (_types.is_float64, DoubleType()),
    (_types.is_date, DateType()),
    (_types.is_time, LongType()),
    (_types.is_duration, DayTimeIntervalType()),
)
_TEXTS = (_types.is_string, _types.is_large_string, _types.is_string_view)
_BYTES = (_types.is_binary, _types.is_large_binary, _types.is_binary_view, _types.is_fixed_size_binary)
_LISTS = (
    _types.is_list,
    _types.is_large_list,
    _types.is_fixed_size_list,
    _types.is_list_view,
    _types.is_large_list_view,
)
_INTERVAL = StructType(
    [StructField("months", IntegerType()), StructField("days", IntegerType()), StructField("microseconds", LongType())]
)


def spark_type(given: Any, path: str) -> DataType:
    """The type of Spark for an Arrow type. Raises OptionError, with the path of the field, if there is none."""
    for is_type, found in _SIMPLE:
        if is_type(given):
            return found
    if any(is_type(given) for is_type in _TEXTS):
        return StringType()
    if any(is_type(given) for is_type in _BYTES):
        return BinaryType()
    if _types.is_timestamp(given):
        return TimestampNTZType() if given.tz is None else TimestampType()
    if _types.is_decimal(given) and given.precision <= _MAX_DIGITS and 0 <= given.scale <= given.precision:
        return DecimalType(given.precision, given.scale)
    if _is_interval(given):
        return _INTERVAL
    if _types.is_struct(given):
        return StructType([StructField(field.name, spark_type(field.type, f"{path}.{field.name}")) for field in given])
    if any(is_type(given) for is_type in _LISTS):
        return ArrayType(spark_type(given.value_type, f"{path}[]"))
    if _types.is_map(given):
        return MapType(spark_type(given.key_type, f"{path} (keys)"), spark_type(given.item_type, f"{path}[]"))
    if isinstance(given, pyarrow.BaseExtensionType):
        return spark_type(given.storage_type, path)
    if _types.is_dictionary(given) or _types.is_run_end_encoded(given):
        return spark_type(given.value_type, path)
    raise OptionError(f"{path} has the type {given}, which Spark does not have. Give a schema without this field")


def arrow_type(of: DataType) -> Any:
    """The Arrow type in which Spark exchanges columns of this type."""
    return utc_arrow_schema(StructType([StructField("it", of)])).field(0).type


def to_spark(array: Any, wanted: Any) -> Any:
    """The array in the Arrow type that `arrow_type(spark_type(…))` returns. Copies only what differs. Raises
    pyarrow.ArrowInvalid for a value that the type cannot have."""
    given = array.type
    if given.equals(wanted):
        return array
    if isinstance(array, pyarrow.ExtensionArray):
        return to_spark(array.storage, wanted)
    if _types.is_dictionary(given):
        return to_spark(array.dictionary_decode(), wanted)
    if _types.is_run_end_encoded(given):
        return to_spark(pyarrow.compute.run_end_decode(array), wanted)
    if _is_interval(given):
        return _split_intervals(array)
    if _types.is_struct(given):
        children = [to_spark(array.field(index), field.type) for index, field in enumerate(wanted)]
        return pyarrow.StructArray.from_arrays(children, fields=list(wanted), mask=_nulls(array))
    if any(is_type(given) for is_type in _LISTS):
        return _list(array, wanted, to_spark)
    if _types.is_map(given):
        return _map(array, wanted, to_spark)
    if _types.is_time(given):
        return array.cast(pyarrow.time64("us"), safe=False).cast(pyarrow.int64())
    if _types.is_timestamp(given):
        # The cast checks that values do not exceed the range. Nanoseconds never do, but lose digits.
        return _microseconds(array).cast(wanted) if given.unit == "ns" else array.cast(wanted)
    return array.cast(wanted)


def from_spark(array: Any, wanted: Any) -> Any:
    """The opposite: a column of Spark in the type of a format, as far as both are known. The format casts the rest, for
    example times in microseconds to milliseconds, and reports values that would change, and fields that are missing or
    unknown. Raises ConfigError for an interval that is too long."""
    given = array.type
    if given.equals(wanted):
        return array
    if _types.is_time(wanted) and _types.is_int64(given):
        return array.cast(pyarrow.time64("us"))
    if _is_interval(wanted) and _types.is_struct(given):
        rows = array.to_pylist()
        if any(it and abs(it["microseconds"] or 0) > _MAX_MICROSECONDS for it in rows):
            raise ConfigError(f"an interval has more than {_MAX_MICROSECONDS} microseconds, which cannot be written")
        return pyarrow.array(
            [it and (it["months"] or 0, it["days"] or 0, (it["microseconds"] or 0) * 1000) for it in rows], wanted
        )
    if _types.is_struct(given) and _types.is_struct(wanted):
        types = {field.name: field.type for field in wanted}
        children = [
            from_spark(array.field(index), types.get(field.name, field.type)) for index, field in enumerate(given)
        ]
        fields = [pyarrow.field(field.name, child.type) for field, child in zip(given, children, strict=True)]
        return pyarrow.StructArray.from_arrays(children, fields=fields, mask=_nulls(array))
    if _types.is_list(given) and _types.is_list(wanted):
        return _list(array, wanted, from_spark)
    if _types.is_map(given) and _types.is_map(wanted):
        return _map(array, wanted, from_spark)
    return array


def _microseconds(array: Any) -> Any:
    """Nanoseconds since 1970 as microseconds, rounded down as by Spark. A cast of Arrow rounds towards 1970."""
    pc = pyarrow.compute
    nanoseconds = array.cast(pyarrow.int64())
    found = pc.divide(nanoseconds, 1000)
    is_less = pc.less(nanoseconds, pc.multiply(found, 1000))
    return pc.subtract(found, is_less.cast(pyarrow.int64()))


def _is_interval(given: Any) -> bool:
    return bool(given.equals(pyarrow.month_day_nano_interval()))


def _split_intervals(array: Any) -> Any:
    """A value has 16 bytes: months and days of 4 bytes, and nanoseconds of 8."""
    data = array.buffers()[1]
    rows = range(array.offset, array.offset + len(array))
    numbers = pyarrow.Array.from_buffers(pyarrow.int32(), 4 * (array.offset + len(array)), [None, data])
    longs = pyarrow.Array.from_buffers(pyarrow.int64(), 2 * (array.offset + len(array)), [None, data])
    months, days = (numbers.take(pyarrow.array([4 * row + at for row in rows])) for at in (0, 1))
    nanoseconds = longs.take(pyarrow.array([2 * row + 1 for row in rows]))
    microseconds = pyarrow.compute.divide(nanoseconds, 1000)
    return pyarrow.StructArray.from_arrays(
        [months, days, microseconds], fields=list(arrow_type(_INTERVAL)), mask=_nulls(array)
    )


def _list(array: Any, wanted: Any, convert: Any) -> Any:
    if not _types.is_list(array.type):
        array = array.cast(pyarrow.list_(array.type.value_type))
    offsets, begin, end = _offsets(array)
    items = convert(array.values.slice(begin, end - begin), wanted.value_type)
    if not items.type.equals(wanted.value_type):
        wanted = pyarrow.list_(items.type)
    return pyarrow.ListArray.from_arrays(offsets, items, type=wanted, mask=_nulls(array))


def _map(array: Any, wanted: Any, convert: Any) -> Any:
    offsets, begin, end = _offsets(array)
    keys = convert(array.keys.slice(begin, end - begin), wanted.key_type)
    items = convert(array.items.slice(begin, end - begin), wanted.item_type)
    if not (keys.type.equals(wanted.key_type) and items.type.equals(wanted.item_type)):
        wanted = pyarrow.map_(keys.type, items.type)
    return pyarrow.MapArray.from_arrays(offsets, keys, items, type=wanted, mask=_nulls(array))


def _offsets(array: Any) -> tuple[Any, int, int]:
    """The offsets from 0 on, and where the values begin and end: the array may be a slice."""
    begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    is_slice = begin or array.offsets.offset  # pyarrow accepts no slice of offsets together with nulls
    return (pyarrow.compute.subtract(array.offsets, begin) if is_slice else array.offsets), begin, end


def _nulls(array: Any) -> Any:
    return array.is_null() if array.null_count else None
