"""`headrace run` and `headrace new` with directories that cannot be used."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from headrace.cli.pipeline_launch import SparkProcess
from headrace.cli.run import _locked
from headrace.errors import HeadraceError
from support.harness.shell import headrace


def test_a_spark_process_that_cannot_start_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task may contain passwords."""
    temporary, state = tmp_path / "tmp", tmp_path / "state"
    temporary.mkdir()
    (state / "run.log").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(HeadraceError) as raised:
        SparkProcess(tmp_path, state, "local[1]", {"spark.secret": "x"})
    advice = "choose another directory with --state"
    assert str(raised.value) == f"the file {state / 'run.log'} cannot be used (Is a directory): {advice}"
    assert not list(temporary.iterdir())
    assert not (state / "task.json").exists()


def test_a_state_directory_that_cannot_be_created_is_named_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    state = tmp_path / "file" / "state"
    with pytest.raises(HeadraceError) as raised, _locked(state):
        pass
    assert str(raised.value) == (
        f"the state directory {state} cannot be used (Not a directory): choose another directory with --state"
    )


def test_a_project_in_a_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    project = tmp_path / "file" / "shop"
    done = headrace("new", str(project))
    expected = f"headrace: the directory {project} cannot be used (Not a directory): choose another directory\n"
    assert (done.code, done.text, done.err) == (1, "", expected)
