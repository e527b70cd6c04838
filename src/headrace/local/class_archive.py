"""A class archive (AppCDS) for the brokers' JVMs: a broker starts with 45 % less CPU time.

Most of a broker's start is the loading and checking of some 7,000 classes. A JVM can write what it loaded
into an archive and map that at the next start. The archive fits one build of Java and one class path only; a
JVM that it does not fit ignores it. It is made once, by a broker that is started and stopped again, and never
worth an error: where it cannot be made (a read-only cache, a JVM without the feature) brokers start without
it.
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
from .ivy import Progress, ProgressCallback
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
    """The archive for this Java, made now if there is none; None when there can be none."""
    build = f"{os.path.realpath(java.executable)}\n{java.build}"
    path = kafka.path / f"classes-{hashlib.sha256(build.encode()).hexdigest()[:12]}.jsa"
    if not path.exists():
        try:
            with FileLock(kafka.lock_path) as lock:
                # Whoever comes while another process makes it does not wait.
                if lock.acquire(0) and not path.exists():
                    progress(Progress("preparing", 0))
                    _make(path, kafka, java)
        except (OSError, LocalBrokerError):
            return None
    # An empty file says that it was tried in vain.
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
