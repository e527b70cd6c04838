"""Avro as typed columns, compared with fastavro: random schemas, evolution, several writers, hostile bytes."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, datetime
from decimal import Decimal, localcontext

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, RecordEncodeError, SchemaRegistryError
from headrace.formats import Avro, Source
from support.formats.avro_schemas import evolved, expected, records, schemas
from support.formats.registry import MemoryRegistry

VALUES = Source("readings", "value")
SLOW = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def written(schema, *values):
    cells = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
        cells.append(out.getvalue())
    return cells


def framed(schema_id, cells, size=4):
    return [b"\0" + schema_id.to_bytes(size, "big") + cell for cell in cells]


def read_by_fastavro(cell, writer, reader=None):
    parsed = fastavro.parse_schema(reader) if reader is not None else None
    return fastavro.schemaless_reader(io.BytesIO(cell), fastavro.parse_schema(writer), parsed)


def decode(made, cells):
    result = made.decode(pa.array(cells, pa.binary()), VALUES)
    result.column.validate(full=True)
    assert all(not result.column[row].is_valid for row in result.errors)
    return result


def rows(result):
    return result.column.to_pylist(maps_as_pydicts="strict")


@SLOW
@given(schemas(), st.data())
def test_random_schemas_are_read_as_fastavro_reads_them(made, data):
    schema, values = made
    cells = written(schema, *data.draw(st.lists(values, max_size=3)))
    result = decode(Avro(json.dumps(schema)), cells)
    assert result.errors == {}
    assert rows(result) == [expected(schema, read_by_fastavro(cell, schema)) for cell in cells]


@SLOW
@given(records(), st.data())
def test_evolved_schemas_are_read_as_fastavro_reads_them(made, data):
    writer, values = made
    reader = data.draw(evolved(writer))
    cells = written(writer, *data.draw(st.lists(values, max_size=3)))
    result = decode(Avro(reader, writer_schema=writer), cells)
    for row, cell in enumerate(cells):
        try:
            value = read_by_fastavro(cell, writer, reader)
        except UnicodeDecodeError:
            assert row in result.errors
            continue
        assert row not in result.errors
        assert result.column[row].as_py(maps_as_pydicts="strict") == expected(reader, value)


@SLOW
@given(schemas(), st.data())
def test_what_is_written_is_read_by_fastavro(made, data):
    schema, values = made
    avro = Avro(json.dumps(schema))
    cells = written(schema, *data.draw(st.lists(values, max_size=3)))
    column = decode(avro, cells).column
    if schema == "null":
        return  # a null is not a record
    again = avro.encode(column, VALUES)
    for cell, other, value in zip(cells, again.to_pylist(), column, strict=True):
        if not value.is_valid:
            assert other is None
            continue
        assert read_by_fastavro(other, schema) == read_by_fastavro(cell, schema)


@SLOW
@given(records(), st.data())
def test_damaged_bytes_are_errors_or_values(made, data):
    schema, values = made
    (cell,) = written(schema, data.draw(values))
    damaged = bytearray(cell)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged)))
        damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    reader = data.draw(evolved(schema))
    result = decode(Avro(reader, writer_schema=schema), [cell, bytes(damaged), cell])
    assert 0 not in result.errors or 2 in result.errors
    first, _, last = rows(result)
    assert first == last


READING = {
    "type": "record",
    "name": "Reading",
    "namespace": "traffic",
    "fields": [{"name": "road", "type": "string"}, {"name": "speed", "type": "double"}],
}
WITH_LIMIT = {**READING, "fields": [*READING["fields"], {"name": "limit", "type": ["null", "int"], "default": None}]}


def test_several_writers_in_one_column_are_read_with_the_latest_schema():
    registry = MemoryRegistry()
    old = registry.add("readings-value", READING)
    new = registry.add("readings-value", WITH_LIMIT)
    one = framed(old, written(READING, {"road": "A1", "speed": 1.0}))
    two = framed(new, written(WITH_LIMIT, {"road": "A7", "speed": 2.0, "limit": 100}))
    avro = Avro(registry)
    result = decode(avro, [*one, *two, None, *one])
    assert result.errors == {}
    first, second = {"road": "A1", "speed": 1.0, "limit": None}, {"road": "A7", "speed": 2.0, "limit": 100}
    assert rows(result) == [first, second, None, first]
    decode(avro, [*two, *one])
    assert registry.asked == {
        ("register", "readings-value"): 2,
        ("latest", "readings-value"): 1,
        ("schema", old, "id"): 1,
        ("schema", new, "id"): 1,
    }


def test_the_readers_schema_stays_while_writers_evolve():
    registry = MemoryRegistry()
    old = registry.add("readings-value", READING)
    avro = Avro(registry)
    cell = framed(old, written(READING, {"road": "A1", "speed": 1.0}))
    assert rows(decode(avro, cell)) == [{"road": "A1", "speed": 1.0}]
    new = registry.add("readings-value", WITH_LIMIT)
    later = framed(new, written(WITH_LIMIT, {"road": "A7", "speed": 2.0, "limit": 100}))
    copy = pickle.loads(pickle.dumps(avro))
    for each in (avro, copy):
        assert rows(decode(each, [*cell, *later])) == [{"road": "A1", "speed": 1.0}, {"road": "A7", "speed": 2.0}]
    assert "limit" in rows(decode(Avro(registry), later))[0]


def test_errors_of_single_records():
    registry = MemoryRegistry()
    good = registry.add("readings-value", READING)
    other = registry.add("other", {"type": "record", "name": "Other", "fields": []})
    good_cell = written(READING, {"road": "A1", "speed": 1.0})[0]
    cells = [
        *framed(good, [good_cell, good_cell[:-1], good_cell + b"x", b"\x01", b"\x04\xff\xff" + bytes(8)]),
        *framed(other, [b""]),
        *framed(99, [good_cell]),
        good_cell,
        b"",
        *framed(good, [good_cell]),
    ]
    result = decode(Avro(registry), cells)
    assert [row for row in range(len(cells)) if row not in result.errors] == [0, 9]
    assert result.errors == {
        1: "$.speed: invalid Avro at byte 3: expected 8 bytes, found 7",
        2: "invalid Avro at byte 11: 1 bytes follow the value",
        3: "$.road: invalid Avro at byte 1: the length -1 is negative",
        4: "$.road: invalid Avro at byte 3: a string is not UTF-8",
        5: f"the writer's schema with id {other} cannot be read with the reader's schema: the field road is missing in "
        "the writer's Other, and has no default",
        6: "the schema registry has no schema with id 99",
        7: "expected a schema id after a zero byte, found the byte 0x04: the record was not written by a serializer of "
        "a schema registry",
        8: "expected a zero byte and a schema id of 4 bytes, found 0 bytes",
    }


def test_a_registry_that_is_away_raises_and_nothing_is_lost():
    registry = MemoryRegistry()
    schema_id = registry.add("readings-value", READING)
    cells = framed(schema_id, written(READING, {"road": "A1", "speed": 1.0}))
    avro = Avro(registry)
    for _ in range(2):
        registry.is_away = True
        with pytest.raises(SchemaRegistryError, match="cannot be reached"):
            decode(avro, cells)
        registry.is_away = False
        avro.arrow_type(VALUES)
    assert rows(decode(avro, cells)) == [{"road": "A1", "speed": 1.0}]


def test_an_unknown_id_is_asked_for_again():
    registry = MemoryRegistry()
    registry.add("readings-value", READING)
    avro = Avro(registry)
    cells = framed(2, written(READING, {"road": "A1", "speed": 1.0}))
    assert decode(avro, cells).errors.keys() == {0}
    assert registry.add("elsewhere", READING) == 2
    assert decode(avro, cells).errors == {}


def test_a_batch_of_garbage_does_not_ask_for_every_id():
    registry = MemoryRegistry()
    registry.add("readings-value", '"int"')
    avro = Avro(registry)
    good = framed(1, [b"\x0e"])
    garbage = [b"\0" + (number + 1000).to_bytes(4, "big") for number in range(5000)]
    result = decode(avro, [*good, *garbage, *good])
    assert len(result.errors) == 5000
    assert result.errors[1] == "the schema registry has no schema with id 1000"
    assert "did not know 100 other schema ids" in result.errors[5000]
    assert sum(registry.asked.values()) < 110
    assert decode(avro, [*garbage, *good]).errors.keys() == set(range(5000))
    negative = decode(Avro(registry, framing="apicurio"), [b"\0" + b"\xff" * 8])
    assert negative.errors == {0: "the schema id -1 is negative"}


@pytest.mark.parametrize(("framing", "kind"), [("apicurio", "global"), ("apicurio-content", "content")])
def test_framing_with_ids_of_8_bytes(framing, kind):
    registry = MemoryRegistry(first_id=2**40)
    schema_id = registry.add("readings-value", READING)
    cells = framed(schema_id, written(READING, {"road": "A1", "speed": 1.0}), size=8)
    avro = Avro(registry, framing=framing)
    assert rows(decode(avro, cells)) == [{"road": "A1", "speed": 1.0}]
    assert registry.asked["schema", schema_id, kind] == 1
    if kind == "content":
        assert avro.encode(pa.array([{"road": "A1", "speed": 1.0}]), VALUES).to_pylist() == cells
    else:  # the registry's API for subjects returns no global ids
        with pytest.raises(ConfigError, match="apicurio-content"):
            avro.encode(pa.array([{"road": "A1", "speed": 1.0}]), VALUES)


def test_an_id_that_no_registry_can_have_is_an_error_of_the_record():
    """Confluent's registry has ids of 31 bits. It says of larger ones that the path does not exist."""

    class Confluent(MemoryRegistry):
        def schema(self, schema_id, id_kind="id"):
            if schema_id >= 2**31:
                raise SchemaRegistryError("not found (HTTP 404). Check the URL of the schema registry", status=404)
            return super().schema(schema_id, id_kind)

    registry = Confluent()
    schema_id = registry.add("readings-value", '"int"')
    result = decode(Avro(registry), [*framed(schema_id, [b"\x0e"]), b"\0\xff\xff\xff\xff", b"\0\x80\0\0\0"])
    assert rows(result) == [7, None, None]
    assert result.errors[2] == "the schema id 2147483648 is larger than 2147483647"


