"""How often polls raise the same error.

    an error              raised first     and again
    stays (STAYS)         at once          after a second, or when a poll's time is up and a tenth of one has passed:
                                           no position, damaged records, a membership that ended
    is retried (RETRIED)  at once          after ten seconds: a missing right, which the background asks for again and
                                           again

A poll in between returns records of other partitions, or waits for them within its timeout. Otherwise a loop that
catches the error and polls again would raise it thousands of times a second, and a forbidden topic would starve the
others.

An error is known by its keys, because each retry makes a new object of it: the topics that it denies, or else its text.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

from ..errors import AuthorizationError, HeadraceError

STAYS = 1.0
RETRIED = 10.0
_LEAST = 0.1


class Pace:
    """Belongs to the thread that polls."""

    def __init__(self) -> None:
        self._raised: dict[Hashable, tuple[float, float]] = {}  # when, and for how long not again

    def admits(self, error: HeadraceError, now: float, pause: float, *, is_late: bool = False) -> bool:
        """Whether a poll raises the error now; if so, it is noted. `is_late` when the poll's time is up."""
        found = keys(error)
        if not self.is_due(found, now, is_late=is_late):
            return False
        self.raised(found, now, pause)
        return True

    def is_due(self, keys: Iterable[Hashable], now: float, *, is_late: bool = False) -> bool:
        for key in keys:
            at, pause = self._raised.get(key, (-math.inf, 0.0))
            if now >= at + (min(pause, _LEAST) if is_late else pause):
                return True
        return False

    def raised(self, keys: Iterable[Hashable], now: float, pause: float) -> None:
        self._raised = {key: (at, each) for key, (at, each) in self._raised.items() if at + each > now}
        self._raised.update(dict.fromkeys(keys, (now, pause)))

    def next_due(self, now: float) -> float:
        """When the next error may be raised again, should it still be there."""
        return min((at + pause for at, pause in self._raised.values() if at + pause > now), default=math.inf)

    def forget(self) -> None:
        """The user has changed what is read: whatever is wrong with that is news."""
        self._raised.clear()


def keys(error: HeadraceError) -> frozenset[Hashable]:
    if isinstance(error, AuthorizationError) and error.topics:
        return frozenset(("topic", name) for name in error.topics)
    return frozenset([(type(error), str(error))])
