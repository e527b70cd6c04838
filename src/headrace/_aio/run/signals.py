"""SIGTERM and Ctrl-C as requests for an orderly stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# The handlers of a program that has not set its own.
_USUAL: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Calls `stop`, in a signal handler, for the first signal; a second one has its usual effect.

    Only in the main thread, because Python runs signal handlers nowhere else, and only for signals that the program
    does not handle itself: asyncio.run() has a handler for Ctrl-C, for example, which cancels the main task.

    A signal that is ignored stays ignored. Shells without job control start background programs with SIGINT ignored, so
    that a Ctrl-C meant for the script does not reach them; whether to override that is up to the program, not to a
    library in it. SIGTERM ends such a program.
    """
    taken: list[signal.Signals] = []

    def restore() -> None:
        while taken:
            signal.signal(taken[-1], _USUAL[taken[-1]])
            taken.pop()

    def on_signal(number: int, frame: object) -> None:
        restore()
        stop()

    try:
        if threading.current_thread() is threading.main_thread():
            for number, usual in _USUAL.items():
                if signal.getsignal(number) == usual:
                    taken.append(number)
                    signal.signal(number, on_signal)
        yield
    finally:
        try:
            restore()
        except BaseException:  # another signal, whose handler raises (Ctrl-C)
            restore()
            raise