def test_schemas_that_refer_to_others():
    registry = MemoryRegistry()
    from headrace.formats._registry import SchemaReference

    place = {"type": "record", "name": "geo.Place", "fields": [{"name": "x", "type": "int"}]}
    trip = {"type": "record", "name": "Trip", "fields": [{"name": n, "type": "geo.Place"} for n in ("begin", "end")]}
    schema_id = registry.add("readings-value", trip, [SchemaReference("geo.Place", json.dumps(place))])
    cells = framed(schema_id, [b"\x02\x04"])
    assert rows(decode(Avro(registry), cells)) == [{"begin": {"x": 1}, "end": {"x": 2}}]


def test_defaults_of_all_types():
    """fastavro does not convert defaults of bytes."""
    fields = [
        ("b", "bytes", "\u00ff", b"\xff"),
        ("f", {"type": "fixed", "name": "F", "size": 2}, "\u0000\u00fe", b"\x00\xfe"),
        ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ("d", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0001", Decimal("0.01")),
        ("u", ["null", "int"], 5, 5),
        ("r", {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int", "default": 3}]}, {}, {"x": 3}),
    ]
    reader = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind, "default": default} for name, kind, default, _ in fields],
    }
    result = decode(Avro(reader, writer_schema={"type": "record", "name": "R", "fields": []}), [b"", b""])
    assert rows(result) == [{name: value for name, _, _, value in fields}] * 2
    wrong = {**reader, "fields": [{"name": "x", "type": "int", "default": "one"}]}
    with pytest.raises(ConfigError, match='the default of the field x: "one" is not a value of the type int'):
        Avro(wrong, writer_schema={"type": "record", "name": "R", "fields": []})


