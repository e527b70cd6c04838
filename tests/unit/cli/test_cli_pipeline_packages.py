"""What `headrace run` needs of packages, of the Python of Spark's workers, and of SPARK_HOME."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import headrace
from headrace.cli import pipeline_checks
from headrace.cli.pipeline_checks import check_packages, check_pythons, check_spark_home
from headrace.cli.pipeline_launch import PipelineError

NAMES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(pipeline_checks, "find_spec", lambda name: None if name in names else find_spec(name))


def test_a_pyspark_without_pipelines_is_named_with_the_version_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "pyspark.pipelines", "grpc")
    with pytest.raises(PipelineError, match=r"pipelines need PySpark 4\.1 or newer, not \d"):
        check_packages()


@pytest.mark.parametrize(
    ("missing", "named"), [(("pyspark", "grpc", "yaml"), "pyspark, grpc and yaml"), (("yaml",), "yaml")]
)
def test_missing_packages_are_named_with_everything_to_install(
    monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], named: str
) -> None:
    without(monkeypatch, *missing)
    with pytest.raises(PipelineError) as raised:
        check_packages()
    assert str(raised.value) == f"pipelines need {named}: pip install 'headrace[spark-connect,local]'"


@pytest.mark.parametrize(
    ("command", "extra"), [("run", "spark-connect,local"), ("up", "local"), ("topics", "cli"), ("--help", "cli")]
)
def test_without_click_a_command_names_everything_that_it_needs(tmp_path: Path, command: str, extra: str) -> None:
    (tmp_path / "click.py").write_text("raise ImportError('none', name='click')")
    source = str(Path(headrace.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "headrace", command],
        env={"PYTHONPATH": f"{tmp_path}:{source}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == f"headrace: the command line needs click: pip install 'headrace[{extra}]'\n"


@pytest.mark.parametrize("name", NAMES)
def test_a_python_for_workers_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "/nowhere/python")
    with pytest.raises(PipelineError, match=rf"{name} is /nowhere/python, .* export {name}=/"):
        check_pythons("local[*]")


@pytest.mark.parametrize("name", NAMES)
def test_a_python_for_workers_without_headrace_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    other = program(tmp_path, json.dumps([platform.python_version(), None, True]))
    monkeypatch.setenv(name, str(other))
    with pytest.raises(PipelineError) as raised:
        check_pythons("local[*]")
    assert str(raised.value) == (
        f"Spark cannot run the pipeline: {other} ({name}) has no headrace: "
        f"unset {name}, or export {name}={sys.executable}"
    )


@pytest.mark.parametrize("output", ["", "3", "hello"])
def test_a_program_that_is_not_python_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(program(tmp_path, output)))
    with pytest.raises(PipelineError, match="does not run: its output is not that of Python: unset PYSPARK_PYTHON"):
        check_pythons("local[*]")


def test_a_program_that_fails_is_shown_with_its_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = program(tmp_path, "")
    other.write_text("#!/bin/sh\necho first >&2\necho last >&2\nexit 7\n")
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    with pytest.raises(PipelineError, match=r"does not run: it exited with code 7 \(last\): unset"):
        check_pythons("local[*]")


@pytest.mark.parametrize("chosen", [None, sys.executable])
def test_this_python_is_not_started_for_a_check(monkeypatch: pytest.MonkeyPatch, chosen: str | None) -> None:
    if chosen is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", chosen)
    monkeypatch.setattr(pipeline_checks, "ask_python", None)
    check_pythons("local[*]")


def test_a_python_of_other_machines_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "env/bin/python")
    check_pythons("sc://host")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    check_pythons("spark://host:7077")


def test_a_spark_home_without_spark_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_spark_home("local[*]")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    check_spark_home("sc://host")
    with pytest.raises(PipelineError, match=rf"SPARK_HOME: {tmp_path} contains no Spark: unset SPARK_HOME, or correct"):
        check_spark_home("local[*]")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.2.1.jar").touch()
    check_spark_home("local[*]")


def program(directory: Path, output: str) -> Path:
    path = directory / "python"
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)
    return path
