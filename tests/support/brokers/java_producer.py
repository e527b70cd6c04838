"""Records written by Java's producer, with Kafka's own tools."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.local.tools import java_command
from support.brokers.produce import Outgoing

_TIMEOUT = 100.0
_NULL = "<null>"
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


@dataclass(slots=True)
class JavaRun:
    """A running tool. JVMs start slowly, so tests start several and then wait for all."""

    process: subprocess.Popen[str]
    input: str

    def finish(self) -> str:
        """Wait for the end; return the output. Fail on a non-zero exit code."""
        out, err = self.process.communicate(self.input, timeout=_TIMEOUT)
        assert self.process.returncode == 0, err or out
        return out


def start_tool(name: str, *args: str, input: str = "") -> JavaRun:
    java, *rest = java_command(f"org.apache.kafka.tools.{name}", *args, heap="128m")
    process = subprocess.Popen(
        [java, *_SHORT_LIVED, *rest],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return JavaRun(process, input)


def console_producer(bootstrap_servers: str, topic: str, codec: str, records: Iterable[Outgoing]) -> JavaRun:
    """Write keys, values and headers as given (text without tabs, or null). The key decides the partition."""
    reader = {"parse.key": "true", "parse.headers": "true", "null.marker": _NULL}
    return start_tool(
        "ConsoleProducer",
        *("--bootstrap-server", bootstrap_servers, "--topic", topic, "--compression-codec", codec),
        # By default the tool gives up a request after 1.5 s and a record after three tries.
        *("--command-property", "linger.ms=20", "--command-property", "request.timeout.ms=30000"),
        *("--command-property", "retries=100"),
        *(part for name, value in reader.items() for part in ("--reader-property", f"{name}={value}")),
        input="".join(f"{_line(record)}\n" for record in records),
    )


def _line(record: Outgoing) -> str:
    headers = ",".join(f"{name}:{_text(value)}" for name, value in record.headers)
    return "\t".join((headers or _NULL, _text(record.key), _text(record.value)))


def _text(value: bytes | None) -> str:
    return _NULL if value is None else value.decode()


def verifiable_producer(bootstrap_servers: str, topic: str, count: int, *extra: str) -> JavaRun:
    """Write the integers from 0 on, as text."""
    return start_tool(
        "VerifiableProducer",
        *("--bootstrap-server", bootstrap_servers, "--topic", topic, "--max-messages", str(count), *extra),
    )


def performance_producer(
    bootstrap_servers: str, topic: str, count: int, properties: Sequence[str], *extra: str
) -> JavaRun:
    return start_tool(
        "ProducerPerformance",
        *("--bootstrap-server", bootstrap_servers, "--topic", topic, "--num-records", str(count)),
        *("--throughput", "-1", *extra, "--command-property", *properties),
    )
