"""Time-critical scenarios on a machine that may be busy for seconds.

A lock or session of a second rightly expires when a process does not run for a second. Where a test cannot wait for an
event instead, it runs its scenario again, with times that outlast the pauses of the machine.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import HeadraceError

SCALES = (1.0, 3.0, 8.0)


def patiently(scenario: Callable[[float], None]) -> None:
    """Run the scenario until it succeeds, with a growing factor for its times. Fail if every run fails.

    Only failed assertions and errors of a consumer are retried.
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
    """The shortest time of some tries. The first try below `enough` is the last."""
    least = float("inf")
    for _ in range(tries):
        least = min(least, take_time())
        if least < enough:
            break
    return least
