"""Hostile brokers that drip, flood or lie. Each time: an error, a closed connection, and little memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace import AsyncConsumer
from headrace._net.connection import Connection
from headrace._protocol.messages import FETCH, METADATA
from headrace.errors import HeadraceError, ProtocolError, RequestTimeoutError, UnsupportedVersionError
from headrace.local.certificates import Authority
from support.brokers.fake_broker import FakeBroker, Link, api_versions, run, sized
from support.brokers.fake_connections import ALL_TOPICS, NO_FETCH, config, failure
from support.brokers.fake_tls_broker import TlsBroker, write
from support.harness.threads import client_threads, threads_that_stay

AUTHORITY = Authority()
_MOST = 8 * 2**20


def server(kind: str, where: Path) -> tuple[FakeBroker, dict[str, str]]:
    if kind == "plain":
        return FakeBroker(), {}
    trusted = write(where / "ca.pem", AUTHORITY.pem)
    broker = TlsBroker(where, AUTHORITY.issue("b", ["127.0.0.1"]))
    return broker, {"security_protocol": "SSL", "ssl_ca_location": trusted}


async def connected(broker: FakeBroker, **settings: object) -> tuple[Connection, Link]:
    opening = asyncio.create_task(Connection.open(broker.host, broker.port, config(**settings), 30.0))
    link = await broker.accept()
    await link.negotiate()
    connection = await opening
    connection.receive_on_a_thread()
    return connection, link


async def sent_until_closed(link: Link, piece: bytes, pause: float = 0.0) -> int:
    """Send until the client closes the connection; return the number of bytes sent."""
    taken = 0
    with contextlib.suppress(ConnectionError):
        while taken < 2 * 2**30:
            await link.send(piece)
            taken += len(piece)
            await asyncio.sleep(pause)  # the hostile broker drips
    return taken


@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_a_response_that_arrives_byte_by_byte_ends_at_its_deadline(tmp_path: Path, kind: str) -> None:
    """Bytes keep arriving, but the response never completes."""

    async def main() -> None:
        broker, settings = server(kind, tmp_path)
        async with broker:
            connection, link = await connected(broker, **settings)
            call = connection.start(FETCH, NO_FETCH, timeout=0.3)
            await link.receive()
            await link.send(struct.pack(">i", 10_000))
            dripping = asyncio.create_task(sent_until_closed(link, b"\0", 0.01))
            assert isinstance(await failure(call), RequestTimeoutError)
            assert await dripping < 10_000
            assert not connection.is_open

    run(main())


@pytest.mark.parametrize("kind", ["plain", "tls"])
@pytest.mark.parametrize(
    "piece",
    [
        pytest.param(sized(struct.pack(">i", 99) + b"x" * 60_000), id="unrequested responses"),
        pytest.param(b"\0\0\0\0" * 4_000, id="empty frames"),
        pytest.param(b"\x7f" * 64_000, id="only lengths"),
        pytest.param(b"GET / HTTP/1.1\r\n" * 4000, id="another protocol"),
    ],
)
def test_a_flood_of_bytes_closes_the_connection_with_little_memory(tmp_path: Path, kind: str, piece: bytes) -> None:
    async def main() -> None:
        broker, settings = server(kind, tmp_path)
        async with broker:
            connection, link = await connected(broker, **settings)
            call = connection.start(METADATA, ALL_TOPICS)
            await link.receive()
            tracemalloc.start()
            flooding = asyncio.create_task(sent_until_closed(link, piece))
            assert isinstance(await failure(call), ProtocolError)
            await flooding
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < _MOST
            assert not connection.is_open

    run(main())


@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_a_large_frame_announced_again_and_again_takes_little_memory(tmp_path: Path, kind: str) -> None:
    """Each frame has the largest allowed size and never arrives. The allocated memory is released."""
    announced = 20 * 2**20

    async def main() -> None:
        broker, settings = server(kind, tmp_path)
        async with broker:
            before = client_threads()
            tracemalloc.start()
            for _ in range(5):
                connection, link = await connected(broker, **settings, receive_message_max_bytes=announced)
                call = connection.start(FETCH, NO_FETCH, timeout=0.05)
                await link.receive()
                with contextlib.suppress(ConnectionError):  # on a busy machine the connection may be closed already
                    await link.send(struct.pack(">i", announced))
                assert isinstance(await failure(call), RequestTimeoutError)
                assert await link.is_closed_by_client()
            assert not await asyncio.to_thread(threads_that_stay, client_threads() - before)
            await asyncio.sleep(0)  # let callbacks of closed connections run
            kept, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert kept < _MOST
            assert peak < 2 * announced + _MOST

    run(main())


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param({3: (5, 1)}, id="the lowest above the highest"),
        pytest.param({3: (-32768, -1)}, id="below all"),
        pytest.param({3: (32767, 32767)}, id="beyond all"),
        pytest.param(dict.fromkeys(range(1000, 9000), (0, 32767)), id="thousands of others"),
        pytest.param({}, id="none"),
    ],
)
def test_impossible_version_ranges_of_a_broker_are_an_error(ranges: dict[int, tuple[int, int]]) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            opening = asyncio.create_task(Connection.open(broker.host, broker.port, config(), 5.0))
            link = await broker.accept()
            request = await link.receive()
            await link.reply(request, api_versions(request.version, ranges))
            connection = await opening
            with pytest.raises(UnsupportedVersionError):
                connection.start(METADATA, ALL_TOPICS)
            connection.close()

    run(main())


async def _hangs_up(link: Link) -> None:
    link.close()


async def _lies(link: Link) -> None:
    await link.negotiate()
    await link.receive()
    await link.send(struct.pack(">i", 2**31 - 1))


async def _answers_another(link: Link) -> None:
    await link.negotiate()
    request = await link.receive()
    await link.send(sized(struct.pack(">i", request.correlation_id + 7)))


async def _is_nonsense(link: Link) -> None:
    await link.negotiate()
    request = await link.receive()
    await link.send(sized(struct.pack(">i", request.correlation_id) + b"\xff" * 200))


@pytest.mark.parametrize("behaviour", [_hangs_up, _lies, _answers_another, _is_nonsense])
def test_a_consumer_of_a_hostile_broker_retries_with_pauses_and_can_be_closed(
    behaviour: Callable[[Link], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """The consumer logs the problem, retries with backoff, and can be closed."""
    caplog.set_level(logging.INFO, "headrace")

    async def main() -> None:
        async with FakeBroker() as broker:
            tries = 0

            async def misbehave() -> None:
                nonlocal tries
                while True:
                    link = await broker.accept()
                    tries += 1
                    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, struct.error):
                        await behaviour(link)

            serving = asyncio.create_task(misbehave())
            async with AsyncConsumer(bootstrap_servers=broker.name, request_timeout_ms=200) as consumer:
                consumer.assign([("t", 0)])
                began, seconds = time.monotonic(), 0.7
                while time.monotonic() < began + seconds or broker.name not in caplog.text:
                    with contextlib.suppress(HeadraceError):
                        await consumer.poll(seconds)
                rounds = (time.monotonic() - began) / seconds
            assert 1 <= tries < 15 * rounds, "retries must back off"
            serving.cancel()

    run(main())
