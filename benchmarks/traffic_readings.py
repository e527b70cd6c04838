"""The readings of road sensors (`pipelines/traffic`) as JSON, Avro and Protobuf, for benchmarks of typed columns."""

from __future__ import annotations

import functools
import io
import itertools
import json
import runpy
import struct
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

_SAMPLE = Path(__file__).parents[1] / "pipelines" / "traffic" / "sample.py"
DDL = "sensor STRING, road STRING, at TIMESTAMP, speed DOUBLE, `limit` INT, occupancy DOUBLE"
AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "sensor", "type": "string"},
        {"name": "road", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "speed", "type": "double"},
        {"name": "limit", "type": "int"},
        {"name": "occupancy", "type": "double"},
    ],
}
PROTOBUF = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Reading {
  string sensor = 1;
  string road = 2;
  google.protobuf.Timestamp at = 3;
  double speed = 4;
  int32 limit = 5;
  double occupancy = 6;
}
"""
SCHEMAS = {"AVRO": json.dumps(AVRO), "PROTOBUF": PROTOBUF}


class Reading(NamedTuple):
    text: bytes
    """JSON."""
    fields: dict[str, Any]

    def avro(self, schema_id: int) -> bytes:
        """In Confluent's framing."""
        import fastavro

        data = io.BytesIO()
        fastavro.schemaless_writer(data, _parsed_avro(), self.fields)
        return struct.pack(">bI", 0, schema_id) + data.getvalue()

    def protobuf(self, schema_id: int) -> bytes:
        """In Confluent's framing, whose last byte says that it is the first message of the schema."""
        message = message_class()(**{name: value for name, value in self.fields.items() if name != "at"})
        message.at.FromDatetime(self.fields["at"])
        return struct.pack(">bIb", 0, schema_id, 0) + message.SerializeToString()


def readings() -> Iterator[Reading]:
    """Any number of readings, without those that the sample has broken."""
    records = runpy.run_path(str(_SAMPLE))["records"]
    for first in itertools.count(0, 1000):
        for _, text, _ in records(first, 1000):
            try:
                fields = json.loads(text)
                fields["at"] = datetime.fromisoformat(fields["at"])
            except ValueError:
                continue
            if fields["speed"] is not None and fields["road"] is not None:
                yield Reading(text, fields)


@functools.cache
def _parsed_avro() -> Any:
    import fastavro

    return fastavro.parse_schema(AVRO)


@functools.cache
def message_class() -> Any:
    """The class that protoc would generate from `PROTOBUF`."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="reading.proto", syntax="proto3")
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    message = file.message_type.add(name="Reading")
    types = {
        "sensor": kinds.TYPE_STRING,
        "road": kinds.TYPE_STRING,
        "at": kinds.TYPE_MESSAGE,
        "speed": kinds.TYPE_DOUBLE,
        "limit": kinds.TYPE_INT32,
        "occupancy": kinds.TYPE_DOUBLE,
    }
    for number, (name, kind) in enumerate(types.items(), 1):
        message.field.add(name=name, number=number, label=kinds.LABEL_OPTIONAL, type=kind)
    message.field[2].type_name = ".google.protobuf.Timestamp"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Reading"))
