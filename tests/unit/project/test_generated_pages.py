"""Generated documentation pages are up to date, and DESIGN.md names existing files and classes."""

from __future__ import annotations

import dataclasses
import re
import runpy
from pathlib import Path

import pytest

from headrace.config.consumer import ConsumerConfig, dotted
from headrace.config.producer import ProducerConfig

ROOT = Path(__file__).parents[3]


def test_the_configuration_page_is_up_to_date():
    made = runpy.run_path(str(ROOT / ".ci" / "config_docs.py"))["render"]()
    assert (ROOT / "docs" / "configuration.md").read_text() == made, "run: python .ci/config_docs.py"


@pytest.mark.parametrize(
    ("kind", "sections"),
    [
        (ConsumerConfig, ("All clients", "Consumer", "Security")),
        (ProducerConfig, ("All clients", "Producer", "Security")),
    ],
)
def test_the_configuration_page_has_every_setting_once(kind, sections):
    page = (ROOT / "docs" / "configuration.md").read_text()
    text = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))
    rows = [row for section in sections for row in re.findall(r"^\| `([\w.]+)` \| (?!`)", text[section], re.MULTILINE)]
    assert sorted(rows) == sorted(dotted(field.name) for field in dataclasses.fields(kind))


def test_every_file_named_in_the_design_exists():
    """DESIGN.md names files and packages by path, and a file next to one it has just named by its name."""
    package = ROOT / "src" / "headrace"
    named = set(re.findall(r"`([\w./]+(?:\.py|\.pyi|/))`", (ROOT / "DESIGN.md").read_text()))
    names = {path.name for path in package.rglob("*.py")} | {f"{path.name}/" for path in package.rglob("*")}
    missing = {each for each in named if not ((package / each).exists() or (ROOT / each).exists() or each in names)}
    assert len(named) > 50
    assert not missing


def test_every_class_named_in_the_design_exists():
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)(?:\.\w+)?`", (ROOT / "DESIGN.md").read_text()))
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py*") if path.suffix != ".pyc")
    missing = {name for name in named if f"class {name}" not in source}
    assert len(named) >= 10
    assert not missing
