"""The writers and their settings. `what` is the writer's line in the report."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence

from headrace.local import java_command

from .child import command as child_command
from .contenders import JVM_FLAGS
from .writers import LARGE_BATCH_BYTES, WriteJob, Writing

_FEWEST = 10_000
_WARM_UP = 10  # Java's warm-up is one of so many records


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """Sizes of batches and buffers for all clients. 0 is the client's default."""

    name: str
    batch_bytes: int
    buffer_bytes: int
    buffer_memory: int
    """headrace's buffer.memory with this profile."""


DEFAULTS = Profile("default sizes", 0, 0, 32 * 2**20)
TUNED = Profile("batches of 256 KiB", 256 * 1024, 128 * 2**20, 128 * 2**20)
PROFILES: Sequence[Profile] = (DEFAULTS, TUNED)


@dataclasses.dataclass(frozen=True, slots=True)
class Writer:
    name: str
    what: str
    command: Callable[[WriteJob], list[str]]
    parse: Callable[[str], Writing]
    package: str = ""
    """The required distribution."""
    share: float = 1.0
    """The share of the records that it writes. Slow writers write fewer, since only rates are compared."""
    default_batch_bytes: int = 16_384

    def records_of(self, records: int) -> int:
        return min(records, max(_FEWEST, math.ceil(records * self.share)))

    @property
    def missing(self) -> str:
        """The reason why it cannot run here; empty if it can."""
        if not self.package:
            return ""
        try:
            importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return f"skipped: {self.package} is not installed"
        return ""


def _writer(
    name: str, writer: str, what: str, *, package: str = "", share: float = 1.0, default_batch_bytes: int = 16_384
) -> Writer:
    def command(job: WriteJob) -> list[str]:
        return child_command(f"writers.{writer}", job)

    return Writer(name, what, command, writing_of_child, package, share, default_batch_bytes)


def writing_of_child(output: str) -> Writing:
    return Writing(**json.loads(output))


def java_properties(job: WriteJob) -> Mapping[str, object]:
    found: dict[str, object] = {
        "acks": "all",
        "enable.idempotence": "true",
        "linger.ms": job.linger_ms,
        "compression.type": job.codec,
    }
    if job.batch_bytes:
        found["batch.size"] = job.batch_bytes
    if job.buffer_bytes:
        found["buffer.memory"] = job.buffer_bytes
    return found


