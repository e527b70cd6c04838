"""Waits with a deadline. A failure names the condition that was not met."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(what: str, look: Callable[[], T], timeout: float = 60.0, every: float = 0.02) -> T:
    """Return the first true value of `look`. Fail if there is none in time."""
    deadline = time.monotonic() + timeout
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout:g} s, last seen {found!r}")
        time.sleep(every)  # polling, for conditions without an event
