"""The requests headrace sends: their keys, the versions it can speak, how one is built and its answer read.

A request is described once, by a mapping with the field names of the newest version; `build` makes the kio
entity of the negotiated version out of it and leaves out what that version does not have. So a caller writes
one request and not one per version. Durations are given in milliseconds.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import struct
import typing
from collections.abc import Callable, Mapping
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_writer

from ..errors import ProtocolError
from . import reader


@dataclasses.dataclass(frozen=True, slots=True)
class Api:
    """A kind of request, with the range of versions that headrace can speak."""

    key: int
    name: str
    lowest: int
    highest: int

    def __str__(self) -> str:
        return self.name


# The lowest versions are those of Kafka 3.1, the first with topic ids in Fetch: below them offsets of a
# deleted topic could be mistaken for offsets of its successor.
FETCH = Api(1, "Fetch", 13, 18)
LIST_OFFSETS = Api(2, "ListOffsets", 6, 11)
METADATA = Api(3, "Metadata", 12, 13)
OFFSET_COMMIT = Api(8, "OffsetCommit", 8, 10)
OFFSET_FETCH = Api(9, "OffsetFetch", 8, 10)
FIND_COORDINATOR = Api(10, "FindCoordinator", 4, 6)
API_VERSIONS = Api(18, "ApiVersions", 0, 4)
OFFSET_FOR_LEADER_EPOCH = Api(23, "OffsetForLeaderEpoch", 4, 4)

APIS = (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    FIND_COORDINATOR,
    API_VERSIONS,
    OFFSET_FOR_LEADER_EPOCH,
)

_CORRELATION = struct.Struct(">i")


def encode_request(
    api: Api, version: int, correlation_id: int, client_id: str | None, fields: Mapping[str, Any]
) -> bytes:
    """The frame of a request, with its four bytes of length."""
    entity = load_request_schema(api.key, version)
    header_type = entity.__header_schema__
    header = header_type(
        **_known(
            header_type,
            {
                "request_api_key": api.key,
                "request_api_version": version,
                "correlation_id": correlation_id,
                "client_id": client_id,
            },
        )
    )
    buffer = io.BytesIO()
    buffer.write(b"\0\0\0\0")
    entity_writer(header_type)(buffer, header)
    entity_writer(entity)(buffer, build(entity, fields))
    frame = buffer.getbuffer()
    struct.pack_into(">i", frame, 0, len(frame) - 4)
    return bytes(frame)


def correlation_id_of(frame: memoryview) -> int:
    """The id of the request that this answer belongs to."""
    if len(frame) < 4:
        raise ProtocolError(f"an answer of {len(frame)} bytes has no header")
    return int(_CORRELATION.unpack_from(frame, 0)[0])


def decode_response(api: Api, version: int, frame: memoryview) -> Any:
    """The answer's entity. Its `records` fields are views of the frame."""
    entity = load_response_schema(api.key, version)
    _, at = reader.read_to(entity.__header_schema__, frame)
    return reader.read(entity, frame, at)


def build(entity: type[Any], fields: Mapping[str, Any]) -> Any:
    """The kio entity with those of the fields that this version has; a field of it that is missing and has no
    default is a TypeError, as with any dataclass."""
    return entity(**{name: make(fields[name]) for name, make in _makers(entity).items() if name in fields})


def _known(entity: type[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(entity)}
    return {name: value for name, value in fields.items() if name in names}


_makers_of: dict[type[Any], dict[str, Callable[[Any], Any]]] = {}


def _makers(entity: type[Any]) -> dict[str, Callable[[Any], Any]]:
    """For each field, what turns the plain value into the one that kio's writer takes."""
    makers = _makers_of.get(entity)
    if makers is None:
        hints = typing.get_type_hints(entity)
        makers = _makers_of[entity] = {
            field.name: _maker(hints[field.name], field.metadata.get("kafka_type"))
            for field in dataclasses.fields(entity)
        }
    return makers


def _maker(hint: Any, kafka_type: str | None) -> Callable[[Any], Any]:
    entity = _entity_in(hint)
    if entity is not None:
        inner: type[Any] = entity

        def make(value: Any) -> Any:
            if value is None:
                return None
            if isinstance(value, Mapping):
                return build(inner, value)
            return tuple(build(inner, item) for item in value)

        return make
    if kafka_type == "timedelta_i32":
        return lambda value: datetime.timedelta(milliseconds=value)
    return lambda value: tuple(value) if isinstance(value, list) else value


def _entity_in(hint: Any) -> type[Any] | None:
    if dataclasses.is_dataclass(hint):
        return typing.cast(type[Any], hint)
    return next((found for arg in typing.get_args(hint) if (found := _entity_in(arg))), None)
