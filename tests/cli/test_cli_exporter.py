"""`headrace lag --serve` as a process: its address, its end, and wrong options."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from headrace import Consumer, TopicPartition
from headrace.cli.lag_exporter import AddressType
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.metrics_text import check_format, series
from support.harness.shell import headrace


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9308", ("127.0.0.1", 9308)),
        ("9308", ("127.0.0.1", 9308)),
        ("0.0.0.0:9308", ("0.0.0.0", 9308)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:9308", ("::1", 9308)),
        ("[::]:9308", ("::", 9308)),
    ],
)
def test_an_address_without_a_host_is_that_of_this_machine(text: str, address: tuple[str, int]) -> None:
    found = AddressType().convert(text, None, None)
    assert found == address
    assert AddressType().convert(str(found), None, None) == address


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--serve", "nonsense"), 2, "is not an address such as :9308, 0.0.0.0:9308 or [::1]:9308"),
        (("--serve", ":99999"), 2, "is not an address"),
        (("--serve", "::1:9308"), 2, "is not an address"),
        (("--serve", ":0", "--watch"), 2, "--serve cannot be combined with --watch"),
        (("--serve", ":0", "--threshold", "5"), 2, "--serve cannot be combined with"),
        (("--serve", ":0", "-g", "a("), 2, "'a(' is not a regular expression"),
        (("--serve", ":0", "-t", "["), 2, "'[' is not a regular expression"),
        (("--serve", "203.0.113.1:9308"), 1, "cannot serve at 203.0.113.1:9308"),
    ],
)
def test_wrong_options_are_refused_in_one_line(servers: str, args: tuple[str, ...], code: int, said: str) -> None:
    done = headrace("lag", "-b", servers, *args)
    assert (done.code, done.out) == (code, b"")
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_a_port_in_use_is_named(servers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = headrace("lag", "-b", servers, "--serve", f":{port}")
    assert done.code == 1
    assert f"cannot serve at 127.0.0.1:{port}" in done.err
    assert "in use" in done.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_exporter_while_a_client_is_connected(
    servers: str, admin: Admin, number: signal.Signals, code: int
) -> None:
    topic, group = admin.create("served"), unique("served")
    write(servers, topic, numbered(10))
    with Consumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False) as consumer:
        consumer.commit({TopicPartition(topic, 0): 4})
    command = [sys.executable, "-m", "headrace", "lag", "-b", servers, "--serve", ":0", "-g", group, "-t", "serv.*"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "--interval", "0.2"], stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            found = re.fullmatch(r"metrics: http://127\.0\.0\.1:(\d+)/metrics, every 0\.2 s\. Ctrl-C ends it\.\n", line)
            assert found is not None, (line, process.stderr.read())
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
            text = ""
            while not series(text, "kafka_consumergroup_lag"):  # the first pass may be under way
                connection.request("GET", "/metrics")
                text = connection.getresponse().read().decode()
                time.sleep(0.05)
            check_format(text)
            assert [it.value for it in series(text, "kafka_consumergroup_lag")] == [6]
            begun = time.monotonic()
            process.send_signal(number)
            assert process.wait(30) == code
            assert time.monotonic() - begun < 5
            assert process.stderr.read().strip() == ""
            connection.close()
        finally:
            process.kill()
