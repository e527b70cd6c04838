"""`headrace up`, `down` and `status`, run as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

pytestmark = pytest.mark.timeout(300)

SOURCE = Path(sys.modules["headrace"].__path__[0]).parent
COMMAND = [sys.executable, "-m", "headrace"]


class Shell:
    """Runs `headrace` with a separate data directory."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.environment = os.environ | {"PYTHONPATH": str(SOURCE), "HEADRACE_DATA": str(data)}

    def __call__(self, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *args],
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *args],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def status(self) -> dict[str, Any]:
        done = self("status", "--format", "json")
        found: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == {"running": 0, "starting": 0, "stopped": 3, "crashed": 4}[found["state"]]
        return found

    def processes(self) -> list[int]:
        """The pids of all processes that use the data directory: supervisor, guards, brokers."""
        return [
            process.pid
            for process in psutil.process_iter(["cmdline", "status"])
            if process.info["status"] != psutil.STATUS_ZOMBIE
            and any(str(self.data) in part for part in process.info["cmdline"] or ())
        ]


@pytest.fixture
def headrace(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path / "headrace")
    yield shell
    shell("down")
    assert eventually(lambda: not shell.processes())


def eventually(condition: Callable[[], bool], within: float = 60.0) -> bool:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)  # polling, since another process gives no event
    return True


def produce(servers: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": servers})
    producer.produce("kept", value)
    assert producer.flush(60) == 0


def read_one(servers: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition("kept", 0, 0)])
    deadline = time.monotonic() + 60
    message = None
    while (message is None or message.error() is not None) and time.monotonic() < deadline:
        message = consumer.poll(1)
    consumer.close()
    return None if message is None else message.value()


def test_up_status_up_down_and_up_again(headrace: Shell) -> None:
    assert headrace("status").returncode == 3
    assert "stopped" in headrace("status").stdout

    up = headrace("up", "--port", "0")
    assert (up.returncode, up.stderr) == (0, "")
    status = headrace.status()
    assert status["state"] == "running"
    assert status["bootstrap_servers"] in up.stdout
    assert status["kept"] is True
    assert Path(status["log"]).is_file()
    assert [broker["id"] for broker in status["brokers"]] == [1]
    assert {status["supervisor"], status["brokers"][0]["pid"]} <= set(headrace.processes())
    produce(status["bootstrap_servers"], b"for later")

    again = headrace("up", "--port", "0")
    assert again.returncode == 0
    assert "already running" in again.stdout
    assert status["bootstrap_servers"] in again.stdout
    assert headrace.status() == status
    other = headrace("up", "--brokers", "3")
    assert other.returncode == 1
    assert "a cluster of 1 broker(s) is already running" in other.stderr
    port = status["bootstrap_servers"].rpartition(":")[2]
    asked = ("--data", str(headrace.data / "cluster-1"), "--kafka-version", status["version"])
    same = headrace("up", "--port", port, *asked, "-c", "offsets.topic.num.partitions=8")
    assert (same.returncode, same.stdout) == (0, again.stdout)
    other = headrace("up", "--port", "1", "--ephemeral", "-c", "num.partitions=3")
    assert (other.returncode, other.stderr) == (
        1,
        f"headrace: a cluster is already running at {status['bootstrap_servers']}, with port {port} and not 1, "
        f"data kept in {headrace.data / 'cluster-1'} and not deleted at the end, another num.partitions: "
        "`headrace down` stops it\n",
    )

    down = headrace("down")
    assert (down.returncode, down.stdout) == (0, "stopped\n")
    assert eventually(lambda: not headrace.processes()), "the supervisor reports its end before its process exits"
    assert headrace.status() == {name: ([] if name == "brokers" else None) for name in status} | {"state": "stopped"}
    assert headrace("down").stdout == "nothing is running\n"

    assert headrace("up", "--port", "0").returncode == 0
    assert headrace.status()["bootstrap_servers"] == status["bootstrap_servers"]
    assert read_one(status["bootstrap_servers"]) == b"for later"


def test_two_at_once_bring_up_one_cluster(headrace: Shell) -> None:
    both = [headrace.start("up", "--port", "0", "--ephemeral") for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    servers = headrace.status()["bootstrap_servers"]
    assert all(servers in out for out, _ in said)
    assert sum("already" in out for out, _ in said) == 1


def test_ephemeral_data_is_thrown_away(headrace: Shell) -> None:
    assert headrace("up", "--port", "0", "--ephemeral", "-c", "num.partitions=3").returncode == 0
    status = headrace.status()
    data = Path(status["data_dir"])
    assert "num.partitions=3" in (data / "broker-1" / "server.properties").read_text()
    assert headrace("down").returncode == 0
    assert not data.exists()


def test_a_killed_supervisor_is_a_crash_and_leaves_no_broker(headrace: Shell) -> None:
    headrace("up", "--port", "0")
    status = headrace.status()
    os.kill(status["supervisor"], signal.SIGKILL)
    assert eventually(lambda: not headrace.processes())
    crashed = headrace.status()
    assert crashed["state"] == "crashed"
    assert crashed["log"] == status["log"]
    assert not crashed["brokers"][0]["alive"]
    assert "crashed" in headrace("down").stdout
    assert headrace.status()["state"] == "stopped"


def test_a_killed_broker_is_told(headrace: Shell) -> None:
    headrace("up", "--port", "0", "--brokers", "2", "--ephemeral")
    first, second = headrace.status()["brokers"]
    os.kill(first["pid"], signal.SIGKILL)
    assert eventually(lambda: not headrace.status()["brokers"][0]["alive"])
    assert headrace.status()["state"] == "running"
    os.kill(second["pid"], signal.SIGKILL)
    assert eventually(lambda: headrace.status()["state"] == "crashed")
    crashed = headrace.status()
    assert Path(crashed["log"]).is_file()
    assert f"dead (was pid {second['pid']})" in headrace("status").stdout
    Path(crashed["log"]).unlink()
    Path(crashed["data_dir"]).rmdir()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "closed terminal"])
