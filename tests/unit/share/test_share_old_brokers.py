"""Brokers without share groups or without the record limit: the first poll names the missing feature."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

import pytest

from headrace import AsyncShareConsumer, TopicPartition
from headrace._aio.run.share_run import ShareRunSettings
from headrace._protocol.messages import (
    API_VERSIONS,
    APIS,
    FIND_COORDINATOR,
    METADATA,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_GROUP_HEARTBEAT,
    Api,
)
from headrace.errors import UnsupportedVersionError
from headrace.records import Records, decode
from support.brokers.fake_broker import FakeBroker, Link, answer, api_versions, run
from support.brokers.record_batches import Entry, encode_batch

SHARES = (SHARE_GROUP_HEARTBEAT, SHARE_FETCH, SHARE_ACKNOWLEDGE)
BEFORE = {api.key: (api.lowest, api.highest) for api in APIS if api not in SHARES}
TOPIC = uuid.UUID(int=1)
NOBODY = {"leader_id": -1, "leader_epoch": -1}
KAFKA_4_0 = BEFORE | {76: (0, 0), 78: (0, 0), 79: (0, 0)}
KAFKA_4_1 = BEFORE | {76: (1, 1), 78: (1, 1), 79: (1, 1)}


async def serve(broker: FakeBroker, ranges: dict[int, tuple[int, int]]) -> None:
    async with asyncio.TaskGroup() as links:
        while True:
            links.create_task(_serve(await broker.accept(), broker, ranges))


async def _serve(link: Link, broker: FakeBroker, ranges: dict[int, tuple[int, int]]) -> None:
    try:
        while True:
            request = await link.receive()
            if request.api_key == METADATA.key:
                brokers = [{"node_id": 1, "host": broker.host, "port": broker.port, "rack": None}]
                fields = {"throttle_time": 0, "brokers": brokers, "cluster_id": "c", "controller_id": 1, "topics": ()}
                await link.reply(request, answer(METADATA, request.version, error_code=0, **fields))
            else:
                await link.reply(request, api_versions(request.version, ranges))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        pass


def first_poll(ranges: dict[int, tuple[int, int]], **settings: Any) -> None:
    async def work() -> None:
        async with FakeBroker() as broker:
            serving = asyncio.create_task(serve(broker, ranges))
            try:
                async with AsyncShareConsumer(bootstrap_servers=broker.name, group_id="g", **settings) as consumer:
                    consumer.subscribe(["t"])
                    await consumer.poll(50.0)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

    run(work())


@pytest.mark.parametrize("ranges", [BEFORE, KAFKA_4_0])
def test_the_first_poll_of_a_broker_without_share_groups_raises(ranges: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(UnsupportedVersionError, match=r"ShareFetch.*share groups need Apache Kafka 4\.1"):
        first_poll(ranges)


@pytest.mark.parametrize(("name", "value"), [("share_acquire_mode", "record_limit"), ("renew", "auto")])
def test_the_first_poll_of_a_broker_without_record_limit_or_renewals_raises(name: str, value: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=rf"{value} needs ShareFetch version 2 .*Kafka 4\.2"):
        first_poll(KAFKA_4_1, **{name: value})


class Kafka41:
    """A broker with five records of `t` and the share group APIs of Kafka 4.1."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.fetches: list[Any] = []
        self.acknowledged: list[tuple[int, int, tuple[int, ...]]] = []
        self._node = {"node_id": 1, "host": broker.host, "port": broker.port, "rack": None}

    async def serve(self) -> None:
        async with asyncio.TaskGroup() as links:
            while True:
                links.create_task(self._serve(await self.broker.accept()))

    async def _serve(self, link: Link) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
            while True:
                request = await link.receive()
                if request.api_key == API_VERSIONS.key:
                    await link.reply(request, api_versions(request.version, KAFKA_4_1))
                    continue
                api = next(api for api in APIS if api.key == request.api_key)
                fields = {"error_code": 0, "throttle_time": 0, **self._answer(api, request.body)}
                await link.reply(request, answer(api, request.version, **fields))

    def _answer(self, api: Api, body: Any) -> dict[str, Any]:
        if api is METADATA:
            partition = {"error_code": 0, "partition_index": 0, "leader_id": 1, "leader_epoch": 1}
            partition |= {"replica_nodes": (1,), "isr_nodes": (1,), "offline_replicas": ()}
            topic = {"error_code": 0, "name": "t", "topic_id": TOPIC, "is_internal": False, "partitions": [partition]}
            return {"brokers": [self._node], "cluster_id": "c", "controller_id": 1, "topics": [topic]}
        if api is FIND_COORDINATOR:
            return {"coordinators": [{"key": "g", "error_code": 0, "error_message": None, **self._node}]}
        if api is SHARE_GROUP_HEARTBEAT:
            assigned = {"topic_partitions": [{"topic_id": TOPIC, "partitions": (0,)}]}
            return {"member_id": "m", "member_epoch": 1, "heartbeat_interval": 5000, "assignment": assigned}
        for topic in body.topics:
            for partition in topic.partitions:
                for batch in partition.acknowledgement_batches:
                    self.acknowledged.append((batch.first_offset, batch.last_offset, batch.acknowledge_types))
        if api is SHARE_ACKNOWLEDGE:
            done = {"partition_index": 0, "error_code": 0, "current_leader": NOBODY}
            return {"responses": [{"topic_id": TOPIC, "partitions": [done]}], "node_endpoints": ()}
        self.fetches.append(body)
        had = {"records": b"", "acquired_records": ()}
        if len(self.fetches) == 1:
            records = encode_batch([Entry(value=b"x")] * 5)
            had = {
                "records": records,
                "acquired_records": [{"first_offset": 0, "last_offset": 4, "delivery_count": 1}],
            }
        found = {"partition_index": 0, "error_code": 0, "acknowledge_error_code": 0, "current_leader": NOBODY, **had}
        return {
            "acquisition_lock_timeout": 30_000,
            "responses": [{"topic_id": TOPIC, "partitions": [found]}],
            "node_endpoints": (),
        }


