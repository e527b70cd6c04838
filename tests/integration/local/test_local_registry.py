"""LocalRegistry with a real Apicurio Registry: it starts, keeps its schemas, and leaves no process or file behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.local import LocalBroker, LocalBrokerError, LocalRegistry
from headrace.local import registry as module
from support.members.subprocesses import eventually, is_running, python

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    with LocalRegistry(data_dir=tmp_path_factory.mktemp("registry")) as registry:
        yield registry


def ask(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/vnd.schemaregistry.v1+json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def register(registry: LocalRegistry, subject: str, schema: str = '"string"') -> int:
    found: int = ask(f"{registry.url}/subjects/{subject}/versions", {"schema": schema})["id"]
    return found


class TestOneRegistry:
    def test_a_local_registry_returns_the_schemas_that_were_registered(self, kept: LocalRegistry) -> None:
        assert kept.url.startswith("http://127.0.0.1:")
        number = register(kept, "in-and-out", '"long"')
        assert ask(f"{kept.url}/schemas/ids/{number}")["schema"] == '"long"'

    def test_a_local_registry_listens_on_loopback_only(self, kept: LocalRegistry) -> None:
        addresses = {
            connection.laddr.ip.removeprefix("::ffff:")
            for connection in psutil.Process(kept.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert addresses == {"127.0.0.1"}

    def test_a_registry_that_was_killed_comes_back_with_its_schemas(self, kept: LocalRegistry) -> None:
        """Ids are part of records: they must not change."""
        number = register(kept, "killed", '"bytes"')
        url = kept.url
        kept.kill()
        assert not kept.is_alive
        with pytest.raises(LocalBrokerError, match="the registry is down"):
            kept.kill()
        with pytest.raises(urllib.error.URLError):
            ask(f"{url}/subjects")
        kept.restart()
        assert kept.url == url
        assert ask(f"{url}/schemas/ids/{number}")["schema"] == '"bytes"'
        assert register(kept, "killed", '"bytes"') == number

    def test_a_paused_registry_does_not_respond(self, kept: LocalRegistry) -> None:
        kept.pause()
        try:
            with socket.create_connection(("127.0.0.1", int(kept.url.split(":")[2].split("/")[0])), timeout=10) as mute:
                mute.settimeout(0.5)
                mute.sendall(b"GET /apis/ccompat/v7/subjects HTTP/1.0\r\n\r\n")
                with pytest.raises(TimeoutError):
                    mute.recv(1)
        finally:
            kept.resume()
        assert isinstance(ask(f"{kept.url}/subjects"), list)

    def test_a_second_registry_on_the_same_data_dir_is_refused(
        self, kept: LocalRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_LOCK_WITHIN", 0.1)
        with pytest.raises(LocalBrokerError, match="another registry is running on the data directory"):
            LocalRegistry(data_dir=kept.data_dir).start()
        assert isinstance(ask(f"{kept.url}/subjects"), list)

    def test_a_local_registry_refuses_a_port_in_use(self, kept: LocalRegistry, tmp_path: Path) -> None:
        taken = int(kept.url.split(":")[2].split("/")[0])
        with pytest.raises(LocalBrokerError, match=f"port {taken} on 127.0.0.1 is in use"):
            LocalRegistry(port=taken, data_dir=tmp_path / "data").start()
        assert not (tmp_path / "data").exists()

    def test_a_free_port_taken_at_the_last_moment_is_replaced_by_another(
        self, kept: LocalRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The port is free when it is chosen and in use when the registry binds it. Another registry responds there."""
        taken = int(kept.url.split(":")[2].split("/")[0])
        choices = [[taken], module.free_ports(1)]
        monkeypatch.setattr(module, "free_ports", lambda _count: choices.pop(0))
        with LocalRegistry() as registry:
            assert not choices
            assert registry.url != kept.url
            assert ask(f"{registry.url}/subjects") == []

    def test_a_failed_start_shows_the_log_and_leaves_no_process(self, tmp_path: Path) -> None:
        (tmp_path / "db.mv.db").write_bytes(b"no database" * 10_000)
        registry = LocalRegistry(data_dir=tmp_path, start_timeout=60)
        with pytest.raises(LocalBrokerError, match=r"Apicurio Registry did not start: (.|\n)*db.mv.db"):
            registry.start()
        with pytest.raises(LocalBrokerError, match="is not running"):
            _ = registry.url

    def test_a_start_past_its_timeout_raises_and_leaves_no_process(self) -> None:
        registry = LocalRegistry(start_timeout=0.05)
        with pytest.raises(LocalBrokerError, match=r"it was not ready within 0\.05 s") as failed:
            registry.start()
        log = Path(str(failed.value).split("From its log ")[1].split(":")[0])
        assert [path.name for path in log.parent.iterdir()] == ["registry.log"]
        log.unlink()
        log.parent.rmdir()

    def test_a_forked_child_neither_stops_nor_uses_its_parent_s_registry(self, kept: LocalRegistry) -> None:
        child = os.fork()
        if child == 0:
            try:
                kept.stop()
                _ = kept.url
            except LocalBrokerError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert isinstance(ask(f"{kept.url}/subjects"), list)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"port": 0}, LocalBrokerError),
        ({"port": 65_536}, LocalBrokerError),
        ({"port": "8081"}, TypeError),
        ({"heap": "lots"}, LocalBrokerError),
        ({"data_dir": 1}, TypeError),
        ({"progress": 1}, TypeError),
    ],
)
def test_wrong_arguments_of_a_registry_are_errors(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        LocalRegistry(**arguments)


PARENT = """
    import time
    from headrace.local import LocalBroker
    with LocalBroker(registry=True) as cluster:
        print(cluster.data_dir, cluster.pid(1), cluster.registry.pid, cluster.registry_url, flush=True)
        time.sleep(600)  # until it is signalled
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_registry_is_left_when_its_parent_is_signalled(number: signal.Signals) -> None:
    process = python(PARENT)
    assert process.stdout is not None
    line = process.stdout.readline().split()
    assert len(line) == 4, process.communicate()
    data, pids, url = Path(line[0]), [int(line[1]), int(line[2])], line[3]
    assert ask(f"{url}/subjects") == []
    assert (data / "registry.log").is_file()
    process.send_signal(number)
    process.communicate(timeout=90)
    assert eventually(lambda: not any(is_running(pid) for pid in pids))
    assert eventually(lambda: not data.exists())


def test_a_cluster_keeps_the_schemas_in_its_data_dir(tmp_path: Path) -> None:
    with LocalBroker(data_dir=tmp_path, registry=True) as cluster:
        number = register(cluster.registry, "kept", '"double"')
        pid = cluster.registry.pid
    assert not is_running(pid)
    with LocalBroker(data_dir=tmp_path, registry=True) as cluster:
        assert ask(f"{cluster.registry_url}/schemas/ids/{number}")["schema"] == '"double"'
