"""Clients that are silent, slow or too many: they lose their connections, and others are answered."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from headrace.ui import connections, json_body
from headrace.ui.server import BackgroundPage, PageOptions
from support.harness.page_client import PageClient

AWAY = {"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": 500, "request.timeout.ms": 400}
HEAD = b"GET /static/page.css HTTP/1.1\r\nHost: localhost\r\n"
LOGIN = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"


@pytest.fixture
def page() -> Iterator[BackgroundPage]:
    with BackgroundPage(PageOptions(AWAY, port=0, interval=3600.0, secrets=("a secret",))) as page:
        yield page


def connect(page: BackgroundPage) -> socket.socket:
    client = PageClient(page.url)
    return socket.create_connection((client.host, client.port), timeout=5)


def wait_closed(connection: socket.socket) -> bytes:
    """What arrives before the end. Raises TimeoutError after five seconds without data."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(65536):
            received += data
    return received


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD], ids=["silent", "part of a line", "part of a head"])
def test_a_connection_without_a_request_is_aborted(
    page: BackgroundPage, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_HEAD_WITHIN", 0.2)
    with connect(page) as connection:
        connection.sendall(sent)
        assert wait_closed(connection) == b""


@pytest.mark.parametrize(
    ("first", "status", "rest"),
    [(HEAD + b"\r\n", b"200", b"GET"), (LOGIN.replace(b"json", b"pdf"), b"415", b"{")],
    ids=["part of the next head", "part of a body that nobody reads"],
)
def test_an_answered_connection_is_aborted_if_its_next_request_does_not_arrive(
    page: BackgroundPage, first: bytes, status: bytes, rest: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_HEAD_WITHIN", 0.2)
    with connect(page) as connection:
        connection.sendall(first)
        assert connection.recv(12) == b"HTTP/1.1 " + status
        connection.sendall(rest)
        wait_closed(connection)


def test_requests_that_arrive_in_time_keep_their_connection(
    page: BackgroundPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_HEAD_WITHIN", 0.3)
    monkeypatch.setattr(json_body, "_WITHIN", 1.0)
    with connect(page) as connection:
        connection.sendall(LOGIN)  # answered long after the time for its head
        assert connection.recv(12) == b"HTTP/1.1 408"


def test_a_client_that_does_not_read_its_responses_is_disconnected(
    page: BackgroundPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_READ_WITHIN", 0.2)
    assert page._server is not None
    opened = page._server.server_state.connections
    with connect(page) as connection:
        connection.sendall((HEAD + b"\r\n") * 2000)
        wait_until(lambda: any(it.flow is not None and it.flow.write_paused for it in list(opened)))
        wait_until(lambda: not opened)


def test_a_connection_beyond_the_limit_is_aborted_if_all_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_MOST", 2)
    with BackgroundPage(PageOptions(AWAY, port=0, interval=3600.0)) as page:
        client = PageClient(page.url)
        with client.events("groups") as first, client.events("topics") as second:
            assert first.next() is not None
            assert second.next() is not None
            with connect(page) as third:
                assert wait_closed(third) == b""
        wait_until(lambda: page._server is not None and not page._server.server_state.connections)
        assert client.get("/").status == 200


@pytest.mark.parametrize("sent", [b"", LOGIN], ids=["silent", "without their bodies"])
def test_many_connections_without_requests_do_not_keep_others_out(
    sent: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "_MOST", 8)
    options = PageOptions(AWAY, port=0, interval=3600.0, secrets=("a secret",))
    with BackgroundPage(options) as page, contextlib.ExitStack() as opened:
        for _ in range(40):
            connection = opened.enter_context(connect(page))
            connection.sendall(sent)
        assert PageClient(page.url).get("/static/page.css").status == 200
    assert [it.getMessage() for it in caplog.records if it.levelname == "ERROR"] == []
