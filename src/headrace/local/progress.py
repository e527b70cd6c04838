"""Shows the progress of the one-time download on a terminal."""

from __future__ import annotations

import sys

from .ivy import DownloadProgress


def say_on_terminal(progress: DownloadProgress) -> None:
    """Print a line to stderr for each step, if stderr is a terminal."""
    if progress.done > 1 or sys.stderr is None or not sys.stderr.isatty():
        return
    of = f" {progress.total} files" if progress.total else ""
    print(f"headrace: {progress.product}, first use: {progress.step}{of}", file=sys.stderr, flush=True)