def test_unions_with_several_types_are_structs_as_in_spark():
    schema = ["null", "string", {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}]
    result = decode(Avro(schema), written(schema, None, "text", {"x": 1}))
    assert rows(result) == [None, {"member0": "text", "member1": None}, {"member0": None, "member1": {"x": 1}}]
    assert Avro(["int", "long", "null"]).arrow_type(VALUES) == pa.int64()
    assert Avro(["float", "double"]).arrow_type(VALUES) == pa.float64()
    assert rows(decode(Avro(["long", "int"]), [b"\x00\x02", b"\x02\x04"])) == [1, 2]


def test_a_writers_union_is_read_as_what_it_contains():
    nullable, plain = ["null", "int"], "long"
    result = decode(Avro(plain, writer_schema=nullable), [b"\x02\x0e", b"\x00", b"\x08"])
    assert rows(result) == [7, None, None]
    assert result.errors == {
        1: "the writer's null cannot be read as long",
        2: "invalid Avro at byte 1: a union has no type with the number 4",
    }


def test_a_branch_of_the_same_type_precedes_promotions():
    both = ["bytes", "string"]
    for writer in (both, both[::-1]):
        for reader in (both, both[::-1]):
            result = decode(Avro(reader, writer_schema=writer), written(writer, "text", b"\xff"))
            fields = {kind: f"member{index}" for index, kind in enumerate(reader)}
            assert rows(result) == [
                {fields["string"]: "text", fields["bytes"]: None},
                {fields["string"]: None, fields["bytes"]: b"\xff"},
            ]
    assert rows(decode(Avro(["boolean", "bytes"], writer_schema="string"), written("string", "text"))) == [
        {"member0": None, "member1": b"text"}
    ]


