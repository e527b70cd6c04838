"""Every program in examples/ runs to its end, with less data than by default, and prints the expected lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(400)

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

# Arguments, and a text in the last lines of output.
RUNS = {
    "first_read.py": (("--records", "5000"), "One of them: "),
    "process_orders.py": (("--orders", "2000"), "1,998 handled, 2 to the dead letters"),
    "share_mails.py": (("--mails", "60"), ""),
}


def test_every_example_is_run_by_these_tests() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == RUNS.keys()


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs_and_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    arguments, said = RUNS[name]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert "Traceback" not in done.stderr
