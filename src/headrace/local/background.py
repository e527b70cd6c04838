"""The cluster that `headrace up` runs in the background. There is at most one.

    <data>/up.lock   held by the supervisor while it runs: the only evidence that it is alive
    <data>/up.json   the status of the cluster; only the holder of the lock writes it
    <data>/up.log    the log of the supervisor

    lock held,  up.json exists   running
    lock held,  no up.json       starting
    lock free,  up.json exists   crashed: the supervisor was killed, and the guards ended its brokers; or the last
                                 broker died, and the supervisor wrote its status
    lock free,  no up.json       stopped

The operating system reuses pids. Signals are therefore sent only while the lock is held: then the pid in up.json is
that of the holder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from .errors import LocalBrokerError, storage_error
from .filelock import FileLock
from .kafka_home import DEFAULT_VERSION
from .paths import data_dir

_START_WITHIN = 180.0
_STOP_WITHIN = 30.0
_LOOK_EVERY = 0.05
_OTHER_DATA = "set HEADRACE_DATA to another directory"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of `headrace up`. Without `data_dir`, the data is deleted when the cluster stops. Port 0 stands for
    free ports."""

    brokers: int = 1
    port: int = 9092
    data_dir: str | None = None
    version: str = DEFAULT_VERSION
    properties: dict[str, str] = field(default_factory=dict)
    secure: bool = False
    registry: bool = False
    registry_port: int = 8081


@dataclass(frozen=True, slots=True)
class RunningBroker:
    id: int
    pid: int
    address: str
    alive: bool = True


@dataclass(frozen=True, slots=True)
class RunningRegistry:
    url: str
    pid: int
    log: str
    alive: bool = True


