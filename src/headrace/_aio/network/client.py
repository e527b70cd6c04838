"""The network side of one consumer or producer: requests to brokers, by their number in the cluster.

`connections.py` opens and keeps the connections, `metadata.py` keeps the cluster view fresh, `retries.py` retries.
Everything runs on one event loop. Other threads use the cluster view, too: it is changed under `lock`.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from kio.schema.errors import ErrorCode

from ..._machines.cluster import Cluster
from ..._net.calls import Reply
from ..._net.connection import Connection
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import Api
from ...config.client import ClientConfig
from ...errors import HeadraceError, NetworkError
from ...types import PartitionInfo
from .connections import Connections
from .metadata import MetadataUpdater
from .retries import Retries

C_co = TypeVar("C_co", bound=ClientConfig, covariant=True)


class Client(Generic[C_co]):
    """Sends requests to brokers. `on_metadata` is called on the loop, under `lock`, after each refresh. `on_trouble` is
    called on the loop when no broker accepts requests and a retry does not help, and with None when that is over.
    `watch` gets the tasks that must not end by themselves."""

    def __init__(
        self,
        config: C_co,
        cluster: Cluster,
        lock: threading.Lock,
        on_metadata: Callable[[], None],
        watch: Callable[[asyncio.Task[None]], asyncio.Task[None]],
        on_trouble: Callable[[HeadraceError | None], None] = lambda error: None,
    ) -> None:
        self.config = config
        self.cluster = cluster
        self.lock = lock
        self.connections = Connections(config, self._report_trouble)
        self.retries = Retries(config, self.connections)
        self._metadata = MetadataUpdater(
            config,
            self.connections,
            cluster,
            lock,
            retries=self.retries,
            on_metadata=on_metadata,
            on_trouble=self._report_trouble,
            watch=watch,
        )
        self._on_trouble = on_trouble
        self._is_in_trouble = False

    @property
    def connection_count(self) -> int:
        return len(self.connections.open_connections)

    def _report_trouble(self, error: HeadraceError | None) -> None:
        if error is not None or self._is_in_trouble:
            self._is_in_trouble = error is not None
            self._on_trouble(error)

    # -- requests --------------------------------------------------------------------------------------------

    async def call(
        self,
        node: int,
        api: Api,
        fields: Mapping[str, Any],
        *,
        purpose: str = "",
        highest: int | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """Sends one request to one broker. Raises NetworkError, RequestTimeoutError, UnsupportedVersionError."""
        connection = await self.connection(node, purpose)
        return await connection.call(api, fields, highest=highest, timeout=timeout)

    async def connection(self, node: int, purpose: str = "") -> Connection:
        """An open connection to the broker. Connects if there is none, after the broker's backoff."""
        broker = self.cluster.brokers.get(node)
        if broker is None:
            raise NetworkError(f"broker {node} is not part of the cluster, or no longer")
        return await self.connections.connect(broker.host, broker.port, purpose)

    # -- metadata --------------------------------------------------------------------------------------------

    def want_topics(self, topics: Iterable[str] | None) -> None:
        """Keeps the metadata of these topics (None: of all) fresh from now on, and of no others."""
        self._metadata.want_topics(topics)

    def refresh_soon(self, also: Iterable[str] = ()) -> None:
        self._metadata.refresh_soon(also)

    async def fetch_unknown_topics(self, names: Iterable[str]) -> None:
        """Fetches metadata of those of these topics that are unknown, once. Missing topics stay unknown."""
        await self._metadata.fetch_unknown_topics(names)

    async def fetch_metadata(
        self, names: Iterable[str] | None, ids: Iterable[uuid.UUID] = (), *, may_create: bool = True
    ) -> Any:
        """Fetches metadata now, and applies it to the cluster view."""
        return await self._metadata.fetch_metadata(names, ids, may_create=may_create)

    async def fetch_all_metadata(self, api: Api) -> Any:
        """Fetches metadata of all topics. Only its brokers are applied to the cluster view: for a caller that reads
        the answer itself, and chooses with `api` how it is decoded."""
        return await self._metadata.fetch_all_metadata(api)

    async def describe_topics(self, names: list[str] | None) -> dict[str, list[PartitionInfo]]:
        """The partitions of these topics (None: of all), from a broker and not from the cache."""
        answer = await self.fetch_metadata(names)
        with self.lock:
            found = [topic.name for topic in answer.topics if topic.name and topic.error_code == NONE]
            for topic in answer.topics:
                if topic.error_code not in (NONE, ErrorCode.unknown_topic_or_partition):
                    raise kafka_error(topic.error_code, f"Metadata of topic {topic.name}")
            return {name: self.cluster.partition_infos(name) for name in sorted(found)}

    # -- the end ---------------------------------------------------------------------------------------------

    def disconnect(self) -> None:
        """Closes every connection. No new ones are made."""
        self.connections.disconnect()

    async def close(self) -> None:
        """Closes every connection, and ends the calls that wait for one."""
        await self._metadata.close()
        await self.connections.close()
