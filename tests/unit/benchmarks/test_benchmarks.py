"""The benchmark's arithmetic and command lines, where a mistake would go unnoticed."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import contenders as who
from benchmarks import joining, latency, polling, rebalancing
from benchmarks.__main__ import main
from benchmarks.child import find
from benchmarks.datasets import Dataset, datasets, lines
from benchmarks.markdown import markdown_table
from benchmarks.process import CommandFailed, run
from benchmarks.readers import Job, Meter, Reading
from benchmarks.report import Results as Found
from benchmarks.report import results
from benchmarks.results import Figures, Measurement, Outcome, Table, poll_targets, ratio, summarize, targets
from benchmarks.run import compile_modules
from headrace import _native

JOB = Job("127.0.0.1:9092", "a-topic", 6, 1000)
PLAIN = Dataset(100, "none", 1_000_000)


def measured(rate: float, *, peak: float = 100e6, loop: float | None = 0.5) -> Measurement:
    return Measurement(1_000_000, 1_000_000 / rate, loop, 2.0, int(peak))


def table(dataset: Dataset = PLAIN, /, **rates: float) -> Table:
    outcomes = {getattr(who, name).name: Outcome((measured(rate),)) for name, rate in rates.items()}
    return Table(dataset, 0, outcomes)


def verdicts(of: Table) -> dict[str, bool | None]:
    return {target.text: target.met for target in targets(of)}


def test_a_summary_has_the_median_rate_the_extremes_and_the_highest_peak() -> None:
    runs = [measured(3e6, peak=90e6), measured(1e6, peak=150e6), measured(2e6, peak=80e6)]
    summary = summarize(runs)
    assert summary is not None
    assert (summary.rate, summary.slowest, summary.fastest) == pytest.approx((2e6, 1e6, 3e6))
    assert summary.peak_mb == 150
    assert summarize([]) is None


def test_a_summary_has_the_cpu_of_the_loop_if_it_is_known() -> None:
    known, unknown = summarize([measured(1e6, loop=0.5)]), summarize([measured(1e6, loop=None)])
    assert known is not None
    assert unknown is not None
    assert (known.cpu_per_million, known.cpu_of_whole_process) == (0.5, False)
    assert (unknown.cpu_per_million, unknown.cpu_of_whole_process) == (2.0, True)


def test_the_limit_and_confluent_are_the_faster_of_their_two_rows() -> None:
    assert table(LIMIT_IN_TURN=4e6, LIMIT_REPLAYED=5e6).limit == pytest.approx(5e6)
    assert table(LIMIT_IN_TURN=4e6).limit == pytest.approx(4e6)
    assert table(COLUMNAR=4e6).limit is None
    assert table(CONFLUENT=1e6, CONFLUENT_TUNED=2e6).confluent == pytest.approx(2e6)


def test_a_ratio_is_none_unless_both_sides_are_known() -> None:
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(None, 2.0) is None
    assert ratio(3.0, None) is None
    assert ratio(3.0, 0.0) is None


def test_targets_are_met_at_their_bound_and_missed_below_it() -> None:
    rates = {"COLUMNAR": 5e6, "BY_RECORD": 3e6, "CONFLUENT": 1e6, "JAVA": 3e6, "LIMIT_REPLAYED": 5.5e6}
    rates["FRANZ_GO"] = 1.4e6
    assert set(verdicts(table(**rates)).values()) == {True}
    slow = verdicts(table(**rates | {"COLUMNAR": 4.4e6, "BY_RECORD": 2.9e6}))
    assert slow == {
        "columnar, × Java": False,
        "columnar, × confluent-kafka": False,
        "columnar, % of the limit": False,
        "columnar, × franz-go": False,
        "by record, × confluent-kafka": False,
        "by record, × franz-go": True,
        "peak memory of headrace, MB": True,
    }


def test_targets_without_measurements_are_neither_met_nor_missed() -> None:
    assert set(verdicts(table(JAVA=1e6)).values()) == {None}


def test_the_memory_target_uses_headraces_highest_peak() -> None:
    outcomes = {who.COLUMNAR.name: Outcome((measured(1e6),)), who.BY_RECORD.name: Outcome((measured(1e6, peak=201e6),))}
    assert verdicts(Table(PLAIN, 0, outcomes))["peak memory of headrace, MB"] is False


def test_compressed_datasets_have_no_target_for_the_limit() -> None:
    assert "columnar, % of the limit" not in verdicts(table(Dataset(100, "zstd", 1000), COLUMNAR=1e6))


def test_the_benchmark_report_has_the_error_of_a_failed_client() -> None:
    outcomes = {who.JAVA.name: Outcome((), ("no such topic",)), who.COLUMNAR.name: Outcome((measured(2e6),))}
    text = results(Found({}, 0.0, "", 1, [Table(PLAIN, 0, outcomes)], {}, {}))
    assert "Java failed 1 of 1 times: no such topic" in text
    assert "2.00 M" in text


def test_a_markdown_table_is_aligned_and_its_short_rows_are_filled() -> None:
    drawn = markdown_table(("name", "n"), [["a", "1,000"], ["b|c"]]).splitlines()
    assert drawn == ["| name |     n |", "| ---- | ----: |", "| a    | 1,000 |", "| b\\|c |     – |"]


# Go's programs have to be built: see test_benchmarks_franz_go.py.
@pytest.mark.parametrize("contender", [c for c in who.CONTENDERS if c not in who.FRANZ_GOS], ids=lambda c: c.name)
def test_every_benchmark_command_names_the_broker_the_topic_and_the_count(contender: who.Contender) -> None:
    command = contender.command(JOB)
    assert all(isinstance(word, str) and word for word in command)
    assert os.access(command[0], os.X_OK)
    said = " ".join(command)
    assert all(word in said for word in (JOB.servers, JOB.topic, str(JOB.records)))


@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")  # kafka-python, as it is imported
@pytest.mark.parametrize(
    "contender", [c for c in who.CONTENDERS if c not in (who.JAVA, *who.FRANZ_GOS)], ids=lambda c: c.name
)
def test_every_python_contender_of_the_benchmark_has_its_reader(contender: who.Contender) -> None:
    *_, what, job = contender.command(JOB)
    assert Job(**json.loads(job)) == JOB
    assert list(inspect.signature(find(what)).parameters) == ["job", "meter"]


@pytest.mark.parametrize("module", [polling, latency, joining, rebalancing], ids=lambda module: module.__name__)
def test_every_client_of_the_smaller_benchmarks_has_its_function(module: Any) -> None:
    for client in module.CLIENTS:
        assert list(inspect.signature(find(f"{module.__name__.rpartition('.')[2]}.{client}")).parameters) == ["job"]


def test_contenders_of_the_benchmark_have_distinct_names() -> None:
    names = [contender.name for contender in who.CONTENDERS]
    assert len(set(names)) == len(names)


def test_java_s_benchmark_rate_excludes_the_time_of_the_rebalance() -> None:
    times = "2026-01-01 10:00:00:000, 2026-01-01 10:00:03:000"
    line = f"{times}, 476.8372, 158.9, 5000000, 1666666.7, 500, 2500, 190.7, 2000000.0"
    assert who.reading_of_java(f"a warning\n{line}\n") == Reading(5_000_000, 500_000_044, 2.5, None)
    with pytest.raises(ValueError, match="nothing of use"):
        who.reading_of_java("nothing of use")


def test_java_s_benchmark_latencies_are_parsed() -> None:
    output = "0\t12.3\nAvg latency: 0.6147 ms\nPercentiles: 50th = 0, 99th = 2, 99.9th = 9\n"
    assert latency.figures_of_java(output) == {"mean": 0.6147, "p50": 0.0, "p99": 2.0}


def test_every_row_of_headrace_has_a_target_for_the_cost_of_a_poll() -> None:
    costs: Figures = {
        "headrace, assigned": {"poll": 49.0},
        "headrace, subscribed": {"poll": 51.0},
        "headrace": "failed",
    }
    found = poll_targets(costs | {"confluent": {"poll": 100.0}}, polling.MOST)
    assert [target.met for target in found] == [True, False, None]


def test_latency_figures_are_mean_p50_and_p99() -> None:
    assert latency.figures([float(n) for n in range(101)]) == {"mean": 50.0, "p50": 50.0, "p99": 99.0}


def test_slow_contenders_read_fewer_records_but_at_least_ten_thousand() -> None:
    assert who.KAFKA_PYTHON.records_of(5_000_000) == 150_000
    assert who.KAFKA_PYTHON.records_of(50_000) == 10_000
    assert who.KAFKA_PYTHON.records_of(5_000) == 5_000
    assert who.COLUMNAR.records_of(5_000_000) == 5_000_000


@pytest.mark.parametrize("size", [100, 1024])
def test_benchmark_records_are_json_of_exactly_their_size(size: int) -> None:
    made = list(itertools.islice(lines(size), 500))
    assert {len(line) for line in made} == {size}
    assert len({json.loads(line)["id"] for line in made}) == len(made)


def test_benchmark_datasets_have_distinct_names_and_topics() -> None:
    every = datasets(1000)
    assert [dataset.name for dataset in every] == ["100B", "100B-zstd", "1KB", "1KB-zstd"]
    assert [dataset.records for dataset in every] == [1000, 1000, 100, 100]
    assert len({dataset.topic for dataset in every}) == 4


def test_the_meter_stops_at_the_last_record() -> None:
    meter = Meter(10)
    meter.start()
    assert not meter.add(0, 0)
    assert not meter.add(6, 600)
    assert meter.left == 4
    time.sleep(0.01)  # so that the meter measures some time
    assert meter.add(5, 500)
    assert meter.reading is not None
    assert (meter.reading.records, meter.reading.bytes) == (11, 1100)
    assert meter.reading.seconds >= 0.01


def test_a_benchmark_command_is_charged_with_its_own_cpu_and_memory() -> None:
    work = "import time; x = b'x' * 150_000_000\nwhile time.process_time() < 0.3: pass\nprint('done')"
    finished = run([sys.executable, "-c", work], timeout=60)
    assert finished.output == "done\n"
    assert 0.3 <= finished.cpu_seconds < 10
    assert finished.peak_bytes > 150_000_000


def test_a_failed_benchmark_command_raises_its_last_line() -> None:
    with pytest.raises(CommandFailed, match=r"^ValueError: too bad$"):
        run([sys.executable, "-c", "raise ValueError('too bad')"], timeout=60)


def test_a_benchmark_command_past_its_timeout_fails() -> None:
    with pytest.raises(CommandFailed, match="not done in 1 s"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=1)  # longer than the timeout


def test_a_module_that_is_built_for_development_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_native, "IS_RELEASE", False)
    assert main(["--quick"]) == 1
    assert "make bench" in capsys.readouterr().err


def test_measured_processes_find_compiled_modules_although_python_writes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "module.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-c", "import os, module; print(os.path.exists(module.__cached__))"]
    assert run(command, timeout=60).output == "False\n"
    compile_modules(tmp_path)
    assert run(command, timeout=60).output == "True\n"
