"""Makes the relative links and pictures of README.md absolute: PyPI shows it outside of the repository.

    python .ci/readme_links.py https://github.com/OWNER/NAME v0.1.0

The release workflow runs it before it builds anything. The repository keeps the relative links.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>(?![a-z]+:|#)[^)\s]+)\)")


def absolute(page: str, repository: str, ref: str) -> str:
    """The page, with every link to a file of the repository as a URL of this version."""

    def replaced(link: re.Match[str]) -> str:
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['text']}]({repository}/{kind}/{ref}/{link['target']})"

    return _LINK.sub(replaced, page)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(absolute(readme.read_text(), *sys.argv[1:]))
