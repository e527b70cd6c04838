"""A free-threaded Python switches the GIL on: the producer's native steps rely on it (see DESIGN.md, Threads)."""

from __future__ import annotations

import subprocess
import sys
import sysconfig

import pytest


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has the GIL")
def test_a_free_threaded_python_has_the_gil_after_the_import() -> None:
    program = "import sys, headrace.records; print(sys._is_gil_enabled())"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr
