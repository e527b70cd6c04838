"""The command line: `headrace`, also `python -m headrace`.

`main()` is a process of its own, so it installs the signal handlers it relies on. A script's shell starts background
commands with SIGINT ignored; Python then raises no KeyboardInterrupt, and `kill -INT` would do nothing. SIGTERM would
end the process at once, without the last commit of `headrace tail -g` and without leaving its group.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run the command line and exit."""
    handle_signals()
    try:
        try:
            import click  # noqa: F401
            import rich  # noqa: F401
        except ImportError as error:
            sys.exit(f"headrace: the command line needs {error.name}: pip install 'headrace[cli]'")
        from .app import run

        run()
    except KeyboardInterrupt:  # while modules are loaded; later, run() handles it
        sys.exit(INTERRUPTED)


def handle_signals() -> None:
    """SIGINT raises KeyboardInterrupt and SIGTERM raises SystemExit, whatever this process inherited. SIGHUP does as
    SIGTERM, unless it is ignored: that is what nohup is for."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _terminate)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends a cleanup that hangs
    sys.exit(128 + number)
