"""When to warn about things that fail by the thousands: records that are not delivered, or not acknowledged.

the first failure                     a warning
more, within EVERY seconds after it   counted
EVERY seconds after a warning         a warning, if anything was counted
the end                               a warning, if anything was counted
"""

from __future__ import annotations

from typing import Any

EVERY = 60.0


class CountedWarnings:
    def __init__(self) -> None:
        self._count = 0
        self._last: Any = None
        self._not_before = 0.0

    def add(self, count: int, cause: Any) -> None:
        """`cause` is that of the last failure, for the warning."""
        self._count += count
        self._last = cause

    def due(self, now: float, *, is_last: bool = False) -> tuple[int, Any] | None:
        """How many have failed since the last warning, and the last cause, if it is time to warn."""
        if not self._count or (now < self._not_before and not is_last):
            return None
        found = self._count, self._last
        self._count, self._last, self._not_before = 0, None, now + EVERY
        return found

    @property
    def next_due(self) -> float | None:
        """When to ask again, if nothing fails until then."""
        return self._not_before if self._count else None
