"""Sends the requests of an admin client: to any broker, or to the coordinator of a group.

Each call is retried until a broker answers or its time is up. No call creates a topic by asking for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from ..._machines.cluster import Cluster, node_at
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import FIND_COORDINATOR, Api, exactly_one
from ..._security.exchanges import quoted
from ...config.consumer import ConsumerConfig
from ...errors import HeadraceError, NetworkError, RequestTimeoutError
from ..network.client import Client
from ..positions.list_offsets import ListOffsets

T = TypeVar("T")

_NOT_THERE = (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)


@dataclasses.dataclass(slots=True)
class ChangeOutcome:
    """Of a change that is retried. `is_unknown`: an attempt was sent and had no response, so a broker may have carried
    it out. If the next attempt finds it done, it counts as done by this client."""

    is_unknown: bool = False


class AdminClient:
    """Belongs to the loop on which it is used first."""

    def __init__(self, config: ConsumerConfig) -> None:
        self.config = dataclasses.replace(config, allow_auto_create_topics=False)
        self.cluster = Cluster()
        self.network = Client(self.config, self.cluster, threading.Lock(), _nothing, _unwatched)
        self.list_offsets = ListOffsets(self.network)

    async def retried(self, what: str, timeout: float | None, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of the first attempt that succeeds, or fails for good. `timeout` is in seconds; None is
        default.api.timeout.ms."""
        seconds = self.config.default_api_timeout_ms / 1000 if timeout is None else timeout
        deadline = asyncio.get_running_loop().time() + seconds
        result: T = await self.network.retries.run(what, deadline, attempt)
        return result

    async def call(
        self,
        node: int,
        api: Api,
        fields: Mapping[str, Any],
        *,
        highest: int | None = None,
        outcome: ChangeOutcome | None = None,
    ) -> Any:
        """The body of the response of one broker."""
        connection = await self.network.connection(node)  # if that fails, nothing was sent
        try:
            return (await connection.call(api, fields, highest=highest)).body
        except (NetworkError, RequestTimeoutError):
            if outcome is not None:
                outcome.is_unknown = True
            raise

    async def call_any(self, api: Api, fields: Mapping[str, Any], *, outcome: ChangeOutcome | None = None) -> Any:
        """The body of the response of the first broker that gives one. Raises the error of the last one."""
        nodes = list(self.cluster.brokers)
        if not nodes:
            await self.network.fetch_metadata(())
            nodes = list(self.cluster.brokers)
        last: HeadraceError = NetworkError("no broker is known")
        for node in nodes:
            try:
                return await self.call(node, api, fields, outcome=outcome)
            except (NetworkError, RequestTimeoutError) as error:
                last = error
        await self.network.fetch_metadata(())  # for the next attempt: it asks the bootstrap servers, too
        raise last

    async def coordinator(self, group: str) -> int:
        body = await self.call_any(FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": (group,)})
        found = exactly_one(body.coordinators, f"FindCoordinator of group {group}")
        if found.error_code != NONE:
            raise kafka_error(found.error_code, f"FindCoordinator of group {group}", quoted(found.error_message or ""))
        self.cluster.brokers.setdefault(found.node_id, node_at(found.node_id, found.host, found.port))
        return int(found.node_id)

    async def existing_topics(self, names: Iterable[str] | None) -> dict[str, Any]:
        """Asks a broker. Raises the error of a topic that cannot be described, unless the topic does not exist."""
        answer = await self.network.fetch_metadata(names)
        found = {}
        for topic in answer.topics:
            if topic.error_code == NONE:
                found[topic.name] = topic
            elif topic.error_code not in _NOT_THERE:
                raise kafka_error(topic.error_code, f"Metadata of {topic.name}")
        return found


def _nothing() -> None:
    """Nothing here waits for metadata."""


def _unwatched(task: asyncio.Task[None]) -> asyncio.Task[None]:
    return task
