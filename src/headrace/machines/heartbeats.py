"""When a member whose group is run by its coordinator (KIP-848, KIP-932) sends its next heartbeat."""

from __future__ import annotations

from collections.abc import Callable

from .backoff import REFUSAL, Backoff

_FIRST_LOOK = 0.25  # seconds; then doubled
_SHORTEST_INTERVAL = 0.05  # a coordinator that wants less is not taken at its word


class HeartbeatTimes:
    """After a change there is more to come: a newcomer has nothing until others have let go or its partitions have got
    their state, and gets them bit by bit. The interval is five seconds by default: far too long to wait for what takes
    half of one. So it starts small after every change, and doubles."""

    def __init__(self, interval: float, backoff: Backoff, dice: Callable[[], float]) -> None:
        self.interval = interval
        self.next = 0.0
        """When there is nothing to say."""
        self.not_before = 0.0
        """Whatever there is to say."""
        self._look_again = _FIRST_LOOK
        self._backoff = backoff
        self._dice = dice
        self.failures = 0
        """In a row."""

    def changed(self) -> None:
        self._look_again = _FIRST_LOOK

    def accepted(self, interval: float, now: float) -> None:
        """An answer came, with the interval that the coordinator wants (0 or less: no word of it)."""
        self.failures = 0
        if interval > 0:
            self.interval = max(interval, _SHORTEST_INTERVAL)
        self.next = now + min(self._look_again, self.interval)
        self._look_again = min(2 * self._look_again, self.interval)

    def retry_later(self, now: float, least: float = 0.0) -> None:
        self.not_before = now + max(least, self._pause())

    def retry_at_once(self, now: float) -> None:
        """Unless that is what has just been done."""
        is_first = self.failures == 0
        pause = self._pause()
        self.not_before = now if is_first else now + pause

    def refused(self, now: float) -> None:
        """A right is missing, and somebody has to grant it first."""
        self.failures += 1
        self.not_before = now + REFUSAL.seconds(self.failures, self._dice())

    def _pause(self) -> float:
        self.failures += 1
        return self._backoff.seconds(self.failures, self._dice())
