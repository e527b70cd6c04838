"""Files of a local cluster (settings, saved state, logs), and the readiness check."""

from __future__ import annotations

import base64
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from headrace.local import LocalBroker, directory
from headrace.local.directory import ClusterDirectory, ClusterState, error_excerpt, lines_since, open_log
from headrace.local.errors import LocalBrokerError
from headrace.local.filelock import FileLock
from headrace.local.kafka_home import KafkaHome
from headrace.local.ports import free_ports, is_free
from headrace.local.readiness import ReadyBrokers, ask_broker
from headrace.local.settings import BrokerFiles, Ports, broker_properties, rack_of, random_id, write_broker_files

THREE = {1: Ports(9092, 20001), 2: Ports(9093, 20002), 3: Ports(9094, 20003)}


def test_settings_of_a_single_broker_and_of_three() -> None:
    single = broker_properties(1, {1: Ports(9092, 20001)}, None, Path("/d"), {})
    assert single["offsets.topic.replication.factor"] == "1"
    assert single["transaction.state.log.min.isr"] == "1"
    assert single["controller.quorum.voters"] == "1@127.0.0.1:20001"
    assert "broker.rack" not in single
    second = broker_properties(2, THREE, "b", Path("/d"), {"num.partitions": "7"})
    assert second["node.id"] == "2"
    assert second["listeners"] == "PLAINTEXT://127.0.0.1:9093,CONTROLLER://127.0.0.1:20002"
    assert second["controller.quorum.voters"] == "1@127.0.0.1:20001,2@127.0.0.1:20002,3@127.0.0.1:20003"
    assert second["share.coordinator.state.topic.replication.factor"] == "3"
    assert second["share.coordinator.state.topic.min.isr"] == "2"
    assert second["broker.rack"] == "b"
    assert second["num.partitions"] == "7"


def test_a_single_broker_has_a_long_session_unless_a_killed_one_is_still_registered(tmp_path: Path) -> None:
    def session(ports: Mapping[int, Ports]) -> str:
        return broker_properties(1, ports, None, tmp_path, {})["broker.session.timeout.ms"]

    assert (session({1: Ports(9092, 20001)}), session(THREE)) == ("30000", "4000")
    (tmp_path / "meta.properties").touch()
    assert session({1: Ports(9092, 20001)}) == "4000"
    (tmp_path / ".kafka_cleanshutdown").touch()
    assert (session({1: Ports(9092, 20001)}), session(THREE)) == ("30000", "4000")


def test_racks_are_used_in_turn() -> None:
    assert [rack_of(i, ["a", "b"]) for i in range(3)] == ["a", "b", "a"]
    assert rack_of(0, None) is None


def test_a_formatted_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "bootstrap.checkpoint").write_bytes(b"levels")
    kafka = KafkaHome("4.3.1", tmp_path)
    files = BrokerFiles(tmp_path / "broker-1")
    write_broker_files(files, {"node.id": "1", "a": "C:\\x\ny"}, "first", kafka)
    meta = (files.data / "meta.properties").read_text()
    assert "cluster.id=first\nnode.id=1\n" in meta
    assert (files.data / "bootstrap.checkpoint").read_bytes() == b"levels"
    assert files.properties.read_text() == "node.id=1\na=C:\\\\x\\ny\n"
    write_broker_files(files, {"node.id": "1", "b": "2"}, "second", kafka)
    assert (files.data / "meta.properties").read_text() == meta
    assert files.properties.read_text() == "node.id=1\nb=2\n"


def test_ids_are_those_of_kafka() -> None:
    made = {random_id() for _ in range(500)}
    assert len(made) == 500
    assert all(len(base64.urlsafe_b64decode(i + "==")) == 16 and not i.startswith("-") for i in made)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"brokers": 0}, "at least one broker"),
        ({"port": 0}, "is not a valid first port"),
        ({"port": 65_535, "brokers": 3}, "is not a valid first port"),
        ({"racks": []}, "at least one rack"),
        ({"properties": {"node.id": "7"}}, "node.id is set by LocalBroker and cannot be given in properties"),
    ],
)
def test_arguments_are_checked_at_once(arguments: dict[str, object], expected: str) -> None:
    with pytest.raises(LocalBrokerError, match=expected):
        LocalBroker(**arguments)  # type: ignore[arg-type]


def test_nothing_can_be_asked_of_a_cluster_that_does_not_run() -> None:
    cluster = LocalBroker(2)
    assert cluster.brokers == (1, 2)
    assert cluster.live_brokers == ()
    for ask in (lambda: cluster.bootstrap_servers, lambda: cluster.pid(1), lambda: cluster.kill(1)):
        with pytest.raises(LocalBrokerError, match="not running"):
            ask()
    cluster.stop()


