"""Import rules that import-linter cannot see: it does not know modules that are not Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent.parent / "src" / "headrace"


def test_only_records_and_the_lock_of_calls_touch_the_native_module():
    users = {path.name for path in SOURCE.rglob("*.py") if "_native" in path.read_text()}
    assert users == {"records.py", "threaded.py"}


def test_importing_headrace_loads_neither_the_kernel_nor_asyncio():
    """Every Spark worker imports it, and every pytest run of those who have it installed."""
    code = "import sys, headrace, headrace.pytest_plugin; print([m for m in sys.modules if m in %r])"
    heavy = ("asyncio", "headrace._native", "kio", "pyarrow", "pyspark")
    command = [sys.executable, "-c", code % (heavy,)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert loaded.strip() == "[]", loaded
