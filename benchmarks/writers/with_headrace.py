"""headrace."""

from __future__ import annotations

from typing import Any

from headrace import Producer

from ..observed import observed
from . import FIRST, FLUSHED_WITHIN, WriteJob, WriteMeter


def send_arrow(job: WriteJob, meter: WriteMeter) -> None:
    """Arrow tables, each with all lines of the payload."""
    import pyarrow as pa

    table = pa.table({"value": pa.array(job.lines(), pa.binary())})
    with _producer(job) as producer:
        meter.start()
        left = job.records
        while left:
            rows = table.slice(0, left)
            producer.send_arrow(job.topic, rows)
            left -= rows.num_rows
        producer.flush(timeout=FLUSHED_WITHIN)
        meter.stop(job.records, before=1)


def send_arrow_observed(job: WriteJob, meter: WriteMeter) -> None:
    """The same with OpenTelemetry."""
    with observed():
        send_arrow(job, meter)


def send(job: WriteJob, meter: WriteMeter) -> None:
    """One call per record."""
    values = job.values()
    with _producer(job) as producer:
        topic, send = job.topic, producer.send
        meter.start()
        for value in values:
            send(topic, value)
        producer.flush(timeout=FLUSHED_WITHIN)
        meter.stop(job.records, before=1)


def send_all(job: WriteJob, meter: WriteMeter) -> None:
    """All records with one call."""
    values = job.values()
    with _producer(job) as producer:
        meter.start()
        producer.send_all(job.topic, values).result(FLUSHED_WITHIN)
        meter.stop(job.records, before=1)


def _producer(job: WriteJob) -> Producer:
    settings: dict[str, Any] = {
        "bootstrap.servers": job.servers,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": job.linger_ms,
        "compression.type": job.codec,
    }
    if job.batch_bytes:
        settings["batch.size"] = job.batch_bytes
    if job.buffer_bytes:
        settings["buffer.memory"] = job.buffer_bytes
    producer = Producer(settings)
    producer.send(job.topic, FIRST).result(FLUSHED_WITHIN)
    return producer
