"""The SPARK_HOME of `headrace run`: Spark's Python processes import the installed PySpark, which has bytecode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.spark_home import fast_home

pyspark = pytest.importorskip("pyspark")
PACKAGE = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path / "cache"


def test_the_home_has_spark_and_no_zip_of_pyspark() -> None:
    home = fast_home()
    assert home is not None
    assert (home / "jars").samefile(PACKAGE / "jars")
    assert (home / "bin" / "spark-submit").is_file()
    assert not (home / "python").exists()
    assert fast_home() == home


def test_a_python_process_of_spark_imports_the_installed_package() -> None:
    """Spark sets PYTHONPATH like this, from SPARK_HOME."""
    home = fast_home()
    assert home is not None
    libraries = [home / "python" / "lib" / "pyspark.zip", home / "python" / "lib" / "py4j-src.zip"]
    found = subprocess.run(
        [sys.executable, "-c", "import pyspark; print(pyspark.__file__)"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, libraries))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(found.stdout.strip()).parent == PACKAGE


def test_a_spark_home_that_the_user_has_chosen_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert fast_home() is None


def test_a_cache_that_cannot_be_written_is_no_error(cache: Path) -> None:
    cache.touch()  # a file, where a directory is needed
    assert fast_home() is None
