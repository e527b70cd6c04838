"""aiokafka."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition  # type: ignore[import-untyped]

from . import Job, Meter


def getmany(job: Job, meter: Meter) -> None:
    """`getmany()` without a limit, the default."""
    asyncio.run(_getmany(job, meter))


async def _getmany(job: Job, meter: Meter) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=job.servers, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(job.topic, number) for number in job.numbers]
        await consumer.end_offsets(partitions)
        meter.start()
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        while True:
            count = nbytes = 0
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                count += len(records)
                for record in records:
                    nbytes += len(record.value)
            if meter.add(count, nbytes):
                return
    finally:
        await consumer.stop()
