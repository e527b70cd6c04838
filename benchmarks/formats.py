"""From a topic to typed columns: headrace's formats beside other ways, with the traffic readings as JSON and as Avro.

    python -m benchmarks --parts formats        by itself: it has a broker of its own

Every contender reads a topic and makes columns of it (headrace, polars, pyarrow) or one dictionary for each
record (the deserializers of other clients; these read a tenth of the topic), on one core. Contenders take turns; the
first round is not counted. What typed columns cost is seen beside `headrace bytes`, which makes columns of bytes.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import os
import statistics
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.local import LocalBroker

from . import child
from .contenders import reading_of_child
from .datasets import create_topic
from .markdown import count, markdown_table
from .process import CommandFailed, run
from .readers import Job, Meter

if TYPE_CHECKING:
    from headrace import Consumer, Records

PARTITIONS = 6
_TIMEOUT = 600.0
_SAMPLE = Path(__file__).parent.parent / "pipelines" / "traffic" / "sample.py"
DDL = "sensor string, road string, at timestamp, speed double, `limit` int, occupancy double"
AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "sensor", "type": "string"},
        {"name": "road", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "speed", "type": "double"},
        {"name": "limit", "type": "int"},
        {"name": "occupancy", "type": "double"},
    ],
}
_MAGIC = b"\x00\x00\x00\x00\x01"
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
)

Rates = dict[str, list[float]]


# -- in processes of their own -----------------------------------------------------------------------------------------


class _Registry:
    """Has the only schema: what a registry costs is not measured."""

    def schema(self, schema_id: int, id_kind: str = "id") -> Any:
        from headrace.formats._registry import RegisteredSchema

        return RegisteredSchema(1, "AVRO", json.dumps(AVRO))

    def latest(self, subject: str) -> Any:
        return self.schema(1)

    look_up = register = latest


def headrace_bytes(job: Job) -> dict[str, Any]:
    return _with_headrace(job, lambda records: records.to_arrow())


def headrace_json(job: Job) -> dict[str, Any]:
    from headrace.formats import Json

    readings = Json(DDL)
    return _with_headrace(job, lambda records: records.to_arrow(value=readings, errors="null"))


def headrace_avro(job: Job) -> dict[str, Any]:
    from headrace.formats import Avro

    readings = Avro(_Registry())
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
            return Schema(json.dumps(AVRO), "AVRO")

    # Its default strategy would ask a real registry.
    deserializer: Any = AvroDeserializer(Client(), conf={"subject.name.strategy": topic_subject_name_strategy})
    context = SerializationContext(job.topic, MessageField.VALUE)
    return _with_confluent(job, lambda value: deserializer(value, context))


def confluent_fastavro(job: Job) -> dict[str, Any]:
    import fastavro

    schema = fastavro.parse_schema(AVRO)
    return _with_confluent(job, lambda value: fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None))


def _with_headrace(job: Job, make: Callable[[Records], Any]) -> dict[str, Any]:
    from headrace import Consumer, Records, TopicPartition

    os.sched_setaffinity(0, {0})
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

    os.sched_setaffinity(0, {0})
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


def _reading(meter: Meter) -> dict[str, Any]:
    assert meter.reading is not None
    return dataclasses.asdict(meter.reading)


# -- the run -----------------------------------------------------------------------------------------------------------


def measure(records: int, repeat: int, say: Callable[[str], None]) -> Rates:
    """Records per second, of each round of each contender."""
    rates: Rates = {name: [] for name, _, _ in CONTENDERS}
    with LocalBroker() as broker:
        say(f"formats: writing {records:,} readings as JSON and as Avro")
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


def readings(records: int) -> Iterator[tuple[bytes, bytes]]:
    """JSON and framed Avro of each reading of the traffic sample that is not broken."""
    import fastavro

    spec = importlib.util.spec_from_file_location("traffic_sample", _SAMPLE)
    assert spec is not None
    assert spec.loader is not None
    sample = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sample)
    schema = fastavro.parse_schema(AVRO)
    number = 0
    while records:
        ((_, value, _),) = sample.records(number, 1)
        number += 1
        if number % 250 == 0:
            continue
        reading = json.loads(value)
        out = io.BytesIO(_MAGIC)
        out.seek(len(_MAGIC))
        fastavro.schemaless_writer(out, schema, reading | {"at": datetime.fromisoformat(reading["at"])})
        yield value, out.getvalue()
        records -= 1


def _write(servers: str, records: int) -> None:
    from headrace import Producer

    distinct = list(readings(min(records, 100_000)))
    with Producer(bootstrap_servers=servers, partitioner="consistent_random") as producer:
        for topic, index in (("json", 0), ("avro", 1)):
            create_topic(topic, PARTITIONS, servers)
            values = (distinct[number % len(distinct)][index] for number in range(records))
            rows = ({"value": value, "partition": number % PARTITIONS} for number, value in enumerate(values))
            producer.send_all(topic, rows).result()


def _rate(function: str, job: Job) -> float:
    reading = reading_of_child(run(child.command(f"formats.{function}", job), _TIMEOUT).output)
    if reading.records < job.records or reading.seconds <= 0:
        raise ValueError(f"{reading.records:,} of {job.records:,} records in {reading.seconds} seconds")
    return reading.records / reading.seconds


def report(rates: Rates) -> str:
    """A table: medians, the spread, and how they compare with reading bytes."""
    medians = {name: statistics.median(found) for name, found in rates.items() if found}
    rows = []
    for name, topic, _ in CONTENDERS:
        if name not in medians:
            rows.append([name, "failed"])
            continue
        raw = medians.get("headrace bytes" if topic == "json" else "headrace bytes (Avro)")
        spread = f"{count(min(rates[name]))} – {count(max(rates[name]))}"
        rows.append([name, count(medians[name]), spread, f"{medians[name] / raw:.2f}" if raw else "–"])
    return markdown_table(["topic to typed values", "records/s", "slowest – fastest", "× bytes"], rows)
