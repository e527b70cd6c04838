"""The process that owns the background cluster: `python -m headrace.local.supervise OPTIONS REPORT_FD`.

It reports once (that the cluster is ready, or an error), then monitors its brokers until SIGTERM. If the last broker
ends, it exits and leaves the state file, so that `headrace status` reports a crash.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from types import FrameType

from .background import ClusterOptions, RunningBroker, RunningRegistry, Status, lock_path, state_path
from .broker import LocalBroker
from .errors import LocalBrokerError
from .filelock import FileLock

_LOOK_EVERY = 1.0


def supervise(options: ClusterOptions, ready: Callable[[Status], None], busy: Callable[[], None]) -> None:
    """Run the cluster until SIGTERM, SIGINT or SIGHUP, or until no broker is left. Raises `LocalBrokerError`."""
    ending = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        if ending.is_set():
            return
        ending.set()
        raise _Ending

    lock_path().parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock_path()) as lock:
        if not lock.acquire(0.2):
            busy()
            return
        state_path().unlink(missing_ok=True)
        # Set SIGINT explicitly: background processes of a script inherit it as ignored.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            signal.signal(signal.SIGHUP, end)
        cluster = LocalBroker(
            options.brokers,
            port=options.port or None,
            data_dir=options.data_dir,
            version=options.version,
            properties=options.properties,
            secure=options.secure,
            registry=options.registry,
            registry_port=(options.registry_port or None) if options.registry else None,
        )
        try:
            cluster.start()
            status = _write(_status(cluster, options))
            ready(status)
            _watch(cluster, options, status)
        except _Ending:
            pass
        finally:
            cluster.stop(keep_log=not ending.is_set())
        if ending.is_set():
            state_path().unlink(missing_ok=True)


class _Ending(BaseException):
    """Raised by the signal handler, so that it also interrupts a start."""


def _watch(cluster: LocalBroker, options: ClusterOptions, status: Status) -> None:
    while cluster.live_brokers:
        threading.Event().wait(_LOOK_EVERY)
        now = _status(cluster, options, status)
        if now != status:
            status = _write(now)


def _status(cluster: LocalBroker, options: ClusterOptions, before: Status | None = None) -> Status:
    live = cluster.live_brokers
    pids = {broker.id: broker.pid for broker in before.brokers} if before else {}
    return Status(
        "running",
        bootstrap_servers=cluster.bootstrap_servers,
        brokers=tuple(
            RunningBroker(i, pids.get(i) or cluster.pid(i), cluster.address(i), i in live) for i in cluster.brokers
        ),
        supervisor=os.getpid(),
        version=cluster.version,
        data_dir=str(cluster.data_dir),
        kept=options.data_dir is not None,
        log=str(cluster.log_path),
        client_properties=str(cluster.client_properties) if options.secure else None,
        registry=_registry_status(cluster, before) if options.registry else None,
    )


def _registry_status(cluster: LocalBroker, before: Status | None) -> RunningRegistry:
    registry = cluster.registry
    pid = before.registry.pid if before and before.registry else registry.pid
    return RunningRegistry(registry.url, pid, str(registry.log_path), registry.is_alive)


def _write(status: Status) -> Status:
    draft = state_path().with_suffix(".draft")
    draft.write_text(status.to_json())
    draft.rename(state_path())
    return status


def main(options_text: str, report_fd: int) -> int:
    def report(line: dict[str, object]) -> None:
        nonlocal report_fd
        if report_fd >= 0:
            os.write(report_fd, json.dumps(line).encode() + b"\n")
            os.close(report_fd)
            report_fd = -1

    # Do not keep the current directory in use: the user may want to remove or unmount it.
    os.chdir("/")
    # The guards of the brokers must not inherit it: `headrace up` reads until it is closed.
    os.set_inheritable(report_fd, False)
    try:
        supervise(
            ClusterOptions(**json.loads(options_text)),
            ready=lambda status: report({"status": asdict(status)}),
            busy=lambda: report({"busy": True}),
        )
    except (LocalBrokerError, OSError) as error:
        report({"error": str(error)})
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
