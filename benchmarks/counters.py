"""The instructions of a command, as `perf stat` counts them, where the machine has counters and allows it.

Instructions hardly depend on what else runs, so small changes show that are lost in the spread of times. They are those
of the whole process with all its threads and children, in user mode, from start to end.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

EVENT = "instructions:u"
_ASK_WITHIN = 20.0


class NoCounters(Exception):
    """The reason why there are none."""


def wrap(command: Sequence[str], output: Path) -> list[str]:
    """The command under `perf stat`, which writes its counts to `output`."""
    return ["perf", "stat", "-x", ",", "-e", EVENT, "-o", str(output), "--", *command]


def parse(text: str) -> int:
    """The count in the output of `perf stat -x,`. Raises NoCounters.

    A line is `1234,,instructions:u,5678,100.00,,`: the count, its unit, the event, the time that it was counted. A
    counter that the machine lacks has `<not supported>` as its count.
    """
    for line in text.splitlines():
        count, *rest = line.split(",")
        if len(rest) >= 2 and rest[1].startswith(EVENT.partition(":")[0]):
            if count.isdigit():
                return int(count)
            raise NoCounters(f"perf says {count} for {EVENT}")
    raise NoCounters(f"perf printed no {EVENT}")


def check() -> None:
    """Raises NoCounters if instructions cannot be counted here."""
    if shutil.which("perf") is None:
        raise NoCounters("perf is not installed")
    command = ["perf", "stat", "-x", ",", "-e", EVENT, "--", "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_WITHIN, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCounters(f"perf does not run: {error}") from error
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise NoCounters(f"perf is not allowed: {said[0] if said else f'exit code {done.returncode}'}")
    parse(done.stderr)
