"""Prints the section of CHANGELOG.md for a tag, and fails unless tag, version and changelog agree.

python .ci/release_notes.py v0.1.0
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def notes(tag: str, root: Path = ROOT) -> str:
    """Raises ValueError."""
    version = tomllib.loads((root / "rust" / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    if tag != f"v{version}":
        raise ValueError(f"the tag is {tag}, but rust/Cargo.toml has version {version}")
    changelog = (root / "CHANGELOG.md").read_text()
    section = re.search(
        rf"^## {re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE
    )
    if section is None:
        raise ValueError(f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)'")
    return section[2].strip() + "\n"


if __name__ == "__main__":
    try:
        print(notes(sys.argv[1]), end="")
    except ValueError as error:
        sys.exit(f"error: {error}")
