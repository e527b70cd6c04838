"""A release: tag, version and changelog agree, workflows use pinned actions, and the quick start can be extracted."""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
notes: Callable[..., str] = runpy.run_path(str(ROOT / ".ci" / "release_notes.py"))["notes"]


def released(tmp_path: Path, version: str, changelog: str) -> Path:
    (tmp_path / "rust").mkdir()
    (tmp_path / "rust" / "Cargo.toml").write_text(f'[workspace.package]\nversion = "{version}"\n')
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    return tmp_path


def test_the_notes_of_a_release_are_its_section_of_the_changelog(tmp_path: Path) -> None:
    changelog = "## Unreleased\n\n- later\n\n## 1.2.0 (2026-11-17)\n\n- now\n\n## 1.1.0 (2026-01-01)\n\n- before\n"
    assert notes("v1.2.0", released(tmp_path, "1.2.0", changelog)) == "- now\n"


@pytest.mark.parametrize(
    ("tag", "changelog", "said"),
    [
        ("v1.2.1", "## 1.2.0 (2026-11-17)\n", "the tag is v1.2.1, but rust/Cargo.toml has version 1.2.0"),
        ("1.2.0", "## 1.2.0 (2026-11-17)\n", "the tag is 1.2.0"),
        ("v1.2.0", "## Unreleased\n", "CHANGELOG.md has no section '## 1.2.0"),
        ("v1.2.0", "## 1.2.0\n", "CHANGELOG.md has no section '## 1.2.0"),
    ],
)
def test_a_tag_without_its_version_or_its_changelog_is_refused(
    tmp_path: Path, tag: str, changelog: str, said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        notes(tag, released(tmp_path, "1.2.0", changelog))


def test_the_changelog_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "rust" / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert notes(f"v{version}")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_to_a_version(workflow: Path) -> None:
    used = re.findall(r"uses: (\S+)", workflow.read_text())
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@v\d+(\.\d+)*", action)] == []


def test_the_tests_run_with_every_python_that_the_package_names() -> None:
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    matrix = re.search(r"python: \[(.*)\]", (ROOT / ".github" / "workflows" / "tests.yml").read_text())
    assert matrix is not None
    assert re.findall(r"3\.\d+", matrix[1]) == named


def test_the_release_uses_the_maturin_of_development() -> None:
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    pinned = re.search(r"^maturin==(.+)$", (ROOT / ".ci" / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert f"MATURIN: v{pinned[1]}\n" in release


def test_the_readme_has_a_quick_start_with_commands_and_python() -> None:
    """`make wheel` runs it with the wheel."""
    blocks = dict(runpy.run_path(str(ROOT / ".ci" / "check_wheel.py"))["quick_start"]())
    assert "pip install 'headrace[all]'" in blocks["sh"]
    assert "\nheadrace up " in blocks["sh"]
    assert "localhost:9092" in blocks["python"]


def test_the_readme_of_a_release_has_absolute_links_only() -> None:
    """PyPI shows it outside of the repository."""
    absolute = runpy.run_path(str(ROOT / ".ci" / "readme_links.py"))["absolute"]
    readme = absolute((ROOT / "README.md").read_text(), "https://example.org/headrace", "v1.2.0")
    targets = re.findall(r"\]\(([^)]+)\)", readme)
    assert "https://example.org/headrace/raw/v1.2.0/docs/freshness.png" in targets
    assert "https://example.org/headrace/blob/v1.2.0/docs/processing.md#exactly-once" in targets
    assert [target for target in targets if not target.startswith("https://")] == []
