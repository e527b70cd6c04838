"""The dependencies are on a list, users get ranges, and development has exact versions within them.

The test works offline and uses neither a registry nor an advisory database.
"""

from __future__ import annotations

import importlib.metadata
import re
import runpy
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
_CI = runpy.run_path(str(ROOT / ".ci" / "oldest_requirements.py"))
RANGES = [Requirement(item) for item in _CI["requirements"]()]
PINS: dict[str, str] = _CI["constraints"]()
# Each dependency was reviewed. Add a new one here and give the reason in the commit.
CORE = {"kio"}
OF_CORE = {"crc32c", "kio", "typing-extensions"}
# Needs headers of the system to be built, so development does not have it.
NOT_IN_DEVELOPMENT = {"gssapi"}
_PIN = re.compile(r"[a-z0-9-]+==[0-9][0-9a-z.]*")


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


def packages_of(extra: str) -> set[str]:
    """The packages that an extra installs, with those of the extras that it refers to."""
    found: set[str] = set()
    for item in map(Requirement, EXTRAS[extra]):
        found |= {item.name} if item.name != "headrace" else set().union(*map(packages_of, item.extras))
    return found


def test_users_get_one_range_for_each_package() -> None:
    assert len(_CI["lowest"]()) > 10  # raises an error for anything else


def test_the_versions_of_development_are_exact_and_in_one_file() -> None:
    lines = [line for line in (ROOT / ".ci" / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not _PIN.fullmatch(line)] == []
    assert len(lines) == len(PINS) > 30


@pytest.mark.parametrize("wanted", RANGES, ids=str)
def test_the_version_of_development_is_in_the_range_of_users(wanted: Requirement) -> None:
    if wanted.name in NOT_IN_DEVELOPMENT:
        assert wanted.name not in PINS
    else:
        assert wanted.specifier.contains(PINS[wanted.name]), f"{wanted} excludes {PINS[wanted.name]}"


def test_the_oldest_environment_has_the_lowest_version_of_every_range() -> None:
    installed = dict(line.split("==") for line in _CI["oldest"]())
    for wanted in RANGES:
        if wanted.name not in NOT_IN_DEVELOPMENT:
            assert f">={installed[wanted.name]}" in str(wanted.specifier).split(",")


def test_the_library_depends_on_one_package() -> None:
    assert {Requirement(item).name for item in PROJECT["dependencies"]} == CORE


def test_the_dependencies_of_kio_are_known() -> None:
    assert needed_by("kio", set()) <= OF_CORE


def test_the_extra_all_has_every_package_that_needs_no_headers() -> None:
    every = {name for extra in EXTRAS for name in packages_of(extra)}
    assert packages_of("all") == every - NOT_IN_DEVELOPMENT


def test_every_extra_that_an_error_names_exists() -> None:
    sources = (path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = {
        extra for text in sources for found in re.findall(r"headrace\[([\w,-]+)\]", text) for extra in found.split(",")
    }
    assert named
    assert named <= EXTRAS.keys()


@pytest.mark.parametrize("name", sorted(PINS))
def test_the_installed_version_is_the_one_of_development(name: str) -> None:
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    assert installed == PINS[name]


@pytest.mark.parametrize("manifest", sorted(ROOT.glob("rust/*/Cargo.toml")), ids=lambda path: path.parent.name)
def test_every_crate_is_pinned_to_an_exact_version(manifest: Path) -> None:
    found = tomllib.loads(manifest.read_text())
    for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
        for name, wanted in found.get(kind, {}).items():
            version = wanted if isinstance(wanted, str) else wanted.get("version", "path")
            assert version.startswith("=") or "path" in wanted or wanted == {"workspace": True} or version == "path", (
                f"{name}={version} in {manifest.parent.name} is not pinned to one version"
            )


def test_the_package_and_the_crates_have_the_same_version() -> None:
    """rust/Cargo.toml has it for packaging. _version.py repeats it, because Spark workers may have no metadata."""
    version = tomllib.loads((ROOT / "rust" / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert PROJECT["dynamic"] == ["version"]
    assert runpy.run_path(str(ROOT / "src" / "headrace" / "_version.py"))["__version__"] == version
