"""LocalBroker with real Kafka: it starts, survives faults, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from headrace.local import LocalBroker, LocalBrokerError, java_classpath, java_command
from support.members.subprocesses import ENVIRONMENT, brokers_below, eventually, is_running, python

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as running:
        yield running


def create_topic(cluster: LocalBroker, topic: str, partitions: int = 1, replicas: int = 1) -> None:
    admin = AdminClient(cluster.client_config)
    admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result(60)


def produce(cluster: LocalBroker, topic: str, values: list[bytes]) -> None:
    # Idempotent: retries after a killed leader must neither duplicate nor reorder records.
    producer = Producer(cluster.client_config | {"acks": "all", "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


def read(cluster: LocalBroker, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(cluster.client_config | {"group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        values += [m.value() for m in consumer.consume(count - len(values), 1) if m.error() is None]
    consumer.close()
    return values


def metadata(cluster: LocalBroker) -> ClusterMetadata:
    return AdminClient(cluster.client_config).list_topics(timeout=60)


def leader_of(cluster: LocalBroker, topic: str) -> int:
    """The leader according to any broker, which learns about a new topic a moment after the controller."""
    admin = AdminClient(cluster.client_config)
    found = -1

    def is_known() -> bool:
        nonlocal found
        described = admin.list_topics(timeout=60).topics.get(topic)
        found = described.partitions[0].leader if described is not None and described.partitions else -1
        return found >= 0

    assert eventually(is_known)
    return found


def replicas(cluster: LocalBroker, topic: str) -> list[int]:
    """The number of replicas of each partition, according to any broker."""
    found = metadata(cluster).topics.get(topic)
    return [] if found is None else [len(partition.replicas) for partition in found.partitions.values()]


class TestOneBroker:
    def test_a_local_broker_returns_the_records_that_were_produced(self, broker: LocalBroker) -> None:
        assert broker.bootstrap_servers.startswith("127.0.0.1:")
        assert broker.client_config == {"bootstrap.servers": broker.bootstrap_servers}
        values = [b"%d" % i for i in range(1000)]
        produce(broker, "in-and-out", values)
        assert read(broker, "in-and-out", 1000) == values

    def test_a_local_broker_has_the_feature_levels_of_its_release(self, broker: LocalBroker) -> None:
        """The copied bootstrap checkpoint works like `kafka-storage format`: share groups, transactions v2."""
        done = broker.run_tool(
            "org.apache.kafka.tools.FeatureCommand",
            *("--bootstrap-server", broker.bootstrap_servers, "describe"),
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        levels = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("Feature:")}
        for feature, level in [
            ("group.version", "1"),
            ("share.version", "1"),
            ("transaction.version", "2"),
            ("metadata.version", "4.3-IV0"),
        ]:
            assert f"FinalizedVersionLevel: {level} " in levels[feature]

    def test_kafkas_tools_run_against_a_local_broker(self, broker: LocalBroker) -> None:
        done = broker.run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", "tools", "--num-records", "500", "--record-size", "100", "--throughput", "-1"),
            *("--bootstrap-server", broker.bootstrap_servers),
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert "500 records sent" in done.stdout
        assert len(read(broker, "tools", 500)) == 500
        command = java_command("org.apache.kafka.tools.ConsumerPerformance", "--version")
        assert java_classpath() in command
        assert "4.3.1" in subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def test_a_local_broker_listens_on_loopback_only(self, broker: LocalBroker) -> None:
        addresses = {
            connection.laddr.ip.removeprefix("::ffff:")
            for connection in psutil.Process(broker.pid(1)).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert addresses == {"127.0.0.1"}

    def test_a_cluster_without_a_registry_has_no_registry_url(self, broker: LocalBroker) -> None:
        with pytest.raises(LocalBrokerError, match="registry=True"):
            _ = broker.registry_url

    def test_a_local_broker_refuses_a_port_in_use(self, broker: LocalBroker, tmp_path: Path) -> None:
        taken = int(broker.bootstrap_servers.rpartition(":")[2])
        with pytest.raises(LocalBrokerError, match=f"port {taken} on 127.0.0.1 is in use"):
            LocalBroker(port=taken, data_dir=tmp_path / "data").start()
        assert not (tmp_path / "data").exists()

    def test_a_free_port_taken_at_the_last_moment_is_replaced_by_another(
        self, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A port may be free when it is chosen and taken when Kafka binds it. LocalBroker then tries other ports."""
        from headrace.local import broker as module

        taken = int(broker.bootstrap_servers.rpartition(":")[2])
        real = module.free_ports
        offered: list[list[int]] = []

        def offer(count: int, avoid: frozenset[int] = frozenset()) -> list[int]:
            offered.append([taken] if not offered else real(count, avoid))
            return offered[-1]

        monkeypatch.setattr(module, "free_ports", offer)
        with LocalBroker(data_dir=tmp_path) as other:
            assert other.address(1) != broker.address(1)
        assert offered[0] == [taken]
        assert len(offered) >= 4, "ports for clients and controllers, at least twice"

    def test_a_failed_start_shows_the_log_and_leaves_no_process(self, tmp_path: Path) -> None:
        log = tmp_path / "kafka.log"
        cluster = LocalBroker(properties={"num.io.threads": "none"}, data_dir=tmp_path / "data", log_file=log)
        with pytest.raises(LocalBrokerError) as caught:
            cluster.start()
        assert str(log) in str(caught.value)
        assert "Invalid value none for configuration num.io.threads" in str(caught.value)
        assert not brokers_below(tmp_path)
        with pytest.raises(LocalBrokerError, match="not running"):
            _ = cluster.bootstrap_servers

    def test_a_failed_start_without_data_dir_leaves_only_its_log(self) -> None:
        cluster = LocalBroker(heap="2m")
        with pytest.raises(LocalBrokerError, match="Kafka did not start: broker 1 ended") as caught:
            cluster.start()
        log = Path(str(caught.value).partition("its log ")[2].partition(":\n")[0])
        assert log.read_text()
        assert list(log.parent.iterdir()) == [log]
        log.unlink()
        log.parent.rmdir()

    def test_a_broker_start_past_its_timeout_raises_and_leaves_no_process(self, tmp_path: Path) -> None:
        with pytest.raises(LocalBrokerError, match=r"not ready within 0.2 s"):
            LocalBroker(start_timeout=0.2, data_dir=tmp_path).start()
        assert not brokers_below(tmp_path)

    def test_stop_deletes_the_temporary_data_of_a_local_broker(self) -> None:
        cluster = LocalBroker().start()
        where, pid = cluster.data_dir, cluster.pid(1)
        assert where.is_dir()
        cluster.stop()
        cluster.stop()
        assert not where.exists()
        assert not is_running(pid)

    def test_a_local_broker_finds_the_records_in_its_data_dir_again(self, tmp_path: Path) -> None:
        cluster = LocalBroker(data_dir=tmp_path)
        with cluster:
            before = cluster.bootstrap_servers, cluster.cluster_id
            produce(cluster, "kept", [b"a", b"b"])
        # Less than the session timeout: the session of a broker that was stopped does not delay the start.
        with LocalBroker(data_dir=tmp_path, start_timeout=25) as again:
            assert (again.bootstrap_servers, again.cluster_id) == before
            assert read(again, "kept", 2) == [b"a", b"b"]
            with pytest.raises(LocalBrokerError, match="already running"):
                again.start()

    def test_a_local_broker_is_not_fenced_after_its_machine_stalled(self, broker: LocalBroker) -> None:
        broker.pause(1)
        time.sleep(5)  # more than the session timeout of several brokers
        broker.resume(1)
        create_topic(broker, "after-a-stall")
        assert "Fencing broker" not in broker.log_path.read_text()

    @pytest.mark.soak
    def test_a_local_broker_with_a_data_dir_moves_when_its_port_was_taken(self, tmp_path: Path) -> None:
        with LocalBroker(data_dir=tmp_path) as cluster:
            port = int(cluster.bootstrap_servers.rpartition(":")[2])
            produce(cluster, "kept", [b"a"])
        with socket.create_server(("127.0.0.1", port)), LocalBroker(data_dir=tmp_path) as again:
            assert again.bootstrap_servers != f"127.0.0.1:{port}"
            assert read(again, "kept", 1) == [b"a"]

    def test_properties_reach_a_local_broker(self) -> None:
        with LocalBroker(properties={"num.partitions": 5, "auto.create.topics.enable": True}) as cluster:
            produce(cluster, "five", [b"x"])
            assert len(metadata(cluster).topics["five"].partitions) == 5


