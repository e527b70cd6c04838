"""The kernel's figures of running processes, from /proc (Linux only)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Stat(NamedTuple):
    parent: int
    cpu_seconds: float


def stat(pid: int) -> Stat:
    """The figures of a process, including its ended children. Zeros if it does not exist."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return Stat(0, 0.0)
    return Stat(int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"))


def descendants(pid: int) -> set[int]:
    parents = {int(entry): stat(int(entry)).parent for entry in os.listdir("/proc") if entry.isdigit()}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def peak_kb(pid: int) -> int:
    try:
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
