"""The sender against in-memory brokers: the contents of requests, and the outcome of their batches."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace._aio.flag import Flag
from headrace.errors import HeadraceError
from support.harness.producer_in_memory import ModelCluster, ModelRequest, in_memory

Test = Callable[..., Coroutine[Any, Any, None]]
SEEDS = 400 if os.environ.get("SOAK") else 40


def on_a_loop(test: Test) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **keywords: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                await test(*args, **keywords)

        asyncio.run(bounded())

    return run


def places(request: ModelRequest) -> list[int]:
    return [partition for _, partition, _ in request.batches]


async def settled(cluster: ModelCluster) -> None:
    """Wait until every batch is complete."""
    async with asyncio.timeout(20):
        await cluster.accumulator.waiting.wait_for_async(list(cluster.accumulator.incomplete))
    assert not cluster.crashes


async def accepted(cluster: ModelCluster, value: bytes, partition: int) -> None:
    """Append the record as soon as there is buffer memory for it."""
    async with asyncio.timeout(5):
        while isinstance(found := cluster.accumulator.append("t", value, None, None, 1, partition, 0), Flag):
            await found.wait_async()


@pytest.mark.parametrize("is_idempotent", [True, False])
@on_a_loop
async def test_a_request_has_one_batch_of_a_partition_although_another_did_not_fit_into_the_one_before(
    is_idempotent: bool,
) -> None:
    cluster = in_memory({"t": 2}, max_request_size=10_000, batch_size=100, enable_idempotence=is_idempotent)
    served = asyncio.create_task(cluster.serve())
    for partition in range(2):
        cluster.send(b"first", partition=partition)
    await settled(cluster)
    served.cancel()
    large, small = b"." * 9_000, b"."
    deliveries = [cluster.send(value, partition=partition) for partition in range(2) for value in (large, small)]
    seen = []
    while not all(each.is_done for each in deliveries):
        request = await cluster.next_request()
        seen.append(places(request))
        cluster.handle(request)
        await asyncio.sleep(0)
    assert all(len(each) == len(set(each)) for each in seen), seen
    assert [each.offset for each in deliveries] == [1, 2, 1, 2]


@on_a_loop
async def test_a_batch_that_waits_for_the_next_request_follows_its_partition_to_another_broker() -> None:
    """It did not fit into the last request to a broker that is down now."""
    cluster = in_memory({"t": 2}, 2, max_request_size=10_000, batch_size=100, max_in_flight_requests_per_connection=1)
    cluster.leaders = dict.fromkeys(cluster.leaders, 1)
    cluster.publish()
    for number in range(2):
        cluster.send(b"%d" % number * 9_000, partition=number)
    request = await cluster.next_request()
    await cluster.no_request()
    cluster.down = {1}
    cluster.leaders = dict.fromkeys(cluster.leaders, 2)
    cluster.cut(1)
    request.lose()
    cluster.publish()
    served = asyncio.create_task(cluster.serve())
    connects = cluster.connects
    await settled(cluster)
    served.cancel()
    assert [value[:1] for place in cluster.logs.values() for value in place.values] == [b"0", b"1"]
    assert cluster.connects - connects < 20, "the client reconnected too often to a broker that is down"


@on_a_loop
async def test_a_broker_that_left_the_cluster_is_not_tried_without_a_pause() -> None:
    cluster = in_memory({"t": 1}, 2)
    cluster.down = {1}  # metadata still lists its partitions
    cluster.send(b"x")
    began = time.monotonic()
    while not cluster.connects or time.monotonic() < began + 0.1:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert cluster.connects < 2000 * (time.monotonic() - began)


@pytest.mark.parametrize("is_idempotent", [True, False])
@on_a_loop
async def test_records_are_delivered_after_all_earlier_ones_have_failed_at_once(is_idempotent: bool) -> None:
    cluster = in_memory(enable_idempotence=is_idempotent)
    failed = cluster.send(b"1")
    await cluster.next_request()
    cluster.sender.fail_all(HeadraceError("no right"))
    assert failed.is_done
    cluster.send(b"2")
    served = asyncio.create_task(cluster.serve())
    await settled(cluster)
    served.cancel()
    assert cluster.logs["t", 0].values == [b"2"]


@on_a_loop
async def test_those_who_wait_for_memory_are_woken_when_batches_expire() -> None:
    cluster = in_memory(buffer_memory=200, delivery_timeout_ms=100, request_timeout_ms=50)
    cluster.send(b"1" * 100)
    await accepted(cluster, b"2" * 100, partition=0)


@on_a_loop
async def test_an_expired_record_does_not_name_an_error_from_before_a_success() -> None:
    cluster = in_memory(delivery_timeout_ms=1500, request_timeout_ms=50)
    first = cluster.send(b"1")
    cluster.handle(await cluster.next_request(), ErrorCode.not_enough_replicas)
    cluster.handle(await cluster.next_request())
    second = cluster.send(b"2")
    await settled(cluster)
    assert first.offset == 0
    assert str(second.error).endswith("delivery.timeout.ms=1500: no broker has answered")


@on_a_loop
async def test_a_broker_that_does_not_answer_does_not_keep_senders_from_the_room_that_others_leave() -> None:
    cluster = in_memory({"t": 2}, 2, buffer_memory=1_000, linger_ms=0)
    cluster.send(b"0" * 700, partition=0)  # to broker 1, which never responds
    cluster.send(b"1" * 100, partition=1)
    waiting = asyncio.create_task(accepted(cluster, b"2" * 100, partition=1))
    requests = [await cluster.next_request(), await cluster.next_request()]
    cluster.handle(next(each for each in requests if each.node == 2))
    await waiting


@on_a_loop
async def test_a_batch_that_the_broker_refuses_as_too_large_is_sent_in_parts_with_their_offsets() -> None:
    cluster = in_memory(batch_size=2_000, linger_ms=20)
    cluster.logs["t", 0].largest_batch = 300
    deliveries = [cluster.send(b"%03d" % number * 10, timestamp=number) for number in range(50)]
    served = asyncio.create_task(cluster.serve())
    await settled(cluster)
    served.cancel()
    assert cluster.logs["t", 0].values == [b"%03d" % number * 10 for number in range(50)]
    assert cluster.logs["t", 0].timestamps == list(range(50))
    assert [each.offset for each in deliveries] == list(range(50))
    assert cluster.accumulator.memory.used == 0


@on_a_loop
async def test_a_record_that_is_too_large_by_itself_fails_alone() -> None:
    cluster = in_memory(batch_size=2_000, linger_ms=20)
    cluster.logs["t", 0].largest_batch = 300
    deliveries = [cluster.send(b"x" * (400 if number == 3 else 20)) for number in range(30)]
    served = asyncio.create_task(cluster.serve())
    await settled(cluster)
    served.cancel()
    assert [number for number, each in enumerate(deliveries) if each.error is not None] == [3]
    assert "max.message.bytes" in str(deliveries[3].error)
    assert [each.offset for each in deliveries if each.error is None] == list(range(29))


class Trouble:
    """Randomly responds, loses requests or responses, responds with errors, and moves leaders."""

    def __init__(self, cluster: ModelCluster, dice: random.Random) -> None:
        self._cluster = cluster
        self._dice = dice
        self.is_over = False

    async def run(self) -> None:
        while True:
            request = await self._cluster.next_request()
            await asyncio.sleep(self._dice.choice((0, 0, 0.001)))
            if request.answer.done():
                continue
            chance = 1.0 if self.is_over else self._dice.random()
            if chance < 0.05:
                self._cluster.cut(request.node)
                request.lose()
            elif chance < 0.15:  # the response and the connection are lost
                self._cluster.append(request)
                self._cluster.cut(request.node)
                request.lose()
            elif chance < 0.2:
                code = self._dice.choice((ErrorCode.not_enough_replicas, ErrorCode.request_timed_out))
                self._cluster.handle(request, code)
            else:
                self._cluster.handle(request)
            if chance < 0.05:
                for place in self._cluster.leaders:
                    self._cluster.leaders[place] = self._dice.randint(1, 2)
                self._cluster.publish()


@pytest.mark.parametrize("seed", range(SEEDS))
@on_a_loop
async def test_every_record_is_appended_once_and_in_order_whatever_is_lost(seed: int) -> None:
    dice = random.Random(seed)
    settings = {
        "batch_size": dice.choice((0, 100, 1000)),
        "linger_ms": dice.choice((0, 1, 5)),
        "max_request_size": dice.choice((1500, 100_000)),
        "max_in_flight_requests_per_connection": dice.choice((1, 2, 5)),
        "compression_type": dice.choice(("none", "lz4")),
    }
    cluster = in_memory({"t": 3, "u": 1}, 2, **settings)
    for log in cluster.logs.values():
        log.largest_batch = dice.choice((250, 2**31))
    trouble = Trouble(cluster, dice)
    served = asyncio.create_task(trouble.run())
    deliveries = []
    for number in range(300):
        topic, partition = dice.choice(list(cluster.logs))
        value = b"%05d" % number + b"." * dice.choice(
            (0, 50, 1000 if cluster.logs[topic, partition].largest_batch > 250 else 0)
        )
        deliveries.append((value, topic, partition, cluster.send(value, topic, partition=partition)))
        if dice.random() < 0.1:
            await asyncio.sleep(dice.choice((0, 0.001)))
    trouble.is_over = True
    cluster.publish()
    await settled(cluster)
    served.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await served
    for place, log in cluster.logs.items():
        assert log.values == [value for value, *rest, _ in deliveries if tuple(rest) == place]
    for value, topic, partition, delivery in deliveries:
        assert delivery.offset is not None
        assert cluster.logs[topic, partition].values[delivery.offset] == value
    assert cluster.accumulator.memory.used == 0
    assert not cluster.crashes


@on_a_loop
async def test_failures_after_the_first_warning_are_logged_at_the_end_at_the_latest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = in_memory()
    for number in range(3):
        cluster.send(b"x")
        await asyncio.sleep(0)
        cluster.sender.pump()
        cluster.sender.fail_all(HeadraceError(f"reason {number}"))
    cluster.sender.close()
    logged = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert logged == [
        "1 records were not delivered. Last error: reason 0",
        "2 records were not delivered. Last error: reason 2",
    ]