class TestThreeBrokers:
    def test_three_brokers_have_racks_and_replicas(self, kafka: LocalBroker) -> None:
        create_topic(kafka, "replicated", partitions=3, replicas=3)
        assert leader_of(kafka, "replicated") in (1, 2, 3)
        assert sorted(metadata(kafka).brokers) == [1, 2, 3]
        assert eventually(lambda: replicas(kafka, "replicated") == [3, 3, 3])
        done = kafka.run_tool(
            "org.apache.kafka.tools.BrokerApiVersionsCommand",
            *("--bootstrap-server", kafka.bootstrap_servers),
            timeout=120,
        )
        for broker_id, rack in [(1, "a"), (2, "b"), (3, "a")]:
            assert f"(id: {broker_id} rack: {rack}" in done.stdout

    def test_a_killed_broker_is_replaced_and_comes_back(self, kafka: LocalBroker) -> None:
        create_topic(kafka, "survives", replicas=3)
        values = [b"%d" % i for i in range(100)]
        produce(kafka, "survives", values[:50])
        leader = leader_of(kafka, "survives")
        pid = kafka.pid(leader)
        kafka.kill(leader)
        assert not is_running(pid)
        assert leader not in kafka.live_brokers
        with pytest.raises(LocalBrokerError, match=f"broker {leader} is down"):
            kafka.pid(leader)
        produce(kafka, "survives", values[50:])
        assert read(kafka, "survives", 100) == values
        kafka.restart(leader)
        assert kafka.live_brokers == (1, 2, 3)
        assert kafka.pid(leader) != pid
        assert eventually(lambda: sorted(metadata(kafka).brokers) == [1, 2, 3]), (
            "the other brokers learn about it a moment later"
        )

    @pytest.mark.soak
    def test_a_broker_that_stops_gracefully_hands_its_partitions_over(self, kafka: LocalBroker) -> None:
        create_topic(kafka, "handed-over", replicas=3)
        leader = leader_of(kafka, "handed-over")
        kafka.stop_broker(leader)
        assert eventually(lambda: leader_of(kafka, "handed-over") != leader)
        kafka.restart(leader)

    def test_a_cluster_works_after_a_broker_was_paused_and_resumed(self, kafka: LocalBroker) -> None:
        kafka.pause(2)
        assert eventually(lambda: psutil.Process(kafka.pid(2)).status() == psutil.STATUS_STOPPED)
        kafka.resume(2)
        produce(kafka, "resumed", [b"x"])
        assert read(kafka, "resumed", 1) == [b"x"]

    def test_a_broker_that_does_not_exist_cannot_be_killed(self, kafka: LocalBroker) -> None:
        with pytest.raises(LocalBrokerError, match="there is no broker 4"):
            kafka.kill(4)

    @pytest.mark.soak
    def test_a_cluster_without_a_quorum_still_stops(self, kafka: LocalBroker) -> None:
        """The last test of the class: two brokers are killed, one is paused. With kept data, a clean stop is tried."""
        kafka.kill(1)
        kafka.kill(2)
        kafka.restart(1, 2)
        kafka.kill(2)
        kafka.kill(3)
        kafka.pause(1)
        pid, started = kafka.pid(1), time.monotonic()
        kafka.stop()
        assert time.monotonic() - started < 5
        assert not is_running(pid)

    @pytest.fixture(scope="class")
    @staticmethod
    def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
        with LocalBroker(3, racks=["a", "b"], data_dir=tmp_path_factory.mktemp("three")) as running:
            yield running


