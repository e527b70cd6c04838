"""Brokers without share groups, or without the record limit: the first poll says what is missing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import AsyncShareConsumer
from headrace.errors import UnsupportedVersionError
from headrace.protocol.messages import APIS, METADATA, SHARE_ACKNOWLEDGE, SHARE_FETCH, SHARE_GROUP_HEARTBEAT
from support.fake_broker import FakeBroker, Link, answer, api_versions, run

SHARES = (SHARE_GROUP_HEARTBEAT, SHARE_FETCH, SHARE_ACKNOWLEDGE)
BEFORE = {api.key: (api.lowest, api.highest) for api in APIS if api not in SHARES}
KAFKA_4_0 = BEFORE | {76: (0, 0), 78: (0, 0), 79: (0, 0)}
KAFKA_4_1 = BEFORE | {76: (1, 1), 78: (1, 1), 79: (1, 1)}


async def serve(broker: FakeBroker, ranges: dict[int, tuple[int, int]]) -> None:
    async with asyncio.TaskGroup() as links:
        while True:
            links.create_task(_serve(await broker.accept(), broker, ranges))


async def _serve(link: Link, broker: FakeBroker, ranges: dict[int, tuple[int, int]]) -> None:
    try:
        while True:
            request = await link.receive()
            if request.api_key == METADATA.key:
                brokers = [{"node_id": 1, "host": broker.host, "port": broker.port, "rack": None}]
                fields = {"throttle_time": 0, "brokers": brokers, "cluster_id": "c", "controller_id": 1, "topics": ()}
                await link.reply(request, answer(METADATA, request.version, error_code=0, **fields))
            else:
                await link.reply(request, api_versions(request.version, ranges))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        pass


def first_poll(ranges: dict[int, tuple[int, int]], **settings: Any) -> None:
    async def work() -> None:
        async with FakeBroker() as broker:
            serving = asyncio.create_task(serve(broker, ranges))
            try:
                async with AsyncShareConsumer(bootstrap_servers=broker.name, group_id="g", **settings) as consumer:
                    consumer.subscribe(["t"])
                    await consumer.poll(10.0)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

    run(work())


@pytest.mark.parametrize("ranges", [BEFORE, KAFKA_4_0])
def test_no_share_groups(ranges: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(UnsupportedVersionError, match=r"ShareFetch.*share groups need Apache Kafka 4\.1"):
        first_poll(ranges)


def test_no_record_limit() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"record_limit needs ShareFetch version 2 .*Kafka 4\.2"):
        first_poll(KAFKA_4_1, share_acquire_mode="record_limit")
