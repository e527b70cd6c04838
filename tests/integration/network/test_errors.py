"""Errors when the cluster is unreachable, the server is no broker, or the topic does not exist."""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headrace import TopicPartition
from headrace.errors import ConfigError, HeadraceError, RequestTimeoutError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.consumers import MakeConsumer, assigned, poll_until
from support.harness.waiting import wait_for


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port without a listener, reserved by binding it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class Answers(socketserver.BaseRequestHandler):
    """A server that responds like a web server."""

    def handle(self) -> None:
        self.request.recv(1000)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


class HangsUp(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(1000)


class Silent(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while self.request.recv(1000):
            pass


@pytest.fixture
def strange_server() -> Iterator[Callable[[type[socketserver.BaseRequestHandler]], int]]:
    """Starts servers that are no brokers and returns their ports."""
    servers: list[socketserver.ThreadingTCPServer] = []

    def start(handler: type[socketserver.BaseRequestHandler]) -> int:
        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return int(server.server_address[1])

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


SOON = 20.0
"""Seconds within which a call with a timeout below one second must end, even on a busy machine. The default timeout
is a minute."""


def failure(call: Callable[[], object]) -> HeadraceError:
    began = time.monotonic()
    with pytest.raises(HeadraceError) as caught:
        call()
    assert time.monotonic() - began < SOON
    return caught.value


def telling_failure(call: Callable[[], object], word: str) -> HeadraceError:
    """The first error that contains this word. On a busy machine, a call may time out before it finds the cause."""
    for _ in range(10):
        error = failure(call)
        if word in str(error):
            break
    assert word in str(error)
    return error


def test_a_poll_waits_and_calls_fail_where_nobody_listens(
    make: MakeConsumer, closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    where = f"127.0.0.1:{closed_port}"
    consumer = make(bootstrap_servers=where, group_id="g", enable_auto_commit=False)
    consumer.assign([("topic", 0)])
    began = time.monotonic()
    assert len(consumer.poll(0.5)) == 0
    assert 0.4 < time.monotonic() - began < SOON
    wait_for("a log line about it", lambda: not consumer.poll(0.02) and any(where in each for each in caplog.messages))
    assert all(record.levelno <= logging.WARNING for record in caplog.records)
    for call in (
        lambda: consumer.position(("topic", 0), timeout=0.5),
        lambda: consumer.list_topics(timeout=0.5),
        lambda: consumer.end_offsets([("topic", 0)], timeout=0.5),
        lambda: consumer.committed([("topic", 0)], timeout=0.5),
        lambda: consumer.commit({TopicPartition("topic", 0): 1}, timeout=0.5),
    ):
        error = failure(call)
        assert isinstance(error, RequestTimeoutError)
        assert where in str(error)
        assert "connection refused" in str(error)


def test_an_error_names_a_server_that_is_no_broker(
    make: MakeConsumer, strange_server: Callable[[type[socketserver.BaseRequestHandler]], int]
) -> None:
    port = strange_server(Answers)
    consumer = make(bootstrap_servers=f"127.0.0.1:{port}")
    error = failure(lambda: consumer.list_topics(timeout=SOON))
    assert f"127.0.0.1:{port}" in str(error)
    assert "not a Kafka broker" in str(error)


@pytest.mark.parametrize("handler", [HangsUp, Silent])
def test_an_error_names_a_server_that_does_not_answer(
    make: MakeConsumer,
    handler: type[socketserver.BaseRequestHandler],
    strange_server: Callable[[type[socketserver.BaseRequestHandler]], int],
) -> None:
    port = strange_server(handler)
    consumer = make(bootstrap_servers=f"127.0.0.1:{port}", request_timeout_ms=300)
    error = telling_failure(lambda: consumer.list_topics(timeout=1), "no response" if handler is Silent else "closed")
    assert f"127.0.0.1:{port}" in str(error)


def test_one_reachable_bootstrap_server_is_enough(
    make: MakeConsumer,
    closed_port: int,
    strange_server: Callable[[type[socketserver.BaseRequestHandler]], int],
    admin: Admin,
    servers: str,
) -> None:
    topic = admin.create("bootstrap")
    write(servers, topic, numbered(5))
    bad = [closed_port, strange_server(Answers), strange_server(HangsUp)]
    consumer = assigned(make, ",".join([*(f"127.0.0.1:{port}" for port in bad), servers]), topic)
    began = time.monotonic()
    assert [record.offset for record in poll_until(consumer, 5)] == list(range(5))
    assert time.monotonic() - began < SOON


def test_calls_about_an_unknown_topic_name_it(make: MakeConsumer, servers: str) -> None:
    missing = unique("missing")
    consumer = assigned(make, servers, missing, allow_auto_create_topics=False)
    assert len(consumer.poll(0.3)) == 0
    for call in (
        lambda: consumer.position((missing, 0), timeout=0.5),
        lambda: consumer.end_offsets([(missing, 0)], timeout=0.5),
    ):
        error = telling_failure(call, "UNKNOWN_TOPIC_OR_PARTITION")
        assert missing in str(error)


def test_calls_about_an_unknown_partition_name_it(make: MakeConsumer, admin: Admin, servers: str) -> None:
    topic = admin.create("small")
    write(servers, topic, numbered(3))
    consumer = assigned(make, servers, topic, 2)
    assert [record.partition for record in poll_until(consumer, 3)] == [0, 0, 0]
    telling_failure(lambda: consumer.position((topic, 1), timeout=0.5), f"{topic}-1")


def test_a_name_that_no_topic_can_have_is_refused(make: MakeConsumer, servers: str) -> None:
    consumer = make(bootstrap_servers=servers)
    for call in (
        lambda: consumer.assign([("not a topic!", 0)]),
        lambda: consumer.end_offsets([("not a topic!", 0)]),
        lambda: consumer.partitions_for_topic("not a topic!"),
    ):
        error = failure(call)
        assert isinstance(error, ConfigError)
        assert "not a topic!" in str(error)
        assert "letters, digits, '.', '_' and '-'" in str(error)
