"""When the next heartbeat of a KIP-848 or KIP-932 member is due."""

from __future__ import annotations

from collections.abc import Callable

from ..backoff import REFUSAL, Backoff

_FIRST_INTERVAL = 0.25  # seconds; then doubled
_SHORTEST_INTERVAL = 0.05  # for a coordinator that asks for less


class HeartbeatTimer:
    """When the next heartbeat is due.

    A change is followed by others: a new member has no partitions until others have revoked them or the coordinator
    has initialized their state, and it gets them one by one. The interval is five seconds by default, too long for
    steps that take half a second. So after every change the interval starts small, and doubles.
    """

    def __init__(self, interval: float, backoff: Backoff, dice: Callable[[], float]) -> None:
        self.interval = interval
        self.next = 0.0
        """When there is nothing to report."""
        self.not_before = 0.0
        """Whatever there is to report."""
        self.failures = 0
        """In a row."""
        self._next_interval = _FIRST_INTERVAL
        self._backoff = backoff
        self._dice = dice

    def restart(self) -> None:
        """After a change: with the shortest interval."""
        self._next_interval = _FIRST_INTERVAL

    def accepted(self, interval: float, now: float) -> None:
        """`interval` is the one that the coordinator asks for; 0 or less: it does not say."""
        self.failures = 0
        if interval > 0:
            self.interval = max(interval, _SHORTEST_INTERVAL)
        self.next = now + min(self._next_interval, self.interval)
        self._next_interval = min(2 * self._next_interval, self.interval)

    def retry_later(self, now: float) -> None:
        self.not_before = now + self._pause()

    def retry_at_once(self, now: float) -> None:
        """Unless the last heartbeat was such a retry."""
        is_first = self.failures == 0
        pause = self._pause()
        self.not_before = now if is_first else now + pause

    def denied(self, now: float) -> None:
        """A right is missing, and somebody has to grant it first."""
        self.failures += 1
        self.not_before = now + REFUSAL.seconds(self.failures, self._dice())

    def _pause(self) -> float:
        self.failures += 1
        return self._backoff.seconds(self.failures, self._dice())
