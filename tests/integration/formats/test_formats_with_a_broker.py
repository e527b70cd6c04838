"""Formats from a producer's table to a consumer's through a broker: all consumers, handlers of run(), dead letters."""

from __future__ import annotations

import asyncio
import io
import json

import fastavro
import polars as pl
import pyarrow as pa
import pytest

from headrace import AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from headrace.errors import ConfigError, RecordDecodeError, RecordEncodeError, SchemaRegistryError
from headrace.formats import Avro, Json
from support.brokers.admin import Admin
from support.formats.registry import MemoryRegistry
from support.harness.run_kinds import until
from support.harness.share_consumers import MakeShareConsumer, poll_some, share_group

ROWS = 3000
READING = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "road", "type": "string"},
        {"name": "speed", "type": ["null", "double"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def readings() -> pa.Table:
    return pa.table(
        {
            "key": [f"A{number % 7}" for number in range(ROWS)],
            "road": [f"A{number % 7}" for number in range(ROWS)],
            "speed": [None if number % 10 == 0 else number / 2 for number in range(ROWS)],
            "at": pa.array(range(ROWS), pa.timestamp("ms", "UTC")),
        }
    )


def read_all(servers: str, topic: str, count: int, **settings: object) -> list[object]:
    polled = []
    with Consumer(bootstrap_servers=servers, max_poll_records=1000, **settings) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(3)])
        consumer.seek_to_beginning()
        while sum(map(len, polled)) < count:
            polled.append(consumer.poll(10.0))
    return polled


def test_a_table_is_written_and_read_as_columns(servers: str, admin: Admin) -> None:
    topic = admin.create("typed", 3)
    registry = MemoryRegistry()
    registry.add(f"{topic}-value", READING)
    avro, key = Avro(registry), Json("string")
    with Producer(bootstrap_servers=servers) as producer:
        assert producer.send_arrow(topic, readings(), value=avro, key=key).result() == ROWS
    polled = read_all(servers, topic, ROWS)
    table = pa.concat_tables(records.to_arrow(value=avro, key=key, flatten=True) for records in polled)
    table = table.select(readings().column_names).sort_by("at")
    assert table.equals(readings())
    frame = pl.from_arrow(polled[0].to_arrow(value=avro))
    assert frame["value"].struct.field("road").is_in([f"A{number}" for number in range(7)]).all()
    # As fastavro reads it.
    record = polled[0][0]
    assert record.value[:5] == b"\x00\x00\x00\x00\x01"
    found = fastavro.schemaless_reader(io.BytesIO(record.value[5:]), fastavro.parse_schema(READING), None)
    assert found == next(polled[0].rows(value=avro))["value"]


def test_a_table_for_several_topics_has_a_schema_for_each(servers: str, admin: Admin) -> None:
    topics = [admin.create("typed", 3), admin.create("typed", 3)]
    registry = MemoryRegistry()
    for number, topic in enumerate(topics):
        registry.add(f"{topic}-value", {**READING, "fields": [{"name": "x", "type": ["int", "long"][number]}]})
    table = pa.table({"topic": [topics[number % 2] for number in range(10)], "x": range(10)})
    avro = Avro(registry)
    with Producer(bootstrap_servers=servers) as producer:
        assert producer.send_arrow(None, table, value=avro).result() == 10
    for number, topic in enumerate(topics):
        found = [row["value"]["x"] for records in read_all(servers, topic, 5) for row in records.rows(value=avro)]
        assert sorted(found) == [*range(number, 10, 2)]


