"""The class archive of `headrace run`: which one fits, and what happens if it cannot be written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.spark_archive import SparkArchive

pytest.importorskip("pyspark")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    return tmp_path


def jvm(code: str = "import sys; sys.stdin.read()") -> subprocess.Popen[Any]:
    """A process that ends when its input ends, as Spark's JVM does."""
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)


def draft_of(archive: SparkArchive) -> Path:
    return Path(archive.java_option.strip('"').partition("=")[2])


def test_the_first_run_writes_what_later_ones_use(cache: Path) -> None:
    first = SparkArchive()
    assert first.is_missing
    assert first.java_option.startswith('"-XX:ArchiveClassesAtExit=')
    draft_of(first).write_bytes(b"classes")
    family = first.path.name.rpartition("-")[0]
    for name in (f"{family}-older.jsa", f"{family}-older.123", "spark-other-1.jsa"):
        (cache / name).touch()
    first.write(jvm())
    later = SparkArchive()
    assert not later.is_missing
    assert later.java_option == f'"-XX:SharedArchiveFile={first.path}"'
    assert {path.name for path in cache.iterdir()} == {first.path.name, "spark-other-1.jsa"}


def test_a_jvm_that_writes_nothing_is_no_error(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = SparkArchive()
    archive.write(jvm())
    assert "no class archive" in capsys.readouterr().out
    assert SparkArchive().is_missing


def test_another_installation_has_another_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    before = SparkArchive().path
    monkeypatch.setattr("importlib.metadata.version", lambda _: "9.9")
    assert SparkArchive().path != before
