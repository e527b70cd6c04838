"""Survey: a client that asks a whole cluster. For one event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ..._machines.cluster import Cluster
from ..._protocol.admin_messages import LIST_GROUPS
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import Api
from ..._protocol.survey_messages import ALL_METADATA, DESCRIBE_LOG_DIRS
from ...config.consumer import ConsumerConfig
from ...errors import HeadraceError, NetworkError, RequestTimeoutError
from ...types import TopicPartition
from ..network.client import Client
from .found import FoundCluster, FoundGroup, FoundLog, FoundTopic


class Survey:
    """`async with` closes its connections. No question creates a topic.

    A question raises HeadraceError only if nothing could be asked. `timeout` is for each request, in seconds.
    """

    def __init__(self, config: Mapping[str, Any], timeout: float = 10.0) -> None:
        parsed = ConsumerConfig.parse(config)
        self._config = dataclasses.replace(parsed, allow_auto_create_topics=False)
        self.isolation = 1 if parsed.isolation_level == "read_committed" else 0
        self.timeout = timeout
        self.silent: dict[int, HeadraceError] = {}
        """The brokers that have left a request unanswered since the last question about the whole cluster."""
        self._cluster = Cluster()
        self._client = Client(self._config, self._cluster, threading.Lock(), _nothing, _unwatched)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    async def call(self, node: int, api: Api, fields: Mapping[str, Any]) -> Any:
        """The body of one response. Raises HeadraceError, at the latest after `timeout` seconds."""
        try:
            return await self._call(node, api, fields)
        except (NetworkError, RequestTimeoutError) as error:
            self.silent[node] = error
            raise

    async def _call(self, node: int, api: Api, fields: Mapping[str, Any]) -> Any:
        try:
            async with asyncio.timeout(self.timeout):
                reply = await self._client.call(node, api, fields)
        except TimeoutError as error:
            if isinstance(error, HeadraceError):
                raise
            obstacle = self._client.connections.obstacle()
            raise RequestTimeoutError(
                f"{api} to broker {node}: no answer within {self.timeout:g} s{f' ({obstacle})' if obstacle else ''}"
            ) from obstacle
        return reply.body

    async def cluster(self) -> FoundCluster:
        """Brokers and topics: all that this client may describe. Raises HeadraceError if no broker answers."""
        self.silent = {}
        try:
            async with asyncio.timeout(self.timeout):
                answer = await self._client.fetch_all_metadata(ALL_METADATA)
        except TimeoutError as error:
            if isinstance(error, HeadraceError):
                raise
            obstacle = self._client.connections.obstacle()
            raise RequestTimeoutError(
                f"no broker answered within {self.timeout:g} s{f': {obstacle}' if obstacle else ''}"
            ) from obstacle
        topics = tuple(_topic(topic) for topic in sorted(answer.topics, key=lambda it: it.name or ""))
        return FoundCluster(
            answer.cluster_id or "", tuple(self._cluster.brokers.values()), int(answer.controller_id), topics
        )

    async def groups(self, nodes: Iterable[int]) -> dict[int, list[FoundGroup] | HeadraceError]:
        """The groups that each of these brokers coordinates, as far as this client may describe them."""

        async def ask(node: int) -> list[FoundGroup]:
            body = await self.call(node, LIST_GROUPS, {})
            if body.error_code != NONE:
                raise kafka_error(body.error_code, f"ListGroups to broker {node}")
            return [
                FoundGroup(it.group_id, getattr(it, "group_type", "classic").lower(), it.group_state, node)
                for it in body.groups
            ]

        return await each(nodes, ask)

    async def sizes(self, nodes: Iterable[int]) -> dict[int, dict[TopicPartition, int] | HeadraceError]:
        """The bytes of the replicas on each of these brokers."""

        async def ask(node: int) -> dict[TopicPartition, int]:
            body = await self.call(node, DESCRIBE_LOG_DIRS, {"topics": None})
            codes = [getattr(body, "error_code", NONE), *(it.error_code for it in body.results)]
            if failed := next((code for code in codes if code != NONE), None):
                raise kafka_error(failed, f"DescribeLogDirs to broker {node}")
            found: dict[TopicPartition, int] = {}
            for directory in body.results:
                for topic in directory.topics:
                    for it in topic.partitions:
                        if not it.is_future_key:
                            found[TopicPartition(topic.name, it.partition_index)] = it.partition_size
            return found

        return await each(nodes, ask)


async def each(things: Iterable[Any], ask: Any) -> dict[Any, Any]:
    """Asks about all of them at once. The result has an answer or an error for each."""

    async def asked(thing: Any) -> Any:
        try:
            return await ask(thing)
        except HeadraceError as error:
            return error

    listed = list(things)
    return dict(zip(listed, await asyncio.gather(*map(asked, listed)), strict=True))


def _topic(topic: Any) -> FoundTopic:
    name = str(topic.name or "")
    logs: Sequence[FoundLog] = [
        FoundLog(
            TopicPartition(name, it.partition_index),
            it.leader_id,
            it.leader_epoch,
            it.replica_nodes,
            it.isr_nodes,
            it.offline_replicas,
        )
        for it in topic.partitions
    ]
    return FoundTopic(name, topic.topic_id, topic.is_internal, tuple(sorted(logs)), int(topic.error_code))


def _nothing() -> None:
    """Nothing here waits for metadata."""


def _unwatched(task: asyncio.Task[None]) -> asyncio.Task[None]:
    return task
