"""A command as a child process: its output, CPU time and peak memory."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO

# getrusage counts in KiB, on macOS in bytes.
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class CommandFailed(Exception):
    """The command failed or did not end in time. The message is the last line of its output."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """`cpu_seconds` and `peak_bytes` are the kernel's figures for the whole life of the process.

    The kernel counts at least the memory of the parent process. So the caller of `run` must be smaller than the
    measured processes: the benchmark itself imports no client library and no pyarrow.
    """

    output: str
    cpu_seconds: float
    peak_bytes: int


def run(command: Sequence[str], timeout: float) -> Finished:
    """Run the command to its end. Raises CommandFailed. The process never outlives the call."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=complaints)
        limit = threading.Timer(timeout, child.kill)
        limit.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        finally:
            timed_out = not limit.is_alive()
            limit.cancel()
            if child.returncode is None:
                child.kill()
                child.wait()
        if child.returncode != 0:
            what = f"not done in {timeout:.0f} s" if timed_out else f"exit code {child.returncode}"
            raise CommandFailed(_last_line(complaints) or _last_line(output) or what)
        return Finished(_text(output), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * _MAXRSS_UNIT)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _last_line(file: IO[bytes]) -> str:
    lines = [line.strip() for line in _text(file).splitlines() if line.strip()]
    return lines[-1] if lines else ""