def test_enums_use_the_readers_default():
    writer = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
    with_default = {"type": "enum", "name": "E", "symbols": ["C", "A"], "default": "A"}
    assert rows(decode(Avro(with_default, writer_schema=writer), [b"\x00", b"\x02", b"\x04"])) == ["A", "A", "C"]
    without = decode(Avro({**with_default, "default": "C"} | {"symbols": ["C"]}, writer_schema=writer), [b"\x06"])
    assert without.errors == {0: "invalid Avro at byte 1: an enum has no symbol with the number 3"}
    strict = {"type": "enum", "name": "E", "symbols": ["C"]}
    assert decode(Avro(strict, writer_schema=writer), [b"\x00"]).errors == {
        0: "the reader's enum has no symbol A, and no default"
    }


def test_times_and_decimals_of_other_units_are_converted():
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    moment = datetime(2026, 3, 2, 6, 0, 0, 125000, tzinfo=UTC)
    assert rows(decode(Avro(micros, writer_schema=millis), written(millis, moment))) == [moment]
    assert rows(decode(Avro(millis, writer_schema=micros), written(micros, moment))) == [moment]
    narrow = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 4}
    assert rows(decode(Avro(wide, writer_schema=narrow), written(narrow, Decimal("-12.34")))) == [Decimal("-12.3400")]
    with pytest.raises(ConfigError, match="decimals with scale 4 cannot be read with scale 2"):
        Avro(narrow, writer_schema=wide)


def test_decimals_of_writers_with_more_than_38_digits_are_converted():
    def decimal(precision, scale):
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}

    with localcontext(prec=60):
        small, large = Decimal("-12.34"), Decimal(10) ** 39
        cells = written(decimal(42, 2), small, large)
    result = decode(Avro(decimal(38, 4), writer_schema=decimal(42, 2)), cells)
    assert rows(result) == [Decimal("-12.3400"), None]
    assert result.errors == {1: "a decimal has more than 38 digits"}
    assert rows(decode(Avro(decimal(38, 2), writer_schema=decimal(300, 2)), cells[:1])) == [small]
    with pytest.raises(ConfigError, match="decimals with scale 4 cannot be read with scale 2"):
        Avro(decimal(38, 2), writer_schema=decimal(42, 4))
    # Bytes, which mean what the reader's schema says.
    unscaled = (-1234).to_bytes(2, "big", signed=True)
    assert rows(decode(Avro(decimal(42, 2)), cells[:1])) == [unscaled]
    assert rows(decode(Avro(decimal(42, 2), writer_schema=decimal(6, 2)), cells[:1])) == [unscaled]
    for writer in (decimal(6, 4), decimal(42, 4), decimal(6, 1)):
        with pytest.raises(ConfigError, match=r"cannot be read with scale 2, because its column has the bytes"):
            Avro(decimal(42, 2), writer_schema=writer)
    assert Avro(decimal(42, 2)).encode(pa.array([unscaled]), VALUES).to_pylist() == cells[:1]


def test_durations_and_uuids_of_fixed_size():
    duration = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    cell = (1).to_bytes(4, "little") + (2).to_bytes(4, "little") + (3).to_bytes(4, "little")
    result = decode(Avro(duration), [cell])
    assert rows(result) == [pa.MonthDayNano([1, 2, 3_000_000])]
    assert Avro(duration).encode(result.column, VALUES).to_pylist() == [cell]
    identity = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    result = decode(Avro(identity), [bytes(range(16))])
    assert rows(result) == ["00010203-0405-0607-0809-0a0b0c0d0e0f"]
    assert Avro(identity).encode(result.column, VALUES).to_pylist() == [bytes(range(16))]


