"""The processes that a process has started, from /proc."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

_PROC = Path("/proc")


def descendants(pid: int) -> list[int]:
    """The children of a process, their children, and so on."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        children[int(after_name[1])].append(int(stat.parent.name))
    found, unseen = [], children[pid]
    while unseen:
        each = unseen.pop()
        found.append(each)
        unseen += children[each]
    return sorted(found)


def is_python(pid: int) -> bool:
    try:
        command = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"python" in command[0].rpartition(b"/")[2]
