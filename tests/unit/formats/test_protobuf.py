"""The class Protobuf: schemas from everywhere, frames, types, and errors that say what to do."""

from __future__ import annotations

import base64
import datetime
import decimal
import importlib
import pickle
import struct

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2, timestamp_pb2

from headrace.errors import ConfigError, RecordEncodeError, SchemaRegistryError
from headrace.formats import Protobuf, Source
from headrace.formats._registry import SchemaReference
from support.formats.registry import MemoryRegistry

SOURCE = Source("readings")
READING = """
syntax = "proto3";
package traffic;
import "google/protobuf/timestamp.proto";
enum Kind { UNKNOWN = 0; CAR = 1; }
message Reading {
  string road = 1;
  double speed = 2;
  google.protobuf.Timestamp at = 3;
  Kind kind = 4;
  oneof place { uint64 cell = 5; Position position = 6; }
  message Position { float lat = 1; float lon = 2; }
}
message Other { string road = 1; }
"""
RECORD = b"\x0a\x02A1\x11" + struct.pack("<d", 80.5) + b"\x1a\x02\x08\x01\x20\x01\x28\x07"
ROW = {
    "road": "A1",
    "speed": 80.5,
    "at": datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC),
    "kind": "CAR",
    "cell": 7,
    "position": None,
}


def binary(*records: bytes | None) -> pa.Array:
    return pa.array(records, pa.binary())


def framed(schema_id: int, indexes: bytes = b"\0", record: bytes = RECORD) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + indexes + record


def test_a_text_is_a_schema():
    column, errors = Protobuf(READING).decode(binary(RECORD, None, b""), SOURCE)
    assert errors == {}
    assert column.to_pylist()[:2] == [ROW, None]
    assert column[2].as_py() == {**ROW, "road": "", "speed": 0.0, "at": None, "kind": "UNKNOWN", "cell": None}


def test_the_type_is_fixed():
    assert Protobuf(READING).arrow_type(SOURCE) == pa.struct(
        [
            ("road", pa.string()),
            ("speed", pa.float64()),
            ("at", pa.timestamp("us", "UTC")),
            ("kind", pa.string()),
            ("cell", pa.uint64()),
            ("position", pa.struct([("lat", pa.float32()), ("lon", pa.float32())])),
        ]
    )


def test_unsigned_integers_for_systems_without_them():
    format = Protobuf('syntax = "proto3"; message M { uint32 a = 1; fixed64 b = 2; }', unsigned=False)
    assert format.arrow_type(SOURCE) == pa.struct([("a", pa.int64()), ("b", pa.decimal128(20, 0))])
    record = b"\x08\xff\xff\xff\xff\x0f\x11" + b"\xff" * 8
    column = format.decode(binary(record), SOURCE).column
    assert column.to_pylist() == [{"a": 2**32 - 1, "b": decimal.Decimal(2**64 - 1)}]
    assert format.encode(column, SOURCE).to_pylist() == [record]
    with pytest.raises(RecordEncodeError, match=r"cannot encode the value of row 1: .*-1 is out of range for uint32"):
        format.encode(pa.array([{"a": 1}, {"a": -1}]), SOURCE)


def test_files_and_descriptors_are_schemas(tmp_path):
    (tmp_path / "reading.proto").write_text(READING)
    assert Protobuf(tmp_path / "reading.proto").decode(binary(RECORD), SOURCE).column.to_pylist() == [ROW]
    value = descriptor_pb2.FileDescriptorSet()
    for each in (timestamp_pb2, struct_pb2):
        each.DESCRIPTOR.CopyToProto(value.file.add())
    (tmp_path / "set.bin").write_bytes(value.SerializeToString())
    for given in (value.SerializeToString(), tmp_path / "set.bin"):
        read = Protobuf(given, "google.protobuf.Timestamp").decode(binary(b"\x08\x05"), SOURCE)
        assert read.column.to_pylist() == [{"seconds": 5, "nanos": 0}]


