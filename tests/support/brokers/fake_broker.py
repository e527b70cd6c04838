"""A scripted broker on loopback, for behaviour that a real one cannot be made to show.

`FakeBroker` listens. `accept` returns a `Link` for each connection, on which a test receives requests and sends
responses or arbitrary bytes. `encode` writes kio entities as a newer broker would, with tagged fields and error codes
that kio does not know.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import struct
import typing
from collections.abc import Mapping
from typing import Any, Self

from kio.index import load_request_schema, load_response_schema
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader
from kio.serial._introspect import EntityField, EntityTupleField, classify_field
from kio.serial._serialize import get_field_writer

from headrace._protocol.messages import API_VERSIONS, APIS, Api
from support.brokers.kio_entities import build

UNKNOWN_TAG = 9_999
UNKNOWN_TAG_DATA = b"from a newer broker"


def answer(api: Api, version: int, **fields: Any) -> Any:
    """The kio entity of a response, from plain values."""
    return build(load_response_schema(api.key, version), fields)


def frame(correlation_id: int, entity: Any, *, unknown_tags: bool = False) -> bytes:
    """A response with its length, as sent over the wire."""
    body = struct.pack(">i", correlation_id)
    if type(entity).__header_schema__.__flexible__:
        body += _tags({}, unknown_tags)
    return sized(body + encode(entity, unknown_tags=unknown_tags))


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def encode(entity: Any, *, unknown_tags: bool = False) -> bytes:
    """Encode like kio, but `error_code` fields may have any value. With `unknown_tags`, every structure that allows it
    has a tagged field that kio does not know."""
    out = io.BytesIO()
    kind = type(entity)
    tagged: dict[int, bytes] = {}
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        tag = field.metadata.get("tag")
        if tag is None:
            out.write(_encode_field(field, value, kind.__flexible__, unknown_tags))
        elif value != field.default:
            tagged[tag] = _encode_field(field, value, kind.__flexible__, unknown_tags)
    if kind.__flexible__:
        out.write(_tags(tagged, unknown_tags))
    return out.getvalue()


def _encode_field(field: dataclasses.Field[Any], value: Any, flexible: bool, unknown_tags: bool) -> bytes:
    if field.metadata.get("kafka_type") == "error_code":
        return struct.pack(">h", value)
    match classify_field(field):
        case EntityField():
            if value is None:
                return b"\xff"
            nullable = type(None) in typing.get_args(field.type)
            return (b"\x01" if nullable else b"") + encode(value, unknown_tags=unknown_tags)
        case EntityTupleField():
            items = b"" if value is None else b"".join(encode(item, unknown_tags=unknown_tags) for item in value)
            count = -1 if value is None else len(value)
            return (uvarint(count + 1) if flexible else struct.pack(">i", count)) + items
    out = io.BytesIO()
    get_field_writer(field, flexible=flexible, is_request_header=False, is_tag="tag" in field.metadata)(out, value)
    return out.getvalue()


def _tags(tagged: Mapping[int, bytes], unknown: bool) -> bytes:
    items = dict(tagged)
    if unknown:
        items[UNKNOWN_TAG] = UNKNOWN_TAG_DATA
    parts = [uvarint(tag) + uvarint(len(data)) + data for tag, data in sorted(items.items())]
    return uvarint(len(items)) + b"".join(parts)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@dataclasses.dataclass(frozen=True)
class Request:
    """A request, decoded by kio."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Any


def read_request(raw: bytes) -> Request:
    """Decode a request. `raw` is without the length."""
    key, version = struct.unpack_from(">hh", raw)
    schema = load_request_schema(key, version)
    header_type: Any = schema.__header_schema__
    assert header_type in (HeaderV1, HeaderV2)
    header, at = entity_reader(header_type)(raw, 0)
    body, size = entity_reader(schema)(raw, at)
    assert at + size == len(raw), "extra bytes after the request"
    return Request(key, version, header.correlation_id, header.client_id, body)


class Link:
    """The broker's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive_raw(self) -> bytes:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def receive(self) -> Request:
        return read_request(await self.receive_raw())

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def reply(self, request: Request, entity: Any, *, unknown_tags: bool = False) -> None:
        await self.send(frame(request.correlation_id, entity, unknown_tags=unknown_tags))

    async def negotiate(self, **options: Any) -> Request:
        """Respond to the ApiVersions request of a new connection with every version that headrace supports."""
        request = await self.receive()
        assert request.api_key == API_VERSIONS.key
        await self.reply(request, api_versions(request.version), **options)
        return request

    async def is_closed_by_client(self) -> bool:
        """Wait for the end of the stream and ignore all bytes before it."""
        try:
            while await self._reader.read(65536):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self._writer.close()


def api_versions(version: int, ranges: Mapping[int, tuple[int, int]] | None = None, error_code: int = 0) -> Any:
    known = {api.key: (api.lowest, api.highest) for api in APIS} if ranges is None else ranges
    keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in known.items()]
    return answer(API_VERSIONS, version, error_code=error_code, api_keys=keys, throttle_time=0)


class FakeBroker:
    """Use `async with FakeBroker() as broker:`, then `broker.accept()` for each connection."""

    def __init__(self) -> None:
        self._links: asyncio.Queue[Link] = asyncio.Queue()
        self._all: list[Link] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._on_connect, "127.0.0.1", 0)
        self.host, self.port = self._server.sockets[0].getsockname()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        for link in self._all:
            link._writer.transport.abort()
        await self._server.wait_closed()
        await asyncio.sleep(0)  # let the aborted transports close

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        self._all.append(link)
        self._links.put_nowait(link)

    async def accept(self) -> Link:
        return await self._links.get()


T = typing.TypeVar("T")


def run(work: typing.Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine with a timeout, so that an endless wait fails instead of hanging."""

    async def limited() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(limited())
