"""The benchmark of writing: measurement and report."""

from __future__ import annotations

import inspect
import json
import os
import random
from pathlib import Path

import pytest

from benchmarks import spark_write_report, spark_writing, write_latency, write_report, writers
from benchmarks import write_contenders as who
from benchmarks.child import find, perform
from benchmarks.datasets import Dataset, payload_file
from benchmarks.readers import Job
from benchmarks.results import Figure, Measurement
from benchmarks.spark_peer import session_figures
from benchmarks.write_results import WriteOutcome, WriteRun, WriteTable, Writings, latency_targets, limited_by, targets
from benchmarks.writers import WriteJob, Writing, raw_socket
from headrace.records import decode

PLAIN = Dataset(100, "none", 1_000_000)
JOB = WriteJob("127.0.0.1:9092", "a-topic", 6, 1000, "/lines", "zstd", batch_bytes=4096, buffer_bytes=2**20)


def wrote(rate: float, *, cpu: float = 1.0, broker: float | None = 0.2, grown: int | None = 10**6) -> WriteOutcome:
    """CPU times are for a million records."""
    return WriteOutcome((WriteRun(Measurement(1_000_000, 1e6 / rate, cpu, 2 * cpu, 10**8), broker, grown),))


def table(**outcomes: WriteOutcome) -> WriteTable:
    return WriteTable(PLAIN, who.DEFAULTS, {getattr(who, name).name: each for name, each in outcomes.items()})


def verdicts(of: WriteTable) -> dict[str, bool | None]:
    return {target.text: target.met for target in targets(of)}


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%0100d\n" % number for number in range(200)))
    return path


def test_write_targets_are_met_at_their_bound_and_missed_below_it() -> None:
    rates = {"SEND_ARROW": 4e6, "SEND": 1.5e6, "CONFLUENT": 1e6, "JAVA": 2e6}
    assert set(verdicts(table(**{name: wrote(rate) for name, rate in rates.items()})).values()) == {True}
    slow = rates | {"SEND_ARROW": 2.9e6, "SEND": 1.4e6}
    missed = verdicts(table(**{name: wrote(rate, grown=60 * 10**6) for name, rate in slow.items()}))
    assert set(missed.values()) == {False}


def test_write_targets_without_measurements_are_neither_met_nor_missed() -> None:
    assert set(verdicts(table(JAVA=wrote(1e6))).values()) == {None}


def test_send_arrow_is_compared_with_every_row_of_confluent_and_send_with_those_by_record() -> None:
    found = verdicts(table(SEND_ARROW=wrote(4e6), SEND=wrote(2e6), CONFLUENT=wrote(1e6), CONFLUENT_BATCH=wrote(2e6)))
    assert found["send_arrow, × confluent-kafka"] is False
    assert found["send, × confluent-kafka by record"] is True


@pytest.mark.parametrize(
    ("rate", "cpu", "broker", "expected"),
    [
        (0.85e6, 0.1, 0.1, "the broker"),
        (0.5e6, 3.0, 0.9, "processors: the client"),
        (0.5e6, 0.9, 3.0, "processors: the broker"),
        (0.5e6, 2.0, 0.1, "one thread of the client"),
        (0.5e6, 0.2, 0.2, "waiting"),
    ],
)
def test_a_row_names_what_limits_the_writer(rate: float, cpu: float, broker: float, expected: str) -> None:
    found = table(SEND=wrote(rate, cpu=cpu, broker=broker), LIMIT_ONE=wrote(1e6))
    assert limited_by(found, who.SEND, cores=2) == expected


def test_the_limit_of_writing_is_the_fastest_one_with_batches_of_the_same_size() -> None:
    found = table(LIMIT_ONE=wrote(4e6), LIMIT_MANY=wrote(5e6), LIMIT_LARGE=wrote(9e6))
    assert found.limit_of(who.SEND) == pytest.approx(5e6)
    assert found.limit_of(who.CONFLUENT) == pytest.approx(9e6)
    assert table(SEND=wrote(4e6)).limit_of(who.SEND) is None
    assert who.LIMIT_LARGE in who.writers_with(who.DEFAULTS, who.WRITERS)
    assert who.LIMIT_LARGE not in who.writers_with(who.TUNED, who.WRITERS)


