"""How fast the user of a share consumer is, and how many records are fetched at once and ahead for it.

A broker persists acknowledgements before it answers the fetch that carries them. That is most of a round trip, takes
as long for few as for many, and limits how many records it can lock meanwhile. So for a user who polls again at once it
is best to fetch many records, and only when all of them are processed and can be acknowledged together. For a user who
takes longer than a round trip it is best to fetch shortly before everything is processed. Locks are running while
records wait in the buffer, so for a slow user nothing is fetched ahead.
"""

from __future__ import annotations

import math

_QUICK = 0.5  # seconds between two polls up to which records are fetched ahead
_AHEAD = 0.05  # seconds of work to fetch at once ...
MOST = 2000  # ... and records of a partition: the broker locks no more by default
_IN_TIME = 1.25  # round trips before everything is processed


class FetchSizing:
    def __init__(self) -> None:
        self._left_at: float | None = None  # when the last poll that returned records ended
        self._taken = 0  # how many records it returned
        self._work = math.inf  # seconds the user took for those ...
        self._each = math.inf  # ... and for each of them

    def returned(self, count: int, now: float) -> None:
        """A poll returns records."""
        self._left_at = now
        self._taken = count

    def back(self, now: float) -> None:
        """The next poll begins."""
        if self._left_at is not None:
            self._work = now - self._left_at
            each = max(self._work, 1e-6) / max(1, self._taken)
            # Slower counts at once, faster only gradually: other members cannot have what is buffered here.
            self._each = each if each > self._each or self._each == math.inf else (self._each + each) / 2
            self._left_at = None

    def is_quick(self, now: float, lock_timeout: float | None) -> bool:
        """Whether the user is expected to poll again soon."""
        patience = _QUICK if lock_timeout is None else min(_QUICK, lock_timeout / 10)
        is_away = self._left_at is not None and now - self._left_at > patience
        return self._work <= patience and not is_away

    def portion(self, limit: int, partitions: int, before: int) -> int:
        """How many records to ask for if the last answer was full: those of a few polls, but at most twice as many as
        in the last fetch."""
        return max(limit, min(MOST * partitions, 2 * before, round(min(_AHEAD / self._each, 1e9))))

    def is_time(self, buffered: int, limit: int, portion: int, round_trip: float) -> bool:
        """Whether to fetch ahead now, with this many records in the buffer."""
        if portion * self._each < round_trip:
            return False
        return buffered < limit or (buffered + self._taken) * self._each <= _IN_TIME * round_trip