def test_up_in_the_foreground_runs_until_it_is_signalled(headrace: Shell, number: signal.Signals) -> None:
    process = headrace.start("up", "--port", "0", "--ephemeral", "--foreground")
    assert process.stdout is not None
    assert "Ctrl-C stops it" in process.stdout.readline()
    status = headrace.status()
    assert status["state"] == "running"
    assert headrace("up", "--port", "0", "--foreground").returncode == 1
    process.send_signal(number)
    process.communicate(timeout=90)
    assert process.returncode == 0
    assert not Path(status["data_dir"]).exists()
    assert headrace.status()["state"] == "stopped"


def test_ctrl_c_while_a_broker_starts_leaves_nothing_running(headrace: Shell) -> None:
    def is_in_time() -> bool:
        process = headrace.start("up", "--port", "0")
        assert eventually(lambda: len(headrace.processes()) > 1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=90)
        if headrace.status()["state"] == "running":  # it was running before the signal came
            headrace("down")
            return False
        assert process.returncode == 130
        return True

    assert any(is_in_time() for _ in range(3))
    assert eventually(lambda: not headrace.processes())
    assert headrace.status()["state"] == "stopped"


def test_errors_of_up_and_down_are_one_line(headrace: Shell, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = headrace("up", "--port", str(port))
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"headrace: port {port} on 127.0.0.1 is in use")
    assert failed.stderr.count("\n") == 1
    assert headrace.status()["state"] == "stopped"

    no_java = headrace("up", JAVA_HOME=str(tmp_path))
    assert no_java.returncode == 1
    assert no_java.stderr.startswith("headrace: JAVA_HOME is ")
    assert no_java.stderr.count("\n") == 1
    assert "Traceback" in headrace("--debug", "up", JAVA_HOME=str(tmp_path)).stderr


def test_a_failed_start_shows_the_log(headrace: Shell) -> None:
    failed = headrace("up", "--port", "0", "-c", "num.io.threads=none")
    assert failed.returncode == 1
    assert "Invalid value none for configuration num.io.threads" in failed.stderr
    assert str(headrace.data / "cluster-1" / "broker.log") in failed.stderr
    assert "Traceback" not in failed.stderr
    assert headrace.status()["state"] == "stopped"


@pytest.mark.parametrize(
    "args",
    [
        ("up", "--brokers", "0"),
        ("up", "--data", "x", "--ephemeral"),
        ("up", "-c", "novalue"),
        ("status", "--format", "xml"),
        ("sideways",),
    ],
)
def test_up_refuses_options_that_make_no_sense(headrace: Shell, args: tuple[str, ...]) -> None:
    done = headrace(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"headrace: .+ \(headrace( up| status)? --help\)\n", done.stderr)


def test_without_click_the_command_line_says_what_to_install(headrace: Shell, tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ImportError('none', name='click')")
    done = headrace("status", PYTHONPATH=f"{tmp_path}:{SOURCE}")
    assert done.returncode == 1
    assert done.stderr == "headrace: the command line needs click: pip install 'headrace[cli]'\n"


def test_up_with_a_registry(headrace: Shell) -> None:
    up = headrace("up", "--port", "0", "--ephemeral", "--registry", "--registry-port", "0")
    assert (up.returncode, up.stderr) == (0, "")
    registry = headrace.status()["registry"]
    assert registry["url"] in up.stdout
    assert registry["alive"]
    assert Path(registry["log"]).is_file()
    with urllib.request.urlopen(f"{registry['url']}/subjects", timeout=30) as response:
        assert json.load(response) == []

    os.kill(registry["pid"], signal.SIGKILL)
    assert eventually(lambda: not headrace.status()["registry"]["alive"])
    assert f"dead (was pid {registry['pid']})" in headrace("status").stdout

    assert headrace("up", "--registry").returncode == 0
    other_port = headrace("up", "--registry", "--registry-port", "1")
    assert other_port.returncode == 1
    assert "a registry at port" in other_port.stderr
    assert headrace("down").returncode == 0
    assert not psutil.pid_exists(registry["pid"])


def test_up_with_the_port_of_a_registry_that_is_not_wanted(headrace: Shell) -> None:
    up = headrace("up", "--registry-port", "8082")
    assert up.returncode == 2
    assert "--registry-port needs --registry" in up.stderr
