"""AsyncShareConsumer beside a user's event loop that is blocked."""

from __future__ import annotations

import asyncio
import time

from headrace import AsyncShareConsumer, TopicPartition
from support.admin import Admin
from support.patience import patiently
from support.produce import numbered, write
from support.share import share_group
from support.share_command import describe

pytest_plugins = ["support.share_fixtures"]


def test_a_blocked_loop_keeps_its_membership(share_admin: Admin, share_servers: str) -> None:
    """Heartbeats go on while the loop is blocked for longer than the group's session."""

    def scenario(second: float) -> None:
        topic = share_admin.create("loops-member")
        group = share_group(share_servers, share_session_timeout_ms=round(1000 * second))

        async def main() -> None:
            async with AsyncShareConsumer(bootstrap_servers=share_servers, group_id=group) as consumer:
                consumer.subscribe([topic])
                async with asyncio.timeout(60):
                    while not consumer.metrics()["partitions"]:
                        await consumer.poll(0.1)
                before = consumer.metrics()["group"]
                time.sleep(3 * second)  # noqa: ASYNC251  # what a program should not do
                (member,) = describe(share_servers, group, "--members")
                assert member["CONSUMER-ID"] == before["member_id"]
                assert consumer.metrics()["group"] == before

        asyncio.run(main())

    patiently(scenario)


def test_a_blocked_loop_keeps_the_locks_of_a_share_group(share_admin: Admin, share_servers: str) -> None:
    """With renew=auto they are renewed while the loop is blocked: the acknowledgement is not too late."""

    def scenario(second: float) -> None:
        topic = share_admin.create("loops-shared")
        write(share_servers, topic, numbered(1, 0))
        group = share_group(share_servers, share_record_lock_duration_ms=round(1000 * second))
        settings = {"bootstrap_servers": share_servers, "group_id": group, "share_acknowledgement_mode": "explicit"}

        async def main() -> None:
            async with AsyncShareConsumer(**settings, renew="auto") as consumer:
                consumer.subscribe([topic])
                async with asyncio.timeout(60):
                    while not (records := await consumer.poll(0.5)):
                        pass
                time.sleep(3 * second)  # noqa: ASYNC251  # what a program should not do
                consumer.acknowledge(records, "ACCEPT")
                assert await consumer.commit() == {TopicPartition(topic, 0): None}

        asyncio.run(main())

    patiently(scenario)