def test_with_equal_batches_all_writers_have_the_same_limit() -> None:
    found = WriteTable(PLAIN, who.TUNED, {who.LIMIT_ONE.name: wrote(4e6)})
    assert found.limit_of(who.SEND) == found.limit_of(who.CONFLUENT) == pytest.approx(4e6)


def test_the_latency_of_writing_is_compared_with_confluent() -> None:
    figures: dict[str, Figure] = {"headrace": {"p50": 0.3, "p99": 2.0}, "confluent": {"p50": 0.4, "p99": 1.0}}
    assert [target.met for target in latency_targets(figures)] == [True, False]
    assert [target.met for target in latency_targets({"headrace": "failed: why"})] == [None, None]


def test_the_write_report_has_rows_targets_failures_and_latencies() -> None:
    failed = WriteOutcome((), ("no room",))
    found = table(SEND_ARROW=wrote(3e6), JAVA=wrote(1e6), AIOKAFKA=failed, LIMIT_ONE=wrote(4e6))
    text = "\n\n".join(write_report.sections(Writings(3, [found], {"headrace": {"mean": 1.0, "p50": 0.5, "p99": 3.0}})))
    assert "### Writing 1,000,000 records of 100 bytes, no compression, default sizes" in text
    assert "✓ send_arrow, × Java: 3 (at least 1.5)" in text
    assert "? send_arrow, × confluent-kafka: not measured" in text
    assert "- aiokafka failed 1 of 1 times: no room" in text
    assert "75%" in text
    assert "`Producer.send(…).result()`" in text
    assert "**headrace send_arrow**" in text


@pytest.mark.parametrize("writer", who.WRITERS, ids=lambda writer: writer.name)
def test_every_write_command_names_the_broker_the_topic_the_count_and_the_settings(writer: who.Writer) -> None:
    command = writer.command(JOB)
    assert os.access(command[0], os.X_OK)
    said = " ".join(command)
    words = (JOB.servers, JOB.topic, str(JOB.records), JOB.payload, JOB.codec, str(JOB.batch_bytes))
    assert all(word in said for word in (*words, str(JOB.buffer_bytes)))


@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")  # kafka-python, as it is imported
@pytest.mark.parametrize("writer", [each for each in who.WRITERS if each is not who.JAVA], ids=lambda each: each.name)
def test_every_python_writer_of_the_benchmark_has_its_function(writer: who.Writer) -> None:
    *_, what, job = writer.command(JOB)
    assert WriteJob(**json.loads(job)) == JOB
    assert list(inspect.signature(find(what)).parameters) == ["job", "meter"]


@pytest.mark.parametrize("client", write_latency.CLIENTS)
def test_every_client_of_the_write_latency_has_its_function(client: str) -> None:
    assert list(inspect.signature(find(f"write_latency.{client}")).parameters) == ["job"]


def test_writers_have_distinct_names() -> None:
    names = [writer.name for writer in who.WRITERS]
    assert len(set(names)) == len(names)


def test_a_writer_without_its_library_is_skipped() -> None:
    absent = who.Writer("a", "", lambda _: [], who.writing_of_child, package="no-such-package")
    assert absent.missing == "skipped: no-such-package is not installed"
    assert who.CONFLUENT.missing == who.JAVA.missing == ""


def test_java_s_write_rate_excludes_the_warm_up() -> None:
    rest = "(1.60 MB/sec), 2.1 ms avg latency, 3.0 ms max latency, 2 ms 50th, 3 ms 95th, 3 ms 99th, 3 ms 99.9th."
    output = (
        "85379 records sent, 17034.9 records/sec (1.62 MB/sec), 2.0 ms avg latency, 3.0 ms max latency.\n"
        f"100000 records sent, 12946.66 records/sec {rest}\n90000 steady state records sent, 45000.0 records/sec {rest}"
    )
    assert who.writing_of_java(output) == Writing(90_000, 2.0, None, None, 100_000)
    with pytest.raises(ValueError, match="nothing of use"):
        who.writing_of_java("nothing of use")


