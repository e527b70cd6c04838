"""The readers. Every contender is a command that prints its result; `what` is its line in the report."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence

from headrace.local import java_command

from . import franz_go
from .child import command as child_command
from .readers import FETCH_MAX_BYTES, MAX_PARTITION_FETCH_BYTES, Job, Reading

# The flags that kafka-run-class.sh, and so kafka-consumer-perf-test.sh, passes to Java.
JVM_FLAGS = (
    *("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
    *("-XX:+ExplicitGCInvokesConcurrent", "-Duser.language=en"),
)
_FEWEST = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Contender:
    name: str
    what: str
    command: Callable[[Job], list[str]]
    parse: Callable[[str], Reading]
    share: float = 1.0
    """The share of the topic that it reads. Slow readers read less, since only rates are compared."""
    reason_missing: Callable[[], str] = str
    prepare: Callable[[], object] = lambda: None
    """Called once before the first run, for a program that has to be built. Raises CommandFailed."""

    @property
    def missing(self) -> str:
        """The reason why it cannot run here; empty if it can."""
        return self.reason_missing()

    def records_of(self, records: int) -> int:
        return min(records, max(_FEWEST, math.ceil(records * self.share)))


def _reader(name: str, reader: str, what: str, share: float = 1.0) -> Contender:
    return Contender(name, what, lambda job: child_command(f"readers.{reader}", job), reading_of_child, share)


def _franz_go(name: str, what: str, *flags: str) -> Contender:
    return Contender(
        name,
        what,
        lambda job: franz_go.command(job, *flags),
        reading_of_child,
        reason_missing=franz_go.missing,
        prepare=franz_go.build,
    )


def reading_of_child(output: str) -> Reading:
    return Reading(**json.loads(output))


def java_consumer_command(job: Job) -> list[str]:
    executable, *rest = java_command(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", job.servers, "--topic", job.topic, "--num-records", str(job.records)),
        *("--timeout", "20000", "--hide-header"),
    )
    return [executable, *JVM_FLAGS, *rest]


def reading_of_java(output: str) -> Reading:
    """Its output is one line: start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec,
    rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec. fetch.time excludes joining the group."""
    rows = [line.split(", ") for line in output.splitlines()]
    fields = next((row for row in reversed(rows) if len(row) == 10), None)
    if fields is None:
        raise ValueError(f"ConsumerPerformance printed {output.strip()[-200:]!r}")
    return Reading(int(fields[4]), round(float(fields[2]) * 2**20), int(fields[7]) / 1000, None)


COLUMNAR = _reader(
    "headrace columnar",
    "with_headrace.columnar",
    "`poll()` with `max.poll.records=-1` and `to_arrow()` for each result; rows and bytes of values are "
    "counted. All other settings are the defaults.",
)
COLUMNAR_OBSERVED = _reader(
    "headrace columnar, OpenTelemetry on",
    "with_headrace.columnar_observed",
    "`headrace columnar` after `headrace.otel.instrument()`: spans and metrics are exported every second, to an "
    "exporter that drops them.",
)
COLUMNAR_500 = _reader(
    "headrace columnar, 500 a poll",
    "with_headrace.columnar_by_500",
    "The same with default settings: tables of 500 rows.",
    share=0.3,
)
BY_RECORD = _reader(
    "headrace by record",
    "with_headrace.by_record",
    "`for r in records: len(r.value)` with default settings: 500 records per poll.",
)
BY_RECORD_ALL = _reader(
    "headrace by record, unlimited",
    "with_headrace.by_record_unlimited",
    "The same with `max.poll.records=-1`.",
)
CONFLUENT = _reader(
    "confluent-kafka",
    "with_confluent.consume",
    "`consume(10000, timeout=1.0)`, `len(m.value())` of each, no check of `m.error()`, `enable.auto.commit=false`; "
    "otherwise librdkafka's defaults (it does not check CRCs by default). It pauses fetching for a second "
    "(`fetch.queue.backoff.ms`) whenever 100,000 messages (`queued.min.messages`) are waiting to be consumed.",
    share=0.05,
)
CONFLUENT_TUNED = _reader(
    "confluent-kafka, tuned",
    "with_confluent.consume_tuned",
    "The same with `queued.min.messages=1000000` and `fetch.queue.backoff.ms=5`, so that it does not pause.",
    share=0.3,
)
JAVA = Contender(
    "Java",
    "`org.apache.kafka.tools.ConsumerPerformance` with the JVM flags of `kafka-consumer-perf-test.sh`. It checks no "
    "CRCs, reads only the lengths of keys and values, and sets a receive buffer of 2 MiB. Records/s are its "
    "records divided by `fetch.time.ms`, which excludes joining the group and includes the JVM's warm-up. "
    "CPU and memory are those of the JVM from start to end.",
    java_consumer_command,
    reading_of_java,
)
FRANZ_GO = _franz_go(
    "franz-go",
    "A program in Go (`benchmarks/go`): `PollFetches` by assignment, `EachRecord`, `len(r.Value)` of each, default "
    "settings, whose sizes of fetches are those of the other clients. It checks CRCs and uses all processors.",
)
FRANZ_GO_TUNED = _franz_go(
    "franz-go, tuned",
    "The same with `WithPools` for decompressed bytes and for records, and `Recycle()` of each record, so that the "
    "garbage collector has less to do.",
    "tuned",
)
AIOKAFKA = _reader(
    "aiokafka", "with_aiokafka.getmany", "`getmany(timeout_ms=1000)`, `len(r.value)` of each.", share=0.05
)
KAFKA_PYTHON = _reader(
    "kafka-python",
    "with_kafka_python.poll",
    "`poll(timeout_ms=1000)`, `len(r.value)` of each, with default settings: 500 records per poll.",
    share=0.03,
)
LIMIT_IN_TURN = _reader(
    "limit, in turn",
    "raw_socket.in_turn",
    "A blocking socket that sends the same Fetch requests "
    f"(`fetch.max.bytes={FETCH_MAX_BYTES}`, `max.partition.fetch.bytes={MAX_PARTITION_FETCH_BYTES}`) and receives "
    "the responses into one buffer. It reads only batch headers, to get the next offsets; it checks, decompresses "
    "and decodes nothing.",
)
LIMIT_REPLAYED = _reader(
    "limit, replayed",
    "raw_socket.replayed",
    "The same requests, prepared beforehand, with two of them always in flight; responses are not read. No client "
    "with one connection can be faster.",
)

CONTENDERS: Sequence[Contender] = (
    COLUMNAR,
    COLUMNAR_OBSERVED,
    COLUMNAR_500,
    BY_RECORD,
    BY_RECORD_ALL,
    CONFLUENT,
    CONFLUENT_TUNED,
    JAVA,
    FRANZ_GO,
    FRANZ_GO_TUNED,
    AIOKAFKA,
    KAFKA_PYTHON,
    LIMIT_IN_TURN,
    LIMIT_REPLAYED,
)
HEADRACE: Sequence[Contender] = (COLUMNAR, COLUMNAR_OBSERVED, COLUMNAR_500, BY_RECORD, BY_RECORD_ALL)
CONFLUENTS: Sequence[Contender] = (CONFLUENT, CONFLUENT_TUNED)
FRANZ_GOS: Sequence[Contender] = (FRANZ_GO, FRANZ_GO_TUNED)
LIMITS: Sequence[Contender] = (LIMIT_IN_TURN, LIMIT_REPLAYED)
