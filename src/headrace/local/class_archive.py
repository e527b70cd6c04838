"""A class archive (AppCDS) for the JVMs of the brokers. With it, the start of a broker takes 45 % less CPU time.

A broker spends most of its start on loading and verifying about 7,000 classes. A JVM can write its loaded classes to
an archive and map the archive at the next start. An archive fits one build of Java and one class path; other JVMs
ignore it. It is created once, by a broker that is started and stopped. If it cannot be created (read-only cache, JVM
without the feature), there is no error, and brokers start without it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import tempfile
import time
from pathlib import Path

from .errors import LocalBrokerError
from .filelock import FileLock
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
    """The archive for this Java, created if it does not exist. None if it cannot be created."""
    build = f"{os.path.realpath(java.executable)}\n{java.build}"
    path = kafka.path / f"classes-{hashlib.sha256(build.encode()).hexdigest()[:12]}.jsa"
    if not path.exists():
        try:
            with FileLock(kafka.lock_path) as lock:
                # Do not wait while another process creates it.
                if lock.acquire(0) and not path.exists():
                    progress(DownloadProgress("preparing", 0))
                    _make(path, kafka, java)
        except (OSError, LocalBrokerError):
            return None
    # An empty file records that an attempt has failed.
    return path if path.exists() and path.stat().st_size else None


def _make(path: Path, kafka: KafkaHome, java: Java) -> None:
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="headrace-") as scratch:
        files = BrokerFiles(Path(scratch, "broker"))
        ports = {1: Ports(*free_ports(2))}
        settings = broker_properties(1, ports, None, files.data, {})
        write_broker_files(files, settings, random_id(), kafka)
        command = broker_command(java, kafka, files, 1, "512m", [f"-XX:ArchiveClassesAtExit={draft}"])
        with Path(scratch, "log").open("wb") as log:
            process = GuardedProcess(command, output=log, remove=Path(scratch))
        try:
            deadline = time.monotonic() + _STARTS_WITHIN
            while process.is_alive() and ask_broker(ports[1].client, 2.0) is None:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            process.wait(_WRITES_WITHIN)
        finally:
            process.close()
    if not draft.exists():
        draft.touch()
    draft.rename(path)
