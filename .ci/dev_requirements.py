"""Prints what development needs, so that it can be installed before the project is built."""

import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
print("\n".join(sorted({*project["dependencies"], *project["optional-dependencies"]["dev"]})))
