"""Programs that tests start, and processes that are still running."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil

# The start of programs that get SIGINT from a test. A test run in the background of a script inherits SIGINT as
# ignored and passes that on; Python then raises no KeyboardInterrupt.
INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
SOURCE = Path(sys.modules["headrace"].__path__[0]).parent
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SOURCE)}


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(condition: Callable[[], bool], within: float = 60.0) -> bool:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)  # polling, since another process gives no event
    return True


def python(program: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE + textwrap.dedent(program)],
        env=ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def brokers_below(path: Path) -> list[int]:
    """The pids of all processes whose command line contains `path`."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(path) in part for part in process.info["cmdline"] or ()) and is_running(process.pid):
            found.append(process.pid)
    return found
