"""The API reference has every public name, and every public class, function, method and property has a docstring.

Griffe reads the source here as it does for the site, with the same extension.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import griffe
import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
# Everything else in the package is private, or the command line, or documented by its settings and options.
MODULES = [
    "headrace",
    "headrace.admin",
    "headrace.errors",
    "headrace.events",
    "headrace.formats",
    "headrace.local",
    "headrace.otel",
    "headrace.prometheus",
    "headrace.spark",
    "headrace.testing",
]
# Objects of these modules are documented as names of `headrace`.
_RE_EXPORTED = {"listener", "records", "types"}
_PRIVATE = {"__main__", "cli", "config", "monitor", "sync", "ui"}


@pytest.fixture(scope="module")
def package() -> griffe.Module:
    extensions = griffe.load_extensions(f"{ROOT}/.ci/griffe_docstrings.py:SharedDocstrings")
    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"], extensions=extensions)
    found = loader.load("headrace")
    loader.resolve_aliases(implicit=True, external=False)
    assert isinstance(found, griffe.Module)
    return found


def public(package: griffe.Module) -> Iterator[tuple[str, griffe.Object]]:
    """The public names of all public modules, and what they stand for."""
    for path in MODULES:
        module = package if path == "headrace" else package[path.removeprefix("headrace.")]
        names = module.exports or [
            name for name, it in module.members.items() if not (it.is_alias or name.startswith("_"))
        ]
        for name in map(str, names):
            if name != "__version__":
                member = module[name]
                yield f"{path}.{name}", member.final_target if member.is_alias else member


def is_function(member: griffe.Object | griffe.Alias) -> bool:
    return member.is_function or "property" in member.labels


def test_every_public_module_is_in_the_reference_or_known_as_private() -> None:
    found = {path.stem for path in (ROOT / "src" / "headrace").glob("[a-z]*") if path.suffix in ("", ".py")}
    assert found - _RE_EXPORTED - _PRIVATE == {it.partition(".")[2] for it in MODULES} - {""}


def test_every_public_name_is_on_a_page_of_the_reference(package: griffe.Module) -> None:
    listed: set[str] = set()
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for path in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE):
            listed.add(path)
    elsewhere = {it.path for path, it in public(package) if path in listed or path.rpartition(".")[0] in listed}
    assert [path for path, it in public(package) if it.path not in elsewhere] == []


def test_every_public_class_and_method_has_a_docstring(package: griffe.Module) -> None:
    missing = []
    for path, it in public(package):
        if (it.is_class or is_function(it)) and not it.has_docstring:
            missing.append(path)
        if it.is_class:
            members = {**it.inherited_members, **it.members}
            missing += [
                f"{path}.{name}"
                for name, member in members.items()
                if not name.startswith("_") and is_function(member) and not member.has_docstring
            ]
    assert missing == []


def test_the_site_uses_the_extension_that_these_tests_use() -> None:
    plugins = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["plugins"]
    options = next(it["mkdocstrings"] for it in plugins if "mkdocstrings" in it)["handlers"]["python"]["options"]
    assert options["extensions"] == [".ci/griffe_docstrings.py:SharedDocstrings"]
