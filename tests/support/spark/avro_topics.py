"""Avro records in Confluent's framing, written by fastavro with schemas that are registered over plain HTTP."""

from __future__ import annotations

import io
import json
import struct
import urllib.request
from collections.abc import Iterable
from typing import Any

import fastavro

from support.brokers.produce import Outgoing, write

Schema = dict[str, Any]


def register(url: str, subject: str, schema: Schema | str, kind: str = "AVRO") -> int:
    """Register a schema as the next version of the subject; return its id."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    body = {"schema": text} | ({} if kind == "AVRO" else {"schemaType": kind})
    request = urllib.request.Request(
        f"{url}/subjects/{subject}/versions",
        json.dumps(body).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return int(json.load(response)["id"])


def framed(schema_id: int, schema: Schema, value: Any) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), value)
    return struct.pack(">bI", 0, schema_id) + data.getvalue()


def unframed(value: bytes, schema: Schema) -> tuple[int, Any]:
    """The id of the schema, and the value."""
    return struct.unpack(">bI", value[:5])[1], fastavro.schemaless_reader(
        io.BytesIO(value[5:]), fastavro.parse_schema(schema), None
    )


def write_avro(servers: str, topic: str, schema_id: int, schema: Schema, values: Iterable[Any]) -> None:
    write(servers, topic, [Outgoing(framed(schema_id, schema, value)) for value in values])
