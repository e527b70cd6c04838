"""The benchmark parses the lines that the Spark session prints."""

from __future__ import annotations

import json

from benchmarks import spark, spark_report
from benchmarks.results import Figure

LINES = [
    {"what": "100B, noop", "source": "kafka", "rate": 700_000.0, "cpu": 1.1},
    {"what": "100B, noop", "source": "headrace", "rate": 2_000_000.0, "cpu": 0.6, "worker_peak_mb": 130.0},
    {"what": "100B, noop", "source": "kafka", "rate": 800_000.0, "cpu": 1.3},
    {"what": "100B, noop", "source": "headrace", "rate": 2_800_000.0, "cpu": 0.4, "worker_peak_mb": 140.0},
]
LATENCIES: dict[str, Figure] = {"kafka": {"p50": 200.0, "p95": 400.0}, "headrace": {"p50": 150.0, "p95": 500.0}}


def test_spark_medians_are_by_query_and_source() -> None:
    said: list[str] = []
    found = spark._figures("\n".join(["noise", *map(json.dumps, LINES)]), said.append)
    assert found["100B, noop"]["kafka"] == {"rate": 750_000.0, "cpu": 1.2000000000000002}
    assert found["100B, noop"]["headrace"] == {"rate": 2_400_000.0, "cpu": 0.5, "worker_peak_mb": 135.0}
    assert len(said) == 4


def test_the_spark_page_has_rates_and_latencies() -> None:
    found = spark._figures("\n".join(map(json.dumps, LINES)), lambda _: None)
    rates, latencies = spark_report.sections(spark.Sparks(2, found, {}, {64: found["100B, noop"]}, LATENCIES))
    assert "batch, 100B, noop" in rates
    assert "✓ batch, 100B, noop, × Spark's connector: 3.2 (at least 3)" in rates
    assert "64 partitions" in rates
    assert "✓ latency, p50" in latencies
    assert "✗ latency, p95" in latencies


def test_without_spark_s_connector_the_page_says_why() -> None:
    assert spark_report.sections(spark.Sparks(2, {}, {}, {}, {}, "no network")) == [
        "## Spark\n\nNot measured: no network."
    ]