def test_java_s_write_latencies_are_parsed() -> None:
    output = f"a warning\n{json.dumps([float(n) for n in range(101)])}\n"
    assert write_latency.figures_of_java(output) == {"mean": 50.0, "p50": 50.0, "p99": 99.0}
    assert write_latency.java_command_line(Job("b:1", "t", 1, 7))[-5:] == ["b:1", "t", "7", "200", "100"]
    with pytest.raises(ValueError, match="printed"):
        write_latency.figures_of_java("nothing")


def test_slow_writers_write_fewer_records_but_at_least_ten_thousand() -> None:
    assert who.KAFKA_PYTHON.records_of(5_000_000) == 100_000
    assert who.KAFKA_PYTHON.records_of(50_000) == 10_000
    assert who.SEND_ARROW.records_of(5_000_000) == 5_000_000


def test_all_writers_send_the_lines_of_the_payload_again_and_again() -> None:
    with payload_file(Dataset(100, "none", 10)) as path:
        job = WriteJob("b:1", "t", 6, 25, str(path))
        values = list(job.values())
    assert len(values) == 25
    assert values[:10] == values[10:20] == list(dict.fromkeys(values))


def test_the_write_meter_measures_time_and_the_growth_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = writers.WriteMeter()
    meter.start()
    ballast = random.randbytes(30_000_000)
    meter.stop(10, before=1)
    assert meter.writing is not None
    assert (meter.writing.records, meter.writing.sent) == (10, 11)
    assert meter.writing.seconds > 0
    if meter.writing.grown_bytes is not None:
        assert 25_000_000 < meter.writing.grown_bytes < 200_000_000
    del ballast
    monkeypatch.setattr(writers, "_reset_peak", lambda: None)
    meter.start()
    meter.stop(1)
    assert meter.writing.grown_bytes is None


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_limit_sends_batches_with_every_line_of_the_payload(payload: Path, codec: str) -> None:
    job = WriteJob("b:1", "t", 6, 200, str(payload), codec, batch_bytes=4096)
    found = list(raw_socket.encoded_batches(job))
    assert len(found) > 1
    decoded = [decode(memoryview(data), topic="t", partition=0, position=0) for data, _ in found]
    assert [len(batch) for batch in decoded] == [count for _, count in found]
    assert [record.value for batch in decoded for record in batch] == job.lines()


def test_a_writer_that_does_not_stop_the_meter_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_socket, "_write", lambda *_: None)
    with pytest.raises(AssertionError, match="must stop the meter"):
        perform("writers.raw_socket.one_connection", {**json.loads(who.LIMIT_ONE.command(JOB)[-1])})


LINES = [
    {"what": "100B", "sink": "kafka", "rate": 100_000.0, "cpu": 1.0},
    {"what": "100B", "sink": "headrace", "rate": 200_000.0, "cpu": 0.5, "worker_peak_mb": 130.0},
    {"what": "100B", "sink": "headrace, exactlyOnce", "rate": 150_000.0, "cpu": 0.6, "worker_peak_mb": 130.0},
    {"what": "1KB", "sink": "kafka", "rate": 50_000.0, "cpu": 1.0},
    {"what": "1KB", "sink": "headrace", "failed": "skipped: this headrace cannot write"},
]


def test_the_page_of_spark_s_writes_has_rates_targets_and_reasons() -> None:
    said: list[str] = []
    found = session_figures("\n".join(["noise", *map(json.dumps, LINES)]), "sink", said.append)
    assert len(said) == len(LINES)
    (text,) = spark_write_report.sections(spark_writing.SparkWritings(1, {"100B": 10, "1KB": 5}, found))
    assert "✓ 100B, × Spark's own: 2 (at least 1.5)" in text
    assert "✗ 100B, exactlyOnce, × at least once: 0.75 (at least 0.8)" in text
    assert "? 1KB, × Spark's own: not measured" in text
    assert "- 1KB, headrace: skipped: this headrace cannot write" in text


def test_without_spark_s_connector_the_page_of_writes_says_why() -> None:
    found = spark_writing.SparkWritings(1, {}, {}, "no network")
    assert spark_write_report.sections(found) == ["## Writing with Spark\n\nNot measured: no network."]
