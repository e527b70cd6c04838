"""AsyncShareConsumer while the user's event loop is blocked."""

from __future__ import annotations

import asyncio
import time

from headrace import AsyncShareConsumer, TopicPartition
from support.brokers.admin import Admin
from support.brokers.produce import numbered, write
from support.brokers.share_groups_tool import describe
from support.harness.retries import patiently
from support.harness.share_consumers import share_group


def test_a_blocked_event_loop_keeps_a_share_membership(admin: Admin, servers: str) -> None:
    """Heartbeats continue while the loop is blocked for longer than the group's session timeout."""

    def scenario(second: float) -> None:
        topic = admin.create("loops-member")
        group = share_group(servers, share_session_timeout_ms=round(1000 * second))

        async def main() -> None:
            async with AsyncShareConsumer(bootstrap_servers=servers, group_id=group) as consumer:
                consumer.subscribe([topic])
                async with asyncio.timeout(60):
                    while not consumer.metrics()["partitions"]:
                        await consumer.poll(0.1)
                before = consumer.metrics()["group"]
                time.sleep(3 * second)  # noqa: ASYNC251  # blocks the loop on purpose
                (member,) = describe(servers, group, "--members")
                assert member["CONSUMER-ID"] == before["member_id"]
                assert consumer.metrics()["group"] == before

        asyncio.run(main())

    patiently(scenario)


def test_a_blocked_event_loop_keeps_the_locks_of_a_share_group(admin: Admin, servers: str) -> None:
    """With renew=auto, locks are renewed while the loop is blocked, so the acknowledgement is in time."""

    def scenario(second: float) -> None:
        topic = admin.create("loops-shared")
        write(servers, topic, numbered(1, 0))
        group = share_group(servers, share_record_lock_duration_ms=round(1000 * second))
        settings = {"bootstrap_servers": servers, "group_id": group, "share_acknowledgement_mode": "explicit"}

        async def main() -> None:
            async with AsyncShareConsumer(**settings, renew="auto") as consumer:
                consumer.subscribe([topic])
                async with asyncio.timeout(60):
                    while not (records := await consumer.poll(0.5)):
                        pass
                time.sleep(3 * second)  # noqa: ASYNC251  # blocks the loop on purpose
                consumer.acknowledge(records, "ACCEPT")
                assert await consumer.commit() == {TopicPartition(topic, 0): None}

        asyncio.run(main())

    patiently(scenario)
