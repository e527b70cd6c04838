"""Files that are no modules: maturin puts them into the wheel, unless pyproject.toml or git excludes them."""

from __future__ import annotations

import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MATURIN = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["maturin"]
STATIC = sorted((ROOT / "src" / "headrace" / "ui" / "static").iterdir())
NEEDED = [str(path.relative_to(ROOT)) for path in (*STATIC, ROOT / "src" / "headrace" / "py.typed")]


def git(*args: str) -> list[str]:
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, timeout=30)
    if done.returncode == 128:  # an unpacked archive
        pytest.skip(done.stderr.strip())
    return done.stdout.splitlines()


def test_the_files_of_the_page_are_part_of_a_package_that_the_wheel_contains() -> None:
    assert len(STATIC) > 10
    assert all(path.is_file() for path in STATIC), "static_files.py serves no subdirectories"
    assert MATURIN["python-source"] == "src"
    assert "headrace" in MATURIN["python-packages"]


def test_no_setting_excludes_them_from_the_wheel() -> None:
    patterns = [it if isinstance(it, str) else it["path"] for it in MATURIN.get("exclude", [])]
    assert [name for name in NEEDED if any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_git_has_them_and_ignores_none() -> None:
    assert git("check-ignore", "--no-index", *NEEDED) == []
    assert sorted(git("ls-files", *NEEDED)) == sorted(NEEDED)
