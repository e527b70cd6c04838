"""JSON that is written from columns: types, conversions, and what cannot be written."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.errors import ConfigError, RecordEncodeError
from headrace.formats import Json, Source
from support.formats.registry import MemoryRegistry

VALUES = Source("readings", "value")


def test_all_types_are_written():
    schema = pa.schema(
        [
            ("f", pa.float32()),
            ("d", pa.float64()),
            ("u", pa.uint64()),
            ("bin", pa.binary()),
            ("day", pa.date32()),
            ("t", pa.time64("us")),
            ("ms", pa.timestamp("ms", "UTC")),
            ("ns", pa.timestamp("ns")),
            ("dec", pa.decimal128(10, 2)),
        ]
    )
    row = {
        "f": 0.1,
        "d": math.inf,
        "u": 2**64 - 1,
        "bin": b"\x00\xff",
        "day": date(1969, 12, 31),
        "t": 3_723_000_004,
        "ms": datetime(2026, 3, 2, 6, tzinfo=UTC),
        "ns": 1,
        "dec": Decimal("-0.05"),
    }
    made = Json(schema)
    cells = made.encode(pa.array([row, None], pa.struct(list(schema))), VALUES)
    assert cells.to_pylist() == [
        b'{"f":0.1,"d":"Infinity","u":18446744073709551615,"bin":"AP8=","day":"1969-12-31","t":"01:02:03.000004",'
        b'"ms":"2026-03-02T06:00:00.000Z","ns":"1970-01-01T00:00:00.000000001","dec":-0.05}',
        None,
    ]
    assert made.decode(cells, VALUES).column.to_pylist()[0]["dec"] == Decimal("-0.05")


def test_columns_are_brought_into_the_type_of_the_schema():
    made = Json("a bigint, b string, c array<struct<x: int>>")
    given_type = pa.struct(
        [
            ("b", pa.dictionary(pa.int8(), pa.string())),
            ("a", pa.int8()),
            ("c", pa.large_list(pa.struct([("x", pa.int64())]))),
        ]
    )  # fmt: skip
    values = pa.array([{"a": 1, "b": "x", "c": [{"x": 1}]}, None, {"a": None, "b": None, "c": None}], given_type)
    expected = [b'{"a":1,"b":"x","c":[{"x":1}]}', None, b'{"a":null,"b":null,"c":null}']
    assert made.encode(values, VALUES).to_pylist() == expected
    assert made.encode(values.slice(1), VALUES).to_pylist() == expected[1:]
    with pytest.raises(ConfigError, match=r"value has the field z, which the schema does not have"):
        made.encode(pa.array([{"z": 1}]), VALUES)
    with pytest.raises(ConfigError, match=r"value.a has the type string, which cannot be written as int64"):
        made.encode(pa.array([{"a": "no"}]), VALUES)
    with pytest.raises(RecordEncodeError, match=r"cannot encode the value of row 1: \$\.at: .* out of range"):
        Json("at timestamp").encode(
            pa.array([{"at": 0}, {"at": 2**62}], pa.struct([("at", pa.timestamp("us"))])), VALUES
        )


def test_lists_are_converted_without_pandas():
    """pandas imports pyarrow.compute, which pyarrow does not."""
    program = """
import sys
sys.modules["pandas"] = type(sys)("pandas")
sys.modules["pandas"].__version__ = "0"
import warnings
warnings.simplefilter("ignore")
import pyarrow as pa
from headrace.formats import Json, Source
rows = pa.array([{"a": ["x"]}], pa.struct([("a", pa.large_list(pa.string()))]))
assert not hasattr(pa, "compute")
print(Json("a array<string>").encode(rows, Source("t"))[0].as_py())
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.stdout == """b'{"a":["x"]}'\n""", found.stderr


def test_large_types_are_written_too():
    """polars has no others."""
    inner = pa.struct([("s", pa.large_string()), ("b", pa.large_binary()), ("l", pa.large_list(pa.large_string()))])
    schema = pa.schema([("x", inner), ("m", pa.map_(pa.string(), pa.large_string()))])
    rows = [{"x": {"s": "a", "b": b"b", "l": ["c", None]}, "m": [("k", "v")]}, None]
    cells = Json(schema).encode(pa.array(rows, pa.struct(list(schema))), VALUES)
    assert cells.to_pylist() == [b'{"x":{"s":"a","b":"Yg==","l":["c",null]},"m":{"k":"v"}}', None]
    assert Json(schema).decode(cells, VALUES).column.to_pylist() == rows


