"""Processes that exit while a daemon thread runs Python code below a native frame.

Before Python 3.14, that thread is ended by an unwinding of its stack, which aborts the process at a native frame.
"""

from __future__ import annotations

import os
import subprocess
import sys

_BEGIN = """
import sys, threading, time

started = threading.Event()

def wait(*_):  # it needs the GIL again at every moment of the exit
    started.set()
    while True:
        time.sleep(0.0001)

class Slow:  # the exit takes so long that the thread meets it
    def __del__(self):
        time.sleep(0.05)
"""
_END = """
threading.Thread(target=task, daemon=True).start()
started.wait()
sys.modules["slow"] = Slow()
"""


def exit_codes(program: str, tries: int = 4) -> list[tuple[int, str]]:
    """Runs `program` in several processes, then `task()` in a daemon thread of each, and exits. `task` has to call
    `wait()`, or to set `started` and to need the GIL often. Returns exit codes (an abort is -6) and what stderr has."""
    command = [sys.executable, "-c", _BEGIN + program + _END]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(tries)]
    errors = [process.communicate(timeout=60)[1] for process in started]
    return [(process.returncode, text) for process, text in zip(started, errors, strict=True)]
