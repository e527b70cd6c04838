"""The proxy of the chaos runs, in front of a server that sends back what it gets."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from chaos.proxy import FrameBoundaries, Proxy


@pytest.fixture
def proxy(echo: str) -> Iterator[Proxy]:
    with Proxy(echo) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        yield client


def ask(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return client.recv(1000)


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1000) == b""
    except ConnectionResetError:
        return True


def test_a_cut_closes_connections_and_new_ones_work(proxy: Proxy, client: socket.socket) -> None:
    assert ask(client, b"hello") == b"hello"
    proxy.cut()
    assert is_closed(client)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as other:
        assert ask(other, b"again") == b"again"


def test_a_halved_message_is_the_last_one_of_its_connection(proxy: Proxy, client: socket.socket) -> None:
    assert ask(client, b"hello") == b"hello"
    proxy.halve()
    client.sendall(b"0123456789")
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(1000):
            received += data
    assert len(received) <= 5


def test_a_black_hole_keeps_everything_until_it_ends(proxy: Proxy, client: socket.socket) -> None:
    assert ask(client, b"hello") == b"hello"
    proxy.set_black_hole(True)
    client.sendall(b"withheld")
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(1000)
    proxy.set_black_hole(False)
    client.settimeout(10)
    assert client.recv(1000) == b"withheld"


def test_a_delay_holds_each_message_up(proxy: Proxy, client: socket.socket) -> None:
    assert ask(client, b"hello") == b"hello"
    proxy.set_delay(0.3)
    client.sendall(b"late")
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(1000)
    client.settimeout(10)
    assert client.recv(1000) == b"late"


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("sizes", [[100], [1] * 100, [3, 4, 5, 6], [4, 2, 4, 2]])
def test_boundaries_of_messages_are_found_however_they_are_cut(sizes: list[int]) -> None:
    stream = frame(b"hello") + frame(b"") + frame(b"x" * 7)
    ends = {9, 13, 24}
    boundaries, at = FrameBoundaries(), 0
    for size in sizes:
        piece = stream[at : at + size]
        at += len(piece)
        if piece:
            assert boundaries.feed(piece) == (at in ends)


def test_a_flood_comes_between_two_messages(proxy: Proxy, client: socket.socket) -> None:
    assert ask(client, frame(b"hello")) == frame(b"hello")
    proxy.flood()
    client.sendall(frame(b"0123456789"))
    received = b""
    while len(received) < 14 + 12:
        received += client.recv(1000)
    assert received[:14] == frame(b"0123456789")
    assert received[14:26] == frame(b"\x7f\xff\xff\xff" + bytes(4))


def test_jitter_keeps_the_order_of_a_connection(proxy: Proxy, client: socket.socket) -> None:
    proxy.set_jitter(0.02)
    received = b""
    for number in range(10):
        client.sendall(b"%d" % number)
    while len(received) < 10:
        received += client.recv(1000)
    assert received == b"0123456789"
