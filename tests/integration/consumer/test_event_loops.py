"""AsyncConsumer in different event loops, and in loops that are blocked."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import uvloop

from headrace import AsyncConsumer, Consumer, TopicPartition
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered_topic
from support.brokers.secured import SecuredBroker
from support.harness.consumers import assigned, read_rows
from support.harness.groups import WAYS, RecordingListener, with_session
from support.harness.retries import patiently

COUNT = 500


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("loops"), 1, COUNT)


async def read_all(topic: str, settings: dict[str, Any]) -> list[int]:
    async with AsyncConsumer(settings, auto_offset_reset="earliest", group_id=unique("g")) as consumer:
        consumer.subscribe([topic])
        found: list[int] = []
        async with asyncio.timeout(60):
            while len(found) < COUNT:
                found += [record.offset for record in await consumer.poll(1.0)]
        await consumer.commit()
        assert (await consumer.committed([(topic, 0)]))[TopicPartition(topic, 0)] is not None
    return found


def test_a_topic_is_read_in_uvloop(servers: str, topic: str) -> None:
    found = uvloop.run(read_all(topic, {"bootstrap.servers": servers}))
    assert found == list(range(COUNT))


def test_a_topic_is_read_in_uvloop_over_tls(secured: SecuredBroker) -> None:
    topic = secured.create("secured-loops", COUNT)
    assert uvloop.run(read_all(topic, secured.broker.mutual_config)) == list(range(COUNT))


def test_a_consumer_for_threads_works_beside_a_running_uvloop(servers: str, topic: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def read() -> int:
            def read_here() -> int:
                with assigned(Consumer, servers, topic) as consumer:
                    return len(read_rows(consumer, [TopicPartition(topic, 0)]))

            return await asyncio.to_thread(read_here)

        assert runner.run(read()) == COUNT


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_blocked_event_loop_keeps_the_membership(servers: str, topic: str, way: dict[str, Any]) -> None:
    """Heartbeats do not depend on the user's loop: a loop that blocks for longer than the session timeout does not lose
    the membership."""

    def scenario(second: float) -> None:
        group, listener = unique("g"), RecordingListener()
        settings = with_session(servers, group, way, second)

        async def main() -> None:
            async with AsyncConsumer(bootstrap_servers=servers, group_id=group, **settings) as consumer:
                consumer.subscribe([topic], listener=listener)
                async with asyncio.timeout(60):
                    while not consumer.assignment():
                        await consumer.poll(0.05)
                before = consumer.group_metadata()
                time.sleep(3 * second)  # noqa: ASYNC251  # blocks the loop on purpose
                await consumer.commit()
                await consumer.poll(0.05)
                assert consumer.group_metadata() == before
                assert listener.kinds() == ["assigned"]

        asyncio.run(main())

    patiently(scenario)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_event_loop_blocked_past_max_poll_interval_loses_its_partitions(
    servers: str, topic: str, way: dict[str, Any]
) -> None:
    """Even while poll() waits, since a blocked loop could not take the records (KIP-62)."""

    def scenario(second: float) -> None:
        group, listener = unique("g"), RecordingListener()
        settings = with_session(servers, group, way, second) | {"max_poll_interval_ms": round(1000 * second)}

        async def main() -> None:
            async with AsyncConsumer(bootstrap_servers=servers, group_id=group, **settings) as consumer:
                consumer.subscribe([topic], listener=listener)
                async with asyncio.timeout(60):
                    while not consumer.assignment():
                        await consumer.poll(0.05)
                    polling = asyncio.create_task(consumer.poll(60.0))
                    await asyncio.sleep(0.1 * second)  # enough for a poll that does not wait
                    assert not polling.done()
                    time.sleep(3 * second)  # noqa: ASYNC251  # blocks the loop on purpose
                    await polling
                    assert listener.kinds() == ["assigned", "lost"]
                    while not consumer.assignment():
                        await consumer.poll(0.05)

        asyncio.run(main())

    patiently(scenario)
