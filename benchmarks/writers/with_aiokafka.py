"""aiokafka."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]

from . import FIRST, FLUSHED_WITHIN, WriteJob, WriteMeter


def send(job: WriteJob, meter: WriteMeter) -> None:
    """`send()` for each record."""
    asyncio.run(_send(job, meter))


async def _send(job: WriteJob, meter: WriteMeter) -> None:
    values = job.values()
    settings: dict[str, Any] = {"max_batch_size": job.batch_bytes} if job.batch_bytes else {}
    producer = AIOKafkaProducer(
        bootstrap_servers=job.servers,
        acks="all",
        enable_idempotence=True,
        linger_ms=job.linger_ms,
        compression_type=None if job.codec == "none" else job.codec,
        **settings,
    )
    await producer.start()
    try:
        await producer.send_and_wait(job.topic, FIRST)
        meter.start()
        for value in values:
            await producer.send(job.topic, value)
        async with asyncio.timeout(FLUSHED_WITHIN):
            await producer.flush()
        meter.stop(job.records, before=1)
    finally:
        await producer.stop()
