"""The end of a reader on the driver, in order.

Spark ends the Python process of a reader by SIGTERM, which Python does not survive: nothing is committed, released or
left, and the group waits for a session timeout. So the signal becomes an exit, on the way of which Spark's runner calls
stop().
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType


def end_in_order() -> None:
    """To be called in the process of a reader, before it has anything to give back. A handler that is there stays."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt what the first one has begun
    sys.exit(0)
