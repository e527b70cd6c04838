"""Random Protobuf schemas, messages of them, and what their columns must contain. Google's library is the reference."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    json_format,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

Field = descriptor_pb2.FieldDescriptorProto

IMPORTS = [each.DESCRIPTOR for each in (duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)]
WELL_KNOWN = [
    *("Timestamp", "Duration", "Struct", "Value", "ListValue"),
    *(f"{each}Value" for each in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")),
]
SCALARS = {
    Field.TYPE_BOOL: st.booleans(),
    Field.TYPE_DOUBLE: st.floats(),
    Field.TYPE_FLOAT: st.floats(width=32),
    Field.TYPE_STRING: st.text(max_size=8),
    Field.TYPE_BYTES: st.binary(max_size=8),
}
for _bits, _kinds in {
    (-31, 31): (Field.TYPE_INT32, Field.TYPE_SINT32, Field.TYPE_SFIXED32),
    (-63, 63): (Field.TYPE_INT64, Field.TYPE_SINT64, Field.TYPE_SFIXED64),
    (0, 32): (Field.TYPE_UINT32, Field.TYPE_FIXED32),
    (0, 64): (Field.TYPE_UINT64, Field.TYPE_FIXED64),
}.items():
    _lowest = -(2 ** -_bits[0]) if _bits[0] else 0
    for _kind in _kinds:
        SCALARS[_kind] = st.one_of(st.integers(_lowest, 2 ** _bits[1] - 1), st.integers(max(_lowest, -3), 3))
NOT_KEYS = (Field.TYPE_DOUBLE, Field.TYPE_FLOAT, Field.TYPE_BYTES)
KEYS = [kind for kind in SCALARS if kind not in NOT_KEYS]
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# The years 1 to 9999.
SECONDS = st.integers(-62_135_596_800, 253_402_300_799) | st.integers(-2, 2)


@st.composite
def schemas(draw: st.DrawFn) -> descriptor_pb2.FileDescriptorProto:
    """A file with up to four messages. Each contains later ones only, so that none is recursive."""
    is_proto3 = draw(st.booleans())
    file = descriptor_pb2.FileDescriptorProto(
        name="random.proto", package="random", syntax="proto3" if is_proto3 else "proto2"
    )
    file.dependency.extend(each.name for each in IMPORTS)
    color = file.enum_type.add(name="Color")
    first = 0 if is_proto3 else draw(st.integers(-2, 2))
    for place in range(draw(st.integers(1, 4))):
        color.value.add(name=f"COLOR_{place}", number=first + 3 * place)
    count = draw(st.integers(1, 4))
    for index in range(count):
        _add_fields(draw, file.message_type.add(name=f"M{index}"), index, count, is_proto3)
    return file


def _add_fields(draw: st.DrawFn, message: Any, index: int, count: int, is_proto3: bool) -> None:
    numbers = draw(
        st.lists(st.integers(1, 20) | st.sampled_from([1023, 1024, 18_999, 20_000, 2**29 - 1]), max_size=7, unique=True)
    )
    for place, number in enumerate(numbers):
        field = message.field.add(name=f"f{place}", number=number, label=Field.LABEL_OPTIONAL)
        shape = draw(st.sampled_from(["single", "single", "repeated", "map", "oneof"]))
        if shape == "map":
            _add_map(draw, message, field, index, count)
            continue
        _set_type(draw, field, index, count)
        if shape == "repeated":
            field.label = Field.LABEL_REPEATED
            is_packable = field.type not in (Field.TYPE_MESSAGE, Field.TYPE_STRING, Field.TYPE_BYTES)
            if is_packable and draw(st.booleans()):
                field.options.packed = draw(st.booleans())
        elif shape == "oneof":
            if not message.oneof_decl:
                message.oneof_decl.add(name="choice")
            field.oneof_index = 0
        elif not is_proto3 and draw(st.integers(0, 3)) == 0:
            field.label = Field.LABEL_REQUIRED
    if is_proto3:
        for field in message.field:
            is_plain = field.label == Field.LABEL_OPTIONAL and not field.HasField("oneof_index")
            if is_plain and field.type != Field.TYPE_MESSAGE and draw(st.booleans()):
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")


def _set_type(draw: st.DrawFn, field: Any, index: int, count: int) -> None:
    kind = draw(st.sampled_from(["scalar", "scalar", "scalar", "enum", "message", "known"]))
    if kind == "message" and index + 1 < count:
        field.type, field.type_name = Field.TYPE_MESSAGE, f".random.M{draw(st.integers(index + 1, count - 1))}"
    elif kind == "known":
        field.type, field.type_name = Field.TYPE_MESSAGE, f".google.protobuf.{draw(st.sampled_from(WELL_KNOWN))}"
    elif kind == "enum":
        field.type, field.type_name = Field.TYPE_ENUM, ".random.Color"
    else:
        field.type = draw(st.sampled_from(sorted(SCALARS)))


def _add_map(draw: st.DrawFn, message: Any, field: Any, index: int, count: int) -> None:
    entry = message.nested_type.add(name=f"{field.name.capitalize()}Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL, type=draw(st.sampled_from(sorted(KEYS))))
    value = entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL)
    _set_type(draw, value, index, count)
    if value.type == Field.TYPE_ENUM:
        value.ClearField("type_name")
        value.type = Field.TYPE_INT32  # proto2 has rules of its own for enums whose first value is not 0
    field.label, field.type = Field.LABEL_REPEATED, Field.TYPE_MESSAGE
    field.type_name = f".random.{message.name}.{entry.name}"


def message_class(file: descriptor_pb2.FileDescriptorProto, name: str = "random.M0") -> Any:
    pool = descriptor_pool.DescriptorPool()
    for each in IMPORTS:
        pool.AddSerializedFile(each.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


@st.composite
def messages(draw: st.DrawFn, kind: Any) -> Any:
    message = kind()
    _fill(draw, message)
    return message


def _fill(draw: st.DrawFn, message: Any) -> None:
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        message.seconds, message.nanos = draw(SECONDS), draw(st.integers(0, 999_999_999) | st.just(0))
        return
    if name == "google.protobuf.Duration":
        sign = draw(st.sampled_from([-1, 1]))
        message.seconds = sign * draw(st.integers(0, 10**9))
        message.nanos = sign * draw(st.integers(0, 999_999_999))
        return
    if name in ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"):
        kinds = {"Struct": st.dictionaries(st.text(max_size=3), JSON, max_size=3), "ListValue": st.lists(JSON)}
        json_format.ParseDict(draw(kinds.get(name.rsplit(".")[-1], JSON)), message)
        return
    for field in message.DESCRIPTOR.fields:
        if field.is_required or draw(st.booleans()):
            _fill_field(draw, message, field)


def _fill_field(draw: st.DrawFn, message: Any, field: Any) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        for each in draw(st.lists(SCALARS[key.type], max_size=3)):
            if value.message_type is not None:
                _fill(draw, getattr(message, field.name)[each])
            else:
                getattr(message, field.name)[each] = draw(_scalars(value))
    elif field.is_repeated:
        for _ in range(draw(st.integers(0, 3))):
            if field.message_type is not None:
                _fill(draw, getattr(message, field.name).add())
            else:
                getattr(message, field.name).append(draw(_scalars(field)))
    elif field.message_type is not None:
        getattr(message, field.name).SetInParent()
        _fill(draw, getattr(message, field.name))
    else:
        setattr(message, field.name, draw(_scalars(field)))


def _scalars(field: Any) -> st.SearchStrategy[Any]:
    if field.type != FieldDescriptor.TYPE_ENUM:
        return SCALARS[field.type]
    known = st.sampled_from([each.number for each in field.enum_type.values])
    # proto3 keeps numbers that it does not know.
    return known if field.enum_type.is_closed else known | st.just(99)


def expected(message: Any) -> dict[str, Any]:
    """The row of a message, as pyarrow returns it."""
    return {field.name: _expected_field(message, field) for field in message.DESCRIPTOR.fields}


def _expected_field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = field.message_type.fields_by_name["value"]
        return {key: _expected_value(value[key], of) for key in value}
    if field.is_repeated:
        return [_expected_value(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _expected_value(value, field)


def _expected_value(value: Any, field: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if field.message_type is None:
        return value
    match field.message_type.full_name.removeprefix("google.protobuf."):
        case "Timestamp":
            return EPOCH + datetime.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        case "Duration":
            sign = -1 if value.nanos < 0 else 1
            return datetime.timedelta(seconds=value.seconds, microseconds=sign * (abs(value.nanos) // 1000))
        case "Struct" | "Value" | "ListValue":
            return json_format.MessageToDict(value) if value.ByteSize() else _empty(value)
        case name if name in WELL_KNOWN:
            return value.value
    return expected(value)


def _empty(value: Any) -> Any:
    return {"Struct": {}, "ListValue": []}.get(value.DESCRIPTOR.name)


def comparable(value: Any) -> Any:
    """A row in which NaN equals itself, and zero does not equal a negative zero."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (math.copysign(1, value), value)
    if isinstance(value, dict):
        return {key: comparable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return value


def actual(value: Any, message: Any) -> Any:
    """A row from a column with dictionaries for maps, and JSON text parsed."""
    if value is None:
        return None
    return {field.name: _actual_field(value[field.name], field) for field in message.fields}


def _actual_field(value: Any, field: Any) -> Any:
    if value is None:
        return None
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = field.message_type.fields_by_name["value"]
        assert len({key for key, _ in value}) == len(value)
        return {key: _actual_value(each, of) for key, each in value}
    if field.is_repeated:
        return [_actual_value(each, field) for each in value]
    return _actual_value(value, field)


def _actual_value(value: Any, field: Any) -> Any:
    if value is None or field.message_type is None:
        return value
    name = field.message_type.full_name.removeprefix("google.protobuf.")
    if name in ("Struct", "Value", "ListValue"):
        return json.loads(value)
    return value if name in WELL_KNOWN else actual(value, field.message_type)
