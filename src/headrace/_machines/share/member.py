"""A member of a share group (KIP-932): one request, ShareGroupHeartbeat, and the coordinator decides.

    state     what happens                                      next
    OUT       nothing is subscribed                             subscribe: JOINING
    AWAY      poll() was not called in time, the member left    a poll: JOINING
    JOINING   the heartbeat with epoch 0 is sent, or waits      the answer: MEMBER
    MEMBER    heartbeats; the assignment is followed            fenced: JOINING

- Several members may have the same partition, so nothing is revoked in steps, and no member waits for another. An
  assignment is valid as soon as it arrives, and polls have no actions to carry out.
- A heartbeat has only the fields that have changed since the last one that was answered; after an error it has all.
- Errors of heartbeats: `group/heartbeat_errors.py`.
- Acquisition locks do not depend on the membership: records can be acknowledged after the member was fenced.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any

from ..._protocol.codes import NONE
from ..._protocol.messages import SHARE_GROUP_HEARTBEAT
from ...errors import HeadraceError
from ..backoff import Backoff
from ..cluster import TopicIdPartition, partitions_by_id
from ..group.actions import Send
from ..group.heartbeat_errors import FailedHeartbeat, Recovery, after_error, after_failure
from ..group.heartbeat_timer import HeartbeatTimer
from ..group.poll_clock import PollClock

_JOIN = 0
_LEAVE = -1
DEFAULT_INTERVAL = 5.0  # seconds, between heartbeats

NEEDS = "share groups need Apache Kafka 4.1 or newer"
_UNSUPPORTED = (
    f"this cluster has no share groups: its feature share.version is 0 ({NEEDS}, and "
    f"kafka-features.sh upgrade --feature share.version=1)"
)


class ShareState(enum.Enum):
    OUT = "out"
    AWAY = "away"
    JOINING = "joining"
    MEMBER = "member"


class ShareMember:
    """The machine above. `member_id` is made by the client and kept; `dice` returns numbers from 0 to 1."""

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
        self.assignment: frozenset[TopicIdPartition] = frozenset()
        self.rebalances = 0
        """How often the coordinator has changed the assignment."""
        self.topics: frozenset[str] = frozenset()
        self.denied: frozenset[str] = frozenset()
        """Topics that this client may not describe."""
        self.failure: HeadraceError | None = None
        """The error that ended the membership, until the next `subscribe`. Every poll raises it."""
        self.pending_error: HeadraceError | None = None
        """The next poll raises it, once. The membership continues."""
        self._rack = rack
        self._clock = PollClock(max_poll_interval)
        self._request_timeout = request_timeout
        self._request: Send | None = None
        self._sent: frozenset[str] = frozenset()  # the topics in the last heartbeat
        self._confirmed: frozenset[str] | None = None  # the topics that the coordinator knows; None: unknown
        self._pending_leave: Send | None = None
        self._timer = HeartbeatTimer(DEFAULT_INTERVAL, backoff, dice)

    # -- the user ----------------------------------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str]) -> None:
        self.failure = None
        self.topics = topics
        if self.state is ShareState.OUT:
            self.state = ShareState.JOINING

    def hint(self, now: float) -> None:
        """Another member of this process has seen that the group changes."""
        self._timer.hint(now)

    def poll_begins(self) -> None:
        self._clock.begins()
        if self.state is ShareState.AWAY:
            self.state = ShareState.JOINING

    def poll_ends(self, now: float) -> None:
        self._clock.ends(now)

    def leave(self) -> Send | None:
        """Leaves the group. Returns the request that says so, if the coordinator may know this member."""
        leave_request = self._leave_request()
        self._lose_epoch()
        self.state = ShareState.OUT
        self.topics = frozenset()
        return leave_request

    def _leave_request(self) -> Send | None:
        if self.state not in (ShareState.JOINING, ShareState.MEMBER):
            return None
        fields = {"group_id": self.group_id, "member_id": self.member_id, "member_epoch": _LEAVE}
        return Send(SHARE_GROUP_HEARTBEAT, fields, self._request_timeout)

    # -- the clock ---------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Send]:
        """The requests to send now."""
        if now >= self.poll_deadline:
            # poll() was not called for max.poll.interval.ms: leaves, so that other members get the records (KIP-62).
            self._pending_leave = self._leave_request()
            self._lose_epoch()
            self.state = ShareState.AWAY
        actions: list[Send] = []
        if self._pending_leave is not None:
            actions.append(self._pending_leave)
            self._pending_leave = None
        if self._request is None and now >= self._due():
            self._request = self._heartbeat()
            self._timer.sent()
            actions.append(self._request)
        return actions

    def next_tick(self) -> float:
        return min(self.poll_deadline, math.inf if self._request else self._due())

    @property
    def poll_deadline(self) -> float:
        return self._clock.deadline if self.state in (ShareState.JOINING, ShareState.MEMBER) else math.inf

    @property
    def is_member(self) -> bool:
        return self.state is ShareState.MEMBER

    @property
    def is_expired(self) -> bool:
        return self.state is ShareState.AWAY

    def _due(self) -> float:
        if self.state is ShareState.JOINING:
            return self._timer.not_before
        if self.state is not ShareState.MEMBER:
            return math.inf
        if self._confirmed != self._subscribed:
            return self._timer.not_before
        return max(self._timer.not_before, self._timer.next)

    @property
    def _subscribed(self) -> frozenset[str]:
        """Without denied topics: the coordinator would reject a heartbeat that names one, for all topics."""
        return self.topics - self.denied or self.topics

    def _heartbeat(self) -> Send:
        self._sent = self._subscribed
        is_full = self._confirmed is None
        fields = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "rack_id": self._rack if is_full else None,
            "subscribed_topic_names": tuple(sorted(self._sent)) if self._confirmed != self._sent else None,
        }
        return Send(SHARE_GROUP_HEARTBEAT, fields, self._request_timeout)

    # -- answers -----------------------------------------------------------------------------------------------

    def answered(self, action: Send, body: Any, now: float) -> bool:
        """Returns whether the assignment has changed, or polls may have to raise something."""
        if action is not self._request:
            return False
        self._request = None
        if body.error_code == NONE:
            return self._accepted(body, now)
        self._recover(
            after_error(
                self._timer,
                body.error_code,
                now,
                doing=f"ShareGroupHeartbeat of group {self.group_id}",
                message=body.error_message,
                unsupported=_UNSUPPORTED,
            )
        )
        return True

    def failed(self, action: Send, error: HeadraceError, now: float) -> None:
        """No answer came."""
        if action is self._request:
            self._request = None
            self._recover(after_failure(self._timer, error, now))

    def _accepted(self, body: Any, now: float) -> bool:
        self._confirmed = self._sent
        self.epoch = body.member_epoch
        has_changed = self.state is not ShareState.MEMBER
        self.state = ShareState.MEMBER
        if body.assignment is not None:
            assignment = partitions_by_id(body.assignment.topic_partitions)
            self.rebalances += assignment != self.assignment
            has_changed |= assignment != self.assignment
            self.assignment = assignment
            self._timer.restart()
        self._timer.accepted(body.heartbeat_interval.total_seconds(), now)
        return has_changed

    def _recover(self, failed: FailedHeartbeat) -> None:
        self._confirmed = None
        if failed.recovery is Recovery.FAIL:
            self.failure = failed.error
            self._lose_epoch()
            self.state = ShareState.OUT
            return
        if failed.error is not None:
            self.pending_error = failed.error
        if failed.recovery is Recovery.REJOIN:
            self._lose_epoch()
            self.state = ShareState.JOINING

    def _lose_epoch(self) -> None:
        self.epoch = _JOIN
        self.assignment = frozenset()
        self._timer.joins()
        self._request = None
        self._confirmed = None
