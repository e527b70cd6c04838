"""A member of a share group (KIP-932): one request, ShareGroupHeartbeat, and the coordinator decides.

    state     what happens                                     who moves it on
    OUT       nothing is subscribed                            subscribe
    AWAY      too long without a poll: it has left             a poll: JOINING
    JOINING   the heartbeat with epoch 0 is out, or waits      the answer: MEMBER
    MEMBER    heartbeats; the assignment is followed           a fence: JOINING

- Partitions are shared: others may have the same ones, nothing is given up in steps, and nobody waits for anybody. So
  an assignment counts as soon as it is heard of, and polls have no duties.
- A heartbeat says only what has changed since the last one that was answered; after an error it says everything.
- Locks on records do not depend on the membership: what is held can be acknowledged when the member was fenced.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from ..errors import AuthorizationError, HeadraceError, UnsupportedVersionError
from ..protocol.codes import NONE, kafka_error
from ..protocol.messages import SHARE_GROUP_HEARTBEAT
from .backoff import Backoff
from .heartbeats import HeartbeatTimes
from .membership import PollClock, Send
from .session import Slot

_JOIN = 0
_LEAVE = -1
_DEFAULT_INTERVAL = 5.0

_MOVED = {ErrorCode.coordinator_not_available, ErrorCode.not_coordinator}
_FENCED = {ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id}

NEEDS = "share groups need Apache Kafka 4.1 or newer"


class ShareState(enum.Enum):
    OUT = "out"
    AWAY = "away"
    JOINING = "joining"
    MEMBER = "member"


class ShareMember:
    """The machine above. `member_id` is made by the client and kept; `dice` gives numbers from 0 to 1."""

    def __init__(
        self,
        group_id: str,
        member_id: str,
        backoff: Backoff,
        dice: Callable[[], float],
        *,
        rack: str | None = None,
        max_poll_interval: float = 300.0,
        request_timeout: float = 30.0,
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.state = ShareState.OUT
        self.epoch = _JOIN
        self.assignment: frozenset[Slot] = frozenset()
        self.topics: frozenset[str] = frozenset()
        self.denied: frozenset[str] = frozenset()
        self.failure: HeadraceError | None = None
        """What ended the membership, until the next `subscribe`. Every poll raises it."""
        self.complaint: HeadraceError | None = None
        """What the next poll raises, once. The membership goes on."""
        self._rack = rack
        self._clock = PollClock(max_poll_interval)
        self._request_timeout = request_timeout
        self._request: Send | None = None
        self._heard: frozenset[str] | None = None  # the topics that the coordinator knows of
        self._said: frozenset[str] = frozenset()
        self._farewell: Send | None = None
        self._times = HeartbeatTimes(_DEFAULT_INTERVAL, backoff, dice)

    # -- the user ----------------------------------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str]) -> None:
        self.failure = None
        self.topics = topics
        if self.state is ShareState.OUT:
            self.state = ShareState.JOINING

    def poll_begins(self) -> None:
        self._clock.begins()
        if self.state is ShareState.AWAY:
            self.state = ShareState.JOINING

    def poll_ends(self, now: float) -> None:
        self._clock.ends(now)

    def leave(self) -> Send | None:
        """Out of the group."""
        farewell = self._last_words()
        self._forget()
        self.state = ShareState.OUT
        self.topics = frozenset()
        return farewell

    def _last_words(self) -> Send | None:
        if self.state not in (ShareState.JOINING, ShareState.MEMBER):
            return None
        fields = {"group_id": self.group_id, "member_id": self.member_id, "member_epoch": _LEAVE}
        return Send(SHARE_GROUP_HEARTBEAT, fields, self._request_timeout)

    # -- the clock ---------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Send]:
        """What to send now."""
        if now >= self._clock.deadline and self.state in (ShareState.JOINING, ShareState.MEMBER):
            # The user has not polled for too long: others shall have the records (KIP-62).
            self._farewell = self._last_words()
            self._forget()
            self.state = ShareState.AWAY
        actions: list[Send] = []
        if self._farewell is not None:
            actions.append(self._farewell)
            self._farewell = None
        if self._request is None and now >= self._due():
            self._request = self._heartbeat()
            actions.append(self._request)
        return actions

    def next_tick(self) -> float:
        is_in = self.state in (ShareState.JOINING, ShareState.MEMBER)
        return min(self._clock.deadline if is_in else math.inf, math.inf if self._request else self._due())

    def _due(self) -> float:
        if self.state is ShareState.JOINING:
            return self._times.not_before
        if self.state is not ShareState.MEMBER:
            return math.inf
        if self._heard != self._names:
            return self._times.not_before
        return max(self._times.not_before, self._times.next)

    @property
    def _names(self) -> frozenset[str]:
        """What is subscribed, without what brokers tell this client nothing of: the coordinator would refuse any
        heartbeat that names such a topic, for the others as well."""
        return self.topics - self.denied or self.topics

    def _heartbeat(self) -> Send:
        self._said = self._names
        says_all = self._heard is None
        fields = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "rack_id": self._rack if says_all else None,
            "subscribed_topic_names": tuple(sorted(self._said)) if self._heard != self._said else None,
        }
        return Send(SHARE_GROUP_HEARTBEAT, fields, self._request_timeout)

    # -- answers -----------------------------------------------------------------------------------------------

    def answered(self, action: Send, body: Any, now: float) -> bool:
        """Whether the assignment has changed, or something is to be raised."""
        if action is not self._request:
            return False
        self._request = None
        code = body.error_code
        if code == NONE:
            return self._accepted(body, now)
        self._heard = None
        doing = f"ShareGroupHeartbeat of group {self.group_id}"
        if code in _FENCED:
            self._forget()
            self.state = ShareState.JOINING
            self._times.retry_at_once(now)
        elif code in _MOVED:
            self._times.retry_at_once(now)
        elif code == ErrorCode.coordinator_load_in_progress:
            self._times.retry_later(now)
        elif code == ErrorCode.topic_authorization_failed:
            self._times.refused(now)
            if self._times.failures > 1:  # else metadata will say which topics, and the next heartbeat leaves them out
                self.complaint = kafka_error(code, doing, body.error_message)
        elif code == ErrorCode.unsupported_version:
            self._fail(
                UnsupportedVersionError(
                    f"{doing}: this cluster has no share groups: its feature share.version is 0 ({NEEDS}, and "
                    f"kafka-features.sh upgrade --feature share.version=1)"
                )
            )
        else:
            self._refuse(kafka_error(code, doing, body.error_message), now)
        return True

    def _accepted(self, body: Any, now: float) -> bool:
        self._heard = self._said
        self.epoch = body.member_epoch
        is_news = self.state is not ShareState.MEMBER
        self.state = ShareState.MEMBER
        if body.assignment is not None:
            assignment = frozenset(
                Slot(topic.topic_id, number)
                for topic in body.assignment.topic_partitions
                for number in topic.partitions
            )
            is_news |= assignment != self.assignment
            self.assignment = assignment
            self._times.changed()
        self._times.accepted(body.heartbeat_interval.total_seconds(), now)
        return is_news

    def failed(self, action: Send, error: HeadraceError, now: float) -> None:
        if action is not self._request:
            return
        self._request = None
        self._heard = None
        if error.retriable:
            self._times.retry_later(now)
        else:
            self._refuse(error, now)

    def _forget(self) -> None:
        self.epoch = _JOIN
        self.assignment = frozenset()
        self._times.changed()
        self._request = None
        self._heard = None

    def _refuse(self, error: HeadraceError, now: float) -> None:
        """A right may be granted at any time, so the member joins again and again."""
        if not isinstance(error, AuthorizationError):
            self._fail(error)
            return
        self.complaint = error
        self._forget()
        self.state = ShareState.JOINING
        self._times.refused(now)

    def _fail(self, error: HeadraceError) -> None:
        self.failure = error
        self._forget()
        self.state = ShareState.OUT
