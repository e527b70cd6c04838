"""The topics that writers fill: each run has a new one, which is deleted afterwards."""

from __future__ import annotations

import asyncio

from headrace import TopicPartition

from .readers import Job


def create(job: Job) -> dict[str, int]:
    """Create the topic; return when all partitions have a leader."""
    return {"records": asyncio.run(_create(job))}


def count_and_delete(job: Job) -> dict[str, int]:
    """Return the number of records in the topic, and delete it."""
    return {"records": asyncio.run(_count_and_delete(job))}


async def _create(job: Job) -> int:
    from headrace._aio.admin import AsyncAdmin

    async with AsyncAdmin(bootstrap_servers=job.servers) as admin:
        await admin.create_topic(job.topic, job.partitions, 1)
        found = await admin.bounds(_partitions(job))
        while len(found) < job.partitions:
            await asyncio.sleep(0.05)
            found = await admin.bounds(_partitions(job))
    return 0


async def _count_and_delete(job: Job) -> int:
    from headrace._aio.admin import AsyncAdmin

    async with AsyncAdmin(bootstrap_servers=job.servers) as admin:
        found = await admin.bounds(_partitions(job))
        await admin.delete_topic(job.topic)
    return sum(each.high - each.low for each in found.values())


def _partitions(job: Job) -> list[TopicPartition]:
    return [TopicPartition(job.topic, number) for number in job.numbers]
