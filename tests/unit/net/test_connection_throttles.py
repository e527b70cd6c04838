"""Brokers that throttle for absurdly long: the throttle is capped, and other brokers are used meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from headrace import AsyncConsumer
from headrace._protocol.messages import API_VERSIONS, METADATA
from support.brokers.fake_broker import FakeBroker, answer, api_versions, run
from support.brokers.fake_connections import ALL_TOPICS, connect, metadata

FOREVER = 2**31 - 1


def test_a_throttle_is_capped_at_30_seconds_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> str:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            calls = [connection.start(METADATA, ALL_TOPICS) for _ in range(3)]
            for throttle in (500, FOREVER, FOREVER):
                await link.reply(await link.receive(), metadata(throttle=throttle))
            await asyncio.gather(*calls)
            assert 1 < connection.throttled_for <= 30
            connection.close()
            return broker.name

    caplog.set_level(logging.INFO)
    name = run(main())
    (message,) = caplog.messages
    assert message == f"{name} throttles this client for 24 days, 20:31:23.647000: sending nothing to it for 30.0 s"


def test_other_brokers_are_asked_while_one_throttles() -> None:
    async def main() -> None:
        async with FakeBroker() as hostile, FakeBroker() as sane:
            both = [
                {"node_id": number, "host": broker.host, "port": broker.port, "rack": None}
                for number, broker in enumerate((hostile, sane))
            ]

            async def serve(broker: FakeBroker, throttle: int) -> None:
                link = await broker.accept()
                with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                    while True:
                        request = await link.receive()
                        if request.api_key == API_VERSIONS.key:
                            await link.reply(request, api_versions(request.version))
                            continue
                        fields = {"brokers": both, "cluster_id": "c", "controller_id": 0, "topics": (), "error_code": 0}
                        await link.reply(request, answer(METADATA, request.version, throttle_time=throttle, **fields))

            tasks = [asyncio.create_task(serve(hostile, FOREVER)), asyncio.create_task(serve(sane, 0))]
            servers = f"{hostile.name},{sane.name}"
            async with AsyncConsumer(bootstrap_servers=servers, request_timeout_ms=20_000) as consumer:
                async with asyncio.timeout(20):
                    for _ in range(6):  # the calls rotate over both brokers
                        assert await consumer.list_topics() == {}
            for task in tasks:
                task.cancel()

    run(main())
