"""Waits with a deadline. A failure names the condition that was not met."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
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


class Rounds:
    """Counts 0, 1, 2, … for `at_least` rounds, and until `met` is more than `more_than`. Fails if that takes too long.

    For tests that have to meet a race, or a point where an interrupt matters, often enough to test it. How many rounds
    that takes depends on the machine: with a fixed number of them, a test would fail by chance or test nothing. The
    body of the loop adds to `met`, or sets it.
    """

    def __init__(self, what: str, more_than: int, at_least: int = 0, timeout: float = 60.0) -> None:
        self.met = 0
        self._what, self._more_than, self._at_least, self._timeout = what, more_than, at_least, timeout

    def __iter__(self) -> Iterator[int]:
        deadline = time.monotonic() + self._timeout
        for number in itertools.count():
            if number >= self._at_least and self.met > self._more_than:
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"{self._what}: {self.met} in {number} rounds and {self._timeout:g} s, too few")
            yield number
