"""Concurrent fetches, throttled fetches, and reuse of response frames."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace

from headrace import AsyncConsumer, TopicPartition
from headrace._aio.fetch.decoder import Decoder, Delivery
from headrace._protocol.messages import API_VERSIONS, FETCH, METADATA
from headrace.config.consumer import ConsumerConfig
from support.brokers.fake_broker import FakeBroker, answer, api_versions, run
from support.brokers.record_batches import Entry, encode_batch
from support.harness.buffer_in_memory import TP, buffer

TOPIC_ID = uuid.UUID(int=1)


class ScriptedCluster:
    """One broker that leads two partitions of `t`. The test handles its fetch requests."""

    def __init__(self, on_fetch) -> None:
        self._on_fetch = on_fetch
        self._broker = FakeBroker()

    async def __aenter__(self):
        await self._broker.__aenter__()
        self._server = asyncio.create_task(self._accept())
        return self._broker.name

    async def __aexit__(self, *problem) -> None:
        self._server.cancel()
        await asyncio.gather(self._server, return_exceptions=True)
        await self._broker.__aexit__(*problem)

    async def _accept(self) -> None:
        async with asyncio.TaskGroup() as links:
            while True:
                links.create_task(self._serve(await self._broker.accept()))

    async def _serve(self, link) -> None:
        while True:
            request = await link.receive()
            if request.api_key == API_VERSIONS.key:
                await link.reply(request, api_versions(request.version))
            elif request.api_key == METADATA.key:
                await link.reply(request, answer(METADATA, request.version, **self._metadata()))
            elif request.api_key == FETCH.key:
                await self._on_fetch(link, request)

    def _metadata(self):
        partitions = [
            {
                "error_code": 0,
                "partition_index": number,
                "leader_id": 1,
                "leader_epoch": 1,
                "replica_nodes": (1,),
                "isr_nodes": (1,),
                "offline_replicas": (),
            }
            for number in range(2)
        ]
        return {
            "throttle_time": 0,
            "brokers": [{"node_id": 1, "host": self._broker.host, "port": self._broker.port, "rack": None}],
            "cluster_id": "c",
            "controller_id": 1,
            "error_code": 0,
            "topics": [
                {"error_code": 0, "name": "t", "topic_id": TOPIC_ID, "is_internal": False, "partitions": partitions}
            ],
        }


def test_records_of_a_throttled_response_do_not_wait_for_the_throttle():
    records = encode_batch([Entry(value=b"x" * 100) for _ in range(1000)], base_offset=0, leader_epoch=1)
    fetched = {
        "partition_index": 0,
        "error_code": 0,
        "high_watermark": 5000,
        "last_stable_offset": 5000,
        "aborted_transactions": None,
        "records": records,
    }

    async def on_fetch(link, request):
        topics = [{"topic_id": TOPIC_ID, "partitions": [fetched]}]
        fields = {"throttle_time": 60_000, "error_code": 0, "session_id": 0, "responses": topics}
        await link.reply(request, answer(FETCH, request.version, **fields))

    async def main():
        async with ScriptedCluster(on_fetch) as servers, AsyncConsumer(bootstrap_servers=servers) as consumer:
            consumer.assign([TP])
            consumer.seek(TP, 0)
            assert len(await consumer.poll(50.0)) == 500

    run(main())


def test_a_second_fetch_to_a_broker_has_a_short_max_wait():
    """Otherwise both connections could wait at the broker, and none could fetch a third partition."""
    asked = asyncio.Queue()

    async def on_fetch(link, request):
        partitions = [item.partition for topic in request.body.topics for item in topic.partitions]
        await asked.put((partitions, request.body.max_wait.total_seconds()))  # never respond

    async def main():
        async with ScriptedCluster(on_fetch) as servers, AsyncConsumer(bootstrap_servers=servers) as consumer:
            consumer.assign([TP])
            consumer.seek(TP, 0)
            await consumer.poll(0.0)
            assert await asyncio.wait_for(asked.get(), 50) == ([0], 0.5)
            consumer.assign([TP, TopicPartition("t", 1)])
            consumer.seek(TopicPartition("t", 1), 0)
            assert await asyncio.wait_for(asked.get(), 50) == ([1], 0.02)

    run(main())


def test_a_frame_without_wanted_records_is_recycled_once():
    class Receiving:
        def __init__(self):
            self.given = []

        def recycle(self, frame):
            self.given.append(frame)

    connection, reply = Receiving(), SimpleNamespace(frame=bytearray(10))
    decoder = Decoder(ConsumerConfig.parse(bootstrap_servers="b:1"), buffer(), lambda: None)
    decoder.submit(Delivery(reply, connection, []))
    decoder.close()
    assert connection.given == [reply.frame]
