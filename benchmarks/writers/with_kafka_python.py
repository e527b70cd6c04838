"""kafka-python."""

from __future__ import annotations

from typing import Any

from kafka import KafkaProducer  # type: ignore[import-untyped]

from . import FIRST, FLUSHED_WITHIN, WriteJob, WriteMeter


def send(job: WriteJob, meter: WriteMeter) -> None:
    """`send()` for each record."""
    values = job.values()
    settings: dict[str, Any] = {"batch_size": job.batch_bytes} if job.batch_bytes else {}
    producer = KafkaProducer(
        bootstrap_servers=job.servers,
        acks="all",
        enable_idempotence=True,
        linger_ms=job.linger_ms,
        compression_type=None if job.codec == "none" else job.codec,
        **settings,
    )
    try:
        producer.send(job.topic, FIRST).get(FLUSHED_WITHIN)
        meter.start()
        for value in values:
            producer.send(job.topic, value)
        producer.flush(timeout=FLUSHED_WITHIN)
        meter.stop(job.records, before=1)
    finally:
        producer.close()