def test_without_a_record_limit_a_share_consumer_works_with_kafka_4_1() -> None:
    async def work() -> None:
        async with FakeBroker() as broker:
            old = Kafka41(broker)
            serving = asyncio.create_task(old.serve())
            try:
                settings = {"share_acknowledgement_mode": "explicit", "max_poll_records": 3}
                async with AsyncShareConsumer(bootstrap_servers=broker.name, group_id="g", **settings) as consumer:
                    consumer.subscribe(["t"])
                    for expected in ([0, 1, 2], [3, 4]):
                        records = await consumer.poll(50.0)
                        assert [record.offset for record in records] == expected
                        with pytest.raises(UnsupportedVersionError, match=r"RENEW needs .*Kafka 4\.2"):
                            consumer.acknowledge(records, "renew")
                        consumer.acknowledge(records)
                    assert await consumer.commit() == {TopicPartition("t", 0): None}
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
            assert (old.fetches[0].max_records, old.fetches[0].batch_size) == (3, 3)
            assert not hasattr(old.fetches[0], "share_acquire_mode")
            # The first records may be acknowledged by the next fetch, before the others.
            offsets = [(offset, types) for first, last, types in old.acknowledged for offset in range(first, last + 1)]
            assert offsets == [(offset, (1,)) for offset in range(5)]

    run(work())


def test_a_share_run_warns_once_that_locks_cannot_be_renewed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = AsyncShareConsumer(bootstrap_servers="127.0.0.1:1", group_id="g")
    consumer.subscribe(["t"])
    settings = ShareRunSettings(1, None, 0.1, 1.0, None, 1.0, None, 5.0)
    loop = consumer._parts.new_run(lambda record: None, settings, lambda record: None)
    records = Records([decode(encode_batch([Entry(value=b"x")]), topic="t", partition=0, position=0)])
    loop._warn_of_locks(records)
    assert not caplog.messages
    monkeypatch.setattr(consumer._parts.buffer, "can_renew", lambda _: False)
    for _ in range(2):
        loop._warn_of_locks(records)
    (said,) = caplog.messages
    assert "cannot be renewed" in said
