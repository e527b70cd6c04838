"""What `headrace run` needs of PySpark and of the Python of its workers."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("pyspark")

from headrace.cli import run
from headrace.cli.pipeline_launch import PipelineError


def test_a_pyspark_without_pipelines_is_named_with_the_version_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    with pytest.raises(PipelineError, match=r"pipelines need PySpark 4\.1 or newer, not \d"):
        run._check_packages()


def test_a_python_for_workers_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    with pytest.raises(PipelineError, match=r"PYSPARK_PYTHON is /nowhere/python, .* export PYSPARK_PYTHON=/"):
        run._check_workers()


@pytest.mark.parametrize("chosen", [None, sys.executable])
def test_a_python_for_workers_that_exists_is_used(monkeypatch: pytest.MonkeyPatch, chosen: str | None) -> None:
    if chosen is None:
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    else:
        monkeypatch.setenv("PYSPARK_PYTHON", chosen)
    run._check_workers()
