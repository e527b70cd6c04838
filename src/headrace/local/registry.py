"""`LocalRegistry`: a schema registry on this machine.

It is Apicurio Registry, with Confluent's REST API at `url`. Schemas are in an H2 database in the data directory:

    <data>/registry.lock   held while the registry runs, by this process and by the guard
    <data>/registry.log    its log
    <data>/db.mv.db        its schemas

A registry that stops, or is killed, and is started again on the same directory has the same schemas and ids: ids are
part of the records in Kafka.
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from .._arguments import function_of, number_of
from .arguments import check_heap, check_path, check_port
from .class_archive import archive_in, run_until_ready, writing
from .directory import error_excerpt, lines_since, open_log
from .errors import LocalBrokerError, full_disk, storage_error
from .filelock import FileLock
from .ivy import ProgressCallback
from .java import Java, find_java
from .ports import free_ports, require_free
from .process import GuardedProcess
from .progress import say_on_terminal
from .registry_home import PRODUCT, RegistryHome, install_registry
from .settings import HOST, random_id

_API = "/apis/ccompat/v7"
_ATTEMPTS = 3
_LOCK_WITHIN = 15.0
_STOP_WITHIN = 10.0
_ASK_WITHIN = 2.0
_ASK_EVERY = 0.02
_LARGEST_ANSWER = 1 << 16
_DISK_IS_FULL_BELOW = 1024 * 1024


class LocalRegistry:
    """A schema registry on 127.0.0.1, with Confluent's REST API.

        with LocalRegistry() as registry:
            print(registry.url)

    :param port: None for a free port.
    :param data_dir: the directory for the schemas. A later registry on the same directory finds them. None: a temporary
        directory, which `stop()` deletes.
    :param log_file: None: `registry.log` in the data directory.
    :param start_timeout: the maximum duration of a start, in seconds.
    :param heap: the maximum heap, in the format of Java's `-Xmx`.
    :param progress: called during the one-time download. None: lines on stderr, if it is a terminal.

    The registry ends when this process ends, even if it is killed. Failures raise `LocalBrokerError` (TypeError for an
    argument of a wrong type) and leave no process running. Do not use an instance in several threads at a time.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        log_file: str | os.PathLike[str] | None = None,
        start_timeout: float = 60.0,
        heap: str = "256m",
        progress: ProgressCallback | None = None,
    ) -> None:
        check_port("port", port)
        check_path("data_dir", data_dir)
        check_path("log_file", log_file)
        number_of("start_timeout", start_timeout)
        check_heap(heap)
        if progress is not None:
            function_of("progress", progress)
        self._given_port = port
        self._given_dir = None if data_dir is None else Path(data_dir).expanduser().absolute()
        self._given_log = None if log_file is None else Path(log_file).expanduser().absolute()
        self._start_timeout = start_timeout
        self._heap = heap
        self._progress = progress or say_on_terminal
        self._remove: Path | None = None
        self._path: Path | None = None
        self._lock: FileLock | None = None
        self._process: GuardedProcess | None = None
        self._port = 0
        self._owner = 0
        self._log_start = 0

    @classmethod
    def of_cluster(
        cls, cluster: Path, *, temporary: bool, port: int | None, start_timeout: float, progress: ProgressCallback
    ) -> LocalRegistry:
        """The registry of a `LocalBroker`, in its data directory. If that is temporary and this process is killed, the
        guard deletes all of it."""
        made = cls(
            port=port,
            data_dir=cluster / "registry",
            log_file=cluster / "registry.log",
            start_timeout=start_timeout,
            progress=progress,
        )
        made._remove = cluster if temporary else None
        return made

    # Properties of a running registry.

    @property
    def url(self) -> str:
        """The address for clients of Confluent's REST API, for `SchemaRegistry`."""
        self._running()
        return f"http://{HOST}:{self._port}{_API}"

    @property
    def data_dir(self) -> Path:
        """The directory with the schemas."""
        return self._running()

    @property
    def log_path(self) -> Path:
        """The file to which the registry logs."""
        return self._given_log or self._running() / "registry.log"

    @property
    def pid(self) -> int:
        """Its process id. Raises `LocalBrokerError` if it is down."""
        return self._live_process().pid

    @property
    def is_alive(self) -> bool:
        """Whether its process is running or paused."""
        return self._process is not None and self._process.is_alive()

    # Start and stop.

    def start(self) -> LocalRegistry:
        """Start the registry. Returns when it responds. The first start downloads it."""
        self.launch()
        try:
            self.wait_until_ready()
        except BaseException as error:
            self.abandon(keep_log=isinstance(error, LocalBrokerError))
            raise
        return self

    def launch(self) -> None:
        """Start the process, without waiting for it: `wait_until_ready()` has to follow."""
        if self._path is not None:
            raise LocalBrokerError("the registry is already running")
        java = find_java()  # first, because a missing Java is the most common problem
        if self._given_port is not None:
            require_free([self._given_port])
        self._java, self._home = java, install_registry(java, self._progress)
        self._archive = registry_archive(self._home, java, self._progress)
        self._owner = os.getpid()
        where = self._given_dir or Path(tempfile.gettempdir())
        try:
            self._path = self._open_directory()
            atexit.register(self.stop)
            self._launch(self._given_port or free_ports(1)[0])
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError):
                raise storage_error(error, where, "the data directory") from error
            raise

    def wait_until_ready(self) -> None:
        """Wait until the launched process responds. Raises `LocalBrokerError`, and then leaves the clean-up to the
        caller."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._wait()
            except _RegistryPortTaken:
                # Another process took the port after we had checked it.
                if self._given_port is not None or attempt == _ATTEMPTS:
                    raise
                self._launch(free_ports(1)[0])
            else:
                return

    def stop(self) -> None:
        """Stop the registry: with a clean shutdown if the schemas are kept, immediately if they are deleted."""
        if self._path is None or self._owner != os.getpid():
            return
        if self._given_dir is not None and self._remove is None:
            self._end_orderly()
        self.abandon()

    def __enter__(self) -> LocalRegistry:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def kill(self) -> None:
        """Send SIGKILL. Returns when the process has ended."""
        self._live_process()
        self._end()

    def restart(self) -> None:
        """Start it again on the same port, with the same schemas; stop it first if it is running."""
        self._running()
        self._end_orderly()
        self._launch(self._port)
        self._wait()

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open, but the registry does not respond. Returns when it has stopped."""
        self._live_process().pause()

    def resume(self) -> None:
        """Send SIGCONT."""
        self._live_process().resume()

    def abandon(self, keep_log: bool = False) -> None:
        """End the process at once, and unlock the directory. Delete it if it is temporary, except for the log if
        `keep_log` is set."""
        self._end()
        if self._path is not None and self._given_dir is None:
            if keep_log:
                for entry in self._path.iterdir():
                    if entry.name != "registry.log":
                        shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
            else:
                shutil.rmtree(self._path, ignore_errors=True)
        self._path = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        atexit.unregister(self.stop)

    # Implementation.

    _java: Java
    _home: RegistryHome
    _archive: Path | None
    _name: str

    def _open_directory(self) -> Path:
        if self._given_dir is None:
            path = Path(tempfile.mkdtemp(prefix="headrace-"))
        else:
            path = self._given_dir
            path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path / "registry.lock")
        if not self._lock.acquire(_LOCK_WITHIN):
            raise LocalBrokerError(f"another registry is running on the data directory {path}")
        return path

    def _launch(self, port: int) -> None:
        path = self._running()
        assert self._lock is not None
        self._end()
        self._port = port
        self._name = f"headrace-{random_id()}"
        log = open_log(self.log_path)
        self._log_start = os.fstat(log).st_size
        flags = [f"-XX:SharedArchiveFile={self._archive}"] if self._archive else []
        temporary = path if self._given_dir is None else self._remove
        try:
            self._process = GuardedProcess(
                registry_command(self._java, self._home, path, port, self._heap, self._name, flags),
                output=log,
                cwd=path,
                grace=_STOP_WITHIN if temporary is None else 0.0,
                remove=temporary,
                hold=[self._lock.fileno()],
            )
        finally:
            os.close(log)

    def _wait(self) -> None:
        deadline = time.monotonic() + self._start_timeout
        while _name_of_registry_at(self._port) != self._name:
            if not self.is_alive:
                raise self._start_failure(f"it ended with code {self._end()}")
            if time.monotonic() > deadline:
                raise self._start_failure(f"it was not ready within {self._start_timeout:g} s")
            time.sleep(_ASK_EVERY)

    def _start_failure(self, what: str) -> LocalBrokerError:
        said = lines_since(self.log_path, self._log_start)
        if any("in use by another process" in line for line in said):
            return _RegistryPortTaken(
                f"{PRODUCT} did not start: another process took port {self._port}. Log: {self.log_path}"
            )
        where = self._running()
        if (
            any("No space left on device" in line for line in said)
            or shutil.disk_usage(where).free < _DISK_IS_FULL_BELOW
        ):
            return full_disk(where, "the data directory")
        return LocalBrokerError(
            f"{PRODUCT} did not start: {what}. From its log {self.log_path}:\n{error_excerpt(said)}"
        )

    def _end_orderly(self) -> None:
        """Send SIGTERM, then SIGKILL if it does not end in time."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)
            self._process.wait(_STOP_WITHIN)
        self._end()

    def _end(self) -> int | None:
        process, self._process = self._process, None
        return None if process is None else process.close()

    def _running(self) -> Path:
        if self._path is None:
            raise LocalBrokerError("the registry is not running: call start(), or use it in a with statement")
        if self._owner != os.getpid():
            raise LocalBrokerError("the registry belongs to the parent process, which forked this one")
        return self._path

    def _live_process(self) -> GuardedProcess:
        self._running()
        if self._process is None or not self._process.is_alive():
            raise LocalBrokerError("the registry is down")
        return self._process


class _RegistryPortTaken(LocalBrokerError):
    pass


def registry_archive(home: RegistryHome, java: Java, progress: ProgressCallback) -> Path | None:
    """The class archive of the registry, created if it does not exist. None if it cannot be created."""

    def create(draft: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="headrace-") as scratch:
            (port,) = free_ports(1)
            command = registry_command(java, home, Path(scratch), port, "256m", "archive", [writing(draft)])
            run_until_ready(command, Path(scratch), lambda: _name_of_registry_at(port) == "archive")

    return archive_in(home.path, java, lambda step: progress(replace(step, product=PRODUCT)), create)


def registry_command(
    java: Java, home: RegistryHome, data: Path, port: int, heap: str, name: str, flags: Sequence[str]
) -> list[str]:
    """The command line of a registry that reports `name` when it is asked."""
    scratch = data / "tmp"
    scratch.mkdir(exist_ok=True)
    return [
        java.executable,
        f"-Xmx{heap}",
        *flags,
        # It handles few requests: the optimizing compiler and a concurrent collector would only cost memory.
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={scratch}",
        "-Djava.awt.headless=true",
        f"-Dquarkus.http.host={HOST}",
        f"-Dquarkus.http.port={port}",
        "-Dquarkus.http.access-log.enabled=false",
        "-Dquarkus.banner.enabled=false",
        '-Dquarkus.log.category."io.apicurio".level=WARN',
        f"-Dapicurio.app.name={name}",
        # By default, H2 writes a commit to the file half a second later.
        f"-Dapicurio.datasource.url=jdbc:h2:file:{data / 'db'};WRITE_DELAY=0",
        # The default is 20 connections at the start.
        "-Dapicurio.datasource.jdbc.initial-size=1",
        "-Dapicurio.datasource.jdbc.min-size=1",
        "-Dapicurio.datasource.jdbc.max-size=8",
        *("-jar", str(home.jar)),
    ]


def _name_of_registry_at(port: int) -> str | None:
    """The name that a registry at this port reports, or None if none responds (yet)."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_ASK_WITHIN)
    try:
        connection.request("GET", "/apis/registry/v3/system/info")
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            return None
        name = json.loads(response.read(_LARGEST_ANSWER))["name"]
        return name if isinstance(name, str) else None
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()
