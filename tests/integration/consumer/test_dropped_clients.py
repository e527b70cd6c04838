"""Clients that are dropped without close(), by a notebook for example, and programs that end without it."""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

from headrace import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Producer,
    RebalanceListener,
    ShareConsumer,
)
from support.brokers.admin import Admin as Topics
from support.brokers.admin import unique
from support.brokers.produce import numbered
from support.harness.groups import WAYS
from support.harness.share_consumers import poll_some, put, share_group
from support.harness.waiting import wait_for

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

SOON = 20.0  # seconds on a busy machine; well below the session timeouts of 45 seconds
SESSION: dict[str, Any] = {"auto_offset_reset": "earliest"}


@pytest.fixture(scope="module")
def topic(admin: Topics, servers: str) -> str:
    topic = admin.create("dropped", 2)
    put(servers, topic, numbered(20))
    return topic


def members(servers: str, group: str) -> int:
    with Admin(bootstrap_servers=servers) as admin:
        found = admin.describe_group(group)
        return 0 if found is None else len(found.members)


def protocol_of(way: str) -> dict[str, Any]:
    """With default timeouts."""
    return {name: value for name, value in WAYS[way].items() if not name.endswith("_ms")}


class Listener(RebalanceListener):
    def __init__(self) -> None:
        self.consumer: Any = None
        self.revoked = 0

    def on_partitions_revoked(self, partitions: Any) -> None:
        self.revoked += 1


def joined(servers: str, group: str, topic: str, **settings: Any) -> Consumer:
    consumer = Consumer(bootstrap_servers=servers, group_id=group, **SESSION, **settings)
    consumer.subscribe([topic])
    wait_for_all(consumer)
    return consumer


def wait_for_all(consumer: Consumer, timeout: float = 60.0) -> None:
    wait_for("all partitions", lambda: consumer.poll(0.1) is not None and len(consumer.assignment()) == 2, timeout)


