"""Connections to a well-behaved fake broker: the handshake, and responses of every size."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._net.connection import Connection
from headrace._net.frame_pool import FramePool
from headrace._protocol.messages import FETCH, METADATA
from headrace.errors import EncodingError, KafkaError, NetworkError, ProtocolError, RequestTimeoutError
from support.brokers.fake_broker import FakeBroker, api_versions, frame, run
from support.brokers.fake_connections import (
    ALL_TOPICS,
    NO_FETCH,
    config,
    connect,
    failure,
    metadata,
    records,
    records_in,
)
from support.brokers.fake_connections import received as received  # an autouse fixture

# -- handshake ---------------------------------------------------------------------------------------------------


def test_a_connection_negotiates_versions_first() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            opening = asyncio.create_task(Connection.open(broker.host, broker.port, config(), 30.0))
            link = await broker.accept()
            request = await link.negotiate(unknown_tags=True)
            assert (request.version, request.client_id) == (4, "tester")
            assert request.body.client_software_name == "headrace"
            connection = await opening
            assert connection.versions.pick(METADATA) == 13
            assert (connection.is_open, connection.in_flight, connection.host) == (True, 0, broker.name)
            connection.close()

    run(main())


@pytest.mark.parametrize(("ranges", "second"), [({18: (0, 3)}, 3), ({18: (0, 0)}, 0), ({}, 0)])
def test_api_versions_is_retried_with_the_broker_s_version(ranges: dict[int, tuple[int, int]], second: int) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            opening = asyncio.create_task(Connection.open(broker.host, broker.port, config(), 30.0))
            link = await broker.accept()
            await link.reply(await link.receive(), api_versions(0, ranges, error_code=35))
            request = await link.receive()
            assert request.version == second
            await link.reply(request, api_versions(second))
            (await opening).close()

    run(main())


@pytest.mark.parametrize(
    ("version", "ranges", "code", "name"),
    [
        pytest.param(0, {18: (5, 9)}, 35, "UNSUPPORTED_VERSION", id="no common version"),
        pytest.param(4, {}, 42, "INVALID_REQUEST", id="rejected"),
        pytest.param(4, {}, 999, "UNKNOWN_ERROR_999", id="rejected with an unknown error code"),
    ],
)
def test_a_broker_that_rejects_api_versions_is_an_error(
    version: int, ranges: dict[int, tuple[int, int]], code: int, name: str
) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            opening = asyncio.create_task(Connection.open(broker.host, broker.port, config(), 30.0))
            link = await broker.accept()
            await link.reply(await link.receive(), api_versions(version, ranges, error_code=code))
            error = await failure(opening)
            assert isinstance(error, KafkaError)
            assert str(error) == f"ApiVersions to {broker.name}: {name} ({code})"
            assert await link.is_closed_by_client()

    run(main())


@pytest.mark.parametrize(
    "first_bytes",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="a web server"),
        pytest.param(b"\x15\x03\x03\x00\x02\x02\x46", id="a TLS port"),
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", id="ssh"),
        pytest.param(b"\xff\xff\xff\xff", id="a negative length"),
    ],
)
def test_a_connection_to_a_server_that_is_no_broker_is_a_protocol_error(first_bytes: bytes) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            opening = asyncio.create_task(Connection.open(broker.host, broker.port, config(), 30.0))
            link = await broker.accept()
            await link.send(first_bytes)
            error = await failure(opening)
            assert isinstance(error, ProtocolError)
            assert broker.name in str(error)
            assert "not a Kafka broker's plain-text port" in str(error)
            assert await link.is_closed_by_client()

    run(main())


def test_a_request_that_cannot_be_encoded_leaves_the_connection_usable() -> None:
    """Requests before and after it get their responses on the same connection."""

    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            before = connection.start(METADATA, ALL_TOPICS)
            for wrong in ("\ud800", "t" * 2**15, 5):
                with pytest.raises(
                    EncodingError, match="cannot encode the request Metadata: name of MetadataRequestTopic"
                ):
                    await connection.call(METADATA, {**ALL_TOPICS, "topics": [{"topic_id": None, "name": wrong}]})
                assert connection.in_flight == 1
            after = connection.start(METADATA, ALL_TOPICS)
            for answer in (before, after):
                await link.reply(await link.receive(), metadata())
                await answer
            assert (connection.is_open, connection.in_flight) == (True, 0)
            connection.close()

    run(main())


def test_a_broker_that_never_responds_is_a_timeout() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            error = await failure(Connection.open(broker.host, broker.port, config(request_timeout_ms=50), 30.0))
            assert isinstance(error, RequestTimeoutError)
            assert str(error) == f"ApiVersions to {broker.name}: no response in 0.1 s"
            assert error.retriable
            assert await (await broker.accept()).is_closed_by_client()

    run(main())


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", None), ("no..such", 9092), ("127.0.0.1", 99_999)])
def test_an_unreachable_host_or_port_is_a_network_error(host: str, port: int | None) -> None:
    async def main() -> None:
        with socket.socket() as silent:  # reserves the port and does not listen
            silent.bind(("127.0.0.1", 0))
            free = silent.getsockname()[1]
            error = await failure(Connection.open(host, port or free, config(), 30.0))
        assert isinstance(error, NetworkError)
        assert str(error).startswith(f"cannot connect to {host}:{port or free}: ")
        assert error.retriable

    run(main())


def test_a_cancelled_connect_leaves_no_connection_open() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            opening = asyncio.create_task(Connection.open(broker.host, broker.port, config(), 30.0))
            link = await broker.accept()
            await link.receive()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            assert await link.is_closed_by_client()

    run(main())


def test_the_receive_buffer_has_the_configured_size() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, _ = await connect(broker, receive_buffer_bytes=10_000)
            assert connection._transport is not None
            raw = connection._transport.get_extra_info("socket")
            assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 20_000  # Linux doubles it
            connection.close()

    run(main())


# -- responses ---------------------------------------------------------------------------------------------------


def test_requests_are_pipelined() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            calls = [asyncio.create_task(connection.call(METADATA, ALL_TOPICS)) for _ in range(5)]
            requests = [await link.receive() for _ in calls]  # all arrive before the first response
            assert connection.in_flight == 5
            for number, request in enumerate(requests):
                await link.reply(request, metadata(f"cluster {number}"))
            replies = await asyncio.gather(*calls)
            assert [reply.body.cluster_id for reply in replies] == [f"cluster {number}" for number in range(5)]
            assert (connection.in_flight, replies[0].version, replies[0].frame) == (0, 13, None)
            connection.close()

    run(main())


def test_unknown_tags_and_error_codes_of_a_newer_broker_are_accepted() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            call = asyncio.create_task(connection.call(METADATA, ALL_TOPICS))
            await link.reply(await link.receive(), metadata(code=999), unknown_tags=True)
            reply = await call
            assert (reply.body.cluster_id, reply.body.topics[0].error_code) == ("c", 999)
            assert connection.is_open
            connection.close()

    run(main())


@pytest.mark.parametrize("size", [0, 65_000, 65_532, 65_533, 70_000, 524_200, 524_288, 5_000_000])
def test_responses_of_any_size_are_received(size: int) -> None:
    """Within the staging buffer, just above it, and large enough for the receiving thread."""

    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            data = bytes(range(256)) * (size // 256 + 1)
            calls = [connection.start(FETCH, NO_FETCH) for _ in range(3)]
            for _ in calls:
                request = await link.receive()
                await link.send(frame(request.correlation_id, records(data[:size])))
            for call in calls:
                assert records_in(await call) == data[:size]
            last = connection.start(METADATA, ALL_TOPICS)
            await link.reply(await link.receive(), metadata("after"))
            assert (await last).body.cluster_id == "after"
            connection.close()

    run(main())


@pytest.mark.parametrize("settings", [{}, {"receive_buffer_bytes": 65_536}], ids=["tuned", "small"])
def test_a_large_response_whose_end_arrives_separately_is_received(settings: dict[str, int]) -> None:
    """The receiving thread waits for large pieces, and the last piece stays small."""

    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker, **settings)
            data = bytes(range(256)) * 4000
            for end in (1, 262_143, 262_144, 262_145, 600_000):
                call = connection.start(FETCH, NO_FETCH)
                whole = frame((await link.receive()).correlation_id, records(data))
                await link.send(whole[:-end])
                await link.send(whole[-end:-1])
                await link.send(whole[-1:])
                assert records_in(await call) == data
            connection.close()

    run(main())


def test_many_responses_in_one_read_are_received() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            calls = [connection.start(METADATA, ALL_TOPICS) for _ in range(300)]
            requests = [await link.receive() for _ in calls]
            await link.send(b"".join(frame(it.correlation_id, metadata(f"{it.correlation_id}")) for it in requests))
            for call, request in zip(calls, requests, strict=True):
                assert (await call).body.cluster_id == f"{request.correlation_id}"
            connection.close()

    run(main())


def feed(connection: Connection, data: bytes) -> None:
    """Feed bytes like the event loop, in pieces that the test chooses."""
    while data:
        buffer = connection.get_buffer(-1)
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]


def test_responses_split_anywhere_are_received() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            length = len(frame(1, metadata()) + frame(2, metadata()))
            for split in range(length + 1):
                calls = [connection.start(METADATA, ALL_TOPICS) for _ in range(2)]
                ids = [(await link.receive()).correlation_id for _ in calls]
                data = b"".join(frame(id, metadata()) for id in ids)
                feed(connection, data[:split])
                feed(connection, data[split:])
                assert all(call.done() for call in calls)
            connection.close()

    run(main())


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    st.lists(st.sampled_from([0, 10, 1000, 40_000, 65_400, 65_480, 65_500, 80_000, 120_000]), max_size=6),
    st.lists(st.sampled_from([1, 2, 3, 5, 100, 10_000, 65_536, 100_000])),
)
def test_frames_of_any_size_in_pieces_of_any_size_are_received(sizes: list[int], pieces: list[int]) -> None:
    async def main() -> None:
        connection = Connection("h", 1, config(), FramePool())
        connection._transport = NoTransport()  # type: ignore[assignment]
        connection.versions = connection.versions.from_response("h:1", api_versions(4))
        calls = [connection.start(FETCH, NO_FETCH) for _ in sizes]
        data = b"".join(frame(number + 1, records(b"%d" % number * size)) for number, size in enumerate(sizes))
        at = 0
        for piece in pieces:
            feed(connection, data[at : at + piece])
            at += piece
        feed(connection, data[at:])
        for number, (call, size) in enumerate(zip(calls, sizes, strict=True)):
            assert records_in(call.result()) == b"%d" % number * size
        assert connection.in_flight == 0
        connection.close()

    run(main())


class NoTransport:
    """A transport whose bytes are not those of its socket, as with TLS."""

    def write(self, data: bytes) -> None: ...
    def abort(self) -> None: ...
    def get_extra_info(self, name: str) -> object:
        return object() if name == "sslcontext" else None


def test_a_recycled_frame_is_reused() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            frames = []
            for size in (2_000_000, 1_500_000, 1_900_000):
                call = connection.start(FETCH, NO_FETCH)
                request = await link.receive()
                await link.send(frame(request.correlation_id, records(b"x" * size)))
                reply = await call
                assert len(records_in(reply)) == size
                assert reply.frame is not None
                frames.append(reply.frame)
                if len(frames) < 3:
                    connection.recycle(reply.frame)
            assert frames[0] is frames[1] is frames[2]
            connection.close()

    run(main())


def test_the_frame_pool_keeps_few_frames_and_returns_none_that_is_far_too_large() -> None:
    pool = FramePool(keep=2)
    kept = [bytearray(16 * 2**20), bytearray(2 * 2**20)]
    for each in [*kept, bytearray(1)]:
        pool.give(each)
    assert pool.take(2_000_000) is kept[1]
    assert len(pool.take(100)) == 512 * 1024, "a 16 MB frame is too large for 100 bytes"


def test_a_pooled_frame_also_fits_a_slightly_larger_response() -> None:
    pool = FramePool(keep=2)
    frame = pool.take(6_000_000)
    assert len(frame) >= 6_000_000
    pool.give(frame)
    assert pool.take(6_100_000) is frame


def test_a_closed_frame_pool_keeps_nothing() -> None:
    pool = FramePool()
    first, second = pool.take(1), pool.take(1)
    pool.give(first)
    pool.close()
    pool.give(second)
    assert pool.take(1) not in (first, second)
