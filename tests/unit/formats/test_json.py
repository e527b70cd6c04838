"""JSON as typed columns: values, errors of single records, and round trips."""

from __future__ import annotations

import json
import math
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, RecordEncodeError
from headrace.formats import Json, Source

VALUES = Source("readings", "value")


def decode(schema, *texts, **options):
    cells = pa.array([text.encode() if isinstance(text, str) else text for text in texts], pa.binary())
    result = Json(schema, **options).decode(cells, VALUES)
    assert len(result.column) == len(texts)
    assert all(not result.column[row].is_valid for row in result.errors)
    return result


def only(schema, text):
    """The value of the only record. The schema has one field, x."""
    result = decode(schema, text)
    assert result.errors == {}
    value = result.column[0].as_py()
    return value["x"] if value is not None else None


def reason(schema, text):
    result = decode(schema, text)
    return result.errors[0]


def test_all_types_of_a_ddl_are_read():
    schema = (
        "b boolean, i8 tinyint, i16 smallint, i32 int, i64 bigint, f float, d double, s string, bin binary, "
        "day date, at timestamp, local timestamp_ntz, dec decimal(10,2), tags array<string>, m map<string,int>, "
        "`nested part` struct<a: int, b: array<struct<c: string>>> NOT NULL COMMENT 'inside'"
    )
    record = {
        "b": True,
        "i8": -128,
        "i16": 32767,
        "i32": -(2**31),
        "i64": 2**63 - 1,
        "f": 0.1,
        "d": 1e-300,
        "s": 'Zürich \U0001f680\n"\\/',
        "bin": "AAEC",
        "day": "2024-02-29",
        "at": "2026-03-02T06:00:00.125+01:00",
        "local": "2026-03-02 06:00:00",
        "dec": 12.34,
        "tags": ["x", None, ""],
        "m": {"k": 1, "": None},
        "nested part": {"a": 1, "b": [{"c": "y"}, None]},
    }
    result = decode(schema, json.dumps(record), json.dumps(record, ensure_ascii=False, indent=2))
    assert result.errors == {}
    for row in result.column.to_pylist(maps_as_pydicts="strict"):
        assert row == record | {
            "f": pytest.approx(0.1, rel=1e-7),
            "bin": b"\x00\x01\x02",
            "day": date(2024, 2, 29),
            "at": datetime(2026, 3, 2, 5, 0, 0, 125000, tzinfo=UTC),
            "local": datetime(2026, 3, 2, 6, 0),
            "dec": Decimal("12.34"),
        }


def test_missing_fields_and_nulls_are_null_and_unknown_fields_are_skipped():
    result = decode(
        "a int, b string",
        '{"unknown": {"deep": [1, {"x": "\\u00e4"}]}, "b": "here", "more": [true, false, null, -1.5e3]}',
        '{"a": null}',
        "{}",
        " \n null \t",
        None,
        '\ufeff{"a": 1}',
    )
    assert result.errors == {}
    none = {"a": None, "b": None}
    assert result.column.to_pylist() == [{"a": None, "b": "here"}, none, none, None, None, {"a": 1, "b": None}]


def test_a_bad_record_does_not_affect_the_others():
    result = decode(
        "a int, tags array<string>, n struct<x: double, m: map<string, array<int>>>",
        '{"a": 1, "tags": ["x"], "n": {"x": 1, "m": {"k": [1, 2]}}}',
        '{"a": 2, "tags": ["y", "z"], "n": {"x": 2, "m": {"k": [1, 2], "l": [3, "no"]}}}',
        '{"tags": ["later"], "n": {"m": {"k": [4]}}}',
        '{"a": 4, "tags": ["cut',
    )
    assert result.column.to_pylist() == [
        {"a": 1, "tags": ["x"], "n": {"x": 1.0, "m": [("k", [1, 2])]}},
        None,
        {"a": None, "tags": ["later"], "n": {"x": None, "m": [("k", [4])]}},
        None,
    ]
    assert result.errors == {
        1: "$.n.m.l[1]: expected an integer, found a string",
        3: "$.tags[0]: invalid JSON at byte 22: expected the end of a string, found the end",
    }
    result.column.validate(full=True)


