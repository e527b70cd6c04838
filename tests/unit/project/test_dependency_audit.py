"""The dependencies are on a list, pinned to exact versions, and installed in those versions.

Only PySpark and pyarrow have version ranges: a cluster may provide them. Development pins them.

The test works offline and uses neither a registry nor an advisory database.
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Each dependency was reviewed. Add a new one here and give the reason in the commit.
CORE = {"kio"}
OF_CORE = {"crc32c", "kio", "typing-extensions"}
RANGES = {"pyspark>=4.2,<5", "pyarrow>=18"}
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?==(?P<version>[0-9][^*;,\s]*)")


def pins() -> dict[str, str]:
    extras = PROJECT["optional-dependencies"].values()
    every = [*PROJECT["dependencies"], *(item for items in extras for item in items)]
    found: dict[str, str] = {}
    for item in every:
        if item in RANGES:
            continue
        pin = _PINNED.fullmatch(item.strip())
        assert pin is not None, f"{item} is not pinned to one version"
        name = pin["name"].lower()
        assert found.setdefault(name, pin["version"]) == pin["version"], f"{name} is pinned to two versions"
    return found


def needed_by(name: str, seen: set[str]) -> set[str]:
    """The package and its installed dependencies, recursively, without extras."""
    if name in seen:
        return seen
    seen.add(name)
    for line in importlib.metadata.requires(name) or ():
        requirement, _, condition = line.partition(";")
        if "extra" in condition:
            continue
        needed = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
        assert needed is not None
        found = re.sub(r"[._]+", "-", needed[0]).lower()
        try:
            importlib.metadata.distribution(found)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system or an older Python
        needed_by(found, seen)
    return seen


def test_every_dependency_is_pinned_to_an_exact_version() -> None:
    assert len(pins()) > 10


def test_dependencies_with_a_range_are_pinned_in_development() -> None:
    ranged = {re.split("[<>=]", item)[0] for item in RANGES}
    assert ranged <= {_PINNED.fullmatch(item)["name"] for item in PROJECT["optional-dependencies"]["dev"]}  # type: ignore[index]


def test_the_library_depends_on_one_package() -> None:
    assert {_PINNED.fullmatch(item)["name"] for item in PROJECT["dependencies"]} == CORE  # type: ignore[index]


def test_the_dependencies_of_kio_are_known() -> None:
    assert needed_by("kio", set()) <= OF_CORE


@pytest.mark.parametrize("name", sorted(pins()))
def test_the_installed_version_is_the_pinned_one(name: str) -> None:
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not part of development")
    assert installed == pins()[name]


@pytest.mark.parametrize("manifest", sorted(ROOT.glob("rust/*/Cargo.toml")), ids=lambda path: path.parent.name)
def test_every_crate_is_pinned_to_an_exact_version(manifest: Path) -> None:
    found = tomllib.loads(manifest.read_text())
    for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
        for name, wanted in found.get(kind, {}).items():
            version = wanted if isinstance(wanted, str) else wanted.get("version", "path")
            assert version.startswith("=") or "path" in wanted or wanted == {"workspace": True} or version == "path", (
                f"{name}={version} in {manifest.parent.name} is not pinned to one version"
            )