def test_rows_that_cannot_be_encoded_are_named_and_not_sent(servers: str, admin: Admin) -> None:
    topic = admin.create("typed", 3)
    table = pa.table(
        {"value": pa.array([{"road": "A1", "speed": 1.0, "at": 1}, {"road": None, "speed": 1.0, "at": 1}])}
    )
    with Producer(bootstrap_servers=servers) as producer:
        with pytest.raises(RecordEncodeError, match=r"cannot encode the value of row 1: \$\.road: the value is null"):
            producer.send_arrow(topic, table, value=Avro(READING))
        with pytest.raises(ConfigError, match="value has the field way"):
            producer.send_arrow(topic, pa.table({"way": ["A1"]}), value=Avro(READING))
        with pytest.raises(ConfigError, match="value= needs a column value"):
            producer.send_arrow(topic, pa.table({"key": ["A1"]}), value=Avro(READING))
        with pytest.raises(TypeError, match="value must be a format"):
            producer.send_arrow(topic, table, value=json.dumps)
        producer.send_arrow(topic, table.slice(0, 1), value=Avro(READING)).result()
    assert len(read_all(servers, topic, 1)[0]) == 1


def test_deserializers_of_a_consumer_and_of_run(servers: str, admin: Admin) -> None:
    topic, letters = admin.create("typed", 3), admin.create("letters", 3)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_all(topic, [b'{"x": %d}' % number for number in range(20)] + [b"bad"]).result()
        seen = []
        settings = {"group_id": f"{topic}-run", "auto_offset_reset": "earliest", "commit_mode": "done"}
        with Consumer(bootstrap_servers=servers, value_deserializer=Json("x int"), **settings) as consumer:
            consumer.subscribe([topic])

            progress = consumer.run(
                lambda record: seen.append(record.value["x"]),
                dead_letter=letters,
                **until(consumer, lambda it: it.handled + it.dead_lettered == 21),
            )
            assert (progress.handled, progress.dead_lettered) == (20, 1)
    assert sorted(seen) == [*range(20)]
    ((letter,),) = read_all(servers, letters, 1)
    assert letter.value == b"bad"
    assert "cannot decode the value at offset" in str(letter.headers)


def test_a_bad_value_does_not_take_the_others_away_with_asyncio(servers: str, admin: Admin) -> None:
    topic = admin.create("typed", 1)

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=servers) as producer:
            table = pa.table({"x": [1, 2]})
            await (await producer.send_arrow(topic, table, value=Json("x int")))
            await (await producer.send(topic, b"bad"))
            await (await producer.send(topic, b'{"x": 3}'))
        async with AsyncConsumer(bootstrap_servers=servers, value_deserializer=json.loads) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek_to_beginning()
            found = []
            while len(found) < 4:
                for record in await consumer.poll(10.0):
                    try:
                        found.append(record.value["x"])
                    except RecordDecodeError as error:
                        found.append((error.offset, record.raw_value))
            assert found == [1, 2, (2, b"bad"), 3]

    asyncio.run(main())


def test_records_can_be_decoded_when_the_registry_is_back(servers: str, admin: Admin) -> None:
    topic = admin.create("typed", 1)
    registry = MemoryRegistry()
    registry.add(f"{topic}-value", {**READING, "fields": [{"name": "x", "type": "int"}]})

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=servers) as producer:
            await (await producer.send_arrow(topic, pa.table({"x": [1, 2, 3]}), value=Avro(registry)))
        registry.is_away = True
        async with AsyncConsumer(bootstrap_servers=servers, value_deserializer=Avro(registry)) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek_to_beginning()
            records = await consumer.poll(10.0)
            assert len(records) == 3
            with pytest.raises(SchemaRegistryError):
                _ = records[0].value
            registry.is_away = False
            first = await asyncio.to_thread(getattr, records[0], "value")
            assert [first["x"], *(record.value["x"] for record in records[1:])] == [1, 2, 3]

    asyncio.run(main())


def test_share_consumers_have_deserializers(make_sync_share: MakeShareConsumer, servers: str, admin: Admin) -> None:
    topic, group = admin.create("typed", 1), share_group(servers)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_all(topic, [b'{"x": %d}' % number for number in range(5)]).result()
    consumer = make_sync_share(bootstrap_servers=servers, group_id=group, topics=[topic], value_deserializer=json.loads)
    assert [record.value["x"] for record in poll_some(consumer)] == [*range(5)]