def test_the_last_of_repeated_fields_wins():
    result = decode(
        "a int, m map<string,int>, s struct<x: int>",
        '{"a": 1, "s": {"x": 1}, "m": {"k": 1, "l": 2, "k": 3}, "a": 2, "s": {}, "m": {"z": 1, "z": 2, "y": 3}}',
    )
    assert result.column.to_pylist() == [{"a": 2, "m": [("z", 2), ("y", 3)], "s": {"x": None}}]


def test_maps_of_any_size_have_each_key_once():
    for size in (1, 2, 16, 17, 1000):
        names = [f"k{number}" for number in range(size)]
        once = ",".join(f'"{name}":{number}' for number, name in enumerate(names))
        again = ",".join(f'"\\u006b{number}":{-number}' for number in range(0, size, 3))
        result = decode("map<string,int>", f"{{{once}}}", f"{{{once},{again}}}", "{}")
        assert result.errors == {}
        plain, replaced, empty = result.column.to_pylist(maps_as_pydicts="strict")
        assert plain == dict(zip(names, range(size), strict=True))
        assert replaced == plain | {f"k{number}": -number for number in range(0, size, 3)}
        assert empty == {}


@pytest.mark.parametrize(
    ("type_name", "text", "expected"),
    [
        ("double", "1", 1.0),
        ("double", "-0.0", -0.0),
        ("double", "123456789012345678901234567890", 123456789012345678901234567890.0),
        ("double", "1e400", math.inf),
        ("double", "NaN", math.nan),
        ("double", "-Infinity", -math.inf),
        ("double", '"Infinity"', math.inf),
        ("double", "2.2250738585072011e-308", 2.2250738585072011e-308),
        ("double", "9007199254740993", 9007199254740993.0),
        ("float", "16777217", 16777216.0),
        ("decimal(38,10)", "123456789012345678901234567.0123456789", Decimal("123456789012345678901234567.0123456789")),
        ("decimal(10,2)", '"1.005"', Decimal("1.01")),
        ("decimal(10,2)", "1e-2", Decimal("0.01")),
        ("bigint", "-9223372036854775808", -(2**63)),
        ("string", '"\\ud83d\\ude80"', "\U0001f680"),
        ("string", "12.50", "12.50"),
        ("string", '{"a": [1, 2]}', '{"a": [1, 2]}'),
        ("string", "true", "true"),
        ("timestamp", '"2026-03-02"', datetime(2026, 3, 2, tzinfo=UTC)),
        ("array<int>", "[]", []),
    ],
)  # fmt: skip
def test_values_are_read(type_name, text, expected):
    found = only(f"x {type_name}", f'{{"x":{text}}}')
    assert found == expected or (math.isnan(expected) and math.isnan(found))


