"""JSON for an Avro schema: absent fields get the defaults of the schema."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.errors import RecordEncodeError
from headrace.formats import Avro, Json, Source

VALUES = Source("readings")


def test_absent_fields_of_json_get_the_defaults_of_the_schema():
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}
    inner = {
        "type": "record",
        "name": "Inner",
        "fields": [{"name": "x", "type": "int", "default": 7}, {"name": "d", "type": decimal}],
    }
    fields = [
        {"name": "name", "type": "string"},
        {"name": "maybe", "type": ["double", "null"], "default": 1.5},
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {"name": "price", "type": decimal, "default": "\u0001"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}, "default": "B"},
        {"name": "either", "type": ["int", "string"], "default": 3},
        {"name": "inner", "type": inner, "default": {"d": "\u0002"}},
        {"name": "inners", "type": {"type": "array", "items": "Inner"}, "default": []},
        {"name": "by_name", "type": {"type": "map", "values": ["null", "Inner"]}, "default": {}},
        {"name": "nothing", "type": ["null", "int"]},
    ]
    made = Avro({"type": "record", "name": "R", "fields": fields})
    reader = Json(made.arrow_type(VALUES))

    def filled(text):
        text = made.fill_defaults(text.encode(), VALUES)
        result = reader.decode(pa.array([text]), VALUES)
        assert not result.errors, result.errors
        return made.decode(made.encode(result.column, VALUES), VALUES).column.to_pylist(maps_as_pydicts="strict")[0]

    defaults = {
        "maybe": 1.5,
        "raw": b"\xff",
        "price": Decimal("0.01"),
        "at": datetime(1970, 1, 1, tzinfo=UTC),
        "kind": "B",
        "either": {"member0": 3, "member1": None},
        "inner": {"x": 7, "d": Decimal("0.02")},
        "inners": [],
        "by_name": {},
        "nothing": None,
    }
    assert filled('{"name": "n"}') == {"name": "n", **defaults}
    digits = "1234567890123456789012345678.91"
    nested = {"x": 7, "d": Decimal(digits)}
    by_name = f'{{"k": {{"d": {digits}}}, "l": null}}'
    text = f'{{"name": "n", "maybe": null, "inners": [{{"d": {digits}}}], "by_name": {by_name}}}'
    assert filled(text) == {
        "name": "n", **defaults, "maybe": None, "inners": [nested], "by_name": {"k": nested, "l": None}
    }  # fmt: skip
    for text, reason in (
        ("{}", r"\$\.name: is absent, and has no default"),
        ('{"name": "n", "inners": [{"d": 1}, {}]}', r"\$\.inners\[1\]\.d: is absent, and has no default"),
    ):
        with pytest.raises(RecordEncodeError, match=reason):
            filled(text)
    for text in (b"no", b"\xff", b"[1]", b'{"name": 1, "inners": {}}'):
        assert text in made.fill_defaults(text, VALUES) or b'"inners":{}' in made.fill_defaults(text, VALUES)
