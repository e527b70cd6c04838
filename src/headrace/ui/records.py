"""The newest records of a topic, as values that a page can show: decoded with a registry if there is one.

Each answer is bounded: by the number of records, by the bytes that are fetched, by the length of what is shown, and by
time. With a registry, a value that starts with a schema's id (Confluent's wire format) is decoded with that schema,
whatever its kind; everything else is shown as text, or in hexadecimal.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, Literal

from .._aio import AsyncConsumer
from ..errors import HeadraceError
from ..types import TopicPartition

if TYPE_CHECKING:
    from ..formats import SchemaRegistry
    from ..records import Records

MOST = 100
_WITHIN = 10.0  # seconds
_POLL = 0.2
_LONGEST = 4096  # characters of a key or a value
_FETCH_BYTES = 4 * 1024 * 1024
_MOST_BYTES = 8 * _FETCH_BYTES
_MOST_READ = 5000  # records of all partitions together
_MAGIC, _FRAME = 0, 5  # Confluent's wire format: a zero, and the id of the schema in four bytes

FieldName = Literal["key", "value"]
FIELDS: tuple[FieldName, FieldName] = ("key", "value")
Shown = dict[str, Any]
"""`text` and `bytes` (the length of the data); `format` if it was decoded, `error` if it could not be."""


class RecordReader:
    """One answer at a time, for all browsers together."""

    def __init__(self, settings: Mapping[str, Any], registry: SchemaRegistry | None = None) -> None:
        self._settings = {
            "client.id": "headrace-ui",
            "default.api.timeout.ms": round(_WITHIN * 1000),
            **settings,
            "max.poll.records": -1,
            "fetch.max.bytes": _FETCH_BYTES,
            "max.partition.fetch.bytes": _FETCH_BYTES // 4,
            "allow.auto.create.topics": False,
            "auto.offset.reset": "latest",
        }
        self._decoder = _Decoder(registry)
        self._turn = asyncio.Lock()
        self._decoding: asyncio.Future[list[dict[str, Any]]] | None = None

    async def newest(self, topic: str, count: int) -> list[dict[str, Any]]:
        """The last `count` records of the topic by time, the newest first. Raises HeadraceError, or TimeoutError."""
        async with asyncio.timeout(2 * _WITHIN), self._turn:
            if self._decoding is not None:  # an earlier answer took too long, and its thread may still run
                await asyncio.wait([self._decoding])
            records = await self._read(topic, min(count, MOST))
            # Decoding may ask the registry, which blocks.
            self._decoding = asyncio.ensure_future(asyncio.to_thread(self._decoder.rows, records))
            rows = await asyncio.shield(self._decoding)
        return rows[:count]

    async def _read(self, topic: str, count: int) -> list[Records]:
        loop = asyncio.get_running_loop()
        found: list[Records] = []
        async with AsyncConsumer(self._settings) as consumer:
            infos = await consumer.partitions_for_topic(topic)
            if not infos:
                raise HeadraceError(f"topic {topic!r} does not exist")
            tps = [TopicPartition(topic, info.partition) for info in infos if info.leader is not None]
            ends = await consumer.end_offsets(tps)
            begins = await consumer.beginning_offsets(tps)
            each = max(1, min(count, _MOST_READ // max(1, len(tps))))
            starts = {tp: max(begins[tp], ends[tp] - each) for tp in tps if ends[tp] > begins[tp]}
            consumer.assign(list(starts))
            for tp, start in starts.items():
                consumer.seek(tp, start)
            waiting, deadline, size = set(starts), loop.time() + _WITHIN, 0
            while waiting and size < _MOST_BYTES and loop.time() < deadline:
                records = await consumer.poll(_POLL)
                if records:
                    found.append(records)
                    size += records.nbytes
                # The last offsets of a log may be transaction markers, which are never returned.
                over = [tp for tp in waiting if await consumer.position(tp) >= ends[tp]]
                waiting.difference_update(over)
                consumer.pause(over)
        return found


class _Decoder:
    """Used by one thread at a time."""

    def __init__(self, registry: SchemaRegistry | None) -> None:
        self._registry = registry

    def rows(self, polls: list[Records]) -> list[dict[str, Any]]:
        rows = [row for records in polls for row in self._rows(records)]
        return sorted(rows, key=lambda row: (row["at"], row["offset"]), reverse=True)

    def _rows(self, records: Records) -> list[dict[str, Any]]:
        keys, values = (self._decoded(records, field) for field in FIELDS)
        return [
            {
                "partition": record.partition,
                "offset": record.offset,
                "at": record.timestamp,
                "key": keys.get(at) or shown_bytes(record.key),
                "value": values.get(at) or shown_bytes(record.value),
                "headers": [[name, shown_bytes(value)] for name, value in record.headers or ()],
            }
            for at, record in enumerate(records)
        ]

    def _decoded(self, records: Records, field: FieldName) -> dict[int, Shown]:
        """By the number of the record: what was decoded, or why it was not."""
        if self._registry is None:
            return {}
        found: dict[int, Shown] = {}
        kinds: dict[int, str] = {}
        for at, record in enumerate(records):
            data = getattr(record, field)
            if data is not None and len(data) > _FRAME and data[0] == _MAGIC:
                try:
                    kinds[at] = self._registry.schema(int.from_bytes(data[1:_FRAME])).kind
                except HeadraceError as error:
                    found[at] = {**(shown_bytes(data) or {}), "error": _clipped(str(error))}
        for kind in set(kinds.values()):
            mine = [at for at, each in kinds.items() if each == kind]
            found |= dict(zip(mine, self._decoded_as(kind, records, field, mine), strict=True))
        return found

    def _decoded_as(self, kind: str, records: Records, field: FieldName, wanted: list[int]) -> Iterator[Shown]:
        from ..formats import Avro, Json, Protobuf

        formats = {"AVRO": Avro, "JSON": Json, "PROTOBUF": Protobuf}
        try:
            decoder = formats[kind](self._registry)
            given: dict[str, Any] = {field: decoder}
            rows = list(records.rows(**given, errors="null"))
        except HeadraceError as error:  # such as a subject that the registry does not have
            for at in wanted:
                yield {**(shown_bytes(getattr(records[at], field)) or {}), "error": _clipped(str(error))}
            return
        for at in wanted:
            data = getattr(records[at], field)
            if (reason := rows[at][f"{field}_error"]) is not None:
                yield {**(shown_bytes(data) or {}), "error": _clipped(reason)}
            else:
                text = json.dumps(rows[at][field], ensure_ascii=False, default=plain_json)
                yield {"text": _clipped(text), "bytes": len(data), "format": kind.lower()}


def shown_bytes(data: bytes | None) -> Shown | None:
    """Text in UTF-8 as it is, other bytes in hexadecimal."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"text": _clipped(data[:_LONGEST].hex(" ")), "bytes": len(data), "format": "hex"}
    return {"text": _clipped(text), "bytes": len(data)}


def plain_json(value: Any) -> Any:
    """Values that JSON does not have: bytes in base64, times in ISO 8601, decimals as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, (date, datetime, time)) else str(value)


def _clipped(text: str) -> str:
    """Without surrogates, which JSON may contain and UTF-8 does not have."""
    clipped = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return clipped.encode(errors="replace").decode()
