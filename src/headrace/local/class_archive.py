"""Class archives (AppCDS) for the JVMs of brokers and registries. With one, a start takes 40 % to 45 % less CPU time.

A broker spends most of its start on loading and verifying about 7,000 classes. A JVM can write its loaded classes to
an archive and map the archive at the next start. An archive fits one build of Java and one class path; other JVMs
ignore it. It is created once, by a process that is started and stopped. If it cannot be created (read-only cache, JVM
without the feature), there is no error, and processes start without it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from .errors import LocalBrokerError
from .filelock import FileLock
from .installation import lock_path_of
from .ivy import DownloadProgress, ProgressCallback
from .java import Java
from .kafka_home import KafkaHome
from .ports import free_ports
from .process import GuardedProcess
from .readiness import ask_broker
from .settings import BrokerFiles, Ports, broker_properties, random_id, write_broker_files
from .tools import broker_command

_STARTS_WITHIN = 60.0
_WRITES_WITHIN = 60.0


def class_archive(kafka: KafkaHome, java: Java, progress: ProgressCallback) -> Path | None:
    """The archive of a broker for this Java, created if it does not exist. None if it cannot be created."""
    return archive_in(kafka.path, java, progress, lambda draft: _run_broker(kafka, java, draft))


def archive_in(home: Path, java: Java, progress: ProgressCallback, create: Callable[[Path], None]) -> Path | None:
    """The archive in an installation. `create(draft)` runs a JVM that writes one, with `writing(draft)` in its command
    line."""
    build = f"{os.path.realpath(java.executable)}\n{java.build}"
    path = home / f"classes-{hashlib.sha256(build.encode()).hexdigest()[:12]}.jsa"
    if not path.exists():
        try:
            with FileLock(lock_path_of(home)) as lock:
                # Do not wait while another process creates it.
                if lock.acquire(0) and not path.exists():
                    progress(DownloadProgress("preparing", 0))
                    draft = path.with_suffix(".draft")
                    draft.unlink(missing_ok=True)
                    create(draft)
                    if not draft.exists():
                        draft.touch()
                    draft.rename(path)
        except (OSError, LocalBrokerError):
            return None
    # An empty file records that an attempt has failed.
    return path if path.exists() and path.stat().st_size else None


def writing(draft: Path) -> str:
    return f"-XX:ArchiveClassesAtExit={draft}"


def run_until_ready(command: list[str], scratch: Path, is_ready: Callable[[], bool]) -> None:
    """Start a JVM, and end it when it is ready, or after a minute: it then writes its archive."""
    with (scratch / "log").open("wb") as log:
        process = GuardedProcess(command, output=log, remove=scratch)
    try:
        deadline = time.monotonic() + _STARTS_WITHIN
        while process.is_alive() and not is_ready() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.wait(_WRITES_WITHIN)
    finally:
        process.close()


def _run_broker(kafka: KafkaHome, java: Java, draft: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-") as scratch:
        files = BrokerFiles(Path(scratch, "broker"))
        ports = {1: Ports(*free_ports(2))}
        settings = broker_properties(1, ports, None, files.data, {})
        write_broker_files(files, settings, random_id(), kafka)
        command = broker_command(java, kafka, files, 1, "512m", [writing(draft)])
        run_until_ready(command, Path(scratch), lambda: ask_broker(ports[1].client, 2.0) is not None)