@pytest.mark.parametrize(
    ("type_name", "text", "expected"),
    [
        ("int", "1.0", '$.x: expected an integer, found "1.0"'),
        ("int", "2147483648", '$.x: "2147483648" does not fit into 32 bits'),
        ("tinyint", "-129", '$.x: "-129" does not fit into 8 bits'),
        ("bigint", "9223372036854775808", '$.x: "9223372036854775808" does not fit into 64 bits'),
        ("bigint", "1" * 50, '$.x: "1111111111111111111111111111111111111111"… does not fit into 64 bits'),
        ("int", "01", "$.x: invalid JSON at byte 5: expected a number without leading zeros, found a number"),
        ("int", "-", "$.x: invalid JSON at byte 6: expected a digit, found '}'"),
        ("double", "1.", "$.x: invalid JSON at byte 7: expected a digit, found '}'"),
        ("double", "1e+", "$.x: invalid JSON at byte 8: expected a digit, found '}'"),
        ("double", "+1", "$.x: invalid JSON at byte 5: expected a value, found '+'"),
        ("double", '"1.5"', "$.x: expected a number, found a string"),
        ("boolean", '"true"', "$.x: expected true or false, found a string"),
        ("boolean", "tru", "$.x: invalid JSON at byte 5: expected a value, found 't'"),
        ("string", '"a\tb"', "$.x: invalid JSON at byte 7: expected a string without control characters, "
         "found the byte 0x09"),
        ("string", '"\\ud800"', "$.x: a string contains half of a surrogate pair"),
        ("string", '"\\ud800\\u0041"', "$.x: a string contains half of a surrogate pair"),
        ("string", '"\\x41"', "$.x: invalid JSON: a string contains the invalid escape \\x"),
        ("string", '"\\u00g0"', "$.x: invalid JSON: a string contains the invalid escape \\u"),
        ("binary", '"AB"', None),
        ("binary", '"A"', "$.x: expected a string with base64"),
        ("date", '"2023-02-29"', '$.x: "2023-02-29" is not a date as 2026-03-02'),
        ("timestamp", '"now"', '$.x: "now" is not a timestamp in ISO 8601'),
        ("timestamp", "1700000000", "$.x: expected a string with a timestamp, found a number"),
        ("timestamp_ntz", '"2026-03-02T06:00:00Z"', '$.x: "2026-03-02T06:00:00Z" has a time zone, and the timestamps '
         "of this column have none"),
        ("decimal(4,2)", "99.995", '$.x: "99.995" does not fit into decimal(4,2)'),
        ("decimal(4,2)", '"1 "', '$.x: expected a number, found the string "1 "'),
        ("array<int>", "[1,]", "$.x[1]: invalid JSON at byte 8: expected a value, found ']'"),
        ("array<int>", "{}", "$.x: expected an array, found an object"),
        ("map<string,int>", "[]", "$.x: expected an object, found an array"),
        ("void", "1", "$.x: expected null, found a number"),
    ],
)  # fmt: skip
def test_bad_values_have_a_reason(type_name, text, expected):
    result = decode(f"x {type_name}", f'{{"x":{text}}}')
    assert result.errors.get(0) == expected or expected is None


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{", "}", '{"x"}', '{"x":}', '{"x":1,}', '{"x":1 "y":2}', '{"x":1}}', '{"x":1} x', "[1]", '"text"',
        "1",
        '{x:1}', "{'x\":1}", '{"y":[1,2}', '{"y":{"z":1]}', '{"y":nul}', '{"y":"\x01"}', '{"y":[1,]}', '{"y":01}',
        "// {}",
        '{"y":1e}', '{"y":"\\q"}', '{"y":"\\u12"}',
    ],
)  # fmt: skip
def test_text_that_is_not_json_is_an_error(text):
    with pytest.raises((ValueError, AssertionError)):
        assert isinstance(json.loads(text, strict=True), dict)
    assert decode("x int", text).errors.keys() == {0}


def test_bytes_that_are_not_utf8_are_an_error_of_that_record_only():
    result = decode(
        "x string", b'{"x":"ok"}', b'{"x":"\xff"}', b'{"y":"\xc3","x":"a"}', b'{"x":"\xc3\xa4"}', b'{"x":"\xc3'
    )
    assert result.column.to_pylist() == [{"x": "ok"}, None, None, {"x": "ä"}, None]
    assert result.errors[1] == "invalid JSON at byte 6: the text is not UTF-8"


def test_half_characters_of_neighbours_are_no_character():
    result = decode("x string", b'{"x":"\xc3', b'\xa4"}')
    assert result.errors.keys() == {0, 1}


def test_deep_nesting_is_an_error_and_not_a_crash():
    for open_, close in ("[", "]"), ('{"a":', "}"):
        text = '{"y":' + open_ * 200_000 + "1" + close * 200_000 + "}"
        assert reason("x int", text) == "values are nested deeper than 512 levels"
        assert reason("y string", text) == "$.y: values are nested deeper than 512 levels"
    assert decode("x int", '{"y":' + "[" * 500 + "]" * 500 + "}").errors == {}


def test_names_may_have_escapes():
    assert decode("road string", '{"r\\u006fad": "A1"}').column.to_pylist() == [{"road": "A1"}]


def test_many_fields_in_any_order():
    names = [f"f{index}" for index in range(40)]
    schema = pa.schema([(name, pa.int64()) for name in names])
    record = {name: index for index, name in enumerate(names)}
    backwards = dict(reversed(record.items()))
    half = {name: record[name] for name in names[::2]}
    result = decode(schema, *(json.dumps(each) for each in (record, backwards, half)))
    assert result.column.to_pylist() == [record, record, dict.fromkeys(names) | half]


