"""From a topic to typed columns: headrace's formats beside other ways, with the traffic readings in three formats.

    python -m benchmarks --parts formats

It has its own broker. Every contender reads a topic and makes columns of it (headrace, polars, pyarrow) or one
dictionary or message for each record (the deserializers of other clients; these read a tenth of the topic), on one
core. Contenders take turns; the first round is not counted. What typed columns cost is seen beside `headrace bytes`,
which makes columns of bytes.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from headrace.local import LocalBroker

from . import child, pinning
from .contenders import reading_of_child
from .datasets import create_topic
from .markdown import count, markdown_table
from .process import CommandFailed, run
from .readers import Job, Meter
from .traffic_readings import AVRO, DDL, SCHEMAS, Reading, message_class, readings

if TYPE_CHECKING:
    from headrace import Consumer, Records

PARTITIONS = 6
_TIMEOUT = 600.0
# By record, some are a hundred times slower: they read a part of the topic.
_BY_RECORD = 10
# Name, topic, function.
CONTENDERS = (
    ("headrace bytes", "json", "headrace_bytes"),
    ("headrace Json", "json", "headrace_json"),
    ("headrace bytes, then pyarrow.json", "json", "headrace_pyarrow"),
    ("headrace bytes, then polars json_decode", "json", "headrace_polars"),
    ("headrace rows(value=json.loads)", "json", "headrace_loads"),
    ("confluent-kafka, json.loads", "json", "confluent_loads"),
    ("headrace bytes (Avro)", "avro", "headrace_bytes"),
    ("headrace Avro", "avro", "headrace_avro"),
    ("confluent-kafka, AvroDeserializer", "avro", "confluent_avro"),
    ("confluent-kafka, fastavro", "avro", "confluent_fastavro"),
    ("headrace bytes (Protobuf)", "protobuf", "headrace_bytes"),
    ("headrace Protobuf", "protobuf", "headrace_protobuf"),
    ("confluent-kafka, ProtobufDeserializer", "protobuf", "confluent_protobuf"),
)
# What typed columns of a topic are compared with.
_BYTES = {topic: name for name, topic, function in CONTENDERS if function == "headrace_bytes"}
_SCHEMA_ID = 1

Rates = dict[str, list[float]]


# -- in processes of their own -----------------------------------------------------------------------------------------


class OneSchema:
    """A registry that has the only schema of its kind: what a registry costs is not measured."""

    def __init__(self, kind: Literal["AVRO", "PROTOBUF"]) -> None:
        from headrace.formats._registry import RegisteredSchema

        self._schema = RegisteredSchema(_SCHEMA_ID, kind, SCHEMAS[kind])

    def schema(self, schema_id: int, id_kind: str = "id") -> Any:
        return self._schema

    latest = look_up = register = schema


def headrace_bytes(job: Job) -> dict[str, Any]:
    return _with_headrace(job, lambda records: records.to_arrow())


def headrace_json(job: Job) -> dict[str, Any]:
    from headrace.formats import Json

    readings = Json(DDL)
    return _with_headrace(job, lambda records: records.to_arrow(value=readings, errors="null"))


def headrace_avro(job: Job) -> dict[str, Any]:
    from headrace.formats import Avro

    readings = Avro(OneSchema("AVRO"))
    return _with_headrace(job, lambda records: records.to_arrow(value=readings, errors="null"))


def headrace_protobuf(job: Job) -> dict[str, Any]:
    from headrace.formats import Protobuf

    readings = Protobuf(OneSchema("PROTOBUF"))
    return _with_headrace(job, lambda records: records.to_arrow(value=readings, errors="null"))


def headrace_pyarrow(job: Job) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.json as pa_json

    schema = pa.schema(
        [
            ("sensor", pa.string()),
            ("road", pa.string()),
            ("at", pa.string()),
            ("speed", pa.float64()),
            ("limit", pa.int32()),
            ("occupancy", pa.float64()),
        ]
    )

    def parse(records: Records) -> Any:
        lines = b"\n".join(records.to_arrow()["value"].to_pylist())
        options = pa_json.ParseOptions(explicit_schema=schema)
        return pa_json.read_json(io.BytesIO(lines), pa_json.ReadOptions(use_threads=False), options) if lines else None

    return _with_headrace(job, parse)


def headrace_polars(job: Job) -> dict[str, Any]:
    import polars as pl

    schema = pl.Struct(
        {
            "sensor": pl.String,
            "road": pl.String,
            "at": pl.String,
            "speed": pl.Float64,
            "limit": pl.Int32,
            "occupancy": pl.Float64,
        }
    )

    def parse(records: Records) -> Any:
        return pl.DataFrame(records)["value"].cast(pl.String).str.json_decode(schema)

    return _with_headrace(job, parse)


def headrace_loads(job: Job) -> dict[str, Any]:
    return _with_headrace(job, lambda records: list(records.rows(value=json.loads)))


def confluent_loads(job: Job) -> dict[str, Any]:
    return _with_confluent(job, json.loads)


def confluent_avro(job: Job) -> dict[str, Any]:
    from confluent_kafka.schema_registry import Schema, topic_subject_name_strategy
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    class Client:
        def get_schema(self, schema_id: int, *_: Any, **__: Any) -> Schema:
            return Schema(SCHEMAS["AVRO"], "AVRO")

    # Its default strategy would ask a real registry.
    deserializer: Any = AvroDeserializer(Client(), conf={"subject.name.strategy": topic_subject_name_strategy})
    context = SerializationContext(job.topic, MessageField.VALUE)
    return _with_confluent(job, lambda value: deserializer(value, context))


def confluent_protobuf(job: Job) -> dict[str, Any]:
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    deserializer: Any = ProtobufDeserializer(message_class(), {"use.deprecated.format": False})
    context = SerializationContext(job.topic, MessageField.VALUE)
    return _with_confluent(job, lambda value: deserializer(value, context))


def confluent_fastavro(job: Job) -> dict[str, Any]:
    import fastavro

    schema = fastavro.parse_schema(AVRO)
    return _with_confluent(job, lambda value: fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None))


def _with_headrace(job: Job, make: Callable[[Records], Any]) -> dict[str, Any]:
    from headrace import Consumer, Records, TopicPartition

    _use_one_core()
    make(Records())  # imports what it needs, which is not reading
    meter = Meter(job.records)
    consumer: Consumer
    with Consumer(bootstrap_servers=job.servers, max_poll_records=-1) as consumer:
        partitions = [TopicPartition(job.topic, number) for number in job.numbers]
        consumer.end_offsets(partitions)
        meter.start()
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while True:
            records = consumer.poll(1.0)
            if records:
                make(records)
            if meter.add(len(records), records.nbytes):
                return _reading(meter)


def _with_confluent(job: Job, deserialize: Callable[[bytes], Any]) -> dict[str, Any]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    _use_one_core()
    meter = Meter(job.records)
    settings = {"bootstrap.servers": job.servers, "group.id": "formats", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.list_topics(job.topic, timeout=10)
    meter.start()
    consumer.assign([TopicPartition(job.topic, number, OFFSET_BEGINNING) for number in job.numbers])
    while True:
        messages = consumer.consume(num_messages=min(10_000, meter.left), timeout=1.0)
        values = [message.value() for message in messages]
        found = [deserialize(value) for value in values]
        if meter.add(len(found), sum(map(len, values))):
            return _reading(meter)


def _use_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _reading(meter: Meter) -> dict[str, Any]:
    assert meter.reading is not None
    return dataclasses.asdict(meter.reading)


# -- the run -----------------------------------------------------------------------------------------------------------


def measure(records: int, repeat: int, say: Callable[[str], None]) -> Rates:
    """Records per second, of each round of each contender."""
    rates: Rates = {name: [] for name, _, _ in CONTENDERS}
    with pinning.broker(LocalBroker()) as broker:
        say(f"formats: writing {records:,} readings as JSON, Avro and Protobuf")
        _write(broker.bootstrap_servers, records)
        for number in range(repeat + 1):
            for name, topic, function in CONTENDERS:
                wanted = records if _is_columnar(function) else max(1, records // _BY_RECORD)
                job = Job(broker.bootstrap_servers, topic, PARTITIONS, wanted)
                try:
                    rate = _rate(function, job)
                except (CommandFailed, ValueError) as error:
                    say(f"formats: {name}: failed: {error}")
                    continue
                say(f"formats: {number}/{repeat} {name}: {rate:,.0f} records/s{'' if number else ' (warming up)'}")
                if number:
                    rates[name].append(rate)
    return rates


def _is_columnar(function: str) -> bool:
    return function.startswith("headrace") and function != "headrace_loads"


def _write(servers: str, records: int) -> None:
    from headrace import Producer

    distinct = list(itertools.islice(readings(), min(records, 100_000)))
    with Producer(bootstrap_servers=servers, partitioner="consistent_random") as producer:
        for topic, cells in cells_of(distinct).items():
            create_topic(topic, PARTITIONS, servers)
            values = itertools.islice(itertools.cycle(cells), records)
            rows = ({"value": value, "partition": number % PARTITIONS} for number, value in enumerate(values))
            producer.send_all(topic, rows).result()


def cells_of(found: Sequence[Reading]) -> dict[str, list[bytes]]:
    """The same readings in each format."""
    return {
        "json": [reading.text for reading in found],
        "avro": [reading.avro(_SCHEMA_ID) for reading in found],
        "protobuf": [reading.protobuf(_SCHEMA_ID) for reading in found],
    }


def _rate(function: str, job: Job) -> float:
    reading = reading_of_child(run(child.command(f"formats.{function}", job), _TIMEOUT).output)
    if reading.records < job.records or reading.seconds <= 0:
        raise ValueError(f"{reading.records:,} of {job.records:,} records in {reading.seconds} seconds")
    return reading.records / reading.seconds


def section(records: int, repeat: int, rates: Rates) -> str:
    return "\n\n".join(
        [
            "## Typed columns",
            f"{records:,} traffic readings as JSON (122 bytes), framed Avro (39 bytes) or framed Protobuf, from "
            f"{PARTITIONS} partitions without compression; medians of {repeat}, on one core. Contenders that decode by "
            "record read a tenth of the records. Each contender already has the schema, so none uses a registry.",
            report(rates),
        ]
    )


def report(rates: Rates) -> str:
    """A table: medians, the spread, and how they compare with reading bytes."""
    medians = {name: statistics.median(found) for name, found in rates.items() if found}
    rows = []
    for name, topic, _ in CONTENDERS:
        if name not in medians:
            rows.append([name, "failed"])
            continue
        raw = medians.get(_BYTES[topic])
        spread = f"{count(min(rates[name]))} – {count(max(rates[name]))}"
        rows.append([name, count(medians[name]), spread, f"{medians[name] / raw:.2f}" if raw else "–"])
    return markdown_table(["topic to typed values", "records/s", "slowest – fastest", "× bytes"], rows)
