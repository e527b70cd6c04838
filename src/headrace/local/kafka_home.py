"""The installation of Apache Kafka in the user's cache. It is downloaded once: see installation.py.

    <cache>/kafka-4.3.1/jars/*.jar             Kafka, its tools, and their runtime dependencies
    <cache>/kafka-4.3.1/bootstrap.checkpoint   the file that `kafka-storage format` writes to a new metadata log
    <cache>/kafka-4.3.1/tool-log4j2.properties the logging of its tools: warnings, to stderr
    <cache>/kafka-4.3.1/classes-*.jsa          see class_archive.py

Formatting: `kafka-storage format` would cost a JVM start (about a second) for each broker. It writes `meta.properties`
(ids, as text) and `bootstrap.checkpoint` (the feature levels of the release, the same for all brokers and clusters).
Kafka's tool is therefore run once, here, and its checkpoint is copied for each broker.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .errors import LocalBrokerError, full_disk
from .installation import install_once, installation_of, is_complete
from .ivy import Coordinates, DownloadProgress, ProgressCallback, download
from .java import Java

DEFAULT_VERSION = "4.3.1"

_LOG4J = "2.25.4"
# The Connect runtime (Jetty, Jersey, ...; 40 jars) is only needed by a tool that inspects Connect plugins.
_WITHOUT = (("org.apache.kafka", "connect-runtime"),)
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
    def bootstrap_checkpoint(self) -> Path:
        return self.path / "bootstrap.checkpoint"

    @property
    def tool_logging(self) -> Path:
        return self.path / "tool-log4j2.properties"

    def is_complete(self) -> bool:
        return is_complete(self.path)


def install(version: str, java: Java, progress: ProgressCallback) -> KafkaHome:
    """The installed Kafka, downloaded first if it is not in the cache. Raises `LocalBrokerError`."""

    def fill(path: Path, scratch: Path) -> None:
        fresh = KafkaHome(version, path)
        jars = path / "jars"
        jars.mkdir()
        download(_modules(version), _WITHOUT, jars, scratch, java, progress)
        progress(DownloadProgress("preparing", 0))
        _write_bootstrap_checkpoint(fresh, scratch, java)
        fresh.tool_logging.write_text(_TOOL_LOGGING)

    home = KafkaHome(version, installation_of(f"kafka-{version}"))
    install_once(home.path, "Kafka", fill, progress)
    return home


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
