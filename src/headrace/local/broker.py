"""`LocalBroker`: a Kafka cluster on this machine."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from .._arguments import whole_number_of
from .arguments import (
    check_java_options,
    check_path,
    check_racks,
    check_registry,
    check_security,
    check_size,
    check_start,
    check_tool,
    overrides_in,
)
from .directory import ClusterDirectory, error_excerpt, lines_since, open_log
from .errors import LocalBrokerError, full_disk, storage_error
from .ivy import ProgressCallback
from .java import find_java
from .kafka_home import DEFAULT_VERSION
from .ports import free_ports, is_free, require_free
from .prepare import Ready, prepare
from .process import GuardedProcess
from .progress import say_on_terminal
from .readiness import ask_broker
from .registry import LocalRegistry
from .secured import ADMIN, Secured
from .secured import secure as secure_directory
from .settings import HOST, Ports, broker_properties, rack_of, write_broker_files
from .tools import broker_command, run_tool

_ATTEMPTS = 3
_STOP_WITHIN = 10.0
_STOP_WITHOUT_QUORUM_WITHIN = 1.0
_ASK_WITHIN = 2.0
_ASK_EVERY = 0.02
_DISK_IS_FULL_BELOW = 1024 * 1024

Setting = str | int | float | bool


class LocalBroker:
    """Apache Kafka in KRaft mode on 127.0.0.1: one JVM per broker, each is both broker and controller; ids start at 1.

        with LocalBroker() as kafka:
            print(kafka.bootstrap_servers)

    :param brokers: the number of brokers.
    :param port: the port of the first broker; the other brokers use the ports after it. None: free ports.
    :param data_dir: the directory for the data. A later cluster on the same directory finds the data. None: a
        temporary directory, which `stop()` deletes.
    :param properties: further broker settings. They override the settings of `LocalBroker`.
    :param secure: TLS, users and ACLs: see `client_config`, `config_of` and `mutual_config` for how to connect. Needs
        the package cryptography.
    :param users: further users of a secured cluster, with their passwords. They have no permissions until ACLs grant
        them. The user `admin` always exists and has all permissions.
    :param racks: the racks of the brokers, assigned in turn; consumers can then fetch from replicas in their own rack.
    :param registry: start a schema registry, too: see `registry_url`. Its schemas are kept with the data.
    :param registry_port: the port of the registry. None: a free port.
    :param version: the version of Apache Kafka, 4.0 or newer.
    :param log_file: the brokers append their log to this file. None: `broker.log` in the data directory.
    :param start_timeout: the maximum duration of a start, in seconds.
    :param heap: the maximum heap of each broker, in the format of Java's `-Xmx`.
    :param java_options: further options of Java. `-XX:TieredStopAtLevel=1` saves CPU time if brokers run for a minute
        or less.
    :param progress: called during the one-time download. None: lines on stderr, if it is a terminal.

    The brokers end when this process ends, even if it is killed. Failures raise `LocalBrokerError` (TypeError for an
    argument of a wrong type) and leave no process running. Do not use an instance in several threads at a time.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        port: int | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        properties: Mapping[str, Setting] | None = None,
        secure: bool = False,
        users: Mapping[str, str] | None = None,
        racks: Sequence[str] | None = None,
        registry: bool = False,
        registry_port: int | None = None,
        version: str = DEFAULT_VERSION,
        log_file: str | os.PathLike[str] | None = None,
        start_timeout: float = 60.0,
        heap: str = "512m",
        java_options: Sequence[str] = (),
        progress: ProgressCallback | None = None,
    ) -> None:
        check_size(brokers, port)
        check_racks(racks)
        check_security(secure, users)
        check_registry(registry, registry_port)
        check_path("data_dir", data_dir)
        check_path("log_file", log_file)
        check_start(version, start_timeout, heap, progress)
        check_java_options(java_options)
        self._overrides = overrides_in(properties)
        self.brokers: tuple[int, ...] = tuple(range(1, brokers + 1))
        self.version = version
        self._first_port = port
        self._given_dir = data_dir
        self._is_secure = secure
        self._users = dict(users or {})
        self._secured: Secured | None = None
        self._racks = racks
        self._has_registry = registry
        self._registry_port = registry_port
        self._registry: LocalRegistry | None = None
        self._given_log = None if log_file is None else Path(log_file).expanduser().absolute()
        self._start_timeout = start_timeout
        self._heap = heap
        self._java_options = tuple(java_options)
        self._progress = progress or say_on_terminal
        self._directory: ClusterDirectory | None = None
        self._processes: dict[int, GuardedProcess] = {}
        self._owner = 0

    # Properties of a running cluster.

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for `bootstrap.servers`."""
        return ",".join(self.address(i) for i in self.brokers)

    @property
    def client_config(self) -> dict[str, str]:
        """The settings of a client, for headrace and librdkafka. On a secured cluster, the client connects as
        `admin`."""
        if self._is_secure:
            return self.config_of(ADMIN)
        return {"bootstrap.servers": self.bootstrap_servers}

    def config_of(self, username: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """The settings of a client that connects as this user, with PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""
        return {"bootstrap.servers": self.bootstrap_servers, **self._security().sasl_config(username, mechanism)}

    @property
    def mutual_config(self) -> dict[str, str]:
        """The settings of a client that connects with a certificate. It has all permissions."""
        ports = self._running().state.ports
        servers = ",".join(f"{HOST}:{ports[i].mutual}" for i in self.brokers)
        return {"bootstrap.servers": servers, **self._security().mutual_config()}

    @property
    def client_properties(self) -> Path:
        """The properties file for Java's clients and tools, with the settings of `client_config`. Only for a secured
        cluster."""
        return self._security().client_properties

    @property
    def data_dir(self) -> Path:
        """The directory with the data of all brokers."""
        return self._running().path

    @property
    def log_path(self) -> Path:
        """The log file of all brokers."""
        return self._given_log or self._running().default_log

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, which its data directory keeps."""
        return self._running().state.cluster_id

    @property
    def registry(self) -> LocalRegistry:
        """The schema registry of a cluster with `registry=True`."""
        self._running()
        if self._registry is None:
            raise LocalBrokerError("the cluster has no schema registry: create it with registry=True")
        return self._registry

    @property
    def registry_url(self) -> str:
        """The address of the schema registry, for `SchemaRegistry` and for other clients of Confluent's REST API."""
        return self.registry.url

    @property
    def live_brokers(self) -> tuple[int, ...]:
        """The brokers whose process is running or paused."""
        return tuple(i for i in self.brokers if i in self._processes and self._processes[i].is_alive())

    def address(self, broker_id: int) -> str:
        """`host:port` of one broker."""
        ports = self._running().state.ports
        self._check_id(broker_id)
        return f"{HOST}:{ports[broker_id].client}"

    def pid(self, broker_id: int) -> int:
        """The process id of one broker. Raises `LocalBrokerError` if the broker is down."""
        return self._process(broker_id).pid

    # Start and stop.

    def start(self) -> LocalBroker:
        """Start all brokers. Returns when each broker lists all of them. The first start downloads Kafka."""
        if self._directory is not None:
            raise LocalBrokerError("the cluster is already running")
        find_java()  # first, because a missing Java is the most common problem
        if self._first_port is not None:
            require_free(self._client_ports(self._first_port))
        if self._registry_port is not None:
            require_free([self._registry_port])
        self._ready = prepare(self.version, self._progress)
        self._owner = os.getpid()
        self._directory = ClusterDirectory(self._given_dir, self.brokers, secure=self._is_secure)
        where = self._directory.path
        atexit.register(self.stop)
        try:
            if self._is_secure:
                place = self._directory.security
                self._secured = secure_directory(place, self._users, self._ready.java, self._ready.kafka, HOST)
            # The registry starts at the same time as the brokers.
            if self._has_registry:
                self._registry = self._launch_registry(self._directory)
            self._start_on_free_ports()
            if self._registry is not None:
                self._registry.wait_until_ready()
            if self._secured is not None:
                self._secured.write_client_properties(self.bootstrap_servers)
        except BaseException as error:
            self._abandon(keep_log=isinstance(error, LocalBrokerError))
            if isinstance(error, OSError):
                raise storage_error(error, where, "the data directory") from error
            raise
        return self

    def stop(self, *, keep_log: bool = False, within: float = _STOP_WITHIN) -> None:
        """Stop all brokers, and the registry: with a clean shutdown if the data is kept, immediately if it is deleted.

        `keep_log` keeps the log of a temporary cluster. Brokers that have not stopped `within` seconds are killed: the
        next start on their data then takes longer.
        """
        if self._directory is None or self._owner != os.getpid():
            return
        if not self._directory.temporary:
            if self._registry is not None:
                self._registry.stop()
            self._end_orderly(self.live_brokers, within)
        self._abandon(keep_log)

    def __enter__(self) -> LocalBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # One broker at a time.

    def kill(self, broker_id: int) -> None:
        """Send SIGKILL. Returns when the process has ended."""
        self._process(broker_id)
        self._processes.pop(broker_id).close()

    def stop_broker(self, broker_id: int) -> None:
        """Send SIGTERM, so that the broker hands over its leaderships; after ten seconds, send SIGKILL."""
        self._process(broker_id)
        self._end_orderly([broker_id])

    def restart(self, *broker_ids: int) -> None:
        """Start these brokers, or restart them if they are running. Returns when they are ready.

        The quorum needs more than half of the brokers: if too many are down, start several in one call.
        """
        directory = self._running()
        for broker_id in broker_ids:
            self._check_id(broker_id)
        broker_ids = tuple(dict.fromkeys(broker_ids))  # do not start a broker twice
        self._end_orderly([i for i in broker_ids if i in self._processes])
        start = self._log_size()
        for broker_id in broker_ids:
            self._launch(broker_id, directory)
        self._wait_until_ready(broker_ids, start)

    def pause(self, broker_id: int) -> None:
        """Send SIGSTOP: connections stay open, but the broker does not respond. Returns when the broker has stopped."""
        self._process(broker_id).pause()

    def resume(self, broker_id: int) -> None:
        """Send SIGCONT."""
        self._process(broker_id).resume()

    def run_tool(
        self, main_class: str, *args: str, input: str | None = None, timeout: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a class of Kafka's jars, such as `org.apache.kafka.tools.ProducerPerformance`.

        `args` are the complete arguments: the address of the cluster is not added. The output is captured as text. The
        exit code is not checked.
        """
        self._running()
        check_tool(main_class, args, input, timeout)
        return run_tool(self._ready.java, self._ready.kafka, main_class, args, input=input, timeout=timeout)

    # Implementation.

    _ready: Ready

    def _start_on_free_ports(self) -> None:
        directory = self._running()
        for attempt in range(1, _ATTEMPTS + 1):
            ports = self._choose_ports(directory.state.ports if attempt == 1 else {})
            directory.save(ports)
            start = self._log_size()
            try:
                for broker_id in self.brokers:
                    self._launch(broker_id, directory)
                self._wait_until_ready(self.brokers, start)
            except _PortTaken:
                # Another process took the port after we had checked it.
                if self._first_port is not None or attempt == _ATTEMPTS:
                    raise
                self._end_all()
            else:
                return

    def _launch_registry(self, directory: ClusterDirectory) -> LocalRegistry:
        registry = LocalRegistry.of_cluster(
            directory.path,
            temporary=directory.temporary,
            port=self._registry_port,
            start_timeout=self._start_timeout,
            progress=self._progress,
        )
        registry.launch()
        return registry

    def _choose_ports(self, saved: Mapping[int, Ports]) -> dict[int, Ports]:
        count = len(self.brokers)
        if self._first_port is not None:
            clients = self._client_ports(self._first_port)
            require_free(clients)
        elif saved and all(is_free(p.client) for p in saved.values()):
            clients = [saved[i].client for i in self.brokers]
        else:
            clients = free_ports(count)
        others = free_ports(2 * count if self._is_secure else count, avoid=frozenset(clients))
        controllers, mutual = others[:count], others[count:] or [0] * count
        return {i: Ports(*each) for i, *each in zip(self.brokers, clients, controllers, mutual, strict=True)}

    def _client_ports(self, first: int) -> list[int]:
        return [first + index for index in range(len(self.brokers))]

    def _launch(self, broker_id: int, directory: ClusterDirectory) -> None:
        files = directory.files(broker_id)
        state = directory.state
        rack = rack_of(self.brokers.index(broker_id), self._racks)
        settings = broker_properties(broker_id, state.ports, rack, files.data, self._overrides, self._secured)
        write_broker_files(files, settings, state.cluster_id, self._secured or self._ready.kafka)
        archive = [f"-XX:SharedArchiveFile={self._ready.archive}"] if self._ready.archive else []
        flags = [*archive, *self._java_options]
        log = open_log(self.log_path)
        try:
            self._processes[broker_id] = GuardedProcess(
                broker_command(self._ready.java, self._ready.kafka, files, broker_id, self._heap, flags),
                output=log,
                cwd=files.home,
                grace=0.0 if directory.temporary else _STOP_WITHIN,
                remove=directory.path if directory.temporary else None,
                hold=[directory.lock_fd],
            )
        finally:
            os.close(log)

    def _wait_until_ready(self, broker_ids: Iterable[int], log_start: int) -> None:
        """Wait until each of the brokers responds, belongs to this cluster, and lists all of them."""
        state = self._running().state
        context = None if self._secured is None else self._secured.context()
        wanted = frozenset(broker_ids)
        waiting = sorted(wanted)
        deadline = time.monotonic() + self._start_timeout
        while waiting:
            for broker_id in wanted:
                if not self._processes[broker_id].is_alive():
                    code = self._processes.pop(broker_id).close()
                    raise self._start_failure(f"broker {broker_id} ended with code {code}", log_start)
            if time.monotonic() > deadline:
                raise self._start_failure(
                    f"broker {waiting[0]} was not ready within {self._start_timeout:g} s", log_start
                )
            ports = state.ports[waiting[0]]
            view = ask_broker(ports.mutual or ports.client, _ASK_WITHIN, context)
            if view and view.cluster_id == state.cluster_id and view.broker_ids >= wanted:
                del waiting[0]
            else:
                time.sleep(_ASK_EVERY)

    def _start_failure(self, what: str, log_start: int) -> LocalBrokerError:
        said = lines_since(self.log_path, log_start)
        if any("Address already in use" in line for line in said):
            return _PortTaken(f"{what}: another process took its port. Log: {self.log_path}")
        # If the disk is full, the log may not contain this line.
        where = self._running().path
        if (
            any("No space left on device" in line for line in said)
            or shutil.disk_usage(where).free < _DISK_IS_FULL_BELOW
        ):
            return full_disk(where, "the data directory")
        return LocalBrokerError(f"Kafka did not start: {what}. From its log {self.log_path}:\n{error_excerpt(said)}")

    def _end_orderly(self, broker_ids: Iterable[int], within: float = _STOP_WITHIN) -> None:
        """Send SIGTERM to all of them, then SIGKILL to those that do not end in time."""
        ending = {i: self._processes[i] for i in broker_ids}
        for process in ending.values():
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + within
        while time.monotonic() < deadline and any(p.is_alive() for p in ending.values()):
            if len(self.live_brokers) <= len(self.brokers) // 2:
                # Without a quorum there is no active controller, and a controlled shutdown would wait for it.
                deadline = min(deadline, time.monotonic() + _STOP_WITHOUT_QUORUM_WITHIN)
            time.sleep(_ASK_EVERY)
        for broker_id in ending:
            self._processes.pop(broker_id).close()

    def _end_all(self) -> None:
        while self._processes:
            self._processes.popitem()[1].close()

    def _abandon(self, keep_log: bool) -> None:
        self._end_all()
        if self._registry is not None:
            self._registry.abandon()
            self._registry = None
        if self._directory is not None:
            self._directory.close(keep_log)
            self._directory = None
        atexit.unregister(self.stop)

    def _running(self) -> ClusterDirectory:
        if self._directory is None:
            raise LocalBrokerError("the cluster is not running: call start(), or use it in a with statement")
        if self._owner != os.getpid():
            raise LocalBrokerError("the cluster belongs to the parent process, which forked this one")
        return self._directory

    def _security(self) -> Secured:
        self._running()
        if self._secured is None:
            raise LocalBrokerError("the cluster is not secured: create it with secure=True")
        return self._secured

    def _process(self, broker_id: int) -> GuardedProcess:
        self._running()
        self._check_id(broker_id)
        process = self._processes.get(broker_id)
        if process is None or not process.is_alive():
            raise LocalBrokerError(f"broker {broker_id} is down")
        return process

    def _check_id(self, broker_id: int) -> None:
        if whole_number_of("broker_id", broker_id) not in self.brokers:
            raise LocalBrokerError(f"there is no broker {broker_id}: the ids are {self.brokers}")

    def _log_size(self) -> int:
        try:
            return self.log_path.stat().st_size
        except FileNotFoundError:
            return 0


class _PortTaken(LocalBrokerError):
    pass
