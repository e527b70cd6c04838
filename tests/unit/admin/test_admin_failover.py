"""AsyncAdmin when some brokers are down. Everything else is tested with real brokers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from headrace._aio.admin import AsyncAdmin
from headrace._protocol.admin_messages import LIST_GROUPS
from headrace._protocol.messages import API_VERSIONS, APIS, FIND_COORDINATOR, METADATA
from support.brokers.fake_broker import FakeBroker, Link, answer, api_versions, run

RANGES = {api.key: (api.lowest, api.highest) for api in (*APIS, LIST_GROUPS)}


async def serve(link: Link, broker: FakeBroker, clusters: list[dict[int, int]]) -> None:
    """Respond to each Metadata request with the next of `clusters` (ports by broker id), repeating the last one."""
    while True:
        request = await link.receive()
        if request.api_key == API_VERSIONS.key:
            reply = api_versions(request.version, RANGES)
        elif request.api_key == METADATA.key:
            ports = clusters.pop(0) if len(clusters) > 1 else clusters[0]
            nodes = [{"node_id": node, "host": broker.host, "port": port} for node, port in ports.items()]
            reply = answer(METADATA, request.version, brokers=nodes, topics=(), throttle_time=0, error_code=0)
        elif request.api_key == FIND_COORDINATOR.key:
            node = {"node_id": 2, "host": broker.host, "port": broker.port}
            found = {"key": "g", "error_code": 0, "error_message": None, **node}
            reply = answer(FIND_COORDINATOR, request.version, coordinators=[found], throttle_time=0)
        else:
            assert request.api_key == LIST_GROUPS.key
            reply = answer(LIST_GROUPS, request.version, error_code=0, groups=(), throttle_time=0)
        await link.reply(request, reply)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A socket that reserves a port and does not listen."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused


def test_another_broker_is_asked_when_the_first_is_gone(silent: socket.socket) -> None:
    async def main() -> None:
        async with FakeBroker() as broker, asyncio.TaskGroup() as tasks:
            gone = silent.getsockname()[1]
            admin = AsyncAdmin(bootstrap_servers=broker.name, default_api_timeout_ms=50_000)
            asked = asyncio.create_task(admin.describe_group("g"))
            serving = tasks.create_task(serve(await broker.accept(), broker, [{1: gone, 2: broker.port}]))
            assert await asked is None
            serving.cancel()
            await admin.close()

    run(main())


def test_groups_are_asked_of_the_brokers_that_there_are_now(silent: socket.socket) -> None:
    async def main() -> None:
        async with FakeBroker() as broker, asyncio.TaskGroup() as tasks:
            gone = silent.getsockname()[1]
            admin = AsyncAdmin(bootstrap_servers=broker.name, default_api_timeout_ms=50_000)
            asked = asyncio.create_task(admin.groups())
            clusters = [{1: gone, 2: broker.port}, {2: broker.port}]
            serving = tasks.create_task(serve(await broker.accept(), broker, clusters))
            assert await asked == []
            serving.cancel()
            await admin.close()

    run(main())