def java_producer_command(job: WriteJob) -> list[str]:
    executable, *rest = java_command(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", job.servers, "--topic", job.topic, "--num-records", str(job.records)),
        *("--throughput", "-1", "--payload-file", job.payload, "--warmup-records", str(job.records // _WARM_UP)),
        *("--command-property", *(f"{name}={value}" for name, value in java_properties(job).items())),
    )
    return [executable, *JVM_FLAGS, *rest]


def writing_of_java(output: str) -> Writing:
    """Its last two lines are for all records, and for those after the warm-up."""
    total = re.search(r"^(\d+) records sent, [\d.]+ records/sec .* 99\.9th\.$", output, re.MULTILINE)
    steady = re.search(r"^(\d+) steady state records sent, ([\d.]+) records/sec", output, re.MULTILINE)
    if total is None or steady is None or not float(steady[2]):
        raise ValueError(f"ProducerPerformance printed {output.strip()[-200:]!r}")
    return Writing(int(steady[1]), int(steady[1]) / float(steady[2]), None, None, int(total[1]))


SEND_ARROW = _writer(
    "headrace send_arrow",
    "with_headrace.send_arrow",
    "`send_arrow()` of a table with the column `value`, which has all lines of the payload, until there are enough "
    "records; then `flush()`, which raises the error of any record.",
    package="pyarrow",
)
SEND_ARROW_OBSERVED = _writer(
    "headrace send_arrow, OpenTelemetry on",
    "with_headrace.send_arrow_observed",
    "`headrace send_arrow` after `headrace.otel.instrument()`: spans and metrics are exported every second, to an "
    "exporter that drops them.",
    package="opentelemetry-sdk",
)
SEND = _writer("headrace send", "with_headrace.send", "`send()` of each value, then `flush()`.", share=0.5)
SEND_ALL = _writer(
    "headrace send_all", "with_headrace.send_all", "`send_all()` of all values, then `result()`.", share=0.3
)
CONFLUENT = _writer(
    "confluent-kafka produce",
    "with_confluent.produce",
    "`produce()` of each value, without a callback, so it does not see errors; `poll(0.01)` while its queue is "
    "full; then `flush()`.",
    package="confluent-kafka",
    share=0.3,
    default_batch_bytes=LARGE_BATCH_BYTES,
)
CONFLUENT_CALLBACK = _writer(
    "confluent-kafka produce, callback",
    "with_confluent.produce_with_callback",
    "The same with `on_delivery` and `poll(0)` for each record.",
    package="confluent-kafka",
    share=0.2,
    default_batch_bytes=LARGE_BATCH_BYTES,
)
CONFLUENT_BATCH = _writer(
    "confluent-kafka produce_batch",
    "with_confluent.produce_batch",
    "`produce_batch()` of 10,000 values at a time, without a callback.",
    package="confluent-kafka",
    share=0.3,
    default_batch_bytes=LARGE_BATCH_BYTES,
)
JAVA = Writer(
    "Java",
    "`org.apache.kafka.tools.ProducerPerformance` with the JVM flags of `kafka-producer-perf-test.sh`, "
    "`--throughput -1` and `--payload-file`, whose lines it sends in random order. The first tenth of its records "
    "warms up the JVM (`--warmup-records`), and is not in records/s. CPU is that of the JVM from start to end, for all "
    "records.",
    java_producer_command,
    writing_of_java,
)
AIOKAFKA = _writer(
    "aiokafka",
    "with_aiokafka.send",
    "`await send()` of each value, then `flush()`. It has no limit for the memory of its buffer.",
    package="aiokafka",
    share=0.05,
)
KAFKA_PYTHON = _writer(
    "kafka-python",
    "with_kafka_python.send",
    "`send()` of each value, then `flush()`. It has no limit for the memory of its buffer.",
    package="kafka-python",
    share=0.02,
)
LIMIT_ONE = _writer(
    "limit, one connection",
    "raw_socket.one_connection",
    "Produce requests that were encoded beforehand, on a blocking socket, five of them in flight; each has a batch of "
    "every partition. Batches have 16 KiB, or the size of the other clients. They have no producer id, so the broker "
    "checks no sequence numbers. Responses are dropped.",
)
LIMIT_MANY = _writer(
    "limit, six connections",
    "raw_socket.connection_per_partition",
    "The same with one connection and thread for each partition, five requests in flight on each.",
)
LIMIT_LARGE = _writer(
    "limit, batches of 1 MB",
    "raw_socket.large_batches",
    "The same on one connection, with batches of 1,000,000 bytes, as librdkafka has by default, each in a request of "
    "its own. Rows of confluent-kafka with default sizes are compared with this limit.",
    default_batch_bytes=LARGE_BATCH_BYTES,
)

WRITERS: Sequence[Writer] = (
    SEND_ARROW,
    SEND_ARROW_OBSERVED,
    SEND,
    SEND_ALL,
    CONFLUENT,
    CONFLUENT_CALLBACK,
    CONFLUENT_BATCH,
    JAVA,
    AIOKAFKA,
    KAFKA_PYTHON,
    LIMIT_ONE,
    LIMIT_MANY,
    LIMIT_LARGE,
)
HEADRACE: Sequence[Writer] = (SEND_ARROW, SEND_ARROW_OBSERVED, SEND, SEND_ALL)
CONFLUENT_BY_RECORD: Sequence[Writer] = (CONFLUENT, CONFLUENT_CALLBACK)
CONFLUENTS: Sequence[Writer] = (*CONFLUENT_BY_RECORD, CONFLUENT_BATCH)
LIMITS: Sequence[Writer] = (LIMIT_ONE, LIMIT_MANY, LIMIT_LARGE)


def writers_with(profile: Profile, writers: Sequence[Writer]) -> list[Writer]:
    """The writers, without the limit for large batches if all clients have batches of the same size."""
    return [writer for writer in writers if writer is not LIMIT_LARGE or not profile.batch_bytes]
