"""A member of a KIP-848 group: one request, ConsumerGroupHeartbeat, and the coordinator decides.

    state       what happens                                             next
    OUT         nothing is subscribed                                    subscribe: BEGINNING
    BEGINNING   to join, after a poll has reported lost partitions       a poll: JOINING
    JOINING     the heartbeat with epoch 0 is sent, or waits             the answer: MEMBER
    MEMBER      heartbeats; polls reconcile the partitions               fenced: BEGINNING

- An answer brings the target assignment, by topic id. Polls reconcile with it: they first revoke what is not in the
  target, then assign what is new and has a known topic name. The next heartbeat, sent at once, reports each step with
  the list of owned partitions. Until then the coordinator gives a revoked partition to nobody else, and after the
  rebalance timeout it fences the member that has not reported it.
- A heartbeat has only the fields that have changed since the last one that was answered. After an error nobody knows
  what the coordinator has processed, so the next one has all fields.
- Fenced, unknown, or without a poll for too long: all partitions are lost and the epoch is 0 again; the member id
  stays. The same happens when the right to the group is missing; the member then rejoins until it is granted.
- Errors of heartbeats: `heartbeat_errors.py`.
- Owned partitions go by topic id: a topic that is recreated under its old name is another one, and its partitions are
  revoked and assigned anew.
"""

from __future__ import annotations

import enum
import math
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from ..._protocol.codes import NONE
from ..._protocol.messages import CONSUMER_GROUP_HEARTBEAT
from ...errors import HeadraceError
from ...types import TopicPartition
from ..backoff import Backoff
from ..cluster import TopicIdPartition, partitions_by_id
from .actions import (
    Action,
    AssignPartitions,
    GroupSettings,
    Lose,
    MemberIdentity,
    Partitions,
    PollAction,
    Revoke,
    Send,
    Subscription,
)
from .heartbeat_errors import FENCED, MOVED, FailedHeartbeat, Recovery, after_error, after_failure
from .heartbeat_timer import HeartbeatTimer
from .poll_clock import PollClock

_JOIN = 0
_LEAVE = -1
_LEAVE_TEMPORARILY = -2

_UNSUPPORTED = (
    "this cluster does not have the consumer group protocol of KIP-848 (feature group.version is 0): set "
    "group.protocol=classic"
)


class ConsumerProtocolState(enum.Enum):
    OUT = "out"
    BEGINNING = "beginning"
    JOINING = "joining"
    MEMBER = "member"


class _InstanceRelease(enum.Enum):
    """Of a group.instance.id that is in use, as the coordinator says: perhaps by this member itself."""

    NOT_TRIED = "not tried"
    NEEDED = "needed"
    TRIED = "tried"