def test_a_generated_class_is_a_schema():
    column, _ = Protobuf(struct_pb2.Struct).decode(
        binary(struct_pb2.Struct(fields={"a": struct_pb2.Value(number_value=1.5)}).SerializeToString()), SOURCE
    )
    assert column.to_pylist() == [{"fields": [("a", "1.5")]}]


@pytest.mark.parametrize(
    "name",
    [
        *("calendar_period", "color", "date", "datetime", "dayofweek", "decimal", "expr", "fraction", "interval"),
        *("latlng", "localized_text", "money", "month", "phone_number", "postal_address", "quaternion", "timeofday"),
    ],
)
def test_common_types_of_google_are_built_in(name):
    """They are written down here without a network. They are the same as Google's."""
    google = importlib.import_module(f"google.type.{name}_pb2")
    imported = f'syntax = "proto3"; import "google/type/{name}.proto"; message M'
    for message in google.DESCRIPTOR.message_types_by_name:
        built_in = Protobuf(f"{imported} {{ google.type.{message} it = 1; }}").arrow_type(SOURCE).field("it").type
        assert built_in == Protobuf(getattr(google, message)).arrow_type(SOURCE)
    for enum in google.DESCRIPTOR.enum_types_by_name.values():
        numbers = bytes(each.number for each in enum.values)
        format = Protobuf(f"{imported} {{ repeated google.type.{enum.name} e = 1; }}")
        column = format.decode(binary(b"\x0a" + bytes([len(numbers)]) + numbers), SOURCE).column
        assert column[0].as_py()["e"] == [each.name for each in enum.values]


def test_confluents_imports_are_built_in():
    text = """
    syntax = "proto3";
    import "confluent/meta.proto";
    import "confluent/type/decimal.proto";
    message M {
      option (confluent.message_meta).doc = "a payment";
      confluent.type.Decimal amount = 1 [(confluent.field_meta) = { params: [{ key: "precision", value: "8" }] }];
    }
    """
    fields = [("value", pa.binary()), ("precision", pa.uint32()), ("scale", pa.int32())]
    assert Protobuf(text).arrow_type(SOURCE) == pa.struct([("amount", pa.struct(fields))])


@pytest.mark.parametrize(
    ("schema", "message", "error"),
    [
        ("message {", None, "the Protobuf schema is invalid: schema.proto: "),
        ('import "a.proto"; message M {}', None, "a.proto"),
        (READING, "Car", "the schema has no message Car, but traffic.Reading, traffic.Other"),
        ('syntax = "proto3"; enum E { A = 0; }', None, "the schema schema.proto has no message"),
        ('syntax = "proto3"; message M { M m = 1; }', None, "M is recursive: .* Set recursion to the number of levels"),
        (b"\x0a\xff", None, "the bytes are not a FileDescriptorSet"),
        (b"", None, "the FileDescriptorSet has no file"),
        (17, None, "must be a SchemaRegistry, a .proto text, .* not 17"),
    ],
)
def test_schemas_that_cannot_be_used(schema, message, error):
    with pytest.raises(ConfigError, match=error):
        Protobuf(schema, message)


