"""Prints what `make test-oldest` installs: the lowest version of every range in pyproject.toml, and the tools of the
tests in the versions of development."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Tools that the unit tests import or run.
_TOOLS = (
    "confluent-kafka", "cramjam", "duckdb", "fastavro", "googleapis-common-protos", "hypothesis", "pandas", "polars",
    "protobuf", "psutil", "pytest", "pytest-timeout", "pytest-xdist", "uvloop",
)  # fmt: skip
# gssapi is built with the headers of a system library, and its tests are skipped without it.
_LEFT_OUT = ("gssapi",)
_RANGE = re.compile(r"(?P<name>[\w.-]+)(?:\[[\w,-]+\])?>=(?P<lowest>[\d.]+)(?:,<[\d.]+)?")


def requirements() -> list[str]:
    """Every requirement of the package, without references to its own extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    every = {*project["dependencies"], *(item for items in extras for item in items)}
    return sorted(item for item in every if not item.startswith("headrace["))


def lowest() -> dict[str, str]:
    """The lowest version of each package. Raises ValueError for a requirement that is not a range."""
    found: dict[str, str] = {}
    for item in requirements():
        match = _RANGE.fullmatch(item)
        if match is None:
            raise ValueError(f"{item} is not a range of the form name>=1.2 or name>=1.2,<2")
        if found.setdefault(match["name"], match["lowest"]) != match["lowest"]:
            raise ValueError(f"{match['name']} has two ranges")
    return found


def constraints() -> dict[str, str]:
    """The versions of development."""
    lines = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    pairs = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {name: version for name, _, version in pairs}


def oldest() -> Iterator[str]:
    ranges, tools = lowest(), constraints()
    yield from (f"{name}=={version}" for name, version in ranges.items() if name not in _LEFT_OUT)
    # The SDK needs the API of the same version.
    yield f"opentelemetry-sdk=={ranges['opentelemetry-api']}"
    yield from (f"{name}=={tools[name]}" for name in _TOOLS)


if __name__ == "__main__":
    print("\n".join(oldest()))
