"""Errors of a producer whose broker is away: they name the address and the cause."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from headrace import Producer
from headrace.errors import RequestTimeoutError
from support.harness.retries import patiently


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
    def scenario(scale: float) -> None:
        most = round(500 * scale)
        with (
            Producer(bootstrap_servers=refusing, max_block_ms=most) as producer,
            pytest.raises(RequestTimeoutError) as raised,
        ):
            send(producer)
        expected = f"no metadata of topic t within max.block.ms={most}: cannot connect to {refusing}"
        assert str(raised.value).startswith(expected)
        assert "refused" in str(raised.value)

    patiently(scenario)


def test_a_send_to_a_broker_that_does_not_answer_names_the_address(silent: str) -> None:
    def scenario(scale: float) -> None:
        most = round(300 * scale)
        with (
            Producer(bootstrap_servers=silent, max_block_ms=most) as producer,
            pytest.raises(RequestTimeoutError) as raised,
        ):
            producer.send("t", b"x")
        assert str(raised.value) == f"no metadata of topic t within max.block.ms={most}: no answer from {silent}"

    patiently(scenario)
