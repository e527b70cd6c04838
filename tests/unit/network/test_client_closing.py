"""A client that is closed while it connects or sends leaves no connection open."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from headrace._aio.network.client import Client
from headrace._machines.cluster import Cluster
from headrace.config.consumer import ConsumerConfig
from headrace.errors import ClosedError
from support.brokers.fake_broker import FakeBroker, run


def client_of(broker: FakeBroker, **settings: Any) -> Client[ConsumerConfig]:
    config = ConsumerConfig.parse(bootstrap_servers=broker.name, **settings)
    return Client(config, Cluster(), threading.Lock(), lambda: None, lambda task: task)


def test_a_connection_that_opens_after_its_client_was_disconnected_is_closed() -> None:
    """`disconnect()` closes open connections and does not wait for those that are still being opened."""

    async def main() -> None:
        async with FakeBroker() as broker:
            client = client_of(broker)
            asked = asyncio.create_task(client.fetch_metadata(()))
            link = await broker.accept()
            client.disconnect()
            await link.negotiate()
            with pytest.raises(ClosedError):
                await asked
            assert await link.is_closed_by_client()
            assert client.connection_count == 0

    run(main())
