"""How quick a share consumer's user is, and how much is fetched at once and ahead for it.

A broker writes acknowledgements down before it answers the fetch that they came with: that is most of the time of a
round trip, it takes as long for few as for many, and meanwhile it can hand out no more than it may lock. So for a
user who is back at once it is best to fetch much, and only when all of it is worked off and can be acknowledged
together; for one who takes longer than a round trip, to fetch in time before everything is worked off. Locks run
while records wait, so for one who takes long nothing is fetched ahead.
"""

from __future__ import annotations

import math

_QUICK = 0.5  # seconds of work between two polls, up to which it is worth fetching ahead
_AHEAD = 0.05  # seconds of work that are fetched at once ...
MOST = 2000  # ... and records of a partition: a broker locks no more
_IN_TIME = 1.25  # round trips before everything is worked off


class Pace:
    def __init__(self) -> None:
        self._left_at: float | None = None  # when the last poll with records returned
        self._taken = 0  # so many
        self._work = math.inf  # how long the user took for the last ones, in all ...
        self._each = math.inf  # ... and for each

    def returned(self, count: int, now: float) -> None:
        """A poll returns records."""
        self._left_at = now
        self._taken = count

    def back(self, now: float) -> None:
        """The next poll begins."""
        if self._left_at is not None:
            self._work = now - self._left_at
            each = max(self._work, 1e-6) / max(1, self._taken)
            # Slower is believed at once, quicker by and by: others go without what waits here.
            self._each = each if each > self._each or self._each == math.inf else (self._each + each) / 2
            self._left_at = None

    def is_quick(self, now: float, lock_time: float | None) -> bool:
        """Whether the user will soon be back for more."""
        patience = _QUICK if lock_time is None else min(_QUICK, lock_time / 10)
        is_away = self._left_at is not None and now - self._left_at > patience
        return self._work <= patience and not is_away

    def portion(self, limit: int, partitions: int, before: int) -> int:
        """How much to ask for where there is much: what the user takes in a few polls, but at most twice as much as
        the time before."""
        return max(limit, min(MOST * partitions, 2 * before, round(min(_AHEAD / self._each, 1e9))))

    def is_time(self, stock: int, limit: int, portion: int, trip: float) -> bool:
        """Whether to fetch ahead now, with so many records in stock."""
        if portion * self._each < trip:
            return False
        return stock < limit or (stock + self._taken) * self._each <= _IN_TIME * trip
