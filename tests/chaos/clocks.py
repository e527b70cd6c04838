"""Clocks of clients that jump: a small library, built with the C compiler and preloaded, shifts the time of day.

Monotonic clocks do not jump, as on a real machine. (Debian's libfaketime makes sleeps of Python fail, even if it leaves
monotonic clocks alone.) Ledgers have the true time.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_SOURCE = Path(__file__).with_name("shifted_clock.c")
_CLOCK_GETTIME = {"x86_64": 228, "aarch64": 113}
IS_SHIFTED = "CHAOS_CLOCK" in os.environ


@functools.cache
def library() -> str | None:
    """The library, or None if it cannot be built on this machine."""
    compiler = shutil.which("cc")
    if compiler is None or platform.system() != "Linux" or platform.machine() not in _CLOCK_GETTIME:
        return None
    built = Path(tempfile.mkdtemp(prefix="headrace-clock-")) / "shifted_clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(_SOURCE)], check=True)
    return str(built)


def with_clock(command: Sequence[str], file: Path) -> list[str]:
    """The command with a clock that `set_clock` changes."""
    found = library()
    if found is None:
        return list(command)
    if not file.exists():
        set_clock(file, 0)
    return ["/usr/bin/env", f"LD_PRELOAD={found}", f"CHAOS_CLOCK={file}", *command]


def set_clock(file: Path, seconds: int) -> None:
    """Shift the clocks of processes with this file, at once: they have it mapped, so it is written in place."""
    file.parent.mkdir(parents=True, exist_ok=True)
    number = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(number, struct.pack("=q", seconds), 0)
    finally:
        os.close(number)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def true_milliseconds() -> float:
    """The kernel's time of day."""
    found = _Timespec()
    ctypes.CDLL(None).syscall(_CLOCK_GETTIME[platform.machine()], 0, ctypes.byref(found))
    return float(found.seconds * 1000 + found.nanoseconds / 1_000_000)
