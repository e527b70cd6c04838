"""How often polls raise the same error.

    an error              first     again
    stays (STAYS)         at once   after a second, or after a tenth of a second if the poll's timeout has passed: no
                                    position, damaged records, a membership that ended
    is retried (RETRIED)  at once   after ten seconds: a missing right, while the background keeps retrying

Polls in between return records of other partitions, or wait for them. Otherwise a loop that catches the error and polls
again would raise it thousands of times a second, and a forbidden topic would starve the others.

Errors are compared by keys, because each retry makes a new object: the topics that it denies, or else its text.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

from ..errors import AuthorizationError, HeadraceError

STAYS = 1.0
RETRIED = 10.0
_LEAST = 0.1


class ErrorPacing:
    """Belongs to the thread that polls."""

    def __init__(self) -> None:
        self._raised: dict[Hashable, tuple[float, float]] = {}  # when, and the pause until it may be raised again

    def admits(self, error: HeadraceError, now: float, pause: float, *, is_late: bool = False) -> bool:
        """Whether a poll raises the error now; if so, notes it. `is_late`: the poll's timeout has passed."""
        found = _keys_of(error)
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
        """When an error may be raised again, if it persists."""
        if not self._raised:  # as a rule, and every poll that waits asks
            return math.inf
        return min((at + pause for at, pause in self._raised.values() if at + pause > now), default=math.inf)

    def forget(self) -> None:
        """The user has changed the subscription or assignment: all errors count as new."""
        self._raised.clear()


def _keys_of(error: HeadraceError) -> frozenset[Hashable]:
    if isinstance(error, AuthorizationError) and error.topics:
        return frozenset(("topic", name) for name in error.topics)
    return frozenset([(type(error), str(error))])
