"""The class archive of `headrace run`: which one fits, and what happens if it cannot be written."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.spark_archive import SparkArchive
from headrace.local.java import find_java

pytest.importorskip("pyspark")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def jvm(code: str = "import sys; sys.stdin.read()") -> subprocess.Popen[Any]:
    """A process that ends when its input ends, as Spark's JVM does."""
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)


def options(archive: SparkArchive) -> dict[str, str]:
    found = (option.partition("=") for option in shlex.split(archive.java_options))
    return {name: value for name, _, value in found}


def test_the_first_run_lists_the_classes_that_later_ones_map(cache: Path, tmp_path: Path) -> None:
    first = SparkArchive(tmp_path)
    assert first.is_missing
    Path(options(first)["-XX:DumpLoadedClassList"]).write_text("java/lang/Object\njava/lang/String\n")
    family = first.path.name.rpartition("-")[0]
    cache.mkdir()
    for name in (f"{family}-older.jsa", f"{family}-older.123", "spark-other-1.jsa"):
        (cache / name).touch()
    first.write(jvm(), class_path="")
    later = SparkArchive(tmp_path)
    assert not later.is_missing
    assert options(later) == {"-XX:SharedArchiveFile": str(first.path)}
    assert {path.name for path in cache.iterdir()} == {first.path.name, "spark-other-1.jsa"}
    # -Xshare:on fails if the archive cannot be mapped.
    subprocess.run([find_java().executable, "-Xshare:on", *shlex.split(later.java_options), "-version"], check=True)


def test_a_jvm_without_a_list_is_no_error(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = SparkArchive(tmp_path)
    archive.write(jvm(), class_path="")
    assert "no class archive" in capsys.readouterr().out
    assert SparkArchive(tmp_path).is_missing
    assert not list(cache.iterdir())


def test_a_first_run_starts_with_its_options(tmp_path: Path) -> None:
    archive = SparkArchive(tmp_path)
    subprocess.run([find_java().executable, *shlex.split(archive.java_options), "-version"], check=True)
    assert "java/lang/Object" in Path(options(archive)["-XX:DumpLoadedClassList"]).read_text()


def test_another_installation_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = SparkArchive(tmp_path).path
    assert SparkArchive(tmp_path, "/opt/spark").path != before
    monkeypatch.setattr("importlib.metadata.version", lambda _: "9.9")
    assert SparkArchive(tmp_path).path != before
