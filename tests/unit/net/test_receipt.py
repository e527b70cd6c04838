"""Small responses are passed to their caller on the thread that receives them, which may send the next request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace._net.calls import NextRequest, Reply
from headrace._net.connection import Connection
from headrace._protocol.messages import FETCH, METADATA
from headrace.errors import NetworkError, ProtocolError, RequestTimeoutError
from support.brokers.fake_broker import FakeBroker, frame, run
from support.brokers.fake_connections import (
    ALL_TOPICS,
    NO_FETCH,
    connect,
    failure,
    metadata,
    records,
    records_in,
)
from support.brokers.fake_connections import received as received  # an autouse fixture
from support.harness.retries import patiently


class Receipts:
    def __init__(self) -> None:
        self.seen: list[tuple[Reply, str]] = []

    def __call__(self, reply: Reply) -> None:
        """Nothing follows."""
        self.seen.append((reply, threading.current_thread().name))


@pytest.mark.parametrize(("size", "is_passed"), [(10, True), (60_000, True), (70_000, False)])
def test_a_small_response_is_passed_on_where_it_is_received(
    request: pytest.FixtureRequest, size: int, is_passed: bool
) -> None:
    on_a_thread = "on a thread" in request.node.name

    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            for _ in range(2):
                receipts = Receipts()
                call = connection.start(FETCH, NO_FETCH, on_receipt=receipts)
                await link.send(frame((await link.receive()).correlation_id, records(b"x" * size)))
                reply = await call
                assert records_in(reply) == b"x" * size
                if on_a_thread and is_passed:
                    ((passed, thread),) = receipts.seen
                    assert passed is reply, "it is parsed once"
                    assert thread.startswith("headrace-receive")
                else:
                    assert receipts.seen == []
            connection.close()

    run(main())


@pytest.mark.parametrize("damage", ["another id", "cut off", "too short"])
def test_a_response_that_cannot_be_read_is_not_passed_on(damage: str) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            receipts = Receipts()
            call = connection.start(FETCH, NO_FETCH, on_receipt=receipts)
            number = (await link.receive()).correlation_id
            whole = frame(number + 1 if damage == "another id" else number, records(b"x"))[4:]
            part = {"another id": whole, "cut off": whole[:-3], "too short": whole[:2]}[damage]
            await link.send(len(part).to_bytes(4, "big") + part)
            assert isinstance(await failure(call), ProtocolError)
            assert receipts.seen == []

    run(main())


# -- requests that follow a response -----------------------------------------------------------------------------


class Following:
    """Follows each response with another request, as long as `more` says so."""

    def __init__(self, more: Callable[[Reply], bool]) -> None:
        self.seen = 0
        self._more = more

    def __call__(self, reply: Reply) -> Callable[[], NextRequest | None]:
        self.seen += 1
        request = NextRequest({**NO_FETCH, "max_bytes": len(records_in(reply))}, self)
        return lambda: request if self._more(reply) else None


async def following(broker: FakeBroker, more: Callable[[Reply], bool], **settings: Any) -> tuple[Any, ...]:
    connection, link = await connect(broker, **settings)
    connection.receive_on_a_thread()
    follow = Following(more)
    return connection, link, follow, connection.start(FETCH, NO_FETCH, on_receipt=follow)


async def answer_with(link: Any, size: int) -> int:
    """Answers a fetch with so many bytes. Returns its max_bytes: the size of the response that it follows."""
    request = await link.receive()
    await link.send(frame(request.correlation_id, records(b"x" * size)))
    return int(request.body.max_bytes)


def test_a_call_waits_for_the_response_that_no_request_follows() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link, follow, call = await following(broker, lambda reply: len(records_in(reply)) < 3)
            assert [await answer_with(link, size) for size in (1, 2, 3)] == [0, 1, 2]
            assert len(records_in(await call)) == 3
            assert (follow.seen, connection.in_flight) == (3, 0)
            after = connection.start(METADATA, ALL_TOPICS)
            await link.reply(await link.receive(), metadata("after"))
            assert (await after).body.cluster_id == "after"
            connection.close()

    run(main())


@pytest.mark.parametrize("why", ["large", "held back", "not alone"])
def test_no_request_follows_a_response_that_is(why: str) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link, follow, call = await following(broker, lambda reply: True)
            if why == "held back":
                connection.hold()
            elif why == "not alone":
                connection.start(METADATA, ALL_TOPICS)
            await answer_with(link, 70_000 if why == "large" else 10)
            assert records_in(await call)
            assert follow.seen == (why != "large")
            connection.close()

    run(main())


def test_each_request_that_follows_a_response_has_the_whole_request_timeout() -> None:
    async def main(scale: float) -> None:
        timeout = 0.4 * scale
        async with FakeBroker() as broker:
            _, link, follow, call = await following(
                broker, lambda reply: True, request_timeout_ms=round(1000 * timeout)
            )
            for _ in range(4):
                await asyncio.sleep(timeout / 2)
                assert not call.done()
                await answer_with(link, 1)
            error = await failure(call)
            assert isinstance(error, RequestTimeoutError)
            assert f"no response in {timeout:g} s" in str(error)
            assert follow.seen == 4

    patiently(lambda scale: run(main(scale)))


def test_a_call_fails_if_its_next_request_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise BrokenPipeError("it broke")

    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link, follow, call = await following(broker, lambda reply: True)
            assert isinstance(connection, Connection)
            monkeypatch.setattr(connection.receiver, "send", broken)
            await answer_with(link, 1)
            assert isinstance(await failure(call), NetworkError)
            assert follow.seen == 1

    run(main())
