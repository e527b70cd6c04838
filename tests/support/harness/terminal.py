"""The command line in a terminal of a given size: its screen and its keyboard."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence

_DEADLINE = 60.0
# Variables by which rich and click detect a terminal and its size.
_OVERRIDES = ("LINES", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "CI")


class Terminal:
    def __init__(self, ours: int, process: subprocess.Popen[bytes]) -> None:
        self._ours = ours
        self.process = process
        self.seen = ""

    def read_until(self, text: str, within: float = _DEADLINE) -> str:
        """Wait until `text` is shown; return everything shown so far."""
        deadline = time.monotonic() + within
        while text not in self.seen:
            assert self._read(deadline), f"no {text!r} in {self.seen!r}"
        return self.seen

    def read_rest(self) -> str:
        """Wait until the command ends; return everything shown."""
        deadline = time.monotonic() + _DEADLINE
        while self._read(deadline):
            pass
        self.process.wait(max(0.1, deadline - time.monotonic()))
        return self.seen

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more in time after {self.seen!r}"
        try:
            data = os.read(self._ours, 65_536)
        except OSError:  # Linux: the other end is closed
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())


@contextlib.contextmanager
def terminal(*args: str, command: Sequence[str] | None = None, rows: int = 24, columns: int = 80) -> Iterator[Terminal]:
    """`headrace` with these arguments, or another command, in its own terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in _OVERRIDES} | {"TERM": "xterm"}
    process = subprocess.Popen(
        [*(command or (sys.executable, "-m", "headrace")), *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
