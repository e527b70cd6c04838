"""Decodes kio entities, including responses that kio's own reader rejects.

A broker newer than kio may send tagged fields and error codes that kio does not know. The protocol requires clients to
skip unknown tags, but kio raises. So the entity classes are kio's, and the decoding is ours:

- an unknown tagged field is skipped;
- an unknown error code stays a plain integer;
- a `records` field is a memoryview of the frame, not a copy;
- a length or count that exceeds the rest of the frame raises ProtocolError before anything is allocated for it.

A reader is a function `(buffer, position) -> (value, next position)`. It is compiled on the first use of an entity
class, and cached.
"""

from __future__ import annotations

import dataclasses
import datetime
import struct
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from ..errors import ProtocolError

Reader = Callable[[memoryview, int], tuple[Any, int]]

_ERROR_CODES: dict[int, ErrorCode] = {int(code): code for code in ErrorCode}


class _Malformed(Exception):
    """The bytes are malformed. `read_to` adds the name of the entity."""


def read(entity: type[Any], frame: memoryview, position: int = 0) -> Any:
    """The entity that starts at `position` of the frame. Raises ProtocolError if the bytes are malformed."""
    return read_to(entity, frame, position)[0]


def read_to(entity: type[Any], frame: memoryview, position: int = 0) -> tuple[Any, int]:
    """The entity that starts at `position`, and the position after it. Raises ProtocolError."""
    try:
        return reader_of(entity)(frame, position)
    except (_Malformed, struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise ProtocolError(f"cannot decode {entity.__name__} v{entity.__version__}: {error}") from None


_compiled: dict[type[Any], Reader] = {}


def reader_of(entity: type[Any]) -> Reader:
    reader = _compiled.get(entity)
    if reader is None:
        reader = _compiled[entity] = _compile(entity)
    return reader


def _compile(entity: type[Any]) -> Reader:
    flexible = entity.__flexible__
    hints = typing.get_type_hints(entity)
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    for field in dataclasses.fields(entity):
        tag = field.metadata.get("tag")
        reader = _field_reader(hints[field.name], field.metadata.get("kafka_type"), flexible, tag is not None)
        if tag is None:
            plain.append((field.name, reader))
        else:
            tagged[tag] = (field.name, reader)

    def read_entity(buffer: memoryview, at: int) -> tuple[Any, int]:
        values = {}
        for name, reader in plain:
            values[name], at = reader(buffer, at)
        if flexible:
            count, at = _uvarint(buffer, at)
            for _ in range(count):
                tag, at = _uvarint(buffer, at)
                size, at = _uvarint(buffer, at)
                end = at + _fits(buffer, at, size)
                if tag in tagged:
                    name, reader = tagged[tag]
                    values[name], read_to = reader(buffer, at)
                    if read_to > end:
                        raise _Malformed(f"tagged field {name} is longer than its {size} bytes")
                at = end
        return entity(**values), at

    return read_entity


def _field_reader(hint: Any, kafka_type: str | None, flexible: bool, tagged: bool) -> Reader:
    inner, optional = without_none(hint)
    if typing.get_origin(inner) is tuple:
        item_hint = typing.get_args(inner)[0]
        item, _ = without_none(item_hint)
        if dataclasses.is_dataclass(item):
            return _array(reader_of(typing.cast(type[Any], item)), flexible, optional)
        return _array(_primitive(str(kafka_type), flexible, False), flexible, optional)
    if dataclasses.is_dataclass(inner):
        entity = reader_of(typing.cast(type[Any], inner))
        return _nullable(entity) if optional and not tagged else entity
    return _primitive(str(kafka_type), flexible, optional)


def without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        args = typing.get_args(hint)
        inner = [arg for arg in args if arg is not types.NoneType]
        return inner[0], len(inner) < len(args)
    return hint, False


# -- primitives ------------------------------------------------------------------------------------------------


def _fits(buffer: memoryview, at: int, size: int) -> int:
    if size > len(buffer) - at:
        raise _Malformed(f"a length of {size} bytes at position {at} exceeds the {len(buffer) - at} bytes left")
    return size


def _uvarint(buffer: memoryview, at: int) -> tuple[int, int]:
    byte = buffer[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = buffer[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > 28:
            raise _Malformed(f"the varint at position {at} has more than five bytes")


def _fixed(layout: str) -> Reader:
    packed = struct.Struct(">" + layout)
    unpack, size = packed.unpack_from, packed.size

    def read_fixed(buffer: memoryview, at: int) -> tuple[Any, int]:
        return unpack(buffer, at)[0], at + size

    return read_fixed


_read_i16 = _fixed("h")
_read_i32 = _fixed("i")
_read_i64 = _fixed("q")


def _error_code(buffer: memoryview, at: int) -> tuple[int, int]:
    code: int
    code, at = _read_i16(buffer, at)
    known = _ERROR_CODES.get(code)
    return (code if known is None else known), at


def _bool(buffer: memoryview, at: int) -> tuple[bool, int]:
    return buffer[at] != 0, at + 1


def _uuid(buffer: memoryview, at: int) -> tuple[uuid.UUID | None, int]:
    _fits(buffer, at, 16)
    raw = bytes(buffer[at : at + 16])
    return (uuid.UUID(bytes=raw) if any(raw) else None), at + 16


def _milliseconds(number: Reader) -> Reader:
    def read_timedelta(buffer: memoryview, at: int) -> tuple[datetime.timedelta, int]:
        value, at = number(buffer, at)
        return datetime.timedelta(milliseconds=value), at

    return read_timedelta


def _sized(size_of: Reader, convert: Callable[[memoryview], Any], optional: bool) -> Reader:
    def read_sized(buffer: memoryview, at: int) -> tuple[Any, int]:
        size, at = size_of(buffer, at)
        if size < 0:
            if optional and size == -1:
                return None, at
            raise _Malformed(f"the length at position {at} is {size}")
        end = at + _fits(buffer, at, size)
        return convert(buffer[at:end]), end

    return read_sized


def _compact_size(buffer: memoryview, at: int) -> tuple[int, int]:
    size, at = _uvarint(buffer, at)
    return size - 1, at


def _text(raw: memoryview) -> str:
    return str(raw, "utf-8")


def _array(item: Reader, flexible: bool, optional: bool) -> Reader:
    count_of = _compact_size if flexible else _read_i32

    def read_array(buffer: memoryview, at: int) -> tuple[tuple[Any, ...] | None, int]:
        count, at = count_of(buffer, at)
        if count < 0:
            if optional and count == -1:
                return None, at
            raise _Malformed(f"the count at position {at} is {count}")
        _fits(buffer, at, count)  # every item takes at least one byte
        items = []
        for _ in range(count):
            value, at = item(buffer, at)
            items.append(value)
        return tuple(items), at

    return read_array


def _nullable(entity: Reader) -> Reader:
    def read_nullable(buffer: memoryview, at: int) -> tuple[Any, int]:
        present = struct.unpack_from(">b", buffer, at)[0]
        return (None, at + 1) if present < 0 else entity(buffer, at + 1)

    return read_nullable


_FIXED: dict[str, Reader] = {
    "int8": _fixed("b"),
    "int16": _read_i16,
    "int32": _read_i32,
    "int64": _read_i64,
    "uint8": _fixed("B"),
    "uint16": _fixed("H"),
    "uint32": _fixed("I"),
    "uint64": _fixed("Q"),
    "float64": _fixed("d"),
    "bool": _bool,
    "uuid": _uuid,
    "error_code": _error_code,
    "timedelta_i32": _milliseconds(_read_i32),
    "timedelta_i64": _milliseconds(_read_i64),
    "datetime_i64": _read_i64,  # milliseconds: headrace does not need datetime objects
}
_SIZED: dict[str, tuple[Reader, Callable[[memoryview], Any]]] = {
    "string": (_read_i16, _text),
    "bytes": (_read_i32, bytes),
    "records": (_read_i32, lambda raw: raw),
}


def _primitive(kafka_type: str, flexible: bool, optional: bool) -> Reader:
    if kafka_type in _FIXED:
        return _FIXED[kafka_type]
    size_of, convert = _SIZED[kafka_type]
    return _sized(_compact_size if flexible else size_of, convert, optional)