ORDER = {
    "type": "object",
    "required": ["id", "note", "items"],
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["string", "null"]},
        "discount": {"type": "number"},
        "code": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/text"}]},
        "kind": {"enum": ["new", None]},
        "size": {"const": "small"},
        "address": {"$ref": "#/$defs/address"},
        "items": {"type": "array", "items": {"type": "integer"}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "extra": {"type": ["object", "array"]},
        "any": {},
    },
    "$defs": {
        "text": {"type": "string"},
        "address": {
            "allOf": [{"type": "object", "properties": {"street": {"type": "string"}}, "required": ["street"]}]
        },
    },
}
SPARSE = {"id": 1, "items": []}
FULL = {
    "id": 2,
    "note": "n",
    "discount": 0.5,
    "code": "c",
    "kind": "new",
    "size": "small",
    "address": {"street": "s"},
    "items": [3],
    "counts": [("k", 4)],
    "extra": '{"x": [5]}',
    "any": "6",
}


def _order_formats() -> list[Json]:
    registry = MemoryRegistry("JSON")
    registry.add("readings-value", ORDER)
    given = Json(json.dumps(ORDER))
    return [given, pickle.loads(pickle.dumps(given)), Json(registry)]


def _written(made: Json, row: dict) -> bytes:
    cell = made.encode(pa.array([row], made.arrow_type(VALUES)), VALUES)[0].as_py()
    return cell.removeprefix(b"\x00\x00\x00\x00\x01")


@pytest.mark.parametrize("number", range(3))
def test_a_json_schema_says_which_fields_are_written_as_null_and_which_are_left_out(number):
    made = _order_formats()[number]
    assert _written(made, SPARSE) == b'{"id":1,"note":null,"code":null,"kind":null,"items":[],"any":null}'
    assert _written(made, FULL) == (
        b'{"id":2,"note":"n","discount":0.5,"code":"c","kind":"new","size":"small","address":{"street":"s"},'
        b'"items":[3],"counts":{"k":4},"extra":{"x": [5]},"any":"6"}'
    )
    for missing, path in (
        ({"id": None}, r"\$\.id"),
        ({"items": None}, r"\$\.items"),
        ({"items": [1, None]}, r"\$\.items\[1\]"),
        ({"counts": [("k", None)]}, r"\$\.counts\.k"),
        ({"address": {"street": None}}, r"\$\.address\.street"),
    ):
        rows = pa.array([SPARSE, {**SPARSE, **missing}], made.arrow_type(VALUES))
        with pytest.raises(RecordEncodeError, match=rf"of row 1: {path}: the value is null, and the schema does not"):
            made.encode(rows, VALUES)
    assert made.decode(
        made.encode(pa.array([FULL, None], made.arrow_type(VALUES)), VALUES), VALUES
    ).column.to_pylist() == [{**FULL}, None]


def test_text_for_a_json_schema_without_strings_must_be_json():
    made = _order_formats()[0]
    for text in ("{", "", "[1] 2"):
        with pytest.raises(RecordEncodeError, match=r"row 0: \$\.extra: invalid JSON"):
            _written(made, {**SPARSE, "extra": text})


def test_without_a_json_schema_null_is_written_unless_the_field_is_not_nullable():
    assert _written(Json("a int, b int not null"), {}) == b'{"a":null,"b":null}'
    made = Json(
        pa.schema([pa.field("a", pa.int8()), pa.field("b", pa.list_(pa.field("item", pa.int8(), False)), False)])
    )
    assert _written(made, {"b": []}) == b'{"a":null,"b":[]}'
    for row in ({}, {"b": [None]}):
        with pytest.raises(RecordEncodeError, match=r"row 0: \$\.b.*: the value is null, and the schema does not"):
            _written(made, row)
    # To read them, every column may be null.
    assert made.decode(pa.array([b"{}"]), VALUES).column.to_pylist() == [{"a": None, "b": None}]


def test_json_schemas_that_refer_to_themselves_or_in_long_chains_are_read():
    chain = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(3000)}
    fan = {f"f{number}": {"allOf": [{"$ref": f"#/$defs/f{number + 1}"}] * 2} for number in range(60)}
    ends = {"d3000": {"type": "string"}, "f60": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}
    properties = {name: {"$ref": f"#/$defs/{name}"} for name in ("d0", "f0", "loop")}
    made = Json(json.dumps({"type": "object", "properties": properties, "$defs": {**chain, **fan, **ends}}))
    assert _written(made, {}) == b'{"d0":null,"f0":null,"loop":null}'