class ConsumerProtocolMember:
    """The machine above. `member_id` is made by the client and kept; `dice` returns numbers from 0 to 1."""

    def __init__(self, settings: GroupSettings, member_id: str, backoff: Backoff, dice: Callable[[], float]) -> None:
        self.state = ConsumerProtocolState.OUT
        self.failure: HeadraceError | None = None
        """The error that ended the membership, until the next `subscribe`. Polls keep raising it."""
        self.pending_error: HeadraceError | None = None
        """The next poll raises it, unless it raised the same recently. The membership continues."""
        self.subscription = Subscription()
        self.is_expired = False
        self.revoke_requested_at: float | None = None
        """When the group asked for partitions."""
        self.last_identity = MemberIdentity(instance_id=settings.instance_id)
        """The identity of the last membership, also after it ended."""
        self._settings = settings
        self._member_id = member_id
        self._clock = PollClock(settings.longest_absence)

        self._epoch = _JOIN
        self._owned: dict[TopicPartition, uuid.UUID] = {}
        self._target: frozenset[TopicIdPartition] = frozenset()
        self._names: Mapping[uuid.UUID, str] = {}
        self._denied: frozenset[str] = frozenset()
        self._unresolved: frozenset[uuid.UUID] | None = None
        self._is_lost = False
        self._is_reconciled = False  # polls have nothing to do, and need not look at every partition
        self._assigning: dict[TopicPartition, uuid.UUID] = {}  # a poll is about to assign these

        self._request: Send | None = None
        self._current: dict[str, Any] | None = None  # the cached result of `_fields`; None: something has changed
        self._sent: dict[str, Any] = {}  # the fields when the last heartbeat was sent
        self._confirmed: dict[str, Any] = {}  # the fields that the coordinator knows
        # Whether the coordinator may know a pattern of this member: from a request that was not answered, or from the
        # last owner of its group.instance.id, whose subscription it inherits.
        self._may_have_pattern = settings.instance_id is not None
        self._release = _InstanceRelease.NOT_TRIED
        self._timer = HeartbeatTimer(settings.heartbeat_interval, backoff, dice)
        self._outbox: list[Action] = []

    @property
    def owned(self) -> Partitions:
        """What the user owns."""
        return frozenset(self._owned)

    # -- the user ----------------------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        self.failure = None
        self.subscription = subscription
        self._current = None
        if self.state is ConsumerProtocolState.OUT:
            self.state = ConsumerProtocolState.BEGINNING

    def rejoin(self, reason: str) -> None:
        """Does nothing: only the coordinator decides when to rebalance."""

    def hint(self, now: float) -> None:
        """Another member of this process has seen that the group changes."""
        self._timer.hint(now)

    def poll_begins(self) -> None:
        self._clock.begins()
        self.is_expired = False

    def poll_ends(self, now: float) -> None:
        self._clock.ends(now)

    def poll_action(self, deferred: Partitions = frozenset()) -> PollAction | None:
        """What the poll has to do now; to be asked again after `done`. Revokes of `deferred` partitions (KIP-983) are
        not returned."""
        self._start_assigning({})
        if self._is_lost and self._owned:
            return Lose(self.owned)
        if self.state is ConsumerProtocolState.BEGINNING:
            self.state = ConsumerProtocolState.JOINING
            self._confirmed = {}
        if self.state is not ConsumerProtocolState.MEMBER or self._is_reconciled:
            return None
        to_revoke = self.to_revoke
        if due := to_revoke - deferred:
            return Revoke(due)
        self._start_assigning({tp: topic for tp, topic in self._named_target().items() if tp not in self._owned})
        if self._assigning:
            added = frozenset(self._assigning)
            return AssignPartitions(self.owned | added, added)
        self._is_reconciled = not to_revoke
        return None

    @property
    def to_revoke(self) -> Partitions:
        """What is owned and not in the target."""
        if self.state is not ConsumerProtocolState.MEMBER or self._is_reconciled:
            return frozenset()
        return frozenset(tp for tp, topic in self._owned.items() if (topic, tp.partition) not in self._target)

    def _start_assigning(self, partitions: dict[TopicPartition, uuid.UUID]) -> None:
        if partitions or self._assigning:
            self._assigning = partitions
            self._current = None

    def _named_target(self) -> dict[TopicPartition, uuid.UUID]:
        names = self._names
        return {TopicPartition(names[topic], number): topic for topic, number in self._target if topic in names}

    def done(self, poll_action: PollAction) -> None:
        self._current = None
        if isinstance(poll_action, AssignPartitions):
            # The target may have changed while the listener ran: the next poll action takes care of that.
            self._owned.update((tp, self._assigning[tp]) for tp in poll_action.added)
            self._assigning = {}
            self._is_lost = self.state is not ConsumerProtocolState.MEMBER
            return
        for tp in poll_action.partitions:
            self._owned.pop(tp, None)
        if isinstance(poll_action, Lose):
            self._is_lost = False

    def final_revoke(self) -> PollAction | None:
        if not self._owned:
            return None
        return Lose(self.owned) if self._is_lost else Revoke(self.owned)

    def leave(self, reason: str) -> Send | None:
        """Leaves the group. The coordinator keeps the assignment of a static member for the session timeout."""
        leave_request = self._leave_request()
        self._lose_epoch()
        self.state = ConsumerProtocolState.OUT
        self.subscription = Subscription()
        self._current = None
        self._owned = {}
        self._is_lost = False
        return leave_request

    def _leave_request(self) -> Send | None:
        if self.state not in (ConsumerProtocolState.JOINING, ConsumerProtocolState.MEMBER):
            return None
        fields = {
            "group_id": self._settings.group_id,
            "member_id": self._member_id,
            "member_epoch": _LEAVE if self._settings.instance_id is None else _LEAVE_TEMPORARILY,
            "instance_id": self._settings.instance_id,
            "rebalance_timeout": -1,
            "topic_partitions": None,
        }
        return Send(CONSUMER_GROUP_HEARTBEAT, fields, self._settings.request_timeout)

    # -- the clock ---------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        if now >= self.poll_deadline:
            self._expire()
        actions, self._outbox = self._outbox, []
        if self._request is None and now >= self._due():
            self._request = self._leave_request() if self._release is _InstanceRelease.NEEDED else self._heartbeat()
            assert self._request is not None
            self._timer.sent()
            actions.append(self._request)
        return actions

    def next_tick(self) -> float:
        times = [self.poll_deadline]
        if self._outbox:
            times.append(0.0)
        if self._request is None:
            times.append(self._due())
        return min(times)

    @property
    def poll_deadline(self) -> float:
        return math.inf if self.state is ConsumerProtocolState.OUT or self.is_expired else self._clock.deadline

    def _due(self) -> float:
        if self.state is ConsumerProtocolState.JOINING:
            return self._timer.not_before
        if self.state is not ConsumerProtocolState.MEMBER:
            return math.inf
        if self._changed_fields():
            return self._timer.not_before
        return max(self._timer.not_before, self._timer.next)

    def _expire(self) -> None:
        """poll() was not called for max.poll.interval.ms: leaves, so that other members get the partitions (KIP-62)."""
        self.is_expired = True
        leave_request = self._leave_request()
        if leave_request is not None:
            self._outbox.append(leave_request)
        self._lose_epoch()
        self.state = ConsumerProtocolState.BEGINNING

    # -- the request -------------------------------------------------------------------------------------------

    def _fields(self) -> dict[str, Any]:
        if self._current is None:
            self._current = self._collect_fields()
        return self._current

    def _collect_fields(self) -> dict[str, Any]:
        # Partitions that are being assigned are included: the coordinator gives to others what the list lacks, and
        # while a slow listener runs, a new target without them may arrive.
        owned: defaultdict[uuid.UUID, list[int]] = defaultdict(list)
        for tp, topic in (self._owned | self._assigning).items():
            owned[topic].append(tp.partition)
        return {
            "rack_id": self._settings.rack,
            "rebalance_timeout": round(self._settings.max_poll_interval * 1000),
            "subscribed_topic_names": tuple(
                sorted(self.subscription.topics - self._denied or self.subscription.topics)
            ),
            "subscribed_topic_regex": self.subscription.server_pattern,
            "server_assignor": self._settings.remote_assignor,
            "topic_partitions": tuple(
                (topic, tuple(sorted(numbers))) for topic, numbers in sorted(owned.items(), key=lambda item: item[0])
            ),
        }

    def _changed_fields(self) -> dict[str, Any]:
        """What the coordinator does not know yet."""
        current = self._fields()
        if current is self._confirmed:
            return {}
        return {
            name: value
            for name, value in current.items()
            if name not in self._confirmed or self._confirmed[name] != value
        }

    def _heartbeat(self) -> Send:
        changed = self._changed_fields()
        if self.subscription.server_pattern is not None:
            self._may_have_pattern = True
        elif self._may_have_pattern and "subscribed_topic_regex" in changed:
            changed["subscribed_topic_regex"] = ""  # null would leave it as it was
        partitions = changed.get("topic_partitions")
        fields = {
            "group_id": self._settings.group_id,
            "member_id": self._member_id,
            "member_epoch": self._epoch,
            "instance_id": self._settings.instance_id,
            "rack_id": changed.get("rack_id"),
            "rebalance_timeout": changed.get("rebalance_timeout", -1),
            "subscribed_topic_names": changed.get("subscribed_topic_names"),
            "subscribed_topic_regex": changed.get("subscribed_topic_regex"),
            "server_assignor": changed.get("server_assignor"),
            "topic_partitions": None
            if partitions is None
            else [{"topic_id": topic, "partitions": numbers} for topic, numbers in partitions],
        }
        self._sent = self._fields()
        return Send(CONSUMER_GROUP_HEARTBEAT, fields, self._settings.request_timeout)

    # -- answers -----------------------------------------------------------------------------------------------

    def answered(self, action: Send, body: Any, now: float) -> bool:
        """Returns whether polls have to look: not for a heartbeat that changed nothing, as most do."""
        if action is not self._request:
            return body.error_code != NONE or body.assignment is not None
        before = self.state
        self._request = None
        code = body.error_code
        if self._release is _InstanceRelease.NEEDED:
            self._released(code, now)
        elif code == NONE:
            self._accepted(body, now)
        elif code == ErrorCode.unreleased_instance_id and self._release is _InstanceRelease.NOT_TRIED:
            # If this member was fenced, or an answer or its leave request got lost, the coordinator still has its
            # group.instance.id in use, and accepts nobody else under it, not even this member. Leaving with its own
            # member id releases it; if it is another member's, the coordinator rejects that.
            self._confirmed = {}
            self._release = _InstanceRelease.NEEDED
            self._timer.retry_at_once(now)
        else:
            self._recover(
                after_error(
                    self._timer,
                    code,
                    now,
                    doing=f"ConsumerGroupHeartbeat of group {self._settings.group_id}",
                    message=body.error_message,
                    unsupported=_UNSUPPORTED,
                )
            )
        return code != NONE or body.assignment is not None or self.state is not before

    def _released(self, code: int, now: float) -> None:
        if code in MOVED or code == ErrorCode.coordinator_load_in_progress:
            self._timer.retry_later(now)
        else:
            self._release = _InstanceRelease.TRIED

    def _accepted(self, body: Any, now: float) -> None:
        self._release = _InstanceRelease.NOT_TRIED
        self._confirmed = self._sent
        self._may_have_pattern = self._sent["subscribed_topic_regex"] is not None
        self._epoch = body.member_epoch
        self.last_identity = self.identity
        self.state = ConsumerProtocolState.MEMBER
        if body.assignment is not None:
            self._target = partitions_by_id(body.assignment.topic_partitions)
            self._unresolved = None
            self._is_reconciled = False
            self.revoke_requested_at = now
            self._timer.restart()
        self._timer.accepted(body.heartbeat_interval.total_seconds(), now)

    def failed(self, action: Action, error: HeadraceError, now: float) -> None:
        """No answer came."""
        if action is not self._request:
            return
        self._request = None
        if self._release is _InstanceRelease.TRIED:
            self._release = _InstanceRelease.NOT_TRIED  # this member may have joined after all
        self._recover(after_failure(self._timer, error, now))

    def commit_refused(self, code: int, sent: MemberIdentity) -> None:
        """The coordinator rejected a commit: it may have fenced this member."""
        if sent == self.identity and self._epoch > 0 and code in FENCED:
            self._lose_epoch()
            self.state = ConsumerProtocolState.BEGINNING

    def update_topic_names(self, names: Mapping[uuid.UUID, str]) -> None:
        """The names of topics, by id, as far as they are known."""
        if names != self._names:
            self._names = names
            self._unresolved = None
            self._is_reconciled = False

    def deny(self, topics: frozenset[str]) -> None:
        """This client may not describe these topics. The coordinator would reject a heartbeat that names one of them,
        for all topics."""
        if topics != self._denied:
            self._denied = topics
            self._current = None

    # -- what follows from them --------------------------------------------------------------------------------

    def _lose_epoch(self) -> None:
        self._epoch = _JOIN
        self._release = _InstanceRelease.NOT_TRIED
        self._may_have_pattern = self._may_have_pattern or self._settings.instance_id is not None
        self._target = frozenset()
        self._unresolved = None
        self._timer.joins()
        self._is_reconciled = False
        self._is_lost = bool(self._owned)
        self._request = None
        self._confirmed = {}

    def _recover(self, failed: FailedHeartbeat) -> None:
        self._confirmed = {}
        if failed.recovery is Recovery.FAIL:
            self.failure = failed.error
            self._lose_epoch()
            self.state = ConsumerProtocolState.OUT
            return
        if failed.error is not None:
            self.pending_error = failed.error
        if failed.recovery is Recovery.REJOIN:
            self._lose_epoch()
            # Partitions that are owned, or being assigned right now, have to be reported as lost first, and only a poll
            # can do that. If the member joined before, they would seem to belong to the new epoch.
            is_free = not self._owned and not self._assigning
            self.state = ConsumerProtocolState.JOINING if is_free else ConsumerProtocolState.BEGINNING

    # -- questions ---------------------------------------------------------------------------------------------

    @property
    def unresolved(self) -> frozenset[uuid.UUID]:
        """Topics of the target whose names are not known."""
        if self._unresolved is None:
            self._unresolved = frozenset(topic for topic, _ in self._target if topic not in self._names)
        return self._unresolved

    @property
    def is_member(self) -> bool:
        return self._epoch > 0

    @property
    def identity(self) -> MemberIdentity:
        if self._epoch <= 0:
            return MemberIdentity(instance_id=self._settings.instance_id)
        return MemberIdentity(self._epoch, self._member_id, self._settings.instance_id)
