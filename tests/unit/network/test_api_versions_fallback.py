"""A broker that closes the connection at a version of ApiVersions that it does not know gets an older one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from headrace._aio.network.client import Client
from headrace._machines.api_versions_fallback import ATTEMPTS, ApiVersionsFallback
from headrace._machines.cluster import Cluster
from headrace._protocol.messages import API_VERSIONS
from headrace.config.consumer import ConsumerConfig
from support.brokers.fake_broker import FakeBroker, api_versions, run
from support.harness.machine_inputs import metadata

C = "closed"


@pytest.mark.parametrize(
    ("events", "versions"),
    [
        pytest.param([4, 4], [4, 4, 4], id="a broker of today"),
        pytest.param([C, 3, 3], [4, 3, 3, 3], id="it knows version 3"),
        pytest.param([C, C, 1, 1], [4, 3, 0, 0, 0], id="it knows only old headers"),
        pytest.param([C, C, C, C], [4, 3, 0, 4, 3], id="it is no broker, or expects TLS"),
        pytest.param([C, C, 4, 4], [4, 3, 0, 4, 4], id="a load balancer whose broker has started meanwhile"),
        pytest.param([C, C, 3, 3], [4, 3, 0, 3, 3], id="the same with an older broker"),
        pytest.param([C, C, 4, C, C, 4, 4], [4, 3, 0, 4, 3, 0, 0, 0], id="it names versions that it does not know"),
        pytest.param([4, C, C, C], [4, 4, 4, 4, 4], id="a broker that is restarted"),
    ],
)
def test_which_version_each_connection_asks_with(events: list[Any], versions: list[int]) -> None:
    """An event is the end of one connection's first exchange: closed, or answered with the broker's highest version."""
    fallback = ApiVersionsFallback()
    asked = [fallback.version]
    for event in events:
        if event == C:
            fallback.closed()
        else:
            fallback.answered(event)
        asked.append(fallback.version)
    assert asked == versions


def test_the_first_attempt_is_the_highest_version_and_the_last_the_lowest() -> None:
    assert (ATTEMPTS[0], ATTEMPTS[-1]) == (API_VERSIONS.highest, API_VERSIONS.lowest)


@pytest.mark.parametrize("known", [3, 0])
def test_a_client_connects_to_a_broker_that_closes_at_unknown_versions(known: int) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            config = ConsumerConfig.parse(bootstrap_servers=broker.name, reconnect_backoff_ms=0, retry_backoff_ms=0)
            client = Client(config, Cluster(), threading.Lock(), lambda: None, lambda task: task)
            asked = asyncio.create_task(_patient(client))
            versions = []
            while True:
                link = await broker.accept()
                request = await link.receive()
                versions.append(request.version)
                if request.version <= known:
                    break
                link.close()
            ranges = {3: (0, 13), API_VERSIONS.key: (0, known)}
            await link.reply(request, api_versions(request.version, ranges))
            await link.reply(await link.receive(), metadata())
            await asked
            assert versions == [version for version in ATTEMPTS if version >= known]
            await client.close()

    run(main())


async def _patient(client: Client[ConsumerConfig]) -> None:
    deadline = asyncio.get_running_loop().time() + 30
    await client.retries.run("Metadata", deadline, lambda: client.fetch_metadata(()))
