"""The installation of Apache Kafka in the user's cache. It is downloaded once.

    <cache>/kafka-4.3.1/jars/*.jar             Kafka, its tools, and their runtime dependencies
    <cache>/kafka-4.3.1/bootstrap.checkpoint   the file that `kafka-storage format` writes to a new metadata log
    <cache>/kafka-4.3.1/tool-log4j2.properties the logging of its tools: warnings, to stderr
    <cache>/kafka-4.3.1/manifest.json          names and sizes of the files above; written last
    <cache>/kafka-4.3.1/classes-*.jsa          see class_archive.py
    <cache>/kafka-4.3.1.lock                   held by the process that downloads

Kafka is downloaded to a temporary directory, which is renamed when it is complete. A crash, a full disk or a second
process therefore never leaves an incomplete installation. A complete installation is only read: without the lock,
without network, and also from a read-only file system.

Formatting: `kafka-storage format` would cost a JVM start (about a second) for each broker. It writes `meta.properties`
(ids, as text) and `bootstrap.checkpoint` (the feature levels of the release, the same for all brokers and clusters).
Kafka's tool is therefore run once, here, and its checkpoint is copied for each broker.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .errors import LocalBrokerError, full_disk, storage_error
from .filelock import FileLock
from .ivy import Coordinates, DownloadProgress, ProgressCallback, download
from .java import Java
from .paths import cache_dir

DEFAULT_VERSION = "4.3.1"

_LOG4J = "2.25.4"
# The Connect runtime (Jetty, Jersey, ...; 40 jars) is only needed by a tool that inspects Connect plugins.
_WITHOUT = (("org.apache.kafka", "connect-runtime"),)
_LAYOUT = 1
_TOOL_LOGGING = """\
status = warn
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{ISO8601} %-5p %m (%c{1})%n
rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
"""
_DOWNLOAD_WITHIN = 900.0


@dataclass(frozen=True, slots=True)
class KafkaHome:
    """One installed version."""

    version: str
    path: Path

    @property
    def classpath(self) -> str:
        return os.path.join(self.path, "jars", "*")

    @property
    def exact_classpath(self) -> str:
        return os.pathsep.join(str(jar) for jar in sorted((self.path / "jars").iterdir()))

    @property
    def lock_path(self) -> Path:
        return self.path.with_name(self.path.name + ".lock")

    @property
    def bootstrap_checkpoint(self) -> Path:
        return self.path / "bootstrap.checkpoint"

    @property
    def tool_logging(self) -> Path:
        return self.path / "tool-log4j2.properties"

    def is_complete(self) -> bool:
        try:
            manifest = json.loads((self.path / "manifest.json").read_bytes())
            return manifest["layout"] == _LAYOUT and all(
                (self.path / name).stat().st_size == size for name, size in manifest["files"].items()
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False


def install(version: str, java: Java, progress: ProgressCallback) -> KafkaHome:
    """The installed Kafka, downloaded first if it is not in the cache.

    Several processes may call it at the same time: one downloads, the others wait. Raises `LocalBrokerError`.
    """
    cache = cache_dir()
    home = KafkaHome(version, cache / f"kafka-{version}")
    if home.is_complete():
        return home
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(home.lock_path) as lock:
            if not lock.acquire(
                _DOWNLOAD_WITHIN, on_wait=lambda: progress(DownloadProgress("waiting for another process", 0))
            ):
                raise LocalBrokerError(
                    f"another process has been downloading Kafka into {cache} for {_DOWNLOAD_WITHIN:g} s: "
                    "end it, or set HEADRACE_CACHE to another directory"
                )
            if not home.is_complete():
                _download(home, java, progress)
    except OSError as error:
        raise storage_error(error, cache, "the cache directory") from error
    return home


def _download(home: KafkaHome, java: Java, progress: ProgressCallback) -> None:
    """The caller holds the lock: no other process creates or removes files of this version."""
    prefix = f".{home.path.name}-"
    for left_by_a_crash in home.path.parent.glob(prefix + "*"):
        shutil.rmtree(left_by_a_crash, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=home.path.parent))
    try:
        fresh = KafkaHome(home.version, scratch / "home")
        jars = fresh.path / "jars"
        jars.mkdir(parents=True)
        download(_modules(home.version), _WITHOUT, jars, scratch, java, progress)
        progress(DownloadProgress("preparing", 0))
        _write_bootstrap_checkpoint(fresh, scratch, java)
        fresh.tool_logging.write_text(_TOOL_LOGGING)
        files = (path for path in fresh.path.rglob("*") if path.is_file())
        sizes = {str(path.relative_to(fresh.path)): path.stat().st_size for path in files}
        (fresh.path / "manifest.json").write_text(json.dumps({"layout": _LAYOUT, "files": sizes}, indent=1))
        if home.path.exists():
            # It is damaged or has an old layout. Rename it first, so that no process sees it partly deleted.
            home.path.rename(scratch / "old")
        fresh.path.rename(home.path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _modules(version: str) -> list[Coordinates]:
    return [
        Coordinates("org.apache.kafka", "kafka_2.13", version),
        Coordinates("org.apache.kafka", "kafka-tools", version),
        Coordinates("org.apache.logging.log4j", "log4j-slf4j-impl", _LOG4J),
    ]


def _write_bootstrap_checkpoint(home: KafkaHome, scratch: Path, java: Java) -> None:
    checkpoint, done = formatted(home, scratch, java)
    if done.returncode != 0:
        if "No space left on device" in done.stdout:
            raise full_disk(home.path, "the cache directory")
        raise LocalBrokerError(f"Kafka {home.version} cannot be installed:\n{done.stdout[-2000:]}")
    shutil.copyfile(checkpoint, home.bootstrap_checkpoint)


def formatted(
    home: KafkaHome, scratch: Path, java: Java, *options: str
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Run `kafka-storage format` in the directory `scratch`. Returns the path of the checkpoint, which exists if the
    tool succeeded, and the result of the tool."""
    data = scratch / "formatted"
    properties = scratch / "format.properties"
    properties.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
        "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n"
        f"controller.quorum.voters=1@127.0.0.1:9093\nlog.dirs={data}\n"
    )
    command = [java.executable, "-XX:TieredStopAtLevel=1", "-cp", home.classpath, "kafka.tools.StorageTool", "format"]
    command += ["--cluster-id", "AAAAAAAAAAAAAAAAAAAAAQ", "--config", str(properties), *options]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return data / "bootstrap.checkpoint", done
