"""Makes the pictures of docs/ui.md and README.md: `observed_cluster`, seen with `headrace ui` for a minute.

    python -m support.programs.ui_pictures [DIRECTORY]

It needs Debian's chromium and chromium-driver.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from headrace.ui.server import BackgroundPage, PageOptions
from support.harness.browser import chromium

_WATCHED_FOR = 70.0
_BACKLOG = "return document.querySelector('.log .backlog')"


def take(servers: str, directory: Path) -> None:
    options = PageOptions({"bootstrap.servers": servers}, port=0, interval=1.0)
    with BackgroundPage(options) as page, chromium() as browser:
        browser.resize(1200, 770)
        browser.prefer(prefers_color_scheme="dark")
        browser.open(page.url)
        time.sleep(_WATCHED_FOR)  # so that there is something in the curves
        browser.screenshot(directory / "ui.png")
        browser.resize(1200, 860)
        browser.open(f"{page.url}group?name=search-index")
        browser.wait("a backlog lane", _BACKLOG)
        time.sleep(1)  # the lanes move into their places
        browser.screenshot(directory / "ui-group.png")


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    command = [sys.executable, "-m", "support.programs.observed_cluster"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cluster:
        try:
            assert cluster.stdout is not None
            servers = cluster.stdout.readline().strip()
            assert cluster.stdout.readline() == "ready\n"
            take(servers, directory)
        finally:
            cluster.terminate()


if __name__ == "__main__":
    main()
