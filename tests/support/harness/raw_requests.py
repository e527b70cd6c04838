"""The same raw requests, to a real broker or to the brokers of the simulation."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from headrace import Producer
from headrace._protocol.messages import PRODUCE, Api
from headrace.types import TopicPartition
from simulation.writing.brokers import Brokers

T = TypeVar("T")


class Wire(Protocol):
    """Sends a request of this version to the broker that is responsible, and returns the body of its response."""

    async def call(self, api: Api, version: int, fields: Mapping[str, Any]) -> Any: ...


class BrokerWire:
    """The only broker of a cluster."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def call(self, api: Api, version: int, fields: Mapping[str, Any]) -> Any:
        (node,) = self._client.cluster.brokers
        exactly = dataclasses.replace(api, lowest=version, highest=version)
        return (await self._client.call(node, exactly, fields)).body


class ModelWire:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def call(self, api: Api, version: int, fields: Mapping[str, Any]) -> Any:
        node = 1
        if api is PRODUCE:
            topic = fields["topic_data"][0]
            place = TopicPartition(topic["name"], topic["partition_data"][0]["index"])
            node = self._brokers.partitions[place].leader
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._brokers.handle(node, api.name, version, fields, answer.set_result)
        return await answer


def asked_by_client(servers: str, topic: str, ask: Callable[[Wire, Any], Coroutine[Any, Any, T]]) -> T:
    """`ask` gets the connections of a client without a transaction, and the id of the topic."""
    with Producer(bootstrap_servers=servers) as producer:
        lifecycle = producer._parts.lifecycle

        async def main() -> T:
            client = lifecycle.start().client
            await client.fetch_metadata((topic,))
            with client.lock:
                topic_id = client.cluster.topic_id(topic)
            return await ask(BrokerWire(client), topic_id)

        return lifecycle.portal.run(main)
