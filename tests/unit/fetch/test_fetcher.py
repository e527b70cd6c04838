"""Concurrent fetches, throttled fetches, and reuse of response frames."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from types import SimpleNamespace

from headrace import AsyncConsumer, TopicPartition
from headrace._aio.consumer import parts_of
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


def test_polls_get_single_records_while_the_loop_is_busy():
    """The thread that receives a record sends the next fetch, decodes the record, and wakes the poll."""
    is_free = threading.Event()
    is_blocked = False

    async def on_fetch(link, request):
        nonlocal is_blocked
        if not is_blocked:
            is_blocked = True
            parts_of(client).lifecycle.portal.call_soon(lambda: is_free.wait(50))
        offset = request.body.topics[0].partitions[0].fetch_offset
        record = encode_batch([Entry(value=b"x")], base_offset=offset, leader_epoch=1)
        data = {"partition_index": 0, "error_code": 0, "high_watermark": 9, "last_stable_offset": 9, "records": record}
        topics = [{"topic_id": TOPIC_ID, "partitions": [{**data, "aborted_transactions": None}]}]
        fields = {"throttle_time": 0, "error_code": 0, "session_id": 0, "responses": topics if offset < 3 else []}
        await link.reply(request, answer(FETCH, request.version, **fields))

    async def main():
        nonlocal client
        async with ScriptedCluster(on_fetch) as servers, AsyncConsumer(bootstrap_servers=servers) as client:
            client.assign([TP])
            client.seek(TP, 0)
            try:
                offsets = []
                while len(offsets) < 3:
                    offsets += [record.offset for record in await client.poll(20.0)]
                assert offsets == [0, 1, 2]
                assert not is_free.is_set()
            finally:
                is_free.set()

    client = None
    run(main())


class ParkedFetches:
    """Answers each fetch with nothing after its max wait, or at once if `answer_to` has something. Notes the fetches:
    the max wait in milliseconds, the partitions of the session, and those that the request names."""

    def __init__(self) -> None:
        self.asked = asyncio.Queue()
        self._sessions = {}

    async def __call__(self, link, request) -> None:
        body = request.body
        session = self._sessions.setdefault(link, {})
        named = {item.partition: item.fetch_offset for topic in body.topics for item in topic.partitions}
        session.update(named)
        for topic in body.forgotten_topics_data:
            for number in topic.partitions:
                del session[number]
        wait = round(body.max_wait.total_seconds() * 1000)
        await self.asked.put((wait, dict(session), named))
        responses = self.answer_to(named)
        if not responses:
            await asyncio.sleep(wait / 1000)
        fields = {"throttle_time": 0, "error_code": 0, "session_id": 5, "responses": responses}
        await link.reply(request, answer(FETCH, request.version, **fields))

    def answer_to(self, named):
        return []

    async def next(self):
        return await asyncio.wait_for(self.asked.get(), 50)

    async def until(self, what, index):
        """The next request with these partitions, in the session (1) or named (2)."""
        for _ in range(60):
            if (found := await self.next())[index] == what:
                return found
        raise AssertionError(f"no request for {what}")


T1 = TopicPartition("t", 1)


@contextlib.asynccontextmanager
async def idle_consumer(fetches, *, max_wait_ms):
    """Of both partitions, at the offsets 3 and 4."""
    settings = {"fetch_max_wait_ms": max_wait_ms}
    async with ScriptedCluster(fetches) as servers, AsyncConsumer(bootstrap_servers=servers, **settings) as consumer:
        consumer.assign([TP, T1])
        consumer.seek(TP, 3)
        consumer.seek(T1, 4)
        await consumer.poll(0.0)
        yield consumer


def test_idle_fetches_name_no_partition_until_something_changes():
    fetches = ParkedFetches()

    async def main():
        async with idle_consumer(fetches, max_wait_ms=30) as consumer:
            assert await fetches.next() == (30, {0: 3, 1: 4}, {0: 3, 1: 4})
            for _ in range(3):
                assert await fetches.next() == (30, {0: 3, 1: 4}, {})
            consumer.pause([T1])
            await fetches.until({0: 3}, 1)
            consumer.resume([T1])
            await fetches.until({1: 4}, 2)

    run(main())


def test_idle_partitions_of_the_second_stream_join_the_first_one():
    """Otherwise they would be fetched every 20 ms for as long as nothing is written."""
    fetches = ParkedFetches()

    async def main():
        async with idle_consumer(fetches, max_wait_ms=150) as consumer:
            assert (await fetches.next())[:2] == (150, {0: 3, 1: 4})
            consumer.seek(T1, 5)
            assert await fetches.next() == (20, {1: 5}, {1: 5})
            await fetches.until({0: 3, 1: 5}, 1)
            for _ in range(4):
                assert await fetches.next() == (150, {0: 3, 1: 5}, {}), "the second stream is idle"

    run(main())


def test_many_seeks_are_looked_at_together(monkeypatch):
    """Each look takes time in proportion to the assigned partitions: a program that seeks all of them one by one would
    wait for the square of their number."""
    fetches, is_free, looks = ParkedFetches(), threading.Event(), []

    async def main():
        async with idle_consumer(fetches, max_wait_ms=150) as consumer:
            lifecycle = parts_of(consumer).lifecycle
            wake = lifecycle.runtime.positions.wake
            monkeypatch.setattr(lifecycle.runtime.positions, "wake", lambda: (looks.append(1), wake()))
            lifecycle.portal.call_soon(lambda: is_free.wait(50))
            for offset in range(100, 200):
                consumer.seek(T1, offset)
            is_free.set()
            await fetches.until({0: 3, 1: 199}, 1)
            assert len(looks) <= 3

    run(main())


def test_a_refused_partition_is_fetched_again_beside_idle_ones():
    class Refusing(ParkedFetches):
        refusals = 1

        def answer_to(self, named):
            if 1 not in named or not self.refusals:
                return []
            self.refusals -= 1
            data = {"partition_index": 1, "error_code": -1, "high_watermark": -1, "aborted_transactions": None}
            return [{"topic_id": TOPIC_ID, "partitions": [{**data, "last_stable_offset": -1, "records": None}]}]

    fetches = Refusing()

    async def main():
        async with idle_consumer(fetches, max_wait_ms=60_000):  # too long for this test: the second stream retries
            await fetches.until({0: 3, 1: 4}, 2)
            await fetches.until({1: 4}, 2)

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
