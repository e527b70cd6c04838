"""Scenarios that have to be quick, on a machine that may be busy for seconds.

A lock or a session of a second is over when a process did not run for a second, and nothing is wrong with that. Where a
test cannot wait for an event instead, it plays its scenario again, with times that outlast the machine's pauses.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import HeadraceError

SCALES = (1.0, 3.0, 8.0)


def patiently(scenario: Callable[[float], None]) -> None:
    """Plays it until it goes well; its times are multiplied by the number that it is given. What fails each time fails.

    Only what was found to be otherwise than it should (an assertion, an error of a consumer) is tried again.
    """
    for scale in SCALES[:-1]:
        try:
            scenario(scale)
        except (AssertionError, HeadraceError) as problem:
            print(f"not with times × {scale:g}: {problem!r}")
        else:
            return
    scenario(SCALES[-1])


def quickest(take_time: Callable[[], float], enough: float, tries: int = 6) -> float:
    """The least of what it took in some tries; the first one that took less than `enough` is the last."""
    least = float("inf")
    for _ in range(tries):
        least = min(least, take_time())
        if least < enough:
            break
    return least
