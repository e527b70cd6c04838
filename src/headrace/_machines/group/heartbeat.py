"""Heartbeats, and the clock of max.poll.interval.ms (KIP-62: `PollClock`, of all members).

The table is for members whose group is run by its coordinator, in KIP-848 consumer groups and KIP-932 share groups:

    result of a heartbeat                       the member                                       next heartbeat
    NONE                                        follows the assignment                           after the interval
    FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER_ID      rejoins with epoch 0 and the same member id      at once
    COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR  stays, and finds the coordinator again           at once
    COORDINATOR_LOAD_IN_PROGRESS                stays                                            after a backoff
    TOPIC_AUTHORIZATION_FAILED                  stays; polls raise it if it comes twice in a row after a long backoff
    UNSUPPORTED_VERSION                         fails                                            none
    any other error that denies a right         rejoins; polls raise it                          after a long backoff
    any other error                             fails                                            none
    no answer, retriable                        stays                                            after a backoff
    no answer, not retriable                    as an answer with that error

- "At once" is once: a second failure in a row waits for the backoff.
- After any failure the coordinator may or may not have processed the heartbeat, so the next one has all fields.
- TOPIC_AUTHORIZATION_FAILED does not say which topics. Metadata does, and the next heartbeat leaves those out; polls
  raise the error only if that does not help.
- A missing right can be granted at any time, so the member keeps trying. Each denial is logged by the broker, so it
  does not try often.
- UNRELEASED_INSTANCE_ID concerns static members only, which share groups do not have: `consumer_protocol.py`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from ..._protocol.codes import kafka_error
from ...errors import AuthorizationError, HeadraceError, UnsupportedVersionError
from ..backoff import REFUSAL, Backoff

_FIRST_INTERVAL = 0.25  # seconds; then doubled
_SHORTEST_INTERVAL = 0.05  # for a coordinator that asks for less

MOVED = frozenset({ErrorCode.coordinator_not_available, ErrorCode.not_coordinator})
FENCED = frozenset({ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id})


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


class Recovery(enum.Enum):
    STAY = "stay"
    REJOIN = "rejoin"
    FAIL = "fail"


class FailedHeartbeat(NamedTuple):
    """What a member does after a heartbeat failed. `error` ended the membership (FAIL), or is for the next poll."""

    recovery: Recovery
    error: HeadraceError | None = None


def after_error(
    timer: HeartbeatTimer, code: int, now: float, *, doing: str, message: str | None, unsupported: str
) -> FailedHeartbeat:
    """The coordinator answered with an error. `unsupported` tells the user what the cluster lacks."""
    if code in FENCED:
        timer.retry_at_once(now)
        return FailedHeartbeat(Recovery.REJOIN)
    if code in MOVED:
        timer.retry_at_once(now)
        return FailedHeartbeat(Recovery.STAY)
    if code == ErrorCode.coordinator_load_in_progress:
        timer.retry_later(now)
        return FailedHeartbeat(Recovery.STAY)
    if code == ErrorCode.topic_authorization_failed:
        timer.denied(now)
        error = kafka_error(code, doing, message) if timer.failures > 1 else None
        return FailedHeartbeat(Recovery.STAY, error)
    if code == ErrorCode.unsupported_version:
        return FailedHeartbeat(Recovery.FAIL, UnsupportedVersionError(f"{doing}: {unsupported}"))
    return _not_retriable(timer, kafka_error(code, doing, message), now)


def after_failure(timer: HeartbeatTimer, error: HeadraceError, now: float) -> FailedHeartbeat:
    """No answer came."""
    if error.retriable:
        timer.retry_later(now)
        return FailedHeartbeat(Recovery.STAY)
    return _not_retriable(timer, error, now)


def _not_retriable(timer: HeartbeatTimer, error: HeadraceError, now: float) -> FailedHeartbeat:
    if not isinstance(error, AuthorizationError):
        return FailedHeartbeat(Recovery.FAIL, error)
    timer.denied(now)
    return FailedHeartbeat(Recovery.REJOIN, error)


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
