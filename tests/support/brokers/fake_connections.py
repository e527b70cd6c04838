"""Connections to a scripted broker, and their requests and responses."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Awaitable
from typing import Any

import pytest

from headrace._net.calls import Reply
from headrace._net.connection import Connection
from headrace._protocol.messages import FETCH, METADATA
from headrace.config.consumer import ConsumerConfig
from headrace.errors import HeadraceError
from support.brokers.fake_broker import FakeBroker, Link, answer

ALL_TOPICS = {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
NO_FETCH = {
    "max_wait": 0,
    "min_bytes": 0,
    "max_bytes": 0,
    "isolation_level": 0,
    "session_id": 0,
    "session_epoch": 0,
    "topics": (),
    "forgotten_topics_data": (),
    "rack_id": "",
}


def config(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig.parse(bootstrap_servers="unused:1", client_id="tester", **settings)


# Where responses are received. The behaviour must be the same, so each test runs with both.
_on_a_thread = False


@pytest.fixture(params=["on the loop", "on a thread"], autouse=True)
def received(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "_on_a_thread", request.param == "on a thread")


async def connect(broker: FakeBroker, **settings: Any) -> tuple[Connection, Link]:
    opening = asyncio.create_task(Connection.open(broker.host, broker.port, config(**settings), 30.0))
    link = await broker.accept()
    await link.negotiate()
    connection = await opening
    if _on_a_thread:
        connection.receive_on_a_thread()
    return connection, link


def metadata(cluster: str = "c", throttle: int = 0, code: int = 0) -> Any:
    topics = [{"error_code": code, "name": "t", "topic_id": None, "is_internal": False, "partitions": ()}]
    return answer(
        METADATA,
        13,
        throttle_time=throttle,
        brokers=(),
        cluster_id=cluster,
        controller_id=1,
        topics=topics,
        error_code=0,
    )


def records(data: bytes) -> Any:
    partition = {"partition_index": 0, "error_code": 0, "high_watermark": 0, "aborted_transactions": None}
    topic = {"topic_id": uuid.UUID(int=1), "partitions": [{**partition, "records": data}]}
    return answer(FETCH, 18, throttle_time=0, error_code=0, session_id=0, responses=[topic])


def records_in(reply: Reply) -> memoryview:
    found = reply.body.responses[0].partitions[0].records
    assert isinstance(found, memoryview)
    return found


async def failure(work: Awaitable[Any]) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        await work
    return caught.value