@pytest.mark.parametrize("way", WAYS)
def test_a_dropped_member_leaves_its_group(servers: str, topic: str, way: str) -> None:
    """Running a cell of a notebook again replaces the consumer of the last time."""
    group = unique("g")
    consumer = joined(servers, group, topic, **protocol_of(way))
    consumer = Consumer(bootstrap_servers=servers, group_id=group, **SESSION, **protocol_of(way))  # drops the first
    consumer.subscribe([topic])
    wait_for_all(consumer, SOON)
    consumer.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_member_says_that_it_waits_for_another_one_of_its_process(
    servers: str, topic: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An interrupted cell of a notebook keeps its consumer alive, and nobody polls it."""
    group = unique("g")
    first = joined(servers, group, topic, **protocol_of(way))
    second = Consumer(bootstrap_servers=servers, group_id=group, **SESSION, **protocol_of(way))
    second.subscribe([topic])
    text = f"waits for others of the same process, which do not poll: {first.group_metadata().member_id} "
    wait_for("the warning", lambda: second.poll(0.1) is not None and text in caplog.text, SOON)
    first.close()
    wait_for_all(second, SOON)
    second.close()
    assert caplog.text.count("do not poll") == 1


def test_a_dropped_member_with_a_listener_that_refers_to_it_leaves_its_group(servers: str, topic: str) -> None:
    group, listener = unique("g"), Listener()
    consumer = Consumer(bootstrap_servers=servers, group_id=group, **SESSION)
    listener.consumer = consumer
    consumer.subscribe([topic], listener=listener)
    wait_for_all(consumer)
    thread = consumer._parts.lifecycle.portal._server.thread  # type: ignore[union-attr]
    assert thread is not None
    del consumer, listener
    gc.collect()
    thread.join(SOON)
    assert not thread.is_alive()
    assert members(servers, group) == 0


def test_a_dropped_async_member_leaves_its_group_without_its_event_loop(servers: str, topic: str) -> None:
    group = unique("g")

    async def read() -> None:
        consumer = AsyncConsumer(bootstrap_servers=servers, group_id=group, **SESSION)
        consumer.subscribe([topic])
        while not consumer.assignment():
            await consumer.poll(0.1)

    asyncio.run(read())
    gc.collect()
    wait_for("leaving", lambda: members(servers, group) == 0, SOON)


def test_a_dropped_static_member_stays_in_its_group(servers: str, topic: str) -> None:
    """As with close(): it may come back within the session timeout."""
    group = unique("g")
    consumer = joined(servers, group, topic, group_instance_id="i")
    thread = consumer._parts.lifecycle.portal._server.thread  # type: ignore[union-attr]
    assert thread is not None
    del consumer
    thread.join(SOON)
    assert not thread.is_alive()
    assert members(servers, group) == 1


@pytest.mark.parametrize("place", ["its own thread", "another thread"])
def test_a_consumer_may_be_collected_anywhere(servers: str, topic: str, place: str) -> None:
    """The collector runs on any thread, in the middle of any step: here with the lock held that leaving needs."""
    group = unique("g")
    consumer: Any = joined(servers, group, topic)
    consumer.cycle = consumer
    parts, portal = consumer._parts, consumer._portal
    thread = portal._server.thread
    collected = threading.Event()

    def collect() -> None:
        with parts.buffer.lock:
            gc.collect()
            collected.set()

    del consumer
    gc.disable()
    try:
        if place == "its own thread":
            portal.loop().call_soon_threadsafe(collect)
        else:
            threading.Thread(target=collect).start()
        assert collected.wait(60)
    finally:
        gc.enable()
    thread.join(SOON)
    assert not thread.is_alive()
    assert members(servers, group) == 0


def test_nothing_is_committed_for_a_dropped_member(servers: str, topic: str) -> None:
    """Nobody knows whether the records of the last poll were processed."""
    group = unique("g")
    consumer = joined(servers, group, topic, auto_commit_interval_ms=3_600_000)
    thread = consumer._parts.lifecycle.portal._server.thread  # type: ignore[union-attr]
    assert thread is not None
    del consumer
    thread.join(SOON)
    with Consumer(bootstrap_servers=servers, group_id=group) as reader:
        assert set(reader.committed([(topic, 0), (topic, 1)]).values()) == {None}


@pytest.mark.kafka("4.2")
def test_the_records_of_a_dropped_share_consumer_are_released(servers: str, topic: str) -> None:
    group = share_group(servers, share_record_lock_duration_ms=60_000)
    first = ShareConsumer(bootstrap_servers=servers, group_id=group)
    first.subscribe([topic])
    records = poll_some(first)
    assert records
    del first
    with ShareConsumer(bootstrap_servers=servers, group_id=group) as second:
        second.subscribe([topic])
        assert poll_some(second, SOON)[0].delivery_count == 2


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
def test_the_records_of_a_dropped_producer_are_delivered(servers: str, topic: str, kind: type[Any]) -> None:
    settings = {"bootstrap_servers": servers, "linger_ms": 60_000}

    async def send() -> Any:
        return await AsyncProducer(**settings).send(topic, b"late")

    async def wait(delivery: Any) -> Any:
        return await asyncio.wait_for(delivery, SOON)

    if kind is Producer:
        delivered = Producer(**settings).send(topic, b"late").result(SOON)
    else:
        delivery = asyncio.run(send())
        gc.collect()
        delivered = asyncio.run(wait(delivery))
    assert delivered.topic == topic


@pytest.mark.parametrize("warnings", ["ignored", "errors"])
def test_a_program_that_ends_without_close_leaves_its_group_and_delivers(
    servers: str, topic: str, warnings: str
) -> None:
    group, text = unique("g"), unique("last").encode()
    program = f"""
from headrace import Consumer, Producer
consumer = Consumer(bootstrap_servers={servers!r}, group_id={group!r})
consumer.subscribe([{topic!r}])
while not consumer.assignment():
    consumer.poll(0.1)
producer = Producer(bootstrap_servers={servers!r}, linger_ms=60_000)
delivery = producer.send({topic!r}, {text!r})
"""
    command = [sys.executable, *(["-W", "error::ResourceWarning"] if warnings == "errors" else []), "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    unclosed = set(re.findall(r"ResourceWarning: unclosed (\w+)", done.stderr))
    assert unclosed == ({"Consumer", "Producer"} if warnings == "errors" else set()), done.stderr
    assert (done.stdout, done.returncode) == ("", 0)
    assert members(servers, group) == 0
    with Consumer(bootstrap_servers=servers, **SESSION) as reader:
        reader.assign([(topic, 0), (topic, 1)])
        wait_for("the record", lambda: any(record.value == text for record in reader.poll(0.5)))


def test_a_program_that_ends_without_close_does_not_wait_for_brokers_that_are_away() -> None:
    """All clients end together."""
    program = """
import time
from headrace import Consumer
clients = []
for _ in range(20):
    consumer = Consumer(bootstrap_servers="127.0.0.1:1", group_id="g")
    consumer.subscribe(["t"])
    consumer.poll(0.0)
    clients.append(consumer)
import headrace._aio.lifecycle as lifecycle
began = time.monotonic()
lifecycle._end_all()
print(time.monotonic() - began < 5.0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)
