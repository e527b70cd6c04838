"""`headrace run` while its own broker ends."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cli.pipeline_launch import PipelineError, SparkProcess
from headrace.cli.run import _check_broker

LIVE: Any = SimpleNamespace(live_brokers=(1,), log_path=Path("state/broker/broker.log"))
ENDED: Any = SimpleNamespace(live_brokers=(), log_path=Path("state/broker/broker.log"))


def test_a_run_ends_soon_after_its_broker(tmp_path: Path) -> None:
    """Spark waits for its settings until then, or for the broker."""
    with (
        SparkProcess(tmp_path / "spark-pipeline.yml", tmp_path, "local[1]", {}) as spark,
        pytest.raises(PipelineError) as raised,
    ):
        spark.run({}, 0.0, None, functools.partial(_check_broker, ENDED))
    assert str(raised.value) == (
        "the broker that `headrace run` started has ended during the run (log: state/broker/broker.log). The next run "
        "starts it again, and resumes where this one stopped"
    )


def test_a_broker_that_runs_is_no_error() -> None:
    _check_broker(LIVE)
