"""Protobuf through a real registry, beside confluent-kafka's serializers, which register descriptors and references."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from headrace.errors import SchemaRegistryError
from headrace.formats import Protobuf, SchemaRegistry, Source
from headrace.local import LocalRegistry

pytestmark = pytest.mark.timeout(300)

Field = descriptor_pb2.FieldDescriptorProto


@pytest.fixture
def topic() -> str:
    return f"readings-{uuid.uuid4().hex}"


@pytest.fixture
def ours(schema_registry: LocalRegistry) -> SchemaRegistry:
    return SchemaRegistry(schema_registry.url)


@pytest.fixture
def confluents(schema_registry: LocalRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        yield client


def classes(topic: str, *, later: bool = False) -> dict[str, Any]:
    """Generated classes: two messages in a file, which imports another one. The later schema has one more field."""
    # Imports are subjects of their own, so that their names are unique.
    place = descriptor_pb2.FileDescriptorProto(name=f"{topic}/place.proto", package="geo", syntax="proto3")
    position = place.message_type.add(name="Position")
    for number, name in enumerate(("lat", "lon"), 1):
        position.field.add(name=name, number=number, type=Field.TYPE_DOUBLE, label=1)
    file = descriptor_pb2.FileDescriptorProto(
        name="reading.proto", package="traffic", syntax="proto3", dependency=[place.name]
    )
    file.message_type.add(name="Other").field.add(name="x", number=1, type=Field.TYPE_INT32, label=1)
    reading = file.message_type.add(name="Reading")
    reading.field.add(name="road", number=1, type=Field.TYPE_STRING, label=1)
    reading.field.add(name="place", number=2, type=Field.TYPE_MESSAGE, type_name=".geo.Position", label=1)
    if later:
        reading.field.add(name="speed", number=3, type=Field.TYPE_DOUBLE, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(place)
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"traffic.{name}"))
        for name in ("Reading", "Other")
    }


def serialize(client: SchemaRegistryClient, topic: str, message: Any) -> bytes:
    serializer = ProtobufSerializer(type(message), client, {"use.deprecated.format": False})
    return serializer(message, SerializationContext(topic, MessageField.VALUE))


def deserialize(kind: Any, topic: str, record: bytes) -> Any:
    deserializer = ProtobufDeserializer(kind, {"use.deprecated.format": False})
    return deserializer(record, SerializationContext(topic, MessageField.VALUE))


def test_records_of_confluents_serializer_are_read(ours, confluents, topic):
    old, new = classes(topic), classes(topic, later=True)
    first = old["Reading"](road="A1")
    first.place.lat = 48.5
    records = [
        serialize(confluents, topic, first),
        serialize(confluents, topic, new["Reading"](road="A2", speed=80.5)),
        serialize(confluents, topic, new["Other"](x=3)),
    ]
    assert len({record[:5] for record in records}) == 2
    column, errors = Protobuf(ours, "traffic.Reading").decode(pa.array(records), Source(topic))
    assert column.to_pylist() == [
        {"road": "A1", "place": {"lat": 48.5, "lon": 0.0}, "speed": 0.0},
        {"road": "A2", "place": None, "speed": 80.5},
        None,
    ]
    assert errors == {2: "the record is a traffic.Other, but traffic.Reading was expected (at byte 5)"}
    # A reader's schema of one's own.
    column = Protobuf(ours, schema=old["Reading"]).decode(pa.array(records[:2]), Source(topic)).column
    assert column.to_pylist()[1] == {"road": "A2", "place": None}


def test_confluents_deserializer_reads_what_was_encoded(ours, topic):
    kind = classes(topic)["Reading"]
    rows = [{"road": "A1", "place": {"lat": 48.5, "lon": 9.0}}, {"road": "A2", "place": None}]
    column = pa.array(rows)
    with pytest.raises(SchemaRegistryError):
        Protobuf(ours, schema=kind).encode(column, Source(topic))
    registered = Protobuf(ours, schema=kind, auto_register_schemas=True).encode(column, Source(topic)).to_pylist()
    for encoded in (
        registered,
        Protobuf(ours, schema=kind).encode(column, Source(topic)).to_pylist(),
        Protobuf(ours, "traffic.Reading").encode(column, Source(topic)).to_pylist(),
    ):
        assert encoded == registered
        first, second = (deserialize(kind, topic, each) for each in encoded)
        assert (first.road, first.place.lat, first.place.lon) == ("A1", 48.5, 9.0)
        assert (second.road, second.HasField("place")) == ("A2", False)


def test_a_proto_text_is_registered_and_found(ours, topic):
    text = 'syntax = "proto3";\npackage traffic;\n\nmessage Reading {\n  string road = 1;\n}\n'
    column = pa.array([{"road": "A1"}])
    encoded = Protobuf(ours, schema=text, auto_register_schemas=True).encode(column, Source(topic))
    assert Protobuf(ours).decode(encoded, Source(topic)).column.to_pylist() == [{"road": "A1"}]
    assert Protobuf(ours, schema=text).encode(column, Source(topic)) == encoded
