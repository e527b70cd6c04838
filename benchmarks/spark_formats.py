"""Typed columns in Spark: this source, compared with Spark's own connector and from_json or from_avro.

The same readings of road sensors (`pipelines/traffic`) are in two topics: as JSON, and as Avro with the id of a real
schema registry. Everything runs in `spark_formats_session`, in a separate environment (`spark_peer`).
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import runpy
import struct
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.local import LocalRegistry

from . import spark_peer
from .datasets import PARTITIONS, create_topic, records_in
from .process import CommandFailed, run
from .results import Figure, median_figure

Say = Callable[[str], None]

FORMATS = ("json", "avro")
MOST_RECORDS = 3_000_000
_DISTINCT = 50_000
_TIMEOUT = 3600.0
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


@dataclasses.dataclass(frozen=True, slots=True)
class SparkFormats:
    """Medians by format and reader. `missing` is the reason why there are none."""

    rounds: int
    records: int
    reads: Mapping[str, Mapping[str, Figure]]
    missing: str = ""


def measure(servers: str, most: int, repeat: int, say: Say) -> SparkFormats:
    records = min(most, MOST_RECORDS)
    try:
        peer = spark_peer.prepare(say)
    except spark_peer.Unavailable as reason:
        say(f"Spark, formats: skipped: {reason}")
        return SparkFormats(repeat, records, {}, str(reason))
    with LocalRegistry() as registry:
        topics = {name: f"readings-{name}-{records}" for name in FORMATS}
        # The subject is that of the topic. A topic that was kept has the id 1, too, because a new registry is empty.
        schema_id = _register(registry.url, f"{topics['avro']}-value")
        _fill(servers, topics["json"], (value for value, _ in _readings()), records, say)
        _fill(servers, topics["avro"], (framed(schema_id, reading) for _, reading in _readings()), records, say)
        job = {
            "servers": servers,
            "jars": peer.jars,
            "repeat": repeat,
            "records": records,
            "topics": topics,
            "registry": registry.url,
            "ddl": DDL,
            "avro": json.dumps(AVRO),
        }
        try:
            output = run(_command(peer, job), _TIMEOUT).output
        except CommandFailed as failure:
            return SparkFormats(repeat, records, {}, str(failure))
    return SparkFormats(repeat, records, _figures(output, say))


def _readings() -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Distinct readings as JSON text and as Avro's values, without those that the sample has broken."""
    from datetime import datetime

    for _, value, _ in runpy.run_path(str(_SAMPLE))["records"](0, _DISTINCT):
        try:
            reading = json.loads(value)
            at = datetime.fromisoformat(reading["at"])
        except ValueError:
            continue
        if reading["speed"] is not None and reading["road"] is not None:
            yield value, {**reading, "at": round(at.timestamp() * 1e6)}


def framed(schema_id: int, reading: dict[str, Any]) -> bytes:
    """In Confluent's framing."""
    import fastavro

    data = io.BytesIO()
    fastavro.schemaless_writer(data, _parsed(), reading)
    return struct.pack(">bI", 0, schema_id) + data.getvalue()


def _parsed() -> Any:
    import fastavro

    return fastavro.parse_schema(AVRO)


def _register(url: str, subject: str) -> int:
    body = json.dumps({"schema": json.dumps(AVRO)}).encode()
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = urllib.request.Request(f"{url}/subjects/{subject}/versions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return int(json.load(response)["id"])


def _fill(servers: str, topic: str, values: Iterator[bytes], records: int, say: Say) -> None:
    from confluent_kafka import Producer

    if records_in(topic, servers) == records:
        return
    say(f"Spark, formats: writing {records:,} records to {topic}")
    create_topic(topic, PARTITIONS, servers)
    settings = {"acks": "all", "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({"bootstrap.servers": servers, **settings})
    for number, value in enumerate(itertools.islice(itertools.cycle(list(values)), records)):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    if left := producer.flush(120):
        raise CommandFailed(f"{left:,} of {records:,} records were not written")


def _command(peer: spark_peer.Peer, job: Mapping[str, Any]) -> list[str]:
    own = [f"{name}={value}" for name, value in peer.own_environment.items()]
    return ["env", "-u", "SPARK_HOME", *own, peer.python, "-m", f"{__package__}.spark_formats_session", json.dumps(job)]


def _figures(output: str, say: Say) -> dict[str, dict[str, Figure]]:
    runs: dict[str, dict[str, list[Figure]]] = {}
    for line in output.splitlines():
        if line.startswith('{"what"'):
            found = json.loads(line)
            what, reader = found.pop("what"), found.pop("reader")
            runs.setdefault(what, {}).setdefault(reader, []).append(found)
            say(f"Spark, formats: {what}, {reader}: {found}")
    return {what: {reader: median_figure(found) for reader, found in readers.items()} for what, readers in runs.items()}
