"""The benchmark of share groups: measurement and report."""

from __future__ import annotations

import pytest

from benchmarks import share
from benchmarks.readers import Job
from benchmarks.results import Figure, median_figure
from benchmarks.share_report import sections
from benchmarks.share_runs import Shares


def figure(rate: float) -> Figure:
    return {"rate": rate, "polls": 1.0, "records": 10.0}


def test_a_share_benchmark_measures_only_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.5, 1.0, *(1.0 + 0.1 * step for step in range(100))])
    monkeypatch.setattr(share.time, "perf_counter", lambda: next(clock))
    answers = iter([0, 2, 3, 10, 0, 10])
    found = share._timed(lambda: next(answers), 25)
    assert found["records"] == 25
    assert found["rate"] == pytest.approx(20 / 0.4)


def test_a_share_benchmark_without_records_fails_in_time() -> None:
    answers = iter([5] + [0] * 10**6)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(share, "SECONDS", 0.01)
        patched.setattr(share, "WARM_UP", 0.0)
        with pytest.raises(TimeoutError, match="after the first 5"):
            share._timed(lambda: next(answers), 25)


def test_share_medians_are_of_the_runs_that_did_not_fail() -> None:
    assert median_figure([figure(1), "failed: no", figure(9), figure(5)]) == figure(5)
    assert median_figure(["failed: no"]) == "failed: no"


def test_java_s_share_benchmark_command_and_output_are_understood() -> None:
    command = share.java_command_line(Job("b:1", "t", 6, 100, protocol=share.words("record_limit", 500, "g")))
    assert command[-8:] == ["b:1", "g", "t", "record_limit", "500", "100", "1500", "3000"]
    assert share.figures_of_java('warning\n{"rate": 5.0, "polls": 1.0, "records": 3}\n')["rate"] == 5.0
    with pytest.raises(ValueError, match="printed"):
        share.figures_of_java("nothing")


def test_the_share_report_compares_all_clients() -> None:
    rates = {
        "headrace, batch_optimized": {10: figure(100), 500: figure(900)},
        "headrace, record_limit": {500: figure(50)},
        "Java, batch_optimized": {500: figure(1000)},
        "Java, record_limit": {500: "failed: why"},
        "confluent, batch_optimized": {500: figure(400)},
    }
    bytes = {"batch_optimized": {10: {"ratio": 1.1}}, "record_limit": {10: {"ratio": 5.5}}}
    text = "\n".join(sections(Shares(3, rates, bytes)))
    assert "✓ 500, × confluent-kafka: 2.25 (at least 2)" in text
    assert "✗ 500, × Java: 0.9 (at least 1)" in text
    assert "? 500, record_limit, × Java: not measured" in text
    assert "- Java, record_limit, 500: failed: why" in text
    assert "10, × confluent" not in text
    assert "5.50" in text
