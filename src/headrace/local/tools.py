"""The Java command lines of a broker and of Kafka's tools."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from .java import Java, find_java
from .kafka_home import DEFAULT_VERSION, KafkaHome, install
from .progress import say_on_terminal
from .settings import BrokerFiles


def broker_command(
    java: Java, kafka: KafkaHome, files: BrokerFiles, broker_id: int, heap: str, flags: Sequence[str]
) -> list[str]:
    scratch = files.home / "tmp"
    scratch.mkdir(exist_ok=True)
    return [
        java.executable,
        f"-Xmx{heap}",
        *flags,
        "-XX:+ExitOnOutOfMemoryError",
        # If they are killed, the JVM and the native codecs leave temporary files. These are deleted with the data.
        f"-Djava.io.tmpdir={scratch}",
        "-XX:-UsePerfData",
        "-Djava.awt.headless=true",
        f"-Dheadrace.broker={broker_id}",
        f"-Dlog4j2.configurationFile={files.logging}",
        # Each jar by name: a class archive depends on their order, which a wildcard does not define.
        *("-cp", kafka.exact_classpath, "kafka.Kafka", str(files.properties)),
    ]


def java_classpath(version: str = DEFAULT_VERSION) -> str:
    """The class path of Kafka's server, clients and tools. The first call downloads them.

    Raises `LocalBrokerError` if Java is missing or the download fails.
    """
    return install(version, find_java(), say_on_terminal).classpath


def java_command(main_class: str, *args: str, version: str = DEFAULT_VERSION, heap: str = "512m") -> list[str]:
    """The command line that runs a class of Kafka's jars, such as `org.apache.kafka.tools.ConsumerPerformance`.

    It logs warnings and errors to stderr. Raises `LocalBrokerError` if Java is missing or the download fails.
    """
    java = find_java()
    return _command(java, install(version, java, say_on_terminal), main_class, args, heap)


def run_tool(
    java: Java,
    kafka: KafkaHome,
    main_class: str,
    args: Sequence[str],
    *,
    input: str | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(java, kafka, main_class, args, "512m"),
        input=input if input is not None else "",
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _command(java: Java, kafka: KafkaHome, main_class: str, args: Sequence[str], heap: str) -> list[str]:
    return [
        java.executable,
        f"-Xmx{heap}",
        "-XX:-UsePerfData",
        f"-Dlog4j2.configurationFile={kafka.tool_logging}",
        *("-cp", kafka.classpath, main_class, *args),
    ]