def test_a_type_that_is_not_a_struct():
    assert decode("array<int>", "[1, 2]").column.to_pylist() == [[1, 2]]
    assert decode(pa.large_string(), '"a"').column.to_pylist() == ["a"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("road", "there is no type road"),
        ("road strin", "there is no type strin"),
        ("road string,", "expected a name instead of ''"),
        ("road string speed", "unexpected 'speed'"),
        ("a int, a int", "there are two fields a"),
        ("a decimal(39,0)", "more than 38 digits"),
        ("a array<int", "expected '>' instead of ''"),
        ("a map<int,int>", "the keys of a map are strings in JSON"),
        ("a int; drop", "unexpected"),
        (pa.schema([("a", pa.dictionary(pa.int8(), pa.string()))]), "JSON cannot be read as the type"),
        (42, "the schema must be a pyarrow schema"),
        ('{"type": 1', "not valid JSON"),
    ],
)
def test_a_wrong_schema_is_refused(schema, message):
    with pytest.raises(ConfigError, match=message.replace("(", "\\(")):
        Json(schema)


def test_json_schema():
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "small": {"type": "integer", "connect.type": "int16"},
            "price": {"type": ["number", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "day": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
            "labels": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "tree": {"$ref": "#"},
            "any": {},
        },
        "$defs": {"tag": {"type": "object", "properties": {"name": {"type": "string"}}}},
    }
    assert Json(json.dumps(schema)).arrow_type(VALUES) == pa.struct(
        [
            ("id", pa.int64()),
            ("small", pa.int16()),
            ("price", pa.float64()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("tags", pa.list_(pa.struct([("name", pa.string())]))),
            ("labels", pa.map_(pa.string(), pa.bool_())),
            ("either", pa.string()),
            ("tree", pa.string()),
            ("any", pa.string()),
        ]
    )


def test_other_layouts_of_bytes_and_framed_records():
    for layout in (pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string()):
        cells = pa.array(['{"x": 1}', None], pa.string()).cast(layout)
        assert Json("x int").decode(cells, VALUES).column.to_pylist() == [{"x": 1}, None]
    framed = decode("x int", b'\x00\x00\x00\x00\x01{"x": 1}', b'{"x": 1}', b"\x00\x00", framing="confluent")
    assert framed.column.to_pylist() == [{"x": 1}, None, None]
    assert framed.errors == {
        1: "expected a schema id after a zero byte, found the byte 0x7b: the record was not written by a serializer of "
        "a schema registry",
        2: "expected a zero byte and a schema id of 4 bytes, found 2 bytes",
    }


def test_slices_of_a_column():
    cells = pa.array([b'{"x":1}', b"bad", None, b'{"x":"\xff"}', b'{"x":4}']).slice(1, 4)
    result = Json("x int").decode(cells, VALUES)
    assert result.column.to_pylist() == [None, None, None, {"x": 4}]
    assert result.errors.keys() == {0, 2}


def test_formats_can_be_pickled_and_shown():
    made = Json("road string, speed double")
    copy = pickle.loads(pickle.dumps(made))
    assert copy.arrow_type(VALUES) == made.arrow_type(VALUES)
    assert repr(copy) == repr(made) == "Json('road string, speed double')"


NUMBERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "i": NUMBERS,
        "d": st.one_of(st.none(), st.floats(allow_nan=False), st.integers(-(2**60), 2**60).map(float)),
        "s": st.one_of(st.none(), st.text()),
        "b": st.one_of(st.none(), st.booleans()),
        "l": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=4)),
        "m": st.one_of(st.none(), st.dictionaries(st.text(max_size=3), NUMBERS, max_size=4)),
        "n": st.none() | st.fixed_dictionaries({}, optional={"x": NUMBERS, "y": st.lists(NUMBERS, max_size=3)}),
        "other": st.recursive(st.none() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3), max_leaves=5),
    },
)  # fmt: skip
DDL = (
    "i bigint, d double, s string, b boolean, l array<string>, m map<string, bigint>, "
    "n struct<x: bigint, y: array<bigint>>"
)


def complete(record):
    found = {name: record.get(name) for name in "idsblmn"}
    if found["n"] is not None:
        found["n"] = {name: found["n"].get(name) for name in "xy"}
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(RECORDS, st.booleans(), st.sampled_from([None, 1])), max_size=5))
def test_random_records_are_read_as_json_loads_reads_them(records):
    texts = [json.dumps(record, ensure_ascii=escaped, indent=indent) for record, escaped, indent in records]
    result = decode(DDL, *texts)
    assert result.errors == {}
    result.column.validate(full=True)
    expected = [complete(json.loads(text)) for text in texts]
    assert result.column.to_pylist(maps_as_pydicts="strict") == expected


