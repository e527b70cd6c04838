"""A command as a child process: its output, CPU time, peak memory, and instructions if they are counted."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from . import counters

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
    instructions: int | None = None


_counted = False


def count_instructions() -> str:
    """From now on, `run` counts instructions. Returns the reason if this machine cannot; otherwise an empty string."""
    global _counted
    try:
        counters.check()
    except counters.NoCounters as reason:
        return str(reason)
    _counted = True
    return ""


def run(command: Sequence[str], timeout: float) -> Finished:
    """Run the command to its end. Raises CommandFailed. The process never outlives the call."""
    if not _counted:
        return _run(command, timeout)
    with tempfile.NamedTemporaryFile(prefix="headrace-perf-") as counts:
        finished = _run(counters.wrap(command, Path(counts.name)), timeout)
        try:
            instructions = counters.parse(Path(counts.name).read_text())
        except counters.NoCounters:
            return finished
        return dataclasses.replace(finished, instructions=instructions)


def _run(command: Sequence[str], timeout: float) -> Finished:
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaints:
        # A group of its own: perf does not end its command when it is killed.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=complaints, process_group=0)

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

        limit = threading.Timer(timeout, kill)
        limit.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        finally:
            timed_out = not limit.is_alive()
            limit.cancel()
            if child.returncode is None:
                kill()
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
