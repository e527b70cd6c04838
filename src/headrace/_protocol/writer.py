"""Encodes requests from plain mappings to bytes, using the field metadata of kio's entity classes.

A mapping has the field names of the newest version of a request. Fields that an older version lacks are omitted. A
missing field gets its default; if it has none, a TypeError is raised. Durations are milliseconds; a missing UUID is
None. Tagged fields all have defaults and are not written. A value that does not fit raises an EncodingError that names
the field: background tasks handle only errors of headrace.

This is the counterpart of `reader.py`. Writers too are compiled on the first use of an entity class. kio's own writer
creates an object for every entity and looks up its schema each time, which took longer than all other work between two
fetches.
"""

from __future__ import annotations

import dataclasses
import struct
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from .._arguments import LONGEST_STRING, short_repr
from ..errors import EncodingError
from .reader import without_none

Writer = Callable[[bytearray, Any], None]

# The errors that the writers below raise for a value of the wrong type or size.
_MISFITS = (struct.error, OverflowError, UnicodeError, TypeError, ValueError, AttributeError)

_compiled: dict[type[Any], Writer] = {}


def writer_of(entity: type[Any]) -> Writer:
    """The function that encodes a mapping as this entity and appends it to a buffer."""
    writer = _compiled.get(entity)
    if writer is None:
        writer = _compiled[entity] = _compile(entity)
    return writer


def _compile(entity: type[Any]) -> Writer:
    flexible = entity.__flexible__
    hints = typing.get_type_hints(entity)
    steps: list[tuple[str, Writer, Any]] = []
    tagged = []
    for field in dataclasses.fields(entity):
        if "tag" in field.metadata:
            tagged.append(field.name)
            continue
        # The client id in a request header is never a compact string, so that a broker can read the header of a request
        # version that it does not support.
        compact = flexible and field.name != "client_id"
        writer = _field_writer(hints[field.name], field.metadata.get("kafka_type"), compact)
        steps.append((field.name, writer, field.default))

    def write_entity(out: bytearray, fields: Mapping[str, Any]) -> None:
        for name, writer, default in steps:
            value = fields.get(name, default)
            if value is dataclasses.MISSING:
                raise TypeError(f"{entity.__name__} v{entity.__version__} needs {name}")
            try:
                writer(out, value)
            except EncodingError:
                raise  # from a nested field
            except _MISFITS as error:
                raise EncodingError(f"{name} of {entity.__name__} cannot be {short_repr(value)}: {error}") from error
        if flexible:
            out.append(0)
        for name in tagged:
            if name in fields:
                raise TypeError(f"{entity.__name__}: the tagged field {name} cannot be written")

    return write_entity


def _field_writer(hint: Any, kafka_type: str | None, flexible: bool) -> Writer:
    inner, optional = without_none(hint)
    if typing.get_origin(inner) is tuple:
        item, _ = without_none(typing.get_args(inner)[0])
        if dataclasses.is_dataclass(item):
            return _array(writer_of(typing.cast(type[Any], item)), flexible)
        return _array(_primitive(str(kafka_type), flexible, False), flexible)
    return _primitive(str(kafka_type), flexible, optional)


# -- primitives --------------------------------------------------------------------------------------------------


def _uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _fixed(layout: str) -> Writer:
    pack = struct.Struct(">" + layout).pack

    def write_fixed(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write_fixed


_i16 = _fixed("h")
_i32 = _fixed("i")


def _compact_size(out: bytearray, size: int) -> None:
    _uvarint(out, size + 1)


def _uuid(out: bytearray, value: uuid.UUID | None) -> None:
    out += value.bytes if value is not None else bytes(16)


def _sized(write_size: Writer, encode: Callable[[Any], bytes | memoryview], optional: bool) -> Writer:
    def write_sized(out: bytearray, value: Any) -> None:
        if value is None:
            if not optional:
                raise TypeError("the field does not allow None")
            write_size(out, -1)
        else:
            raw = encode(value)
            write_size(out, len(raw))
            out += raw

    return write_sized


def _utf8(value: str) -> bytes:
    raw = value.encode()
    if len(raw) > LONGEST_STRING:  # a compact string could be longer, but brokers reject it
        raise ValueError(f"the string has {len(raw)} bytes, but at most {LONGEST_STRING} are allowed")
    return raw


def _raw(value: Any) -> memoryview:
    """Bytes of any object with a contiguous buffer. They are copied only once, into the frame: records are large."""
    return memoryview(value).cast("B")  # not bytes(value): bytes(5) would be five zeros


def _array(item: Writer, flexible: bool) -> Writer:
    write_count = _compact_size if flexible else _i32

    def write_array(out: bytearray, values: Any) -> None:
        if values is None:
            write_count(out, -1)
            return
        write_count(out, len(values))
        for value in values:
            item(out, value)

    return write_array


_FIXED: dict[str, Writer] = {
    "int8": _fixed("b"),
    "int16": _i16,
    "int32": _i32,
    "int64": _fixed("q"),
    "uint16": _fixed("H"),
    "bool": _fixed("?"),
    "uuid": _uuid,
    "timedelta_i32": _i32,
}
_SIZED: dict[str, tuple[Writer, Callable[[Any], bytes | memoryview]]] = {
    "string": (_i16, _utf8),
    "bytes": (_i32, _raw),
    "records": (_i32, _raw),
}


def _primitive(kafka_type: str, flexible: bool, optional: bool) -> Writer:
    if kafka_type in _FIXED:
        return _FIXED[kafka_type]
    write_size, encode = _SIZED[kafka_type]
    return _sized(_compact_size if flexible else write_size, encode, optional)
