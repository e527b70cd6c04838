"""What is read beyond RFC 8259 and ISO 8601, as by Spark's from_json, and what is refused although Spark reads it.

tests/spark/test_spark_json_tokens.py compares thousands of values with Spark itself.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.formats import Json, Source

VALUES = Source("readings", "value")
AT = datetime(2026, 3, 2, 6, tzinfo=UTC)


def decode(schema, text):
    return Json(schema).decode(pa.array([text.encode()], pa.binary()), VALUES)


def only(type_name, text):
    result = decode(f"x {type_name}", f'{{"x":{text}}}')
    assert result.errors == {}
    return result.column[0].as_py()["x"]


def reason(type_name, text):
    return decode(f"x {type_name}", f'{{"x":{text}}}').errors[0]


@pytest.mark.parametrize(
    ("type_name", "text", "expected"),
    [
        ("string", "'it\\'s \"x\"'", "it's \"x\""),
        ("string", '"it\\\'s"', "it's"),
        ("map<string,int>", "{'a': 1}", [("a", 1)]),
        ("date", "'2026-03-02'", date(2026, 3, 2)),
        ("double", "+Infinity", math.inf),
        ("double", "-INF", -math.inf),
        ("decimal(10,2)", '"1,000.505"', Decimal("1000.51")),
        ("decimal(10,2)", '"+.5"', Decimal("0.50")),
        ("decimal(10,2)", '"007."', Decimal("7.00")),
        ("binary", '"AAEC\\r\\nAAEC"', b"\0\1\2\0\1\2"),
        ("binary", '"AB=="', b"\0"),
        ("binary", '"AAEC_-8"', b"\0\1\2\xff\xef"),
        ("date", '"2026-3-2"', date(2026, 3, 2)),
        ("date", '"2026-03-02T23:30:00-05:00"', date(2026, 3, 2)),
        ("date", '"2026-03"', date(2026, 3, 1)),
        ("date", '" 2026 "', date(2026, 1, 1)),
        ("timestamp", '"2026-3-2 6:0:0"', AT),
        ("timestamp", '"2026-03-02T06"', AT),
        ("timestamp", '"2026-03-02T06:00:00."', AT),
        ("timestamp", '"2026-03-02T07:00:00+1:00"', AT),
        ("timestamp", '"2026-03-02T07:00:00 GMT+1"', AT),
        ("timestamp", '"2026-03-02T07:00:00 Europe/Berlin"', AT),
        ("timestamp", '"2026-03-01T22:00:00PST"', AT),
        ("timestamp_ntz", '"2026-3-2 6:0"', AT.replace(tzinfo=None)),
        ("time", '"6:05:00.5"', datetime(2026, 3, 2, 6, 5, 0, 500_000).time()),
    ],
)  # fmt: skip
def test_spark_s_forms_are_read(type_name, text, expected):
    assert only(type_name, text) == expected


def test_an_integer_zero_has_no_sign():
    for type_name in ("float", "double"):
        assert math.copysign(1, only(type_name, "-0")) == 1
        assert math.copysign(1, only(type_name, "-0.0")) == -1


@pytest.mark.parametrize(
    ("type_name", "text", "said"),
    [
        ("decimal(10,2)", '"1,5"', "expected a number, found the string"),
        ("decimal(10,2)", '"1.000,5"', "expected a number, found the string"),
        ("tinyint", "128", "does not fit into 8 bits"),
        ("timestamp", '"20514"', "is not a timestamp"),
        ("date", '"20514"', "is not a date"),
        ("timestamp", '"06:00:00"', "is not a timestamp"),
        ("timestamp", '"2026-03-02T06:00:00 Nowhere/Land"', 'the time zone "Nowhere/Land", which is unknown'),
        ("timestamp", '"2026-03-02T06:00:00 ../../etc/passwd"', "is not a timestamp"),
        ("timestamp", '"2026-03-02T06:00:00+18:01"', "is not a timestamp"),
        ("timestamp_ntz", '"2026-03-02T06:00:00 Europe/Berlin"', "has a time zone"),
        ("string", "'a", "expected the end of a string"),
        ("string", "'a\tb'", "expected a string without control characters"),
        ("binary", '"AB"', "base64"),
    ],
)  # fmt: skip
def test_what_may_be_something_else_is_an_error(type_name, text, said):
    assert said in reason(type_name, text)


def test_names_may_be_in_single_quotes_anywhere():
    record = "{'other': {'x': ['y', 'it\\'s']}, 'a': 1, \"b\": {'c': 2}}"
    result = decode("a int, b struct<c: int>", record)
    assert result.errors == {}
    assert result.column[0].as_py() == {"a": 1, "b": {"c": 2}}
