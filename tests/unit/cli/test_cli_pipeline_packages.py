"""What `headrace run` needs of PySpark."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from headrace.cli import run
from headrace.cli.pipeline_launch import PipelineError


def test_a_pyspark_without_pipelines_is_named_with_the_version_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    with pytest.raises(PipelineError, match=r"pipelines need PySpark 4\.1 or newer, not \d"):
        run._check_packages()
