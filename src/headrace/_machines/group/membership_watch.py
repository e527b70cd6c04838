"""When a member warns that it is about to lose its membership. For all kinds of groups.

    heartbeats                              event                            again
    fail for less than PATIENCE             none: coordinators move
    fail for longer                         HeartbeatsFailing                every EVERY seconds
    a quarter of the session is left        MembershipAtRisk (heartbeats)    never
    are accepted again                      HeartbeatsRecovered, MembershipSafe, if there was such a warning

    polls
    a quarter of max.poll.interval is left  MembershipAtRisk (poll)          never
    poll() is called                        MembershipSafe, if there was such a warning

    the member is no member any more        MembershipLost, unless it left by itself (`forget`)

- Heartbeats fail from the time at which the first one was sent that was not accepted: a heartbeat without an answer
  counts, long before its request times out.
- A request that the coordinator parks (JoinGroup) keeps the member alive, so waiting for it is no failure.
- Only classic members know their session timeout. The others are at risk after ROUNDS heartbeat intervals, but not
  before the first warning.
- The owner's lock guards it. It is asked after every event, and at `next_look` at the latest.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

from ...errors import HeadraceError
from ...events import Event, HeartbeatsFailing, HeartbeatsRecovered, MembershipAtRisk, MembershipLost, MembershipSafe

PATIENCE = 3.0
EVERY = 60.0
MARGIN = 0.25  # the part of a deadline that is left when it is near
ROUNDS = 3


class WatchedMember(Protocol):
    """The side of a member that is watched."""

    @property
    def is_member(self) -> bool:
        """Whether the coordinator has accepted it, as far as it knows."""

    @property
    def is_expired(self) -> bool:
        """Whether it has left because poll() was not called in time."""

    @property
    def poll_deadline(self) -> float:
        """When it leaves unless poll() is called; infinite while a poll runs."""

    @property
    def failure(self) -> HeadraceError | None: ...


@dataclasses.dataclass(slots=True)
class _FailingHeartbeats:
    """Heartbeats that are not accepted."""

    since: float
    is_parked: bool = False  # the coordinator has a request that it answers when others have joined
    is_near_end: bool = False  # MembershipAtRisk was returned
    warned_at: float = -math.inf
    error: str | None = None


class MembershipWatch:
    def __init__(self, group_id: str, *, session_timeout: float | None, heartbeat_interval: float, poll_limit: float):
        """`session_timeout` is None if only the coordinator knows it, `poll_limit` the longest time between polls."""
        self.heartbeats = 0
        self.heartbeat_failures = 0
        self.last_accepted: float | None = None
        """When the coordinator accepted a heartbeat or a join last."""
        self._alive_at = 0.0  # the session lasts from then on
        self._group_id = group_id
        self._session_timeout = session_timeout
        self._interval = heartbeat_interval
        self._poll_margin = MARGIN * poll_limit
        self._was_member = False
        self._outage: _FailingHeartbeats | None = None
        self._is_poll_late = False
        self._ended: list[Event] = []
        self.next_look = math.inf

    # -- requests ------------------------------------------------------------------------------------------------

    def sent(self, now: float, *, parks: bool = False) -> None:
        """A heartbeat was sent, or a request that the coordinator may park."""
        self.heartbeats += not parks
        if self._outage is not None:
            self._outage.is_parked = parks
        elif not parks:
            self._outage = _FailingHeartbeats(now)

    def accepted(self, now: float, interval: float = 0.0) -> None:
        """The coordinator has accepted a heartbeat or a join. `interval` is the one that it asks for, if it does."""
        self.last_accepted = self._alive_at = now
        if interval > 0:
            self._interval = interval
        outage, self._outage = self._outage, None
        if outage is not None:
            if outage.warned_at > -math.inf:
                self._ended.append(HeartbeatsRecovered(self._group_id, now - outage.since))
            if outage.is_near_end:
                self._ended.append(MembershipSafe(self._group_id, "heartbeats"))

    def failed(self, now: float, error: str, *, parks: bool = False) -> None:
        """A heartbeat (or a request that the coordinator may park) was rejected, or no answer came."""
        self.heartbeat_failures += not parks
        if self._outage is None:
            self._outage = _FailingHeartbeats(now)
        if parks:
            self._alive_at = max(self._alive_at, self._outage.since)
        self._outage.is_parked, self._outage.error = False, error

    def forget(self) -> None:
        """The member has left by itself."""
        self.last_accepted = None
        self._was_member = self._is_poll_late = False
        self._outage = None
        self._ended.clear()

    def describe(self, now: float) -> dict[str, float | None]:
        """For metrics()."""
        return {
            "heartbeats": self.heartbeats,
            "heartbeat_failures": self.heartbeat_failures,
            "seconds_since_heartbeat": None if self.last_accepted is None else round(now - self.last_accepted, 3),
        }

    # -- events --------------------------------------------------------------------------------------------------

    def look(self, member: WatchedMember, now: float) -> list[Event]:
        """The events since the last look."""
        found, self._ended = self._ended, []
        self.next_look = math.inf
        if self._was_member and not member.is_member:
            self.forget()
            error = None if member.failure is None else str(member.failure)
            found.append(MembershipLost(self._group_id, "poll" if member.is_expired else "coordinator", error))
        self._was_member = member.is_member
        if self._was_member:
            found += self._look_at_heartbeats(now)
            found += self._look_at_polls(member.poll_deadline, now)
        return found

    def _look_at_heartbeats(self, now: float) -> list[Event]:
        outage = self._outage
        if outage is None or outage.is_parked:
            return []
        found: list[Event] = []
        patience = PATIENCE if self._session_timeout is None else min(PATIENCE, MARGIN * self._session_timeout)
        due = max(outage.since + patience, outage.warned_at + EVERY)
        if now >= due:
            outage.warned_at = now
            due = now + EVERY
            found.append(HeartbeatsFailing(self._group_id, now - outage.since, outage.error))
        if not outage.is_near_end:
            risk, end = self._session_end(outage)
            if now >= risk:
                outage.is_near_end = True
                left = None if end is None else max(0.0, end - now)
                found.append(MembershipAtRisk(self._group_id, "heartbeats", left))
            else:
                due = min(due, risk)
        self.next_look = min(self.next_look, due)
        return found

    def _session_end(self, outage: _FailingHeartbeats) -> tuple[float, float | None]:
        """When the membership is at risk, and when the session ends, if that is known."""
        if self._session_timeout is None:
            return outage.since + max(PATIENCE, ROUNDS * self._interval), None
        end = self._alive_at + self._session_timeout
        return end - MARGIN * self._session_timeout, end

    def _look_at_polls(self, deadline: float, now: float) -> list[Event]:
        near = deadline - self._poll_margin
        if now < near:
            self.next_look = min(self.next_look, near)
        if self._is_poll_late == (now >= near):
            return []
        self._is_poll_late = now >= near
        if self._is_poll_late:
            return [MembershipAtRisk(self._group_id, "poll", max(0.0, deadline - now))]
        return [MembershipSafe(self._group_id, "poll")]
