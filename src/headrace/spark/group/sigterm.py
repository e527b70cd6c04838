"""SIGTERM ends a reader on the driver cleanly.

Spark ends the Python process of a reader by SIGTERM. By default that kills Python: nothing is committed or released, no
member leaves, and the group waits for the session timeout. So the signal becomes a sys.exit(), during which Spark's
runner calls stop().
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType


def install_sigterm_handler() -> None:
    """Call it in the process of a reader, before there is anything to commit, release or leave. Does not replace an
    existing handler."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt what the first one has begun
    sys.exit(0)
