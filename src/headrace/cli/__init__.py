"""The command line: `headrace`, also `python -m headrace`.

`main()` installs signal handlers, because it runs in its own process. The shell of a script starts background commands
with SIGINT ignored: Python would not raise KeyboardInterrupt, and `kill -INT` would do nothing. SIGTERM would end the
process immediately: `headrace tail -g` could neither commit nor leave its group.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
# What commands need besides click and rich: one installation instead of one for each missing package.
_EXTRAS = {"up": "local", "run": "spark-connect,local", "demo": "demo", "ui": "ui"}


def main() -> None:
    """Run the command line and exit."""
    handle_signals()
    try:
        try:
            import click  # noqa: F401
            import rich  # noqa: F401
        except ImportError as error:
            missing = error.name
        else:
            missing = None
        if missing is not None and sys.argv[1:2] == ["doctor"]:
            from .doctor_report import run_plain

            sys.exit(run_plain(sys.argv[2:]))
        if missing is not None:
            extra = _EXTRAS.get("".join(sys.argv[1:2]), "cli")
            sys.exit(f"headrace: the command line needs {missing}: pip install 'headrace[{extra}]'")
        from .app import run

        run()
    except KeyboardInterrupt:  # while modules are loaded; later, run() handles it
        sys.exit(INTERRUPTED)


def handle_signals() -> None:
    """Make SIGINT raise KeyboardInterrupt and SIGTERM raise SystemExit, independently of inherited settings. SIGHUP is
    handled like SIGTERM, unless it is ignored (nohup)."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _terminate)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second signal ends the process if the cleanup hangs
    sys.exit(128 + number)
