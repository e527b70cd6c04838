"""The programs of docs/tutorial.md run in order, as processes, and print what the page says. One of them is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from docs.test_docs_blocks import ROOT
from support.brokers.admin import Admin

pytestmark = pytest.mark.timeout(300)

_PAGE = (ROOT / "docs" / "tutorial.md").read_text()
PROGRAMS = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", _PAGE, re.DOTALL | re.MULTILINE))


@pytest.fixture
def programs(servers: str, admin: Admin, tmp_path: Path) -> Path:
    """A directory with the programs, which use the broker of the tests."""
    admin.create("shop-orders", 3, name="shop-orders")
    for name, text in PROGRAMS.items():
        assert "localhost:9092" in text, name
        (tmp_path / name).write_text(text.replace("localhost:9092", servers))
    return tmp_path


def output_of(directory: Path, name: str) -> str:
    done = subprocess.run(
        [sys.executable, name], cwd=directory, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def started(directory: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, name], cwd=directory, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_line(process: subprocess.Popen[str], wanted: Callable[[str], bool]) -> str:
    """Reads lines up to the wanted one. The timeout of the test limits the wait."""
    assert process.stdout is not None
    for line in process.stdout:
        if wanted(line):
            return line
    raise AssertionError(f"the program ended with {process.wait()}")


def shown_after(command: str) -> str:
    """The output of a command on the page."""
    return _PAGE.split(f"$ {command}\n")[1].split("```")[0]


def is_done(line: str) -> bool:
    return line.rstrip().endswith(" 0 to do")


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


def test_every_program_of_the_tutorial_has_a_name_and_is_run() -> None:
    assert len(PROGRAMS) == _PAGE.count("```python\n")
    assert list(PROGRAMS) == ["orders.py", "read.py", "totals.py", "billing.py", "invoices.py", "check.py"]


def test_the_tutorial_ends_with_one_invoice_for_each_order(programs: Path) -> None:
    assert output_of(programs, "orders.py") == "1000 orders written\n"
    assert output_of(programs, "read.py").endswith("\n1000 orders read\n")
    assert output_of(programs, "totals.py") == shown_after("python totals.py")
    with started(programs, "billing.py") as process:
        assert wait_for_line(process, is_done) == "999 handled, 1 dead letters, 0 to do\n"
        interrupt(process)
    with started(programs, "invoices.py") as process:
        # Some transactions are committed by then, also on a busy machine.
        wait_for_line(process, lambda line: line[0].isdigit() and int(line.split()[0]) >= 200)
        os.kill(process.pid, signal.SIGKILL)
    with started(programs, "invoices.py") as process:
        assert int(wait_for_line(process, is_done).split()[0]) < 1000, "it was killed too early"
        interrupt(process)
    assert output_of(programs, "check.py") == shown_after("python check.py")
