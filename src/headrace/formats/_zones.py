"""The files of the IANA time-zone database, for the native decoders: those that `zoneinfo` finds.

Decoders call these functions by name, the first time that they need them.
"""

from __future__ import annotations

import functools
import importlib.resources
import os
import zoneinfo


@functools.cache
def names() -> set[str]:
    """All zones of this machine: of the system, or of the package tzdata."""
    return zoneinfo.available_timezones()


def file(name: str) -> bytes | None:
    """The TZif file of a zone. `name` must be one of `names()`: it becomes part of a path."""
    for directory in zoneinfo.TZPATH:
        try:
            with open(os.path.join(directory, *name.split("/")), "rb") as found:
                return found.read()
        except OSError:
            continue
    package, _, last = f"tzdata/zoneinfo/{name}".rpartition("/")
    try:
        return importlib.resources.files(package.replace("/", ".")).joinpath(last).read_bytes()
    except (ImportError, OSError):
        return None
