"""Pages that are made from the code are up to date."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_settings_page_is_the_one_that_the_code_makes():
    made = runpy.run_path(str(ROOT / ".ci" / "config_docs.py"))["render"]()
    assert (ROOT / "docs" / "configuration.md").read_text() == made, "run: python .ci/config_docs.py"


def test_every_file_named_in_the_design_exists():
    file_map = (ROOT / "DESIGN.md").read_text().split("## File map")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in file_map.splitlines() if line.startswith("| `")]
    named = [name.strip(" `") for row in rows for name in row.split(",")]
    missing = [name for name in named if not ((ROOT / "src/headrace" / name).exists() or (ROOT / name).exists())]
    assert named
    assert not missing
