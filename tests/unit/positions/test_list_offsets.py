"""ListOffsets responses: only valid offsets become positions."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from headrace import AsyncConsumer, TopicPartition
from headrace._protocol.codes import ErrorCode
from headrace._protocol.messages import API_VERSIONS, LIST_OFFSETS, METADATA
from headrace.errors import ProtocolError
from support.brokers.fake_broker import FakeBroker, Link, Request, answer, api_versions, run
from support.harness.machine_inputs import TP, metadata, partition, topic

ANOTHER = TopicPartition("t", 1)
ListOffsets = Callable[[Any], list[tuple[int, int]]]


@contextlib.asynccontextmanager
async def leader(list_offsets: ListOffsets, epoch: Callable[[], int] = lambda: 1) -> AsyncIterator[str]:
    """A broker that leads both partitions of `t`. `list_offsets` maps the partitions of a ListOffsets request to the
    partitions and offsets of the response. Requests with an older epoch of the leader than `epoch` are fenced, and
    metadata has the latest one. Fetch requests get no response."""
    async with FakeBroker() as broker:

        def reply(request: Request) -> Any:
            if request.api_key == API_VERSIONS.key:
                return api_versions(request.version)
            if request.api_key == METADATA.key:
                both = (partition(epoch=epoch()), partition(1, epoch=epoch()))
                made = metadata(topic(*both), brokers=(1,), version=request.version)
                (node,) = made.brokers
                return dataclasses.replace(
                    made, brokers=(dataclasses.replace(node, host=broker.host, port=broker.port),)
                )
            if request.api_key == LIST_OFFSETS.key:
                asked = request.body.topics[0].partitions
                fenced = any(item.current_leader_epoch < epoch() for item in asked)
                code = ErrorCode.fenced_leader_epoch if fenced else ErrorCode.none
                found = [
                    {
                        "partition_index": number,
                        "error_code": code,
                        "timestamp": -1,
                        "offset": offset,
                        "leader_epoch": 1,
                    }
                    for number, offset in list_offsets(asked)
                ]
                topics = [{"name": "t", "partitions": found}]
                return answer(LIST_OFFSETS, request.version, throttle_time=0, topics=topics)
            return None

        async def serve(link: Link) -> None:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    request = await link.receive()
                    if (entity := reply(request)) is not None:
                        await link.reply(request, entity)

        async def accept() -> None:
            async with asyncio.TaskGroup() as links:
                while True:
                    links.create_task(serve(await broker.accept()))

        serving = asyncio.create_task(accept())
        yield broker.name
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def always(offset: int) -> ListOffsets:
    return lambda asked: [(item.partition_index, offset) for item in asked]


@pytest.mark.parametrize(
    ("reset", "offset"),
    [("earliest", -7), ("earliest", -1), ("latest", -(2**63)), ("latest", -1), ("by_duration:PT1H", -2)],
)
def test_an_invalid_offset_of_a_leader_becomes_no_position(reset: str, offset: int) -> None:
    async def main() -> None:
        async with (
            leader(always(offset)) as servers,
            AsyncConsumer(bootstrap_servers=servers, auto_offset_reset=reset) as consumer,
        ):
            consumer.assign([TP])
            with pytest.raises(
                ProtocolError, match=f"ListOffsets of t-0: the response has the invalid offset {offset}"
            ):
                await consumer.poll(30.0)
            with pytest.raises(ProtocolError):
                await consumer.position(TP, timeout=30.0)

    run(main())


@pytest.mark.parametrize("offset", [-1, -7])
def test_an_invalid_offset_of_a_leader_fails_an_offset_query(offset: int) -> None:
    questions: list[Callable[[AsyncConsumer], Coroutine[Any, Any, Any]]] = [
        lambda consumer: consumer.beginning_offsets([TP], timeout=30.0),
        lambda consumer: consumer.end_offsets([TP], timeout=30.0),
        lambda consumer: consumer.watermarks(TP, timeout=30.0),
    ]

    async def main() -> None:
        async with leader(always(offset)) as servers, AsyncConsumer(bootstrap_servers=servers) as consumer:
            for ask in questions:
                with pytest.raises(ProtocolError, match="has the invalid offset"):
                    await ask(consumer)
            by_time = consumer.offsets_for_times({TP: 5}, timeout=30.0)
            if offset == -1:
                assert await by_time == {TP: None}, "no record is that recent"
            else:
                with pytest.raises(ProtocolError):
                    await by_time

    run(main())


def test_offsets_of_partitions_that_were_not_requested_are_ignored() -> None:
    """Even those of an assigned partition that already has a position."""

    def list_offsets(asked: Any) -> list[tuple[int, int]]:
        return [(0, 40), (1, 50), (7, 60)]

    async def main() -> None:
        async with (
            leader(list_offsets) as servers,
            AsyncConsumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign([TP, ANOTHER])
            consumer.seek(ANOTHER, 3)
            assert await consumer.position(TP, timeout=30.0) == 40
            assert await consumer.position(ANOTHER, timeout=30.0) == 3
            assert await consumer.end_offsets([TP], timeout=30.0) == {TP: 40}

    run(main())


def test_a_query_finds_a_leader_that_has_moved_since_the_last_one() -> None:
    """The consumer is not assigned to the topic, so only the query knows of it."""
    epoch = 1

    async def main() -> None:
        nonlocal epoch
        async with (
            leader(always(5), lambda: epoch) as server,
            AsyncConsumer(bootstrap_servers=server, retry_backoff_ms=1) as consumer,
        ):
            assert await consumer.end_offsets([TP]) == {TP: 5}
            epoch = 2
            assert await consumer.end_offsets([TP], timeout=20) == {TP: 5}

    run(main())