def test_a_data_directory_remembers_its_cluster(tmp_path: Path) -> None:
    first = ClusterDirectory(tmp_path / "new" / "data", (1, 2, 3))
    assert first.save(THREE).ports == THREE
    first.close()
    again = ClusterDirectory(tmp_path / "new" / "data", (1, 2, 3))
    assert again.state == ClusterState(first.state.cluster_id, THREE)
    again.close()
    with pytest.raises(LocalBrokerError, match="belongs to a cluster of 3"):
        ClusterDirectory(tmp_path / "new" / "data", (1,))


def test_a_temporary_directory_goes_away() -> None:
    one = ClusterDirectory(None, (1,))
    assert one.path.is_dir()
    one.close()
    assert not one.path.exists()


def test_a_log_that_is_still_wanted_stays() -> None:
    one = ClusterDirectory(None, (1,))
    one.files(1).data.mkdir(parents=True)
    one.default_log.write_text("why")
    one.close(keep_log=True)
    assert list(one.path.iterdir()) == [one.default_log]
    one.default_log.unlink()
    one.path.rmdir()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cluster_id": "x"}', '{"cluster_id": "x", "ports": {"1": [1]}}'])
def test_a_damaged_memory_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "headrace.json").write_text(text)
    with pytest.raises(LocalBrokerError, match=r"headrace\.json is damaged"):
        ClusterDirectory(tmp_path, (1,))


def test_a_directory_has_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_LOCK_WITHIN", 0.1)
    first = ClusterDirectory(tmp_path, (1,))
    with pytest.raises(LocalBrokerError, match="another cluster is running"):
        ClusterDirectory(tmp_path, (1,))
    first.close()
    ClusterDirectory(tmp_path, (1,)).close()


def test_a_lock_lives_as_long_as_one_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path) as lock, FileLock(path) as other:
        assert lock.acquire(0)
        heir = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, pass_fds=(lock.fileno(),))
        lock.release()
        assert not other.acquire(0.1)
        heir.communicate(b"\n")
        assert other.acquire(60)


def test_what_a_log_says_is_of_this_run_only(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n")
    start = log.stat().st_size
    with log.open("a") as out:
        out.writelines(f"line {i}\n" for i in range(100))
    assert lines_since(log, start) == [f"line {i}" for i in range(100)]
    assert lines_since(log, 10**9)[0] == "old", "the log was replaced"
    assert "cannot be read" in lines_since(tmp_path / "none", 0)[0]


def test_the_gist_of_a_log_is_its_errors() -> None:
    start, end = [f"start {i}" for i in range(50)], [f"end {i}" for i in range(50)]
    assert error_excerpt(start + end, 2) == "end 48\nend 49"
    why = ["… ERROR Exiting", "KafkaException: no", "\tat a", "\tat b"]
    assert error_excerpt(start + why + end, 25) == "\n".join(why)
    assert error_excerpt([*start, "… ERROR last"], 25) == "… ERROR last"


def test_a_large_log_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_LOG_ROTATES_AT", 10)
    log = tmp_path / "sub" / "log"
    for text in (b"0123456789ab", b"new"):
        fd = open_log(log)
        os.write(fd, text)
        os.close(fd)
    assert log.read_bytes() == b"new"
    assert log.with_name("log.1").read_bytes() == b"0123456789ab"


def test_free_ports_are_free_and_outside_of_the_ephemeral_range() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(20_000 <= port < 32_768 and is_free(port) for port in ports)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert not is_free(taken.getsockname()[1])


@pytest.fixture
def answering() -> Iterator[object]:
    """A server that sends the same bytes to every connection."""
    servers: list[socket.socket] = []

    def serve(answer: bytes) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def run() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        threading.Thread(target=run, daemon=True).start()
        return int(server.getsockname()[1])

    yield serve
    for server in servers:
        server.close()


def answer(brokers: bytes, error: int = 0) -> bytes:
    body = struct.pack(">iBih", 1, 0, 0, error) + b"\0" + b"\x03ab" + struct.pack(">i", 1) + brokers
    return struct.pack(">i", len(body)) + body


def broker(broker_id: int, rack: bytes = b"\0") -> bytes:
    return struct.pack(">i", broker_id) + b"\x02h" + struct.pack(">i", 9092) + rack + b"\0"


@pytest.mark.parametrize(
    ("said", "view"),
    [
        (answer(b"\x03" + broker(1) + broker(2, b"\x02r")), ReadyBrokers("ab", frozenset({1, 2}))),
        (answer(b"\x01"), ReadyBrokers("ab", frozenset())),
        (answer(b"\x01", error=7), None),
        (answer(b"\x05" + broker(1)), None),
        (b"", None),
        (b"\0\0\0\x04abc", None),
        (b"\x7f\xff\xff\xff", None),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", None),
    ],
    ids=["two", "none", "an error", "cut off", "closed", "short frame", "huge frame", "not Kafka"],
)
def test_only_a_whole_answer_counts_as_a_ready_broker(
    answering: object, said: bytes, view: ReadyBrokers | None
) -> None:
    assert ask_broker(answering(said), timeout=60) == view  # type: ignore[operator]


def test_a_port_where_nobody_listens_is_no_broker() -> None:
    assert ask_broker(free_ports(1)[0], timeout=1) is None