@settings(max_examples=100, deadline=None)
@given(RECORDS, st.data())
def test_random_damage_is_an_error_or_what_json_loads_reads(record, data):
    text = bytearray(json.dumps(record).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        if not text:
            return
    result = decode(DDL, bytes(text))
    result.column.validate(full=True)
    try:
        loaded = json.loads(bytes(text).decode("utf-8-sig"))
    except ValueError:
        # Spark's rules allow some more.
        is_more = any(each in text for each in (b"'", b"INF", b"+Infinity"))
        assert is_more or result.errors.keys() == {0}
        return
    # Only types without conversions: a string column, for example, also accepts numbers.
    if not result.errors and loaded is not None:
        for name in "ib":
            assert result.column[0].as_py()[name] == loaded.get(name)


@settings(max_examples=100, deadline=None)
@given(st.lists(RECORDS, max_size=5))
def test_what_is_written_is_read(records):
    made = Json(DDL)
    values = pa.array([complete(json.loads(json.dumps(record))) for record in records], made.arrow_type(VALUES))
    cells = made.encode(values, VALUES)
    assert cells.type == pa.binary()
    for cell, value in zip(cells.to_pylist(), values.to_pylist(maps_as_pydicts="strict"), strict=True):
        loaded = json.loads(cell)
        assert {name: loaded[name] for name in value if name != "d"} == {k: v for k, v in value.items() if k != "d"}
    again = made.decode(cells, VALUES)
    assert again.errors == {}
    assert again.column.equals(values)


def test_references_that_multiply_are_an_error():
    nodes = {
        f"n{depth}": {"properties": {name: {"$ref": f"#/$defs/n{depth + 1}"} for name in "ab"}} for depth in range(30)
    }
    with pytest.raises(ConfigError, match="more than 10000 fields"):
        Json(json.dumps({"$defs": {**nodes, "n30": {"type": "string"}}, "$ref": "#/$defs/n0"}))


@pytest.mark.parametrize("written", [r'"12\n"', r'"12\t"', '"\ufeff12"', '" 12"', '"12 "', '"0x1"', '""'])
def test_a_decimal_in_quotes_has_nothing_around_it(written):
    result = decode("d decimal(10,2)", f'{{"d": {written}}}')
    assert "expected a number, found the string" in result.errors[0]


@pytest.mark.parametrize("sign", ["", "-"])
def test_decimals_at_the_limit_of_128_bits_do_not_wrap(sign):
    for number in range(2**127 - 2, 2**127 + 3):
        assert "does not fit into decimal(38,0)" in decode("d decimal(38,0)", f'{{"d": {sign}{number}}}').errors[0]


def test_names_are_compared_without_escapes():
    schema = pa.schema([(r"a\nb", pa.int32()), ("c\nd", pa.int32()), ('e"f', pa.int32())])
    all_three = {r"a\nb": 1, "c\nd": 2, 'e"f': 3}
    result = decode(schema, json.dumps(all_three), r'{"a\nb": 1}')
    assert result.column.to_pylist() == [all_three, dict.fromkeys(all_three)]


@pytest.mark.parametrize(
    ("data_type", "text", "value"),
    [
        (pa.int32(), "{}", None),
        (pa.list_(pa.field("item", pa.int32(), nullable=False)), '{"x": [1, null]}', [1, None]),
        (pa.large_list(pa.field("item", pa.int32(), nullable=False)), '{"x": [null]}', [None]),
        (pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)), '{"x": {"k": null}}', [("k", None)]),
        (pa.struct([pa.field("y", pa.int32(), nullable=False)]), '{"x": {}}', {"y": None}),
    ],
)
def test_what_is_missing_is_null_whatever_the_schema_says(data_type, text, value):
    """Arrow refuses such nulls: one record would be an error of all."""
    schema = pa.schema([pa.field("x", data_type, nullable=False)])
    result = decode(schema, text, "no", None)
    assert result.column.to_pylist() == [{"x": value}, None, None]
    assert result.errors.keys() == {1}
    assert Json(schema).encode(result.column.slice(1), VALUES).to_pylist() == [None, None]
    with pytest.raises(RecordEncodeError, match=r"row 0: \$\.x.*: the value is null, and the schema does not allow"):
        Json(schema).encode(result.column, VALUES)
