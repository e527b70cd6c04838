"""Brokers that are unreachable or need another security protocol: polls wait, and a warning names the cause."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import LocalBroker, ShareConsumer
from headrace.errors import ProtocolError
from headrace.local.ports import free_ports
from support.brokers.admin import unique
from support.brokers.produce import numbered, write
from support.brokers.secured import SecuredBroker
from support.harness.consumers import AnyConsumer, MakeConsumer, poll_until

DEADLINE = 30.0


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace")


@pytest.fixture
def mute() -> Iterator[int]:
    """A port that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "headrace._aio.network.connections" and record.levelno == level
    ]


def poll_until_warned(consumer: AnyConsumer, caplog: pytest.LogCaptureFixture) -> str:
    """Poll until the first warning. Polls before it are empty and last for their timeout."""
    began = time.monotonic()
    while not lines(caplog):
        assert time.monotonic() - began < DEADLINE, caplog.text
        at = time.monotonic()
        assert len(consumer.poll(0.3)) == 0
        assert time.monotonic() - at >= 0.29
    assert time.monotonic() - began > 2, "not at the first failure"
    until = time.monotonic() + 2
    while time.monotonic() < until:
        consumer.poll(0.3)
    (line,) = lines(caplog)
    return line


def reader(make: MakeConsumer, servers: str, **settings: Any) -> AnyConsumer:
    consumer = make(bootstrap_servers=servers, auto_offset_reset="earliest", **settings)
    consumer.assign([("t", 0)])
    return consumer


def test_a_warning_names_a_port_where_nobody_listens(make: MakeConsumer, caplog: Any) -> None:
    port = free_ports(1)[0]
    line = poll_until_warned(reader(make, f"127.0.0.1:{port}"), caplog)
    assert f"cannot connect to 127.0.0.1:{port}: connection refused (for " in line
    assert line.endswith(" s now; retrying)")


def test_a_warning_names_a_host_that_does_not_resolve(make_sync: MakeConsumer, caplog: Any) -> None:
    line = poll_until_warned(reader(make_sync, "no-such-host.invalid:9092"), caplog)
    assert "cannot connect to no-such-host.invalid:9092: the host name no-such-host.invalid cannot be resolved" in line


def test_a_warning_names_a_port_that_never_responds(make_sync: MakeConsumer, mute: int, caplog: Any) -> None:
    line = poll_until_warned(reader(make_sync, f"127.0.0.1:{mute}"), caplog)
    assert f"127.0.0.1:{mute} does not answer: it cannot be reached, or it is not the port of a Kafka broker" in line


def test_a_warning_says_that_a_port_does_not_use_tls(make: MakeConsumer, servers: str, caplog: Any) -> None:
    line = poll_until_warned(reader(make, servers, security_protocol="SSL"), caplog)
    assert f"cannot connect to {servers}: the broker closed the connection during the TLS handshake" in line
    assert "This port seems not to use TLS" in line
    assert "PLAINTEXT" in line


@pytest.mark.parametrize(
    ("protocol", "advice"), [("PLAINTEXT", "security.protocol=SSL"), ("SASL_PLAINTEXT", "security.protocol=SASL_SSL")]
)
def test_an_error_and_a_warning_say_that_a_port_expects_tls(
    make_sync: MakeConsumer, secured: SecuredBroker, protocol: str, advice: str, caplog: Any
) -> None:
    """This cause is certain, so polls raise it too."""
    login = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "reader", "sasl_password": "x"}
    settings = login if protocol == "SASL_PLAINTEXT" else {}
    servers = secured.broker.bootstrap_servers
    consumer = reader(make_sync, servers, security_protocol=protocol, **settings)
    with pytest.raises(ProtocolError, match=advice):
        consumer.poll(DEADLINE)
    line = poll_until_warned(consumer, caplog)
    assert line.startswith(servers)
    assert f"The broker seems to expect TLS: set {advice}" in line


def test_a_warning_says_that_a_port_may_expect_a_login(
    make_sync: MakeConsumer, secured: SecuredBroker, caplog: Any
) -> None:
    """The broker accepts the connection and closes it at the first request."""
    config = secured.broker.client_config
    settings = {name: config[name] for name in ("bootstrap.servers", "ssl.ca.location")}
    consumer = make_sync({**settings, "security.protocol": "SSL"}, auto_offset_reset="earliest")
    consumer.assign([("t", 0)])
    assert "at the first request: it may expect a login (see security.protocol)" in poll_until_warned(consumer, caplog)


def test_a_share_consumer_warns_of_an_unreachable_broker(caplog: Any) -> None:
    port = free_ports(1)[0]
    with ShareConsumer(bootstrap_servers=f"127.0.0.1:{port}", group_id=unique("g")) as consumer:
        consumer.subscribe(["t"])
        assert "connection refused" in poll_until_warned(consumer, caplog)


def test_a_broker_that_starts_after_the_consumer_is_read(make_sync: MakeConsumer, caplog: Any) -> None:
    port = free_ports(1)[0]
    consumer = reader(make_sync, f"127.0.0.1:{port}")
    poll_until_warned(consumer, caplog)
    with LocalBroker(port=port, start_timeout=100.0) as broker:
        write(broker.bootstrap_servers, "t", numbered(5))
        assert len(poll_until(consumer, 5)) == 5
        assert any("answers again, after" in line for line in lines(caplog, logging.INFO))
        consumer.close()