class TestNoOrphans:
    PARENT = """
        import sys, time
        from headrace.local import LocalBroker
        cluster = LocalBroker(2, data_dir=sys.argv[1] if len(sys.argv) > 1 else None)
        {how}
        print(cluster.data_dir, cluster.pid(1), cluster.pid(2), flush=True)
        {then}
    """

    def run(self, how: str, then: str) -> tuple[subprocess.Popen[str], Path, list[int]]:
        process = python(textwrap.dedent(self.PARENT).format(how=how, then=then))
        assert process.stdout is not None
        line = process.stdout.readline().split()
        assert len(line) == 3, process.communicate()
        return process, Path(line[0]), [int(pid) for pid in line[1:]]

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_no_broker_is_left_when_its_parent_is_signalled(self, number: signal.Signals) -> None:
        process, data, pids = self.run("cluster.start()", "time.sleep(600)")  # until a signal
        assert data.exists()
        assert all(is_running(pid) for pid in pids)
        process.send_signal(number)
        process.communicate(timeout=90)
        assert process.returncode != 0
        assert eventually(lambda: not any(is_running(pid) for pid in pids))
        assert eventually(lambda: not data.exists())

    @pytest.mark.parametrize("then", ["pass", "1 / 0"])
    def test_no_broker_is_left_when_its_parent_forgets_to_stop_it(self, then: str) -> None:
        process, data, pids = self.run("cluster.start()", then)
        process.communicate(timeout=90)
        assert not any(is_running(pid) for pid in pids)
        assert not data.exists()

    def test_no_broker_is_left_by_ctrl_c_in_a_with_statement(self) -> None:
        """SIGINT goes to the terminal's process group. The brokers are not in it; LocalBroker stops them."""
        program = """
            import os, signal, time
            from headrace.local import LocalBroker
            os.setpgrp()
            try:
                with LocalBroker() as cluster:
                    print(cluster.data_dir, cluster.pid(1), flush=True)
                    time.sleep(600)  # until it is interrupted
            except KeyboardInterrupt:
                print("stopped", cluster.live_brokers, flush=True)
        """
        process = python(program)
        assert process.stdout is not None
        data, pid = process.stdout.readline().split()
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=90) == ("stopped ()\n", "")
        assert not is_running(int(pid))
        assert not Path(data).exists()

    @pytest.mark.soak
    def test_no_broker_is_left_when_its_parent_is_killed_in_the_middle_of_a_start(self, tmp_path: Path) -> None:
        program = f"""
            from headrace.local import LocalBroker
            LocalBroker(2, data_dir={str(tmp_path)!r}).start()
        """
        process = python(program)
        assert eventually(lambda: len(brokers_below(tmp_path)) >= 2)
        process.kill()
        process.communicate(timeout=90)
        assert eventually(lambda: not brokers_below(tmp_path))
        with LocalBroker(2, data_dir=tmp_path) as again:  # the directory stays usable
            produce(again, "t", [b"x"])

    def test_a_forked_child_neither_stops_nor_uses_its_parent_s_broker(self, broker: LocalBroker) -> None:
        child = os.fork()
        if child == 0:
            try:
                broker.stop()
                broker.kill(1)
            except LocalBrokerError as error:
                os._exit(42 if "forked" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        assert broker.live_brokers == (1,)


class TestDownload:
    """With a separate cache. Only the first test uses the Maven repository."""

    INSTALL = """
        import sys
        from headrace.local.java import find_java
        from headrace.local.kafka_home import install
        from headrace.local import LocalBrokerError
        steps = []
        try:
            home = install("4.3.1", find_java(), lambda p: steps.append(p.step))
        except LocalBrokerError as error:
            sys.exit(str(error))
        print(home.path, home.is_complete(), "downloading" in steps, "waiting for another process" in steps)
    """
    NO_NETWORK = {  # noqa: RUF012
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "no_proxy": "",
        "NO_PROXY": "",
    }

    @pytest.mark.soak
    def test_two_processes_download_kafka_once_and_work_offline_afterwards(self, tmp_path: Path) -> None:
        cache = tmp_path / "cache"
        both = [python(self.INSTALL, HEADRACE_CACHE=str(cache)) for _ in range(2)]
        said = [process.communicate(timeout=240) for process in both]
        assert [process.returncode for process in both] == [0, 0], said
        downloaded = sorted(out.split()[2:] for out, _ in said)
        assert downloaded == [["False", "True"], ["True", "False"]]
        assert sorted(path.name for path in cache.iterdir()) == ["kafka-4.3.1", "kafka-4.3.1.lock"]

        offline = python(self.INSTALL, HEADRACE_CACHE=str(cache), **self.NO_NETWORK)
        out, _ = offline.communicate(timeout=100)
        assert out.split()[1:] == ["True", "False", "False"]

    def test_a_first_broker_start_without_a_network_says_so(self, tmp_path: Path) -> None:
        program = "from headrace.local import LocalBroker; LocalBroker().start()"
        process = python(program, HEADRACE_CACHE=str(tmp_path), **self.NO_NETWORK)
        _, error = process.communicate(timeout=120)
        assert "LocalBrokerError: Kafka 4.3.1 is not in the cache and could not be downloaded" in error
        assert "later starts need no network" in error
        assert [path.name for path in tmp_path.iterdir()] == ["kafka-4.3.1.lock"]

    def test_a_killed_kafka_download_leaves_no_process_and_no_installation(self, tmp_path: Path) -> None:
        process = python(self.INSTALL, HEADRACE_CACHE=str(tmp_path))
        assert eventually(lambda: bool(brokers_below(tmp_path)))
        process.kill()
        process.communicate(timeout=90)
        assert eventually(lambda: not brokers_below(tmp_path))
        assert not (tmp_path / "kafka-4.3.1").exists()


def test_the_pytest_plugin_gives_brokers_to_a_user_s_tests(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(
        textwrap.dedent("""
        import sys
        from confluent_kafka import Producer

        PIDS = {}

        def test_broker(kafka_broker, kafka_topic):
            producer = Producer(kafka_broker.client_config)
            producer.produce(kafka_topic, b"x")
            assert producer.flush(30) == 0
            PIDS[kafka_topic] = kafka_broker.pid(1)

        def test_same_broker_other_topic(kafka_broker, kafka_topic):
            assert kafka_topic not in PIDS
            assert list(PIDS.values()) == [kafka_broker.pid(1)]

        def test_cluster(kafka_cluster):
            cluster = kafka_cluster(2, properties={"num.partitions": 3})
            assert len(cluster.bootstrap_servers.split(",")) == 2
    """)
    )
    installed = any(point.value == "headrace.testing" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "headrace.testing"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, str(tmp_path)],
        env=ENVIRONMENT,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_loading_the_pytest_plugin_does_not_import_headrace_local() -> None:
    code = "import sys, headrace.testing; assert 'headrace.local' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True)
