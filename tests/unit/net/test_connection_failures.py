"""Connections to a misbehaving fake broker, cancelled callers, and throttling."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest

from headrace._net.calls import Reply
from headrace._net.connection import Connection
from headrace._protocol.messages import FETCH, METADATA, OFFSET_COMMIT
from headrace.errors import (
    HeadraceError,
    NetworkError,
    ProtocolError,
    RequestTimeoutError,
    UnexpectedResponseError,
    UnsupportedVersionError,
)
from support.brokers.fake_broker import FakeBroker, Link, api_versions, frame, run, sized
from support.brokers.fake_connections import ALL_TOPICS, NO_FETCH, config, connect, failure, metadata
from support.brokers.fake_connections import received as received  # an autouse fixture
from support.harness.retries import patiently

# -- failures ----------------------------------------------------------------------------------------------------


async def all_fail(
    connection: Connection, link: Link, calls: list[asyncio.Future[Reply]], kind: type[HeadraceError]
) -> HeadraceError:
    """All calls in flight fail with the same error, which names the host, and the connection stays closed."""
    errors = [await failure(call) for call in calls]
    assert isinstance(errors[0], kind)
    assert len({str(error) for error in errors}) == 1
    assert connection.host in str(errors[0])
    assert (connection.is_open, connection.in_flight) == (False, 0)
    with pytest.raises(NetworkError, match=f"the connection to {connection.host} is closed") as caught:
        connection.start(METADATA, ALL_TOPICS)
    assert str(caught.value.__cause__) == str(errors[0])
    assert await link.is_closed_by_client()
    return errors[0]


@pytest.mark.parametrize(
    ("sent", "kind", "reason"),
    [
        pytest.param(
            frame(99, metadata()), UnexpectedResponseError, "answered request 99, but 2 was expected", id="wrong answer"
        ),
        pytest.param(
            frame(3, metadata()), UnexpectedResponseError, "answered request 3, but 2 was expected", id="out of order"
        ),
        pytest.param(sized(b"\0\0"), ProtocolError, "2 bytes has no header", id="shorter than a header"),
        pytest.param(sized(b"\0\0\0\x02" + b"\xff" * 9), ProtocolError, "Metadata to 127.0.0.1", id="nonsense"),
        pytest.param(struct.pack(">i", -5), ProtocolError, "-5 bytes", id="negative length"),
        pytest.param(
            struct.pack(">i", 100_001), ProtocolError, "exceeds receive.message.max.bytes=100000", id="too large"
        ),
        pytest.param(b"", NetworkError, "closed by the broker", id="dropped"),
        pytest.param(frame(2, metadata())[:9], NetworkError, "closed by the broker", id="dropped in a frame"),
        pytest.param(sized(b"x" * 90_000)[:-1], NetworkError, "closed by the broker", id="dropped in a large frame"),
    ],
)
def test_a_malformed_or_dropped_stream_fails_all_calls_in_flight(
    sent: bytes, kind: type[HeadraceError], reason: str
) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker, receive_message_max_bytes=100_000)
            calls = [connection.start(METADATA, ALL_TOPICS) for _ in range(3)]
            for _ in calls:
                await link.receive()
            await link.send(sent)
            if kind is NetworkError:
                link.close()
            error = await all_fail(connection, link, calls, kind)
            assert reason in str(error)

    run(main())


def test_a_connection_dropped_in_a_large_frame_fails_all_calls_in_flight() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            calls = [connection.start(FETCH, NO_FETCH), connection.start(METADATA, ALL_TOPICS)]
            await link.send(sized(b"\0\0\0\x02" + b"x" * 2_000_000)[:500_000])
            link.close()
            error = await all_fail(connection, link, calls, NetworkError)
            assert f"the connection to {broker.name} was closed" in str(error)

    run(main())


def test_a_closed_connection_starts_no_receiving_thread() -> None:
    """asyncio closes the socket one loop iteration after `close()`. A caller can run in between."""

    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            connection.close()
            connection.receive_on_a_thread()
            assert await link.is_closed_by_client()

    run(main())


def test_a_reset_connection_fails_the_call_in_flight() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            call = connection.start(METADATA, ALL_TOPICS)
            await link.receive()
            raw = link._writer.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link._writer.transport.abort()
            error = await failure(call)
            assert isinstance(error, NetworkError)
            assert "reset by peer" in str(error)
            assert not connection.is_open

    run(main())


def test_an_unexpected_response_closes_the_connection() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            await link.send(frame(7, metadata()))
            assert await link.is_closed_by_client()
            with pytest.raises(NetworkError) as caught:
                connection.start(METADATA, ALL_TOPICS)
            assert "answered request 7, but none was expected" in str(caught.value.__cause__)

    run(main())


@pytest.mark.parametrize(
    "stalled", [b"", sized(b"\0\0\0\x02" + b"x" * 900_000)[:300_000]], ids=["silent", "in a frame"]
)
def test_a_missed_request_deadline_closes_the_connection(stalled: bytes) -> None:
    """The broker would respond to later requests only after this one."""

    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            calls = [connection.start(FETCH, NO_FETCH, timeout=0.2), connection.start(METADATA, ALL_TOPICS)]
            await link.send(stalled)
            error = await all_fail(connection, link, calls, RequestTimeoutError)
            assert str(error) == f"Fetch to {broker.name}: no response in 0.2 s"

    run(main())


def test_a_response_in_time_cancels_its_deadline() -> None:
    async def main(scale: float) -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            call = connection.start(METADATA, ALL_TOPICS, timeout=0.1 * scale)
            await link.reply(await link.receive(), metadata())
            await call
            await asyncio.sleep(0.2 * scale)  # longer than the cancelled deadline
            assert connection.is_open
            connection.close()

    patiently(lambda scale: run(main(scale)))


# A receiving thread is woken by a shutdown, which the broker may see before the reset.
@pytest.mark.parametrize("received", ["on the loop"], indirect=True)
def test_a_protocol_error_resets_the_connection() -> None:
    """After an orderly close, a broker that keeps sending would notice only when its window opens."""

    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            call = connection.start(METADATA, ALL_TOPICS)
            await link.receive()
            await link.send(b"\x7f" * 100)
            assert isinstance(await failure(call), ProtocolError)
            with pytest.raises(ConnectionResetError):
                await link.receive()

    run(main())


def test_closing_a_connection_fails_the_call_in_flight() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            call = connection.start(METADATA, ALL_TOPICS)
            connection.close()
            connection.close()
            error = await all_fail(connection, link, [call], NetworkError)
            assert "closed by this client" in str(error)

    run(main())


def test_a_request_unsupported_by_the_broker_leaves_the_connection_open() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            opening = asyncio.create_task(Connection.open(broker.host, broker.port, config(), 30.0))
            link = await broker.accept()
            await link.reply(await link.receive(), api_versions(4, {METADATA.key: (0, 13)}))
            connection = await opening
            with pytest.raises(UnsupportedVersionError, match=broker.name):
                await connection.call(OFFSET_COMMIT, {})
            assert (connection.is_open, connection.in_flight) == (True, 0)
            connection.close()

    run(main())


# -- cancelled callers -------------------------------------------------------------------------------------------


def test_the_response_to_a_cancelled_caller_is_dropped() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            gone = asyncio.create_task(connection.call(METADATA, ALL_TOPICS))
            request = await link.receive()
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            assert (connection.is_open, connection.in_flight) == (True, 1)
            stays = asyncio.create_task(connection.call(METADATA, ALL_TOPICS))
            await link.reply(request, metadata("for nobody"))
            await link.reply(await link.receive(), metadata("for the other caller"))
            assert (await stays).body.cluster_id == "for the other caller"
            connection.close()

    run(main())


def test_failures_of_calls_that_nobody_awaits_are_not_logged() -> None:
    async def main() -> None:
        unhandled: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            cancelled = asyncio.create_task(connection.call(METADATA, ALL_TOPICS))
            await link.receive()
            cancelled.cancel()
            connection.start(METADATA, ALL_TOPICS)
            connection.start(METADATA, ALL_TOPICS)
            await link.send(sized(b"\0\0\0\x02" + b"\xff" * 9))
            assert await link.is_closed_by_client()
            del connection
        assert unhandled == []

    run(main())


# -- quotas ------------------------------------------------------------------------------------------------------


def test_a_throttled_connection_sends_nothing_until_the_throttle_ends() -> None:
    async def main(scale: float) -> None:
        throttle = 0.2 * scale
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            loop = asyncio.get_running_loop()
            first, second = connection.start(METADATA, ALL_TOPICS), connection.start(METADATA, ALL_TOPICS)
            answered = loop.time()
            await link.reply(await link.receive(), metadata(throttle=round(1000 * throttle)))
            await link.reply(await link.receive(), metadata(throttle=10))
            await first
            await second
            assert throttle / 2 < connection.throttled_for <= throttle, "a shorter throttle does not end a longer one"
            third = asyncio.create_task(connection.call(METADATA, ALL_TOPICS))
            request = await link.receive()
            assert loop.time() - answered >= throttle
            await link.reply(request, metadata())
            await third
            assert connection.throttled_for == 0
            connection.close()

    patiently(lambda scale: run(main(scale)))