@dataclass(frozen=True, slots=True)
class Status:
    """The status of the background cluster. `state`: running, starting, crashed or stopped."""

    state: str
    bootstrap_servers: str | None = None
    brokers: tuple[RunningBroker, ...] = ()
    supervisor: int | None = None
    version: str | None = None
    data_dir: str | None = None
    kept: bool | None = None
    log: str | None = None
    client_properties: str | None = None
    """The file with the client settings of a secured cluster, including passwords."""
    registry: RunningRegistry | None = None
    """The schema registry of a cluster that has one."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Status:
        values = json.loads(text)
        brokers = tuple(RunningBroker(**broker) for broker in values["brokers"])
        registry = values.get("registry")
        return cls(**values | {"brokers": brokers, "registry": registry and RunningRegistry(**registry)})


def lock_path() -> Path:
    return data_dir() / "up.lock"


def state_path() -> Path:
    return data_dir() / "up.json"


def log_path() -> Path:
    return data_dir() / "up.log"


def default_data(brokers: int, *, secure: bool = False) -> Path:
    """The default data directory of `headrace up`. It depends on the number of brokers and on `secure`, because a
    cluster cannot change either."""
    return data_dir() / f"cluster-{brokers}{'-secure' if secure else ''}"


def read_status() -> Status:
    """The status of the background cluster. Raises `LocalBrokerError` if its files cannot be read."""
    held = _lock_is_held()
    try:
        written = Status.from_json(state_path().read_bytes())
    except FileNotFoundError:
        return Status("starting" if held else "stopped")
    except OSError as error:
        raise storage_error(error, data_dir(), "the directory", _OTHER_DATA) from error
    except (ValueError, KeyError, TypeError) as error:
        raise LocalBrokerError(f"{state_path()} is damaged ({error}): delete it") from error
    return written if held else _crashed(written)


def bring_up(options: ClusterOptions, explicit: Collection[str] = ()) -> tuple[Status, bool]:
    """Start the cluster unless it is already running, and return when it is ready. The second value is whether it was
    started.

    Raises `LocalBrokerError` if it does not start, or if a different cluster is running: with another number of
    brokers, with or without security, or different in one of the fields that are `explicit`.
    """
    deadline = time.monotonic() + _START_WITHIN
    while True:
        status = read_status()
        if status.state == "running":
            _require_same(status, options, explicit)
            return status, False
        if status.state != "starting":
            answer = _launch(options)
            if "status" in answer:
                return Status.from_json(json.dumps(answer["status"])), True
            if "error" in answer:
                raise LocalBrokerError(str(answer["error"]))
        # Another `headrace up` is starting the cluster: wait for it.
        if time.monotonic() > deadline:
            raise LocalBrokerError(f"another `headrace up` did not finish within {_START_WITHIN:g} s")
        time.sleep(_LOOK_EVERY)


def bring_down() -> Status:
    """Stop the cluster, and return its previous status. Raises `LocalBrokerError` if it does not stop, or if it is
    still starting: the supervisor writes its pid when it is ready, so nothing can be signalled before."""
    status = read_status()
    deadline = time.monotonic() + _STOP_WITHIN
    while status.state == "starting" and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY)
        status = read_status()
    if status.state == "starting":
        raise LocalBrokerError(
            f"the cluster is still starting after {_STOP_WITHIN:g} s, so it was not stopped: try again when "
            f"`headrace status` shows that it is running, or end its `headrace up` with Ctrl-C (log: {log_path()})"
        )
    if status.state == "running" and status.supervisor is not None:
        os.kill(status.supervisor, signal.SIGTERM)
        if not _wait_for_the_lock(_STOP_WITHIN):
            # The guards then end the brokers.
            os.kill(status.supervisor, signal.SIGKILL)
            if not _wait_for_the_lock(_STOP_WITHIN):
                raise LocalBrokerError(f"the supervisor (pid {status.supervisor}) did not stop")
    state_path().unlink(missing_ok=True)
    return status


def _launch(options: ClusterOptions) -> dict[str, object]:
    """Start a supervisor and wait for its report, one line: {"status": ...}, {"error": ...} or {"busy": true}."""
    try:
        data_dir().mkdir(parents=True, exist_ok=True)
        log = log_path().open("ab")
    except OSError as error:
        raise storage_error(error, data_dir(), "the directory", _OTHER_DATA) from error
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as report, log:
        try:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "headrace.local.supervise", json.dumps(asdict(options)), str(write_end)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(write_end,),
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        try:
            line = report.readline()
        except BaseException:
            # Ctrl-C during the start.
            supervisor.terminate()
            supervisor.wait()
            raise
    if not line:
        supervisor.wait()
        return {"error": f"the supervisor exited without a message: see {log.name}"}
    answer: dict[str, object] = json.loads(line)
    if "status" in answer:
        supervisor.returncode = 0  # avoids a ResourceWarning: the supervisor is meant to outlive this process
    else:
        supervisor.wait()
    return answer


def _require_same(status: Status, options: ClusterOptions, explicit: Collection[str]) -> None:
    where = status.bootstrap_servers
    if len(status.brokers) != options.brokers:
        raise LocalBrokerError(
            f"a cluster of {len(status.brokers)} broker(s) is already running at {where}: `headrace down` stops it"
        )
    if (status.client_properties is not None) != options.secure:
        raise LocalBrokerError(
            f"a cluster with{'out' if options.secure else ''} security is already running at {where}: "
            "`headrace down` stops it"
        )
    if options.registry and status.registry is None:
        raise LocalBrokerError(
            f"a cluster without a schema registry is already running at {where}: `headrace down` stops it"
        )
    if differences := ", ".join(_differences(status, options, explicit)):
        raise LocalBrokerError(f"a cluster is already running at {where}, with {differences}: `headrace down` stops it")


def _differences(status: Status, options: ClusterOptions, explicit: Collection[str]) -> Iterator[str]:
    port = int(status.brokers[0].address.rpartition(":")[2])
    if "port" in explicit and options.port not in (0, port):
        yield f"port {port} and not {options.port}"
    if "registry_port" in explicit and status.registry is not None:
        registry_port = urlsplit(status.registry.url).port
        if options.registry_port not in (0, registry_port):
            yield f"a registry at port {registry_port} and not {options.registry_port}"
    kept_in = status.data_dir if status.kept else None
    if "data_dir" in explicit and _place(kept_in) != _place(options.data_dir):
        yield f"data {_place(kept_in)} and not {_place(options.data_dir)}"
    if "version" in explicit and options.version != status.version:
        yield f"Kafka {status.version} and not {options.version}"
    if options.properties:
        current = _first_broker_properties(status)
        # Do not show the values: they may be passwords.
        yield from (f"another {name}" for name, value in options.properties.items() if current.get(name) != value)


def _place(data: str | None) -> str:
    return "deleted at the end" if data is None else f"kept in {Path(data).resolve()}"


def _first_broker_properties(status: Status) -> dict[str, str]:
    """The properties of the first broker, from the file that `settings.write_broker_files` wrote."""
    try:
        text = (Path(status.data_dir or "") / "broker-1" / "server.properties").read_text()
    except OSError as error:
        raise storage_error(error, Path(status.data_dir or ""), "the data directory") from error
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value.replace("\\\\", "\\") for name, _, value in pairs}


def _crashed(status: Status) -> Status:
    brokers = tuple(replace(broker, alive=False) for broker in status.brokers)
    registry = status.registry and replace(status.registry, alive=False)
    return replace(status, state="crashed", brokers=brokers, registry=registry)


def _lock_is_held() -> bool:
    if not lock_path().exists():
        return False
    return not _wait_for_the_lock(0)


def _wait_for_the_lock(timeout: float) -> bool:
    try:
        with FileLock(lock_path()) as lock:
            return lock.acquire(timeout)
    except OSError as error:
        raise storage_error(error, data_dir(), "the directory", _OTHER_DATA) from error
