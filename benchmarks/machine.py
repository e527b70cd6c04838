"""Facts about the machine for the report, read from the system."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

from headrace import __version__
from headrace.local.java import find_java
from headrace.local.kafka_home import DEFAULT_VERSION

from . import franz_go

_LIBRARIES = ("confluent-kafka", "aiokafka", "kafka-python", "pyarrow", "crc32c")


def facts() -> dict[str, str]:
    return {
        "Date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "Processor": f"{_cpu_model()}, {os.cpu_count()} cores",
        "Memory": _memory(),
        "Kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "Java": find_java().version,
        "Kafka": f"{DEFAULT_VERSION}, one broker, 512 MB of heap, on the same machine, over loopback",
        "headrace": f"{__version__}{_commit()}",
        "Other libraries": ", ".join([*(f"{name} {_version(name)}" for name in _LIBRARIES), _franz_go()]),
    }


def load() -> float:
    """The load average of the last minute."""
    return os.getloadavg()[0]


def _cpu_model() -> str:
    return _first_match("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.processor() or platform.machine()


def _memory() -> str:
    total = _first_match("/proc/meminfo", r"MemTotal:\s*(\d+) kB")
    return f"{int(total) / 2**20:.0f} GiB" if total else "unknown"


def _first_match(path: str, pattern: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text())
    except OSError:
        return None
    return found[1].strip() if found else None


def _franz_go() -> str:
    go = franz_go.go_version()
    return f"franz-go {franz_go.version()} ({go})" if go else "franz-go (no Go installed)"


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _commit() -> str:
    """The commit of this checkout; empty if it is none."""
    here = Path(__file__).parent
    try:
        git = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude=*"]
        done = subprocess.run(git, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f" ({done.stdout.strip()})"
