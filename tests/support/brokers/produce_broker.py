"""A broker in memory on a real socket, for producers: it appends batches as brokers do, and answers as a test likes.

`ProduceBroker` runs on a thread of its own. `plan` decides about each Produce request: see `Act`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import threading
import uuid
from collections.abc import Callable
from typing import Any

from headrace._protocol.messages import (
    API_VERSIONS,
    APIS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from support.brokers.fake_broker import FakeBroker, Link, Request, answer, api_versions, frame
from support.harness.loop_thread import LoopThread
from support.harness.producer_in_memory import ModelPartition

_ID = uuid.UUID(int=7)
_BY_ID = 13


@dataclasses.dataclass(frozen=True)
class Act:
    """What becomes of one request. It is appended unless there is a `code` or `is_lost`. The answer comes after `delay`
    seconds or when `after` is set, in `pieces`, and asks for a pause of `throttle_ms`; or the connection is cut instead
    (`is_cut`)."""

    code: int = 0
    is_lost: bool = False
    is_cut: bool = False
    delay: float = 0.0
    after: threading.Event | None = None
    pieces: int = 1
    throttle_ms: int = 0
    has_unknown_tags: bool = False


class ProduceBroker(LoopThread):
    """One broker with the topic `t`. `version` is the highest one of Produce. Any login is accepted, and is to be
    renewed after `login_ms`."""

    def __init__(self, partitions: int = 1, version: int = PRODUCE.highest, login_ms: int = 0) -> None:
        super().__init__("produce broker")
        self.logs = [ModelPartition() for _ in range(partitions)]
        self.plan: Callable[[], Act] = Act
        self.requests: list[Request] = []
        self.cuts = 0
        self.logins = 0
        self.intruders: list[Request] = []  # requests in the middle of a login
        self._login_ms = login_ms
        self._in_login: set[Link] = set()
        self._version = version
        self._topic_id = _ID if version >= _BY_ID else None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def servers(self) -> str:
        return self._broker.name

    def values(self, partition: int = 0) -> list[bytes]:
        return list(self.logs[partition].values)

    def count(self, api_key: int) -> int:
        """The requests of one kind that have arrived."""
        return sum(1 for each in list(self.requests) if each.api_key == api_key)

    def close_connections(self) -> None:
        self._run(self._close_connections())

    async def _close_connections(self) -> None:
        for link in self._broker._all:
            link.close()
        await asyncio.sleep(0.001)  # they are closed in the next iteration of the loop

    async def _start(self) -> None:
        self._broker = await FakeBroker().__aenter__()
        self._serving = asyncio.create_task(self._accept())

    async def _end(self) -> None:
        tasks = [self._serving, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._broker.__aexit__()

    async def _accept(self) -> None:
        while True:
            task = asyncio.create_task(self._serve(await self._broker.accept()))
            self._tasks.add(task)

    async def _serve(self, link: Link) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._answer(link, await link.receive()):
                pass

    async def _answer(self, link: Link, request: Request) -> bool:
        """Returns whether the connection stays."""
        self.requests.append(request)
        if request.api_key == SASL_HANDSHAKE.key:
            self._in_login.add(link)
            await link.reply(request, answer(SASL_HANDSHAKE, request.version, error_code=0, mechanisms=["PLAIN"]))
            return True
        if request.api_key == SASL_AUTHENTICATE.key:
            self._in_login.discard(link)
            self.logins += 1
            lifetime = datetime.timedelta(milliseconds=self._login_ms)
            fields = {"error_code": 0, "error_message": None, "auth_bytes": b"", "session_lifetime": lifetime}
            await link.reply(request, answer(SASL_AUTHENTICATE, request.version, **fields))
            return True
        if link in self._in_login:
            self.intruders.append(request)
        if request.api_key == API_VERSIONS.key:
            ranges = {api.key: (api.lowest, api.highest) for api in APIS} | {0: (PRODUCE.lowest, self._version)}
            await link.reply(request, api_versions(request.version, ranges))
        elif request.api_key == METADATA.key:
            await link.reply(request, self._metadata(request.version))
        elif request.api_key == INIT_PRODUCER_ID.key:
            fields: dict[str, Any] = {"throttle_time": 0, "error_code": 0, "producer_id": 7, "producer_epoch": 0}
            if request.version >= 6:
                fields |= {"ongoing_txn_producer_id": -1, "ongoing_txn_producer_epoch": -1}
            await link.reply(request, answer(INIT_PRODUCER_ID, request.version, **fields))
        else:
            assert request.api_key == PRODUCE.key
            return await self._produce(link, request)
        return True

    async def _produce(self, link: Link, request: Request) -> bool:
        act = self.plan()
        topics = []
        for topic in request.body.topic_data:
            partitions = []
            for each in topic.partition_data:
                code, offset = act.code, -1
                if not code and not act.is_lost:
                    code, offset = self.logs[each.index].append("t", each.index, bytes(each.records))
                fields = {"index": each.index, "error_code": code, "base_offset": offset}
                fields |= {"log_append_time": None, "log_start_offset": 0, "record_errors": (), "error_message": None}
                partitions.append(fields)
            place = {"topic_id": _ID} if request.version >= _BY_ID else {"name": "t"}
            topics.append({**place, "partition_responses": partitions})
        if not request.body.acks:
            return True
        if act.delay:
            await asyncio.sleep(act.delay)
        if act.after is not None:
            await asyncio.to_thread(act.after.wait, 30)
        if act.is_cut:
            self.cuts += 1
            link.close()
            return False
        entity = answer(PRODUCE, request.version, responses=topics, throttle_time=act.throttle_ms)
        data = frame(request.correlation_id, entity, unknown_tags=act.has_unknown_tags)
        size = -(-len(data) // act.pieces)
        for at in range(0, len(data), size):
            await link.send(data[at : at + size])
            if act.pieces > 1:
                await asyncio.sleep(0.0005)
        return True

    def _metadata(self, version: int) -> Any:
        partition = {"error_code": 0, "leader_id": 1, "leader_epoch": 0, "replica_nodes": (1,), "isr_nodes": (1,)}
        partitions = [
            {**partition, "partition_index": number, "offline_replicas": ()} for number in range(len(self.logs))
        ]
        topic = {"error_code": 0, "name": "t", "topic_id": self._topic_id, "is_internal": False}
        fields: dict[str, Any] = {
            "throttle_time": 0,
            "brokers": [{"node_id": 1, "host": self._broker.host, "port": self._broker.port, "rack": None}],
            "cluster_id": "c",
            "controller_id": 1,
            "topics": [{**topic, "partitions": partitions}],
        }
        if version >= 13:
            fields["error_code"] = 0
        return answer(METADATA, version, **fields)
