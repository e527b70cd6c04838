"""Reading over TLS: headrace, Java's consumer and confluent-kafka, from one secured broker (SASL_SSL, SCRAM).

    python -m benchmarks --parts tls

It has its own broker. A broker with TLS cannot send files directly from disk, so all rates are lower than without TLS.
Each client must also decrypt. Contenders take turns; warm-up rounds are not counted.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.local import LocalBroker, java_command

from . import child, pinning
from .contenders import reading_of_child, reading_of_java
from .markdown import count, markdown_table
from .process import CommandFailed, run
from .readers import Job, Meter
from .readers.tables import counted

if TYPE_CHECKING:
    from headrace import Consumer

TOPIC = "tls"
PARTITIONS = 6
RECORD_BYTES = 100
_TIMEOUT = 600.0
CONTENDERS = ("headrace columnar", "headrace by record", "confluent-kafka", "Java")

Rates = dict[str, list[float]]


# -- in child processes; the job's protocol is the path of the settings -------------------------------


def columnar(job: Job) -> dict[str, Any]:
    from headrace import Records

    Records().to_arrow()  # import pyarrow before the measurement
    meter = Meter(job.records)
    with _headrace(job, meter, max_poll_records=-1) as consumer:
        while True:
            if meter.add(*counted(consumer.poll(1.0).to_arrow())):
                return _reading(meter)


def by_record(job: Job) -> dict[str, Any]:
    meter = Meter(job.records)
    with _headrace(job, meter) as consumer:
        while True:
            records = consumer.poll(1.0)
            if meter.add(len(records), sum(len(record.value or b"") for record in records)):
                return _reading(meter)


def _headrace(job: Job, meter: Meter, **settings: Any) -> Consumer:
    from headrace import Consumer, TopicPartition

    consumer = Consumer(_settings(job), **settings)
    partitions = [TopicPartition(job.topic, number) for number in job.numbers]
    consumer.end_offsets(partitions)
    meter.start()
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    return consumer


def confluent(job: Job) -> dict[str, Any]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    meter = Meter(job.records)
    consumer = Consumer({**_settings(job), "group.id": "tls", "enable.auto.commit": False})
    consumer.list_topics(job.topic, timeout=10)
    meter.start()
    consumer.assign([TopicPartition(job.topic, number, OFFSET_BEGINNING) for number in job.numbers])
    while True:
        messages = consumer.consume(num_messages=min(10_000, meter.left), timeout=1.0)
        if meter.add(len(messages), sum(len(message.value() or b"") for message in messages)):
            return _reading(meter)


def _settings(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(job.protocol).read_text())
    return found


def _reading(meter: Meter) -> dict[str, Any]:
    assert meter.reading is not None
    return dataclasses.asdict(meter.reading)


# -- the run -----------------------------------------------------------------------------------------------------------


def measure(records: int, repeat: int, say: Callable[[str], None]) -> Rates:
    """Records per second in each round of each contender. Raises CommandFailed if the topic cannot be written."""
    rates: Rates = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as scratch, pinning.broker(LocalBroker(secure=True)) as broker:
        settings = Path(scratch) / "settings.json"
        settings.touch(mode=0o600)
        settings.write_text(json.dumps(broker.client_config))
        job = Job(broker.bootstrap_servers, TOPIC, PARTITIONS, records, protocol=str(settings))
        say(f"tls: writing {records:,} records of {RECORD_BYTES} bytes")
        _write(job, broker.client_properties)
        for number in range(repeat + 1):
            for name in CONTENDERS:
                try:
                    rate = _rate(name, job, broker.client_properties)
                except (CommandFailed, ValueError) as error:
                    say(f"tls: {name}: failed: {error}")
                    continue
                say(f"tls: {number}/{repeat} {name}: {rate:,.0f} records/s{'' if number else ' (warming up)'}")
                if number:
                    rates[name].append(rate)
    return rates


def _write(job: Job, properties: Path) -> None:
    tools = "org.apache.kafka.tools"
    common = ("--bootstrap-server", job.servers, "--command-config", str(properties))
    create = ("--create", "--topic", job.topic, "--partitions", str(job.partitions))
    run(java_command(f"{tools}.TopicCommand", *common, *create), _TIMEOUT)
    shape = ("--num-records", str(job.records), "--record-size", str(RECORD_BYTES), "--throughput", "-1")
    run(java_command(f"{tools}.ProducerPerformance", "--topic", job.topic, *shape, *common), _TIMEOUT)


def _rate(name: str, job: Job, properties: Path) -> float:
    if name == "Java":
        arguments = ("--bootstrap-server", job.servers, "--topic", job.topic, "--num-records", str(job.records))
        command = java_command(
            "org.apache.kafka.tools.ConsumerPerformance",
            *(*arguments, "--timeout", "20000", "--hide-header", "--command-config", str(properties)),
        )
        reading = reading_of_java(run(command, _TIMEOUT).output)
    else:
        function = {"headrace columnar": "columnar", "headrace by record": "by_record"}.get(name, "confluent")
        reading = reading_of_child(run(child.command(f"tls.{function}", job), _TIMEOUT).output)
    if reading.records < job.records or reading.seconds <= 0:
        raise ValueError(f"{reading.records:,} of {job.records:,} records in {reading.seconds} seconds")
    return reading.records / reading.seconds


def section(records: int, repeat: int, rates: Rates) -> str:
    return "\n\n".join(
        [
            "## Over TLS",
            f"{records:,} records of {RECORD_BYTES} bytes, no compression, from a broker with SASL_SSL; medians of "
            f"{repeat}. confluent-kafka has its default settings, with which it pauses (see [Readers](#readers)).",
            report(rates),
        ]
    )


def report(rates: Rates) -> str:
    """A table with medians, the spread, and the ratio to Java's."""
    medians = {name: statistics.median(found) for name, found in rates.items() if found}
    java = medians.get("Java")
    rows = [
        [
            name,
            count(median),
            f"{count(min(rates[name]))} – {count(max(rates[name]))}",
            f"{median / java:.2f}" if java else "–",
        ]
        for name, median in medians.items()
    ]
    failed = [[name, "failed"] for name, found in rates.items() if not found]
    return markdown_table(["over TLS (SASL_SSL)", "records/s", "slowest – fastest", "× Java"], [*rows, *failed])
