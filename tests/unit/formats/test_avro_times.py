"""Times of a day in Avro: whatever is not within a day is an error of its record, and of no other."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from headrace.errors import RecordEncodeError
from headrace.formats import Avro, Source

VALUES = Source("readings", "value")
DAY = {"millis": 86_400_000, "micros": 86_400_000_000}


def number(value):
    """Avro's int or long."""
    rest, found = (value << 1) ^ (value >> 63), bytearray()
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def time_of(unit):
    return {"type": "int" if unit == "millis" else "long", "logicalType": f"time-{unit}"}


def nested(unit):
    fields = [{"name": "at", "type": ["null", {"type": "array", "items": time_of(unit)}]}]
    return {"type": "record", "name": "R", "fields": fields}


@pytest.mark.parametrize("unit", DAY)
def test_a_time_outside_of_a_day_is_an_error_of_its_record(unit):
    day = DAY[unit]
    values = [0, -1, day - 1, day, -(2**31)]
    result = Avro(time_of(unit)).decode(pa.array([number(value) for value in values], pa.binary()), VALUES)
    assert result.errors == {row: f"the time {values[row]} is not within a day" for row in (1, 3, 4)}
    last = (datetime.datetime.min + datetime.timedelta(days=1, microseconds=-(1000 if unit == "millis" else 1))).time()
    assert result.column.to_pylist() == [datetime.time(), None, last, None, None]


@pytest.mark.parametrize("unit", DAY)
def test_such_times_are_found_in_nested_values(unit):
    cells = [b"\2\4" + number(1) + number(value) + b"\0" for value in (0, DAY[unit])]
    result = Avro(nested(unit)).decode(pa.array(cells, pa.binary()), VALUES)
    assert result.errors == {1: f"$.at[1]: the time {DAY[unit]} is not within a day"}


def test_such_times_are_found_after_a_conversion_of_the_unit():
    cells = pa.array([number(DAY["millis"] - 1), number(DAY["millis"])], pa.binary())
    result = Avro(time_of("micros"), writer_schema=time_of("millis")).decode(cells, VALUES)
    assert result.errors.keys() == {1}
    assert result.column[0].as_py() == datetime.time(23, 59, 59, 999_000)


@pytest.mark.parametrize(("unit", "kind"), [("millis", pa.time32("ms")), ("micros", pa.time64("us"))])
def test_such_times_are_not_written(unit, kind):
    integers = pa.int32() if unit == "millis" else pa.int64()
    made = Avro(time_of(unit))
    good = pa.array([0, DAY[unit] - 1], integers).cast(kind)
    assert made.decode(made.encode(good, VALUES), VALUES).column.equals(good)
    for wrong in (-1, DAY[unit]):
        values = pa.Array.from_buffers(kind, 1, pa.array([wrong], integers).buffers())
        with pytest.raises(RecordEncodeError, match=f"the time {wrong} is not within a day"):
            made.encode(values, VALUES)
