"""Telling a person at a terminal what the one-time download does."""

from __future__ import annotations

import sys

from .ivy import Progress


def say_on_terminal(progress: Progress) -> None:
    """A line on stderr for each step, and nothing when nobody watches."""
    if progress.done > 1 or sys.stderr is None or not sys.stderr.isatty():
        return
    of = f" {progress.total} files" if progress.total else ""
    print(f"headrace: Apache Kafka, first use: {progress.step}{of}", file=sys.stderr, flush=True)
