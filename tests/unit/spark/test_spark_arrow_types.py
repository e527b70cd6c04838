"""Arrow's types as Spark's, values included, and back."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from headrace._format import Source
from headrace.errors import ConfigError, RecordEncodeError
from headrace.formats import Avro
from headrace.formats._conform import conform
from headrace.spark.arrow_types import arrow_type, from_spark, spark_type, to_spark
from headrace.spark.options.parsers import OptionError

MONTHS = pa.month_day_nano_interval()
STRUCT = pa.struct([pa.field("a", pa.uint64(), nullable=False), pa.field("t", pa.time32("ms"))])


@pytest.mark.parametrize(
    ("given", "values", "name", "found"),
    [
        (pa.uint8(), [255, None], "smallint", [255, None]),
        (pa.uint16(), [65535], "int", [65535]),
        (pa.uint32(), [2**32 - 1], "bigint", [2**32 - 1]),
        (pa.uint64(), [2**64 - 1, None], "decimal(20,0)", [Decimal(2**64 - 1), None]),
        (pa.decimal256(38, 4), [Decimal("1.2345")], "decimal(38,4)", [Decimal("1.2345")]),
        (pa.large_string(), ["ä", None], "string", ["ä", None]),
        (pa.binary(2), [b"ab", None], "binary", [b"ab", None]),
        (pa.uuid(), [b"0123456789abcdef"], "binary", [b"0123456789abcdef"]),
        (pa.dictionary(pa.int8(), pa.string()), ["x", None, "x"], "string", ["x", None, "x"]),
        (pa.time64("ns"), [datetime.time(1, 2, 3, 4), None], "bigint", [3_723_000_004, None]),
        (pa.time32("s"), [datetime.time(0, 0, 1)], "bigint", [1_000_000]),
        (pa.duration("ms"), [datetime.timedelta(seconds=1.5)], "interval day to second", [datetime.timedelta(0, 1.5)]),
        (pa.timestamp("ns"), [datetime.datetime(2026, 3, 2)], "timestamp_ntz", [datetime.datetime(2026, 3, 2)]),
        (pa.date64(), [datetime.date(2026, 3, 2)], "date", [datetime.date(2026, 3, 2)]),
        (
            MONTHS,
            [(1, -2, 3_000), None, (0, 0, 7_000)],
            "struct<months:int,days:int,microseconds:bigint>",
            [{"months": 1, "days": -2, "microseconds": 3}, None, {"months": 0, "days": 0, "microseconds": 7}],
        ),
        (
            pa.large_list(STRUCT),
            [[{"a": 1, "t": datetime.time(0, 0, 1)}], None, []],
            "array<struct<a:decimal(20,0),t:bigint>>",
            [[{"a": Decimal(1), "t": 1_000_000}], None, []],
        ),
        (
            pa.map_(pa.string(), pa.uint8()),
            [[("k", 1)], None, [("l", None)]],
            "map<string,smallint>",
            [[("k", 1)], None, [("l", None)]],
        ),
    ],
)
def test_arrow_s_types_become_spark_s(given: Any, values: list[Any], name: str, found: list[Any]) -> None:
    kind = spark_type(given, "value")
    assert kind.simpleString() == name
    wanted = arrow_type(kind)
    array = pa.array(values, given)
    # Slices: batches are split.
    for begin in range(len(values)):
        column = to_spark(array.slice(begin), wanted)
        assert column.type == wanted
        assert column.to_pylist() == found[begin:]
        column.validate(full=True)


def test_instants_keep_their_time_zone() -> None:
    kind = spark_type(pa.timestamp("ms", "Europe/Berlin"), "value")
    assert kind.simpleString() == "timestamp"
    moment = datetime.datetime(2026, 3, 2, tzinfo=datetime.UTC)
    assert to_spark(pa.array([moment], pa.timestamp("ms", "Europe/Berlin")), arrow_type(kind)).to_pylist() == [moment]


def test_a_timestamp_that_spark_cannot_have_is_an_error() -> None:
    with pytest.raises(pa.ArrowInvalid):
        to_spark(pa.array([2**62], pa.int64()).cast(pa.timestamp("ms")), pa.timestamp("us"))


def test_a_type_that_spark_does_not_have_is_named_with_its_path() -> None:
    given = pa.struct([pa.field("a", pa.list_(pa.decimal256(50, 2)))])
    with pytest.raises(OptionError, match=r"value\.a\[\] has the type decimal256\(50, 2\)"):
        spark_type(given, "value")


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (pa.time64("us"), [datetime.time(1, 2, 3, 4), None]),
        (MONTHS, [(1, -2, 3_000), None]),
        (pa.struct([pa.field("t", pa.time32("ms"))]), [{"t": datetime.time(1)}, None, {"t": None}]),
        (pa.list_(pa.time64("us")), [[datetime.time(1)], None, []]),
        (pa.map_(pa.string(), pa.time64("us")), [[("k", datetime.time(1))], None]),
    ],
)
def test_columns_of_spark_become_those_of_a_format(given: Any, values: list[Any]) -> None:
    array = pa.array(values, given)
    there = to_spark(array, arrow_type(spark_type(given, "value")))
    for begin in range(len(values)):
        assert conform(from_spark(there.slice(begin), given), given, "value").equals(array.slice(begin))


@pytest.mark.parametrize(
    ("logical", "kind", "values"),
    [
        ("time-millis", "int", [1_500]),  # 1.5 ms
        ("time-millis", "int", [2**62]),
        ("time-micros", "long", [-1]),
        ("time-micros", "long", [86_400_000_000]),
    ],
)
def test_a_time_that_avro_cannot_have_is_an_error_that_names_the_field(
    logical: str, kind: str, values: list[int]
) -> None:
    field = {"name": "at", "type": {"type": kind, "logicalType": logical}}
    avro = Avro(json.dumps({"type": "record", "name": "r", "fields": [field]}))
    source = Source("topic", "value")
    rows = pa.StructArray.from_arrays([pa.array(values, pa.int64())], ["at"])
    with pytest.raises((ConfigError, RecordEncodeError), match=r"value\.at|the field at|at: "):
        avro.encode(from_spark(rows, avro.arrow_type(source)), source)


def test_an_interval_that_arrow_cannot_have_is_an_error() -> None:
    rows = pa.array([{"months": 0, "days": 0, "microseconds": -(2**63)}], arrow_type(spark_type(MONTHS, "value")))
    with pytest.raises(ConfigError, match="microseconds"):
        from_spark(rows, MONTHS)


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_nanoseconds_are_rounded_down_before_1970_too(zone: str | None) -> None:
    given = [-(2**63), -1001, -1000, -999, -1, None, 0, 999, 1000, 2**63 - 1]
    array = pa.array(given, pa.int64()).cast(pa.timestamp("ns", zone))
    wanted = arrow_type(spark_type(array.type, "it"))
    for found in (to_spark(array, wanted), pa.concat_arrays([to_spark(array.slice(n, 1), wanted) for n in range(10)])):
        assert found.type == wanted
        assert found.cast(pa.int64()).to_pylist() == [None if each is None else each // 1000 for each in given]
