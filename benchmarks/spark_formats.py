"""Typed columns in Spark: this source, compared with Spark's own connector and from_json or from_avro.

The same readings of road sensors (`pipelines/traffic`) are in two topics: as JSON, and as Avro with the id of a real
schema registry. Everything runs in `spark_formats_session`, in a separate environment (`spark_peer`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

from headrace.formats import SchemaRegistry
from headrace.local import LocalRegistry

from . import spark_peer
from .datasets import PARTITIONS, create_topic, records_in
from .process import CommandFailed, run
from .results import Figure
from .spark_peer import session_figures
from .traffic_readings import DDL, SCHEMAS, readings

Say = Callable[[str], None]

FORMATS = ("json", "avro")
MOST_RECORDS = 3_000_000
_DISTINCT = 50_000
_TIMEOUT = 3600.0


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
        schema = SchemaRegistry(registry.url).register(f"{topics['avro']}-value", SCHEMAS["AVRO"], "AVRO")
        distinct = list(itertools.islice(readings(), _DISTINCT))
        _fill(servers, topics["json"], [reading.text for reading in distinct], records, say)
        _fill(servers, topics["avro"], [reading.avro(schema.id) for reading in distinct], records, say)
        job = {
            "servers": servers,
            "jars": peer.jars,
            "repeat": repeat,
            "records": records,
            "topics": topics,
            "registry": registry.url,
            "ddl": DDL,
            "avro": SCHEMAS["AVRO"],
        }
        try:
            output = run(peer.command("spark_formats_session", job), _TIMEOUT).output
        except CommandFailed as failure:
            return SparkFormats(repeat, records, {}, str(failure))
    return SparkFormats(repeat, records, session_figures(output, "reader", lambda line: say(f"Spark, formats: {line}")))


def _fill(servers: str, topic: str, values: Sequence[bytes], records: int, say: Say) -> None:
    from confluent_kafka import Producer

    if records_in(topic, servers) == records:
        return
    say(f"Spark, formats: writing {records:,} records to {topic}")
    create_topic(topic, PARTITIONS, servers)
    settings = {"acks": "all", "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({"bootstrap.servers": servers, **settings})
    for number, value in enumerate(itertools.islice(itertools.cycle(values), records)):
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
