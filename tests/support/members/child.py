"""A child process that a test starts, reads, and kills, pauses or stops. It does not outlive this process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from headrace.local.process import GuardedProcess

T = TypeVar("T")

TIMEOUT = 60.0
_TESTS = Path(__file__).parents[2]


class Child:
    def __init__(self, command: Sequence[str]) -> None:
        self._output, theirs = os.pipe()
        try:
            # In the tests directory, so that `-m support...` finds its module.
            self.process = GuardedProcess(command, output=theirs, cwd=_TESTS)
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(theirs)

    def lines(self) -> Iterator[str]:
        """The lines of output until the process ends; call it once. A killed process may leave half a line."""
        with os.fdopen(self._output, encoding="utf-8", errors="replace") as lines:
            yield from lines

    def terminate(self) -> None:
        """Ask the process to close its consumer and exit, without waiting for it."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def pause(self) -> None:
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()


def wait_for_news(
    news: threading.Condition, what: str, look: Callable[[], T], report: Callable[[], str], timeout: float = TIMEOUT
) -> T:
    """Return the first true value of `look`, which is called after each notification with the lock of `news` held."""
    deadline = time.monotonic() + timeout
    with news:
        while not (found := look()):
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"{what}: not within {timeout:g} s\n{report()}")
            news.wait(left)
    return found
