"""The coordinator of a group or a transaction: finds the broker, and sends it requests.

It does not interpret them: `_aio/commit/offset_requests.py` does that for commits, `membership_task.py` for membership,
`_aio/produce/transactions.py` for transactions.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from ..._machines.cluster import node_at
from ..._machines.group.actions import Send
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import FIND_COORDINATOR, Api, exactly_one
from ...config.client import ClientConfig
from ...errors import ConfigError, HeadraceError, NetworkError, RequestTimeoutError
from ..network.client import Client

_MOVED = {
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.request_timed_out,
}


class CoordinatorKind(enum.IntEnum):
    """The key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class Coordinator:
    """Uses a connection of its own to the coordinator, so that nothing waits behind a long fetch. `key` is the id of
    the group or the transaction."""

    def __init__(
        self, client: Client[ClientConfig], key: str | None, kind: CoordinatorKind = CoordinatorKind.GROUP
    ) -> None:
        self._client = client
        self._key = key
        self._kind = kind
        self._node: int | None = None

    @property
    def group(self) -> str:
        if self._key is None:
            raise ConfigError("committed offsets need a group.id")
        return self._key

    async def ask(self, request: Send) -> Any:
        """Sends a request of a group member, and returns the answer. A request that parks has its own connection."""
        purpose = "group" if request.parks else "coordinator"
        body = await self.call(request.api, request.fields, purpose=purpose, timeout=request.timeout)
        self.note(body.error_code)
        return body

    async def call(
        self,
        api: Api,
        fields: Mapping[str, Any],
        *,
        highest: int | None = None,
        purpose: str = "coordinator",
        timeout: float | None = None,
    ) -> Any:
        """Sends a request once, and returns the body of the response. The caller retries retriable errors, and passes
        the error codes of the response to `note`."""
        node = await self._found()
        try:
            reply = await self._client.call(node, api, fields, purpose=purpose, highest=highest, timeout=timeout)
        except (NetworkError, RequestTimeoutError):
            self._node = None
            raise
        return reply.body

    async def features(self) -> Mapping[str, int]:
        """The finalized features of the cluster, as the coordinator knows them."""
        connection = await self._client.connection(await self._found(), "coordinator")
        return connection.versions.features

    async def _found(self) -> int:
        return self._node if self._node is not None else await self._find()

    async def _find(self) -> int:
        with self._client.lock:
            nodes = list(self._client.cluster.brokers)
        if not nodes:
            await self._client.fetch_metadata(())  # not refresh_soon(), which only requests it
            with self._client.lock:
                nodes = list(self._client.cluster.brokers)
        last: HeadraceError = NetworkError("no broker is known")
        for node in nodes:
            try:
                reply = await self._client.call(
                    node, FIND_COORDINATOR, {"key_type": int(self._kind), "coordinator_keys": (self.group,)}
                )
            except (NetworkError, RequestTimeoutError) as error:
                last = error
                continue
            doing = f"FindCoordinator of {self._kind.name.lower()} {self.group}"
            found = exactly_one(reply.body.coordinators, doing)
            if found.error_code != NONE:
                raise kafka_error(found.error_code, doing, found.error_message)
            with self._client.lock:
                self._client.cluster.brokers.setdefault(found.node_id, node_at(found.node_id, found.host, found.port))
            self._node = found.node_id
            return self._node
        raise last

    def note(self, code: int) -> None:
        """Looks for the coordinator again if this error code says that it has moved."""
        if code in _MOVED:
            self.forget()

    def forget(self) -> None:
        """The next request looks for the coordinator again."""
        self._node = None
