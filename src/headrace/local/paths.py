"""The directories of the local broker, according to the XDG specification.

cache   $HEADRACE_CACHE, else $XDG_CACHE_HOME/headrace, else ~/.cache/headrace
        Kafka's jars; can be deleted at any time
data    $HEADRACE_DATA, else $XDG_DATA_HOME/headrace, else ~/.local/share/headrace
        the data of `headrace up`
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    return _directory("HEADRACE_CACHE", "XDG_CACHE_HOME", ".cache")


def data_dir() -> Path:
    return _directory("HEADRACE_DATA", "XDG_DATA_HOME", ".local/share")


def _directory(own: str, xdg: str, under_home: str) -> Path:
    if value := os.environ.get(own):
        return Path(value).expanduser().absolute()
    base = os.environ.get(xdg, "")
    # The XDG specification says that relative paths must be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / under_home
    return root / "headrace"
