"""When the next heartbeat of a KIP-848 or KIP-932 member is due."""

from __future__ import annotations

from collections.abc import Callable

from ..backoff import REFUSAL, Backoff
from .neighbours import hint_spacing

_FIRST_INTERVAL = 0.25  # seconds; then doubled
_SHORTEST_INTERVAL = 0.05  # for a coordinator that asks for less
_OF_NEW_MEMBERS = 0.1  # of the interval: the longest pause between two heartbeats of a new member ...
_PATIENCE = 1.2  # ... until so many intervals have passed without a change


class HeartbeatTimer:
    """When the next heartbeat is due.

    A change is followed by others: a new member has no partitions until others have revoked them or the coordinator
    has initialized their state, and it gets them one by one. The interval is five seconds by default, too long for
    steps that take half a second. So after every change the interval starts small, and doubles.

    Each of the others learns from its own next heartbeat that it has to revoke partitions, so they are released at any
    time within one interval, and no answer tells the new member that more are to come. Until then it asks ten times
    per interval: with a doubling pause, it would ask for the last ones half an interval too late. It asks at random
    times: members that start together in one process would otherwise ask together, and none of them would soon learn of
    a change that it could pass on.
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
        self._is_new = True
        self._changed_at: float | None = None  # None: by the next answer
        self._answered_at = 0.0
        self._has_hint = False  # since the last heartbeat was sent
        self._backoff = backoff
        self._dice = dice

    def joins(self) -> None:
        """The next answer is that to a join."""
        self._is_new = True
        self.restart()

    def restart(self) -> None:
        """After a change: with the shortest interval."""
        self._next_interval = _FIRST_INTERVAL
        self._changed_at = None

    def hint(self, now: float) -> None:
        """Another member has seen a change."""
        self._has_hint = True
        self.next = min(self.next, max(now, self._answered_at + hint_spacing(self.interval)))

    def sent(self) -> None:
        self._has_hint = False

    def accepted(self, interval: float, now: float) -> None:
        """`interval` is the one that the coordinator asks for; 0 or less: it does not say."""
        self.failures = 0
        if interval > 0:
            self.interval = max(interval, _SHORTEST_INTERVAL)
        if self._changed_at is None:
            self._changed_at = now
        self._is_new = self._is_new and now < self._changed_at + _PATIENCE * self.interval
        longest = max(_OF_NEW_MEMBERS * self.interval, _SHORTEST_INTERVAL) if self._is_new else self.interval
        if self._has_hint:  # after this heartbeat was sent: its answer may be older
            longest = min(longest, hint_spacing(self.interval))
        pause = min(self._next_interval, longest)
        if self._is_new:
            pause *= 0.5 + self._dice()
        self._answered_at = now
        self.next = now + pause
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
