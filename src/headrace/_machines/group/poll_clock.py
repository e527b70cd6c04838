"""The clock of max.poll.interval.ms (KIP-62), of all members. A member leaves its group when the deadline passes."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(slots=True)
class PollClock:
    """The time since the last poll() ended (KIP-62). It stops while a poll is running."""

    limit: float
    _ended_at: float | None = None

    def begins(self) -> None:
        self._ended_at = None

    def ends(self, now: float) -> None:
        self._ended_at = now

    @property
    def deadline(self) -> float:
        return math.inf if self._ended_at is None else self._ended_at + self.limit
