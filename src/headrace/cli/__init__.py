"""The command line: `headrace`, also `python -m headrace`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit."""
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        sys.exit(f"headrace: the command line needs {error.name}: pip install 'headrace[cli]'")
    from .app import run

    run()
