"""Python workers without headrace, with another version of it, and with little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from pyspark import cloudpickle

import headrace
from headrace.spark.driver.batch import BatchReader
from headrace.spark.source import HeadraceSource
from headrace.spark.worker import reader as reading
from support.members.subprocesses import SOURCE
from support.spark.drivers import Driver

GIVEN = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
HIDDEN = f"import sys; sys.path[:] = [path for path in sys.path if path != {str(SOURCE)!r}]"


@pytest.fixture
def packed() -> bytes:
    """A pickled reader, as Spark sends it."""
    reader = HeadraceSource(GIVEN).reader(HeadraceSource(GIVEN).schema())
    return bytes(cloudpickle.dumps(reader))


@pytest.fixture
def other_python(tmp_path: Path) -> str:
    """This Python with all installed packages except headrace."""
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_a_pickled_reader_arrives_at_a_worker(packed: bytes) -> None:
    assert isinstance(cloudpickle.loads(packed), BatchReader)


def test_a_worker_without_headrace_raises_an_error_that_says_so(packed: bytes, other_python: str) -> None:
    program = "import sys; from pyspark import cloudpickle; cloudpickle.loads(sys.stdin.buffer.read())"
    done = subprocess.run([other_python, "-c", program], input=packed, capture_output=True, check=False)
    last = done.stderr.decode().strip().splitlines()[-1]
    assert last.startswith("RuntimeError: The Python of a Spark worker (")
    assert "cannot import headrace (No module named 'headrace'): install it there, or set PYSPARK_PYTHON" in last


def test_a_worker_with_another_version_of_headrace_raises(packed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headrace, "__version__", "0.0.1")
    with pytest.raises(RuntimeError, match=r"has headrace 0\.0\.1, but the driver has "):
        cloudpickle.loads(packed)


@pytest.mark.soak
def test_spark_shows_the_error_of_a_worker_without_headrace(other_python: str, tmp_path: Path) -> None:
    with Driver("spark_without_headrace.py", {"python": other_python}, tmp_path / "driver.log") as driver:
        assert "cannot import headrace" in driver.reported("error")
        assert "set PYSPARK_PYTHON" in driver.reported("error")
        assert driver.end() == 0


@pytest.mark.parametrize(("rows", "size"), [(1, 50_000_000), (3, 20_000_000), (1000, 100_000), (10, 10)])
def test_arrow_batches_are_split_by_bytes(rows: int, size: int) -> None:
    values = [b"x" * (size + number) for number in range(rows)]
    whole = pyarrow.record_batch({"value": pyarrow.array(values, pyarrow.binary())})
    pieces = list(reading._split_by_bytes(whole))
    assert all(piece.nbytes <= reading._MAX_BYTES or piece.num_rows == 1 for piece in pieces)
    assert pyarrow.Table.from_batches(pieces)["value"].to_pylist() == values
