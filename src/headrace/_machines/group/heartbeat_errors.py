"""What a member does after a heartbeat, in groups that the coordinator runs: KIP-848 consumer groups and KIP-932 share
groups. Classic groups: `classic.py`.

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

import enum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from ..._protocol.codes import kafka_error
from ...errors import AuthorizationError, HeadraceError, UnsupportedVersionError
from .heartbeat_timer import HeartbeatTimer

MOVED = frozenset({ErrorCode.coordinator_not_available, ErrorCode.not_coordinator})
FENCED = frozenset({ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id})


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