@pytest.mark.parametrize(
    ("schema", "cell", "reason"),
    [
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a block cannot have"),
        ({"type": "array", "items": "int"}, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", "a block cannot have"),
        ({"type": "array", "items": "null"}, b"\x80\x80\x80\x80\x10\x00", "1024 times the memory of its bytes"),
        ({"type": "array", "items": "null"}, (b"\xc0\x3e" * 50) + b"\x00", "1024 times the memory"),
        ({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}, b"\x80\x80\x80\x80\x10", "1024"),
        ({"type": "array", "items": "int"}, b"\x01\x80\x80\x80\x80\x10", "a block has the invalid size"),
        ({"type": "map", "values": "int"}, b"\x80\x80\x80\x80\x10", "a block cannot have"),
        ("bytes", b"\x80\x80\x80\x80\x10", "expected 2147483648 bytes, found 0"),
        ("long", b"\xff" * 10, "a number has more than 64 bits"),
        ("long", b"\xff\xff", "a number is cut off"),
        ("int", b"\x80\x80\x80\x80\x10", "the int 2147483648 has more than 32 bits"),
        ("boolean", b"\x02", "a boolean is 0 or 1"),
        ({"type": "map", "values": "int"}, b"\x04\x02k\x00\x02k\x02\x00", 'a map has the key "k" twice'),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, b"\x04\x27\x10", "has more than 4 digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38}, b"\x28" + b"\x01" * 20, "more than 38 digits"),
    ],
)  # fmt: skip
def test_hostile_bytes_are_errors(schema, cell, reason):
    result = decode(Avro(schema), [cell])
    assert reason in result.errors[0]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "not valid JSON"),
        ("strin", "uses the type strin, which it does not define"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}, "R contains itself"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}, "two fields a"),
        (["int", "int"], "a union with two types int"),
        ([], "a union without types"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "not one of its symbols"),
        ({"type": "array"}, "no items"),
        (42, "must be JSON text or a dictionary"),
        ('{"type":"array","items":' * 70 + '"int"' + "}" * 70, "nested deeper"),
    ],
)  # fmt: skip
def test_a_wrong_schema_is_refused(schema, message):
    with pytest.raises(ConfigError, match=message):
        Avro(schema)


def test_a_schema_that_is_larger_than_its_text_is_refused():
    def of(depth):
        if depth == 0:
            return {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
        inner = of(depth - 1)
        fields = [{"name": "a", "type": inner}, *({"name": n, "type": inner["name"]} for n in "bcd")]
        return {"type": "record", "name": f"R{depth}", "fields": fields}

    with pytest.raises(ConfigError, match="more than 50000 types"):
        Avro(of(12))
    Avro(of(4))


def test_encoding_needs_a_registered_schema():
    registry = MemoryRegistry()
    values = pa.array([{"road": "A1", "speed": 1.0}])
    with pytest.raises(SchemaRegistryError, match="no subject"):
        Avro(registry).encode(values, VALUES)
    with pytest.raises(SchemaRegistryError, match="register it"):
        Avro(registry, READING).encode(values, VALUES)
    registering = Avro(registry, READING, auto_register_schemas=True, subject="mine")
    expected_cells = framed(1, written(READING, {"road": "A1", "speed": 1.0}))
    assert registering.encode(values, VALUES).to_pylist() == expected_cells
    assert registering.encode(values, VALUES).to_pylist() == expected_cells
    assert registry.asked["register", "mine"] == 1
    assert Avro(registry, subject="mine").encode(values, VALUES).to_pylist() == expected_cells
    assert Avro(registry, READING, subject="mine").encode(values, VALUES).to_pylist() == expected_cells


def test_values_that_do_not_fit_are_refused():
    with pytest.raises(RecordEncodeError, match=r"cannot encode the value of row 1: \$\.speed: the value is null"):
        Avro(READING).encode(pa.array([{"road": "A1", "speed": 1.0}, {"road": "A1", "speed": None}]), VALUES)
    with pytest.raises(ConfigError, match="value has the field limit, which the schema does not have: road, speed"):
        Avro(READING).encode(pa.array([{"road": "A1", "limit": 1}]), VALUES)
    symbols = {"type": "enum", "name": "E", "symbols": ["A"]}
    with pytest.raises(RecordEncodeError, match='"B" is not a symbol'):
        Avro(symbols).encode(pa.array(["A", "B"]), VALUES)
    assert Avro(WITH_LIMIT).encode(pa.array([{"road": "A", "speed": 1}]), VALUES).to_pylist() == written(
        WITH_LIMIT, {"road": "A", "speed": 1.0, "limit": None}
    )


def test_arguments_that_contradict_each_other_are_refused():
    registry = MemoryRegistry()
    for wrong in (
        lambda: Avro(READING, READING),
        lambda: Avro(READING, subject="x"),
        lambda: Avro(READING, framing="confluent"),
        lambda: Avro(registry, framing="none"),
        lambda: Avro(registry, framing="other"),
        lambda: Avro(registry, writer_schema=READING),
    ):
        with pytest.raises(ConfigError):
            wrong()
    registry.kind = "JSON"
    registry.add("readings-value", {"type": "object"})
    with pytest.raises(ConfigError, match="is JSON, not AVRO"):
        Avro(registry).arrow_type(VALUES)
