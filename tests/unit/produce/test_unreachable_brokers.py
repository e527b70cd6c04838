"""Errors of a producer whose broker is away: they name the address and the cause."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from headrace import Producer
from headrace.errors import RequestTimeoutError


@pytest.fixture
def refusing() -> str:
    """The address of a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def sent(producer: Producer) -> None:
    producer.send("t", b"x")


def sent_many(producer: Producer) -> None:
    producer.send_all("t", [b"x"])


@pytest.mark.parametrize("send", [sent, sent_many])
def test_without_metadata_the_address_and_the_cause_are_named(refusing: str, send: Callable[[Producer], None]) -> None:
    with (
        Producer(bootstrap_servers=refusing, max_block_ms=500) as producer,
        pytest.raises(RequestTimeoutError) as raised,
    ):
        send(producer)
    assert str(raised.value).startswith(f"no metadata of topic t within max.block.ms=500: cannot connect to {refusing}")
    assert "refused" in str(raised.value)


def test_a_send_to_a_broker_that_does_not_answer_names_the_address(silent: str) -> None:
    with (
        Producer(bootstrap_servers=silent, max_block_ms=300) as producer,
        pytest.raises(RequestTimeoutError) as raised,
    ):
        producer.send("t", b"x")
    assert str(raised.value) == f"no metadata of topic t within max.block.ms=300: no answer from {silent}"
