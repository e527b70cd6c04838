"""Requests to the page and to the exporter by somebody who means no good: they are answered, and never with a crash."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator

import pytest

from headrace.monitor.http_server import HttpServer, Page
from headrace.ui.server import BackgroundPage, PageOptions
from support.harness.fuzzing import mutated, rounds
from support.harness.page_client import PageClient

AWAY = {"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": 300, "request.timeout.ms": 200}
SECRET = "a long password that nobody guesses, ever"
_PATHS = (
    "/", "/groups", "/group?name=a%2Fb", "/login", "/login?next=//evil.example", "/static/page.js",
    "/static/..%2f..%2fserver.py", "/api/records", "/api/records?topic=a&count=0", "/api/records?topic=a&count=x",
    "/events?view=secrets", "/events?view=group&name=%00", "/api/changes", "/%", "/%ff", "/api/records?" + "a&" * 500,
)  # fmt: skip
_BODIES = (b'{"secret": "x"}', b'{"secret": 1}', b"[]", b"{" * 5000, b"\xff", b'{"secret": "\\ud800"}')


def whole_requests() -> list[bytes]:
    found = [
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in _PATHS for method in ("GET", "PUT")
    ]
    for body in _BODIES:
        head = (
            f"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        found.append(head.encode() + b"\r\n\r\n" + body)
    found.append(b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: headrace-1=" + b"a=;" * 300 + b"\r\n\r\n")
    found.append(b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
    found.append(b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n")
    return found


WHOLE = whole_requests()


def request(chance: random.Random) -> bytes:
    chosen = chance.choice(WHOLE)
    return chosen if chance.random() < 0.1 else mutated(chosen, chance, WHOLE)


def status_of(address: tuple[str, int], data: bytes) -> int | None:
    """The status of the first response; None if the server closes the connection without one."""
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        first = connection.recv(64)
    return int(first[9:12]) if first.startswith(b"HTTP/1.1 ") else None


@pytest.fixture(scope="module", params=["open", "closed"])
def page(request: pytest.FixtureRequest) -> Iterator[PageClient]:
    secrets = (SECRET,) if request.param == "closed" else ()
    with BackgroundPage(PageOptions(AWAY, port=0, interval=5.0, secrets=secrets)) as page:
        yield PageClient(page.url)


def test_the_page_answers_anything_without_a_crash(page: PageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.ui.guard._WRONG_SECRET_DELAY", 0.001)
    seen = set()
    for chance in rounds(250):
        data = request(chance)
        try:
            status = status_of((page.host, page.port), data)
        except ConnectionError:
            continue
        assert status not in (500, 501, 505), data
        seen.add(status)
    assert page.get("/static/page.js").status == 200
    assert len(seen) > 3, seen


def test_the_exporter_answers_anything_without_a_crash() -> None:
    async def run() -> None:
        crashes = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: crashes.append(context))
        async with HttpServer("127.0.0.1", 0, {"/": lambda: Page(b"ok\n")}) as server:
            for chance in rounds(300):
                reader, writer = await asyncio.open_connection(*server.address)
                writer.write(request(chance))
                writer.write_eof()
                async with asyncio.timeout(10):
                    answer = await reader.read()
                assert not answer or answer.startswith(b"HTTP/1.1 ")
                writer.close()
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"ok\n")
            writer.close()
        assert not crashes, crashes

    asyncio.run(run())
