"""The HTTP server of the exporter: what it answers, and what a client cannot do to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from headrace.monitor import http_server
from headrace.monitor.http_server import HttpServer, Page

LARGE = b"x" * 2_900_000
PAGES: dict[str, Callable[[], Page]] = {
    "/metrics": lambda: Page(b"m 1\n", "text/plain; version=0.0.4"),
    "/large": lambda: Page(LARGE),
}
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def serve(work: Callable[[HttpServer], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), HttpServer("127.0.0.1", 0, PAGES) as server:
            await work(server)

    asyncio.run(run())


async def connect(server: HttpServer, **options: int) -> Client:
    return await asyncio.open_connection(*server.address, **options)  # type: ignore[arg-type]


async def response(reader: asyncio.StreamReader, *, with_body: bool = True) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers["content-length"])) if with_body else b""
    return int(head[0].split()[1]), headers, body


@pytest.mark.parametrize(
    ("request_head", "code", "body", "stays"),
    [
        ("GET /metrics HTTP/1.1\r\nHost: localhost:9308\r\n", 200, b"m 1\n", True),
        ("GET /metrics?module=all HTTP/1.1\r\nHost: localhost\r\n", 200, b"m 1\n", True),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", 200, b"m 1\n", False),
        ("GET /metrics HTTP/1.0\r\nHost: localhost\r\n", 200, b"m 1\n", False),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n", 200, b"m 1\n", False),
        ("GET /other HTTP/1.1\r\nHost: localhost\r\n", 404, b"not found\n", True),
        ("GET /../metrics HTTP/1.1\r\nHost: localhost\r\n", 404, b"not found\n", True),
        ("POST /metrics HTTP/1.1\r\nHost: localhost\r\n", 405, b"only GET and HEAD are allowed\n", False),
        ("nonsense\r\n", 400, b"not an HTTP/1.1 request\n", False),
        ("GET /metrics HTTP/2\r\n", 400, b"not an HTTP/1.1 request\n", False),
        ("\x16\x03\x01\x00\r\n", 400, b"not an HTTP/1.1 request\n", False),
        (f"GET /metrics HTTP/1.1\r\nX: {'x' * 20_000}\r\n", 400, b"the head of the request is too large\n", False),
    ],
)
def test_a_request_has_this_response(request_head: str, code: int, body: bytes, stays: bool) -> None:
    async def work(server: HttpServer) -> None:
        reader, writer = await connect(server)
        writer.write(f"{request_head}\r\n".encode("latin-1"))
        found, headers, text = await response(reader)
        assert (found, text) == (code, body)
        assert headers["connection"] == ("keep-alive" if stays else "close")
        if stays:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await response(reader))[0] == 200
        else:
            assert await reader.read() == b""
        writer.close()

    serve(work)


@pytest.mark.parametrize(
    ("listens_on", "headers", "code"),
    [
        ("127.0.0.1", "Host: localhost:9308", 200),
        ("127.0.0.1", "host:127.0.0.1", 200),
        ("127.0.0.1", "Host: [::1]:9308", 200),
        ("127.0.0.1", "Host: evil.example:9308", 421),
        ("127.0.0.1", "Host: localhost.evil.example", 421),
        ("127.0.0.1", "Host: [", 421),
        ("127.0.0.1", "X: localhost", 421),
        ("127.0.0.1", "Host: localhost\r\nHost: evil.example", 421),
        ("localhost", "Host: evil.example", 421),
        ("0.0.0.0", "Host: monitoring.example", 200),
        ("0.0.0.0", "X: y", 200),
    ],
)
def test_on_loopback_only_names_of_this_machine_are_answered(listens_on: str, headers: str, code: int) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), HttpServer(listens_on, 0, PAGES) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.address[1])
            writer.write(f"GET /metrics HTTP/1.1\r\n{headers}\r\n\r\n".encode())
            found, _, body = await response(reader)
            assert (found, body == b"m 1\n") == (code, code == 200)
            writer.close()

    asyncio.run(run())


def test_the_name_that_a_server_was_started_with_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """On some systems, the name of the machine is an address of loopback."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, 1, 6, "", ("127.0.0.1", 0))])

    async def run() -> None:
        async with asyncio.timeout(20), HttpServer("my-machine", 0, PAGES) as server:
            for host, code in (("my-machine:9308", 200), ("My-Machine", 200), ("other:9308", 421)):
                reader, writer = await connect(server)
                writer.write(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                assert (await response(reader))[0] == code
                writer.close()

    asyncio.run(run())


def test_the_last_response_of_a_connection_is_sent_completely() -> None:
    async def work(server: HttpServer) -> None:
        assert server._server is not None
        for listener in server._server.sockets:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # its connections inherit it
        reader, writer = await connect(server, limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
        size = 0
        while part := await reader.read(64 * 1024):
            size += len(part)
        assert size == len(LARGE)
        writer.close()

    serve(work)


def test_head_has_the_headers_only() -> None:
    async def work(server: HttpServer) -> None:
        reader, writer = await connect(server)
        for method in (b"HEAD", b"GET"):
            writer.write(method + b" /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        _, headers, _ = await response(reader, with_body=False)
        assert (headers["content-length"], headers["content-type"]) == ("4", "text/plain; version=0.0.4")
        assert await response(reader) == (200, headers, b"m 1\n")
        writer.close()

    serve(work)


def test_a_client_that_sends_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_HEAD_WITHIN", 0.1)

    async def work(server: HttpServer) -> None:
        reader, writer = await connect(server)
        writer.write(b"GET /metr")
        assert await reader.read() == b""
        writer.close()

    serve(work)


def test_a_client_that_takes_nothing_is_disconnected_while_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_TAKEN_WITHIN", 0.3)

    async def work(server: HttpServer) -> None:
        reader, writer = await connect(server, limit=1024)
        for _ in range(5):  # more than the buffers of both sides hold
            writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await writer.drain()
        other, other_writer = await connect(server, limit=4_000_000)
        other_writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await response(other))[2] == LARGE
        await asyncio.wait(server._clients, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(5 * len(LARGE))
        writer.close()
        other_writer.close()

    serve(work)


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_MOST_CONNECTIONS", 3)

    async def work(server: HttpServer) -> None:
        clients = [await connect(server) for _ in range(3)]
        for reader, writer in clients:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await response(reader)
        reader, rejected = await connect(server)
        assert (await response(reader))[0] == 503
        assert await reader.read() == b""
        clients[0][1].close()
        await asyncio.wait(server._clients, return_when=asyncio.FIRST_COMPLETED)
        reader, accepted = await connect(server)
        accepted.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await response(reader))[0] == 200
        for writer in (rejected, accepted, *(writer for _, writer in clients)):
            writer.close()

    serve(work)


def test_the_end_of_the_server_ends_its_connections() -> None:
    async def run() -> None:
        async with asyncio.timeout(20):
            async with HttpServer("127.0.0.1", 0, PAGES) as server:
                reader, writer = await connect(server)
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await response(reader)
                address = server.address
            assert await reader.read() == b""
            writer.close()
            with pytest.raises(OSError, match=r".*"):
                await asyncio.open_connection(*address)

    asyncio.run(run())