def test_editions_are_refused():
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", syntax="editions", edition=1000)
    file.message_type.add(name="M")
    with pytest.raises(ConfigError, match=r"e\.proto uses an edition: proto2 and proto3 are supported"):
        Protobuf(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def test_recursive_messages_have_as_many_levels_as_asked_for():
    format = Protobuf('syntax = "proto3"; message M { int32 x = 1; repeated M m = 2; }', recursion=1)
    column, errors = format.decode(binary(b"\x08\x01\x12\x02\x08\x02", b"\x12\x02\x12\x00"), SOURCE)
    assert column.to_pylist() == [{"x": 1, "m": [{"x": 2}]}, None]
    assert errors == {1: "$.m: field 2 of M is nested deeper than the columns: raise recursion (at byte 2)"}


def test_bad_records_are_null_with_a_reason():
    column, errors = Protobuf(READING).decode(binary(RECORD, b"\x0a\x05A", RECORD), SOURCE)
    assert column.to_pylist() == [ROW, None, ROW]
    assert errors == {1: "$.road: a length of 5, but 1 bytes are left (at byte 1)"}
    assert column.flatten()[0].to_pylist() == ["A1", None, "A1"]


def test_the_registry_has_the_schemas_of_records():
    """Several writers in one batch, and one of another message."""
    registry = MemoryRegistry("PROTOBUF")
    old = registry.register("readings-value", READING.replace("double speed = 2;", ""), "PROTOBUF")
    new = registry.register("readings-value", READING, "PROTOBUF")
    avro = registry.register("other", '"int"', "AVRO")
    cells = binary(
        framed(old.id), framed(new.id), framed(new.id, b"\x02\x00"), framed(new.id, b"\x02\x02"), framed(99),
        framed(avro.id), None, b"{}",
    )  # fmt: skip
    column, errors = Protobuf(registry).decode(cells, SOURCE)
    assert column.to_pylist() == [ROW, ROW, ROW, None, None, None, None, None]
    assert list(errors) == [3, 4, 5, 7]
    assert errors[3] == "the record is a traffic.Other, but traffic.Reading was expected (at byte 5)"
    assert "99" in errors[4]
    assert errors[5].startswith(f"schema {avro.id} is AVRO, not PROTOBUF")
    assert "0x7b" in errors[7]
    other = Protobuf(registry, "traffic.Other").decode(cells, SOURCE)
    assert other.column.to_pylist()[3] == {"road": "A1"}


def test_the_readers_message_does_not_change_while_a_format_exists():
    registry = MemoryRegistry("PROTOBUF")
    first = registry.register("readings-value", 'syntax = "proto3"; message M { int32 a = 1; }', "PROTOBUF")
    format = Protobuf(registry)
    type_before = format.arrow_type(SOURCE)
    later = registry.register(
        "readings-value", 'syntax = "proto3"; message M { int32 a = 1; int32 b = 2; }', "PROTOBUF"
    )
    cells = binary(framed(first.id, record=b"\x08\x01"), framed(later.id, record=b"\x08\x02\x10\x03"))
    for each in (format, pickle.loads(pickle.dumps(format))):
        assert each.arrow_type(SOURCE) == type_before
        assert each.decode(cells, SOURCE).column.to_pylist() == [{"a": 1}, {"a": 2}]
    assert Protobuf(registry).decode(cells, SOURCE).column.to_pylist() == [{"a": 1, "b": 0}, {"a": 2, "b": 3}]


def test_a_registry_that_is_away_raises_and_the_call_can_be_repeated():
    registry = MemoryRegistry("PROTOBUF")
    known = registry.register("readings-value", READING, "PROTOBUF")
    format = Protobuf(registry)
    format.arrow_type(SOURCE)
    registry.is_away = True
    with pytest.raises(SchemaRegistryError):
        format.decode(binary(framed(known.id)), SOURCE)
    registry.is_away = False
    assert format.decode(binary(framed(known.id)), SOURCE).column.to_pylist() == [ROW]


def test_references_and_descriptors_in_base64():
    """Confluent's serializer for Python registers descriptors, and each import as a reference."""
    inner = descriptor_pb2.FileDescriptorProto(name="whatever.proto", package="p", syntax="proto3")
    inner.message_type.add(name="I").field.add(name="x", number=1, type=5, label=1)
    outer = descriptor_pb2.FileDescriptorProto(name="o.proto", dependency=["dir/inner.proto"], syntax="proto3")
    outer.message_type.add(name="O").field.add(name="i", number=1, type=11, type_name=".p.I", label=1)
    texts = [base64.b64encode(each.SerializeToString()).decode() for each in (inner, outer)]
    registry = MemoryRegistry("PROTOBUF")
    registry.register("dir/inner.proto", texts[0], "PROTOBUF")
    reference = SchemaReference("dir/inner.proto", texts[0], "dir/inner.proto", 1)
    known = registry.register("readings-value", texts[1], "PROTOBUF", (reference,))
    column, _ = Protobuf(registry).decode(binary(framed(known.id, record=b"\x0a\x02\x08\x05")), SOURCE)
    assert column.to_pylist() == [{"i": {"x": 5}}]


def test_apicurios_frame_has_the_name():
    name = b"\x09\x0a\x07Reading"
    records = binary(
        b"\0" + (7).to_bytes(8, "big") + name + RECORD, b"\0" + (7).to_bytes(8, "big") + b"\x05\x0a\x03Car"
    )
    format = Protobuf(READING, framing="apicurio")
    column, errors = format.decode(records, SOURCE)
    assert column.to_pylist() == [ROW, None]
    assert errors == {1: "the record is a Car, but traffic.Reading was expected (at byte 9)"}
    # Apicurio's serializers since version 3.
    column, errors = Protobuf(READING, framing="confluent", type_reference=True).decode(
        binary(b"\0\0\0\0\7" + name + RECORD), SOURCE
    )
    assert column.to_pylist() == [ROW]


def test_encoding_needs_a_registered_schema():
    registry = MemoryRegistry("PROTOBUF")
    rows = pa.array([{"road": "A1", "speed": 80.5, "at": ROW["at"], "kind": "CAR", "cell": 7}, None])
    with pytest.raises(SchemaRegistryError):
        Protobuf(registry, schema=READING).encode(rows, SOURCE)
    registering = Protobuf(registry, schema=READING, auto_register_schemas=True)
    known = framed(1)
    assert registering.encode(rows, SOURCE).to_pylist() == [known, None]
    for each in (Protobuf(registry), Protobuf(registry, schema=READING)):
        assert each.encode(rows, SOURCE).to_pylist() == [known, None]
    other = Protobuf(registry, "traffic.Other").encode(pa.array([{"road": "A1"}]), SOURCE)
    assert other.to_pylist() == [framed(1, b"\x02\x02", b"\x0a\x02A1")]
    nested = Protobuf(registry, "traffic.Reading.Position").encode(pa.array([{"lat": 0.0}]), SOURCE)
    assert nested.to_pylist() == [framed(1, b"\x04\x00\x00", b"")]


def test_a_generated_class_is_registered_with_its_imports():
    inner = descriptor_pb2.FileDescriptorProto(name="inner.proto", package="p", syntax="proto3")
    inner.message_type.add(name="I").field.add(name="x", number=1, type=5, label=1)
    outer = descriptor_pb2.FileDescriptorProto(name="outer.proto", dependency=["inner.proto"], syntax="proto3")
    outer.message_type.add(name="O").field.add(name="i", number=1, type=11, type_name=".p.I", label=1)
    pool = descriptor_pool.DescriptorPool()
    for each in (inner, outer):
        pool.Add(each)
    registry = MemoryRegistry("PROTOBUF")
    format = Protobuf(
        registry,
        schema=message_factory.GetMessageClass(pool.FindMessageTypeByName("O")),
        auto_register_schemas=True,
    )
    cells = format.encode(pa.array([{"i": {"x": 5}}]), SOURCE)
    assert cells.to_pylist() == [framed(2, record=b"\x0a\x02\x08\x05")]
    assert registry.latest("inner.proto").id == 1
    assert [(each.name, each.version) for each in registry.schema(2).references] == [("inner.proto", 1)]
    assert Protobuf(registry).decode(cells, SOURCE).column.to_pylist() == [{"i": {"x": 5}}]


@pytest.mark.parametrize(
    ("rows", "error", "text"),
    [
        ([{"rode": "A1"}], ConfigError, "rode"),
        ([{"road": 5.5, "speed": []}], ConfigError, "speed"),
        ([{"kind": "BUS"}], RecordEncodeError, r'row 0: \$.kind: the enum traffic.Kind has no value "BUS"'),
        ([{"cell": 1, "position": {"lat": 1.0}}], RecordEncodeError, r"\$.position: the field cell of the same oneof"),
    ],
)
def test_rows_that_do_not_fit(rows, error, text):
    with pytest.raises(error, match=text):
        Protobuf(READING).encode(pa.array(rows), SOURCE)


def test_elements_that_protobuf_does_not_have():
    format = Protobuf('syntax = "proto3"; message M { repeated int32 a = 1; map<string, string> m = 2; }')
    with pytest.raises(RecordEncodeError, match=r"\$.a\[1\]: an element is null"):
        format.encode(pa.array([{"a": [1, None]}]), SOURCE)
    column = pa.array([{"m": [("k", None)]}], pa.struct([("m", pa.map_(pa.string(), pa.string()))]))
    with pytest.raises(RecordEncodeError, match="the value of an entry is null"):
        format.encode(column, SOURCE)


def test_times_that_protobuf_does_not_have():
    format = Protobuf(
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M { google.protobuf.Timestamp t = 1; }'
    )
    column = pa.StructArray.from_arrays([pa.array([2**62], pa.timestamp("us", "UTC"))], ["t"])
    with pytest.raises(
        RecordEncodeError, match=r"\$.t: seconds 4611686018427 and nanos 387904000 are not a valid Timestamp"
    ):
        format.encode(column, SOURCE)


def test_required_fields():
    format = Protobuf('syntax = "proto2"; message M { required int32 a = 1; optional int32 b = 2 [default = 5]; }')
    column, errors = format.decode(binary(b"\x08\x00", b"\x10\x01"), SOURCE)
    assert column.to_pylist() == [{"a": 0, "b": None}, None]
    assert errors == {1: "$.a: the required field is missing (at byte 2)"}
    assert format.encode(pa.array([{"a": 0, "b": 0}]), SOURCE).to_pylist() == [b"\x08\x00\x10\x00"]
    with pytest.raises(RecordEncodeError, match=r"\$.a: the required field is null"):
        format.encode(pa.array([{"b": 0}]), SOURCE)


def test_arguments_that_contradict_each_other():
    with pytest.raises(ConfigError, match="need a schema registry"):
        Protobuf(READING, subject="s")
    with pytest.raises(ConfigError, match="give one schema"):
        Protobuf(READING, schema=READING)
    with pytest.raises(ConfigError, match="recursion=-1 is negative"):
        Protobuf(READING, recursion=-1)
    with pytest.raises(ConfigError, match="the framing needs a schema id"):
        Protobuf(READING, framing="confluent").encode(pa.array([{"road": "A1"}]), SOURCE)


def test_a_format_can_be_pickled_and_shown():
    format = Protobuf(READING, "traffic.Reading", framing="confluent")
    again = pickle.loads(pickle.dumps(format))
    assert repr(format) == repr(again) == "Protobuf(message='traffic.Reading', framing='confluent')"
    assert again.decode(binary(framed(1)), SOURCE) == format.decode(binary(framed(1)), SOURCE)


def test_a_batch_of_garbage_does_not_ask_for_every_id():
    registry = MemoryRegistry("PROTOBUF")
    known = registry.register("readings-value", READING, "PROTOBUF")
    format = Protobuf(registry)
    garbage = [b"\0" + (number + 1000).to_bytes(4, "big") + b"\0" for number in range(5000)]
    column, errors = format.decode(binary(framed(known.id), *garbage, framed(known.id)), SOURCE)
    assert (column[0].as_py(), column[5001].as_py()) == (ROW, ROW)
    assert errors.keys() == set(range(1, 5001))
    assert "did not know 100 other schema ids" in errors[5000]
    assert sum(registry.asked.values()) < 110
    assert format.decode(binary(*garbage, framed(known.id)), SOURCE).errors.keys() == set(range(5000))


def test_an_id_that_no_registry_can_have_is_an_error_of_the_record():
    registry = MemoryRegistry("PROTOBUF")
    known = registry.register("readings-value", READING, "PROTOBUF")
    _, errors = Protobuf(registry).decode(binary(framed(known.id), b"\0\xff\xff\xff\xff\0"), SOURCE)
    assert errors == {1: "the schema id 4294967295 is larger than 2147483647 (at byte 0)"}
    _, errors = Protobuf(registry, framing="apicurio", type_reference=False).decode(
        binary(b"\0" + b"\xff" * 8 + b"\0"), SOURCE
    )
    assert errors == {0: "the schema id -1 is negative (at byte 0)"}
