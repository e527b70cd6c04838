"""A member of a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup (KIP-62 included).

    state       what happens                                       next
    OUT         nothing is subscribed                              subscribe: BEGINNING
    BEGINNING   a rebalance has to start                           a poll revokes what it must: JOINING
    JOINING     JoinGroup is sent, or waits for its retry          the answer: ASSIGNING for the leader, else SYNCING
    ASSIGNING   the leader computes the assignment                 `assigned`: SYNCING
    SYNCING     SyncGroup is sent                                  the answer: TAKING
    TAKING      the new assignment is known                        a poll revokes and assigns partitions: STABLE
    STABLE      no rebalance                                       a reason to rejoin, seen by a poll: BEGINNING

- An eager member revokes everything before it joins. A cooperative member revokes only what it no longer subscribes
  to, and what the new assignment lacks; after such a revoke it rejoins at once, so that others get those partitions.
- Heartbeats are sent from the answer to JoinGroup until the next JoinGroup, in every state. An answer with
  REBALANCE_IN_PROGRESS makes the next poll start a rebalance; heartbeats continue until then.
- A lost generation (fenced, unknown member, too long without a poll) takes all partitions with it: others may consume
  them already. The next poll reports them as lost and joins anew.
- When the right to the group is missing, the generation is lost as well, and the member rejoins until it is granted.
- An answer counts only if it belongs to the newest request of its kind. An answer to a request of an older generation
  may concern a rebalance that is over.
"""

from __future__ import annotations

import enum
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from ..._protocol.codes import NONE, kafka_error, printable
from ..._protocol.group_data import MemberSubscription, read_assignment
from ..._protocol.messages import HEARTBEAT, JOIN_GROUP
from ...errors import AuthorizationError, HeadraceError, KafkaError, ProtocolError
from ..backoff import REFUSAL, Backoff
from . import classic_requests as requests
from .actions import (
    Action,
    AssignPartitions,
    ComputeAssignment,
    GroupSettings,
    Lose,
    MemberIdentity,
    Partitions,
    PollAction,
    Revoke,
    Send,
    Subscription,
)
from .assignors import Assignor, is_cooperative
from .leader import LeaderTopics, members_in
from .neighbours import heartbeat_after_hint
from .poll_clock import PollClock

_TOPICS_CHANGED = "the topics have changed"
_REBALANCING = "the group is rebalancing"


class ClassicState(enum.Enum):
    OUT = "out"
    BEGINNING = "beginning"
    JOINING = "joining"
    ASSIGNING = "assigning"
    SYNCING = "syncing"
    TAKING = "taking"
    STABLE = "stable"


_HEARTBEATING = frozenset(ClassicState) - {ClassicState.OUT, ClassicState.JOINING}


class ClassicMember:
    """The machine above. `dice` returns numbers from 0 to 1, for the jitter of backoffs."""

    def __init__(
        self, settings: GroupSettings, assignors: Sequence[Assignor], backoff: Backoff, dice: Callable[[], float]
    ) -> None:
        self.state = ClassicState.OUT
        self.owned: Partitions = frozenset()  # by the user
        self.failure: HeadraceError | None = None  # it ended the membership; polls raise it until `subscribe`
        self.pending_error: HeadraceError | None = None  # for the next poll; the membership continues
        self.subscription = Subscription()
        self.is_expired = False
        self._settings = settings
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._cooperative = is_cooperative(assignors)
        self._backoff = backoff
        self._dice = dice
        self._clock = PollClock(settings.longest_absence)
        self.last_identity = MemberIdentity(instance_id=settings.instance_id)  # also after the membership ended
        self._member_id, self._generation = "", -1
        self._strategy = ""
        self._assignments: Mapping[str, bytes] = {}
        self._target: Partitions = frozenset()
        self._previous: tuple[Partitions, int] = (frozenset(), -1)
        self._leader_topics = LeaderTopics()
        self._is_lost = False  # the owned partitions belong to a lost generation
        self._assigned_at = 0.0  # when the newest assignment arrived
        self._stable_at = 0.0  # when the coordinator last said so
        self._rebalance_since: float | None = None  # the earliest time that it can have started, if there is one
        self._rejoin_reason: str | None = None  # not sent yet
        self._join_reason = ""  # of the JoinGroup that is sent, and of its retries
        self._request: Action | None = None  # JoinGroup, the assignment or SyncGroup
        self._failures = 0
        self._not_before = 0.0
        self._heartbeat: Send | None = None
        self._next_heartbeat = math.inf
        self._outbox: list[Action] = []

    # -- the user ----------------------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        self.failure = None
        if subscription != self.subscription:
            self.subscription = subscription
            self.rejoin("the subscription has changed")
        if self.state is ClassicState.OUT:
            self.state = ClassicState.BEGINNING

    def rejoin(self, reason: str) -> None:
        self._rejoin_reason = reason

    def hint(self, now: float) -> None:
        """Another member of this process has seen that the group changes."""
        if self._failures == 0:
            self._next_heartbeat = heartbeat_after_hint(self._next_heartbeat, self._settings.heartbeat_interval, now)

    def poll_begins(self) -> None:
        self._clock.begins()
        self.is_expired = False

    def poll_ends(self, now: float) -> None:
        self._clock.ends(now)

    def poll_action(self, deferred: Partitions = frozenset()) -> PollAction | None:
        """What the poll has to do now; to be asked again after `done`. Revokes of `deferred` partitions (KIP-983) are
        not returned, and steps that depend on them wait."""
        if self._is_lost and self.owned:
            return Lose(self.owned)
        if self.state is ClassicState.STABLE and self._rejoin_reason is not None:
            self.state = ClassicState.BEGINNING
        if self.state is ClassicState.BEGINNING and not self._to_revoke_before_join():
            self._join()
        if due := self.to_revoke - deferred:
            return Revoke(due)
        if self.state is ClassicState.TAKING:
            kept = self.owned & deferred
            return AssignPartitions(self._target | kept if kept else self._target, self._target - self.owned)
        return None

    @property
    def to_revoke(self) -> Partitions:
        """What has to be revoked: before joining, or because the last assignment lacks it."""
        if self._is_lost:
            return frozenset()
        # Every poll asks: without a rebalance it must not look at every partition.
        gone: Partitions = frozenset() if self.owned is self._target else self.owned - self._target
        return gone | self._to_revoke_before_join() if self.state is ClassicState.BEGINNING else gone

    def _to_revoke_before_join(self) -> Partitions:
        if not self._cooperative:
            return self.owned
        return frozenset(tp for tp in self.owned if tp.topic not in self.subscription.topics)

    def done(self, poll_action: PollAction) -> None:
        if isinstance(poll_action, Lose):
            self.owned -= poll_action.partitions
            self._is_lost = False
        elif isinstance(poll_action, Revoke):
            self.owned -= poll_action.partitions
            # If the generation was lost while the listener ran, only the remaining partitions are lost: the mark must
            # not stay for partitions that a later generation assigns.
            self._is_lost = self._is_lost and bool(self.owned)
            if self._cooperative and self.state is not ClassicState.BEGINNING:
                self._rejoin_reason = self._rejoin_reason or "partitions were revoked for other members"
        else:
            self.owned = poll_action.partitions
            if self.state is ClassicState.TAKING:
                self.state = ClassicState.STABLE
            else:
                self._is_lost = bool(self.owned)  # the generation was lost while the listener ran

    def final_revoke(self) -> PollAction | None:
        if not self.owned:
            return None
        return Lose(self.owned) if self._is_lost else Revoke(self.owned)

    def leave(self, reason: str) -> Send | None:
        """Leaves the group. Static members send nothing: they may rejoin within the session timeout."""
        leave_request = self._leave_request(reason)
        self._forget_generation(keep_id=False)
        self.state = ClassicState.OUT
        self.subscription = Subscription()
        self._previous = (frozenset(), -1)
        self._rejoin_reason = None
        self._is_lost = False
        self.owned = frozenset()
        return leave_request

    def keep_member_id(self, leave_request: Send) -> None:
        """The coordinator denied the leave request. With a new id, the member would have to wait until the session of
        this one expires."""
        self._member_id = self._member_id or leave_request.fields["members"][0]["member_id"]

    def _leave_request(self, reason: str) -> Send | None:
        if not self._member_id or self._settings.instance_id is not None:
            return None
        return requests.leave(self._settings, self._member_id, reason)

    # -- the clock ---------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        if now >= self.poll_deadline:
            self._expire()
        actions, self._outbox = self._outbox, []
        if self._request is None and now >= self._not_before:
            if self.state is ClassicState.JOINING:
                try:
                    self._request = self._join_request()
                except HeadraceError as error:
                    self._fail(error)
            elif self.state is ClassicState.SYNCING:
                self._request = requests.sync(self._settings, self._own_identity, self._strategy, self._assignments)
            if self._request is not None:
                actions.append(self._request)
        if self._heartbeat is None and self._is_heartbeating and now >= self._next_heartbeat:
            self._heartbeat = requests.heartbeat(self._settings, self._own_identity)
            actions.append(self._heartbeat)
        return actions

    def next_tick(self) -> float:
        times = [self.poll_deadline]
        if self._outbox:
            times.append(0.0)
        if self._request is None and self.state in (ClassicState.JOINING, ClassicState.SYNCING):
            times.append(self._not_before)
        if self._heartbeat is None and self._is_heartbeating:
            times.append(self._next_heartbeat)
        return min(times)

    @property
    def poll_deadline(self) -> float:
        return math.inf if self.state is ClassicState.OUT or self.is_expired else self._clock.deadline

    @property
    def _is_heartbeating(self) -> bool:
        return self.state in _HEARTBEATING and self.is_member

    def _expire(self) -> None:
        """poll() was not called for max.poll.interval.ms: leaves, so that other members get the partitions (KIP-62)."""
        self.is_expired = True
        if (leave_request := self._leave_request("poll() was not called within max.poll.interval.ms")) is not None:
            self._outbox.append(leave_request)
        self._lose_generation(keep_id=False)
        self.state = ClassicState.BEGINNING

    # -- requests ----------------------------------------------------------------------------------------------

    def _join(self) -> None:
        self.state = ClassicState.JOINING
        self._rebalance_since = None
        self._request = None
        self._heartbeat = None

    def _join_request(self) -> Send:
        if self._rejoin_reason is not None:  # kept for retries: the broker logs the reason of the last one
            self._join_reason, self._rejoin_reason = self._rejoin_reason, None
        now = MemberSubscription(self.subscription.topics, self.owned, self._generation, self._settings.rack)
        subscriptions = requests.with_user_data(now, self._assignors, *self._previous)
        return requests.join(self._settings, self._member_id, subscriptions, self._join_reason)

    @property
    def _own_identity(self) -> MemberIdentity:
        return MemberIdentity(self._generation, self._member_id, self._settings.instance_id)

    # -- answers -----------------------------------------------------------------------------------------------

    def answered(self, action: Send, body: Any, now: float) -> bool:
        """Returns whether polls have to look: not for a heartbeat that changed nothing, as most do."""
        before = self.state
        if action is self._heartbeat:
            self._heartbeat = None
            self._heartbeat_answered(action, body.error_code, now)
        elif action is self._request:
            self._request = None
            if action.api is JOIN_GROUP:
                self._join_answered(body, now)
            else:
                self._sync_answered(body, now)
        elif action.api is JOIN_GROUP and body.error_code == ErrorCode.member_id_required:
            # Nobody waits for this answer, but a rebalance would wait for its id until the id's session expires.
            self._outbox.append(requests.leave(self._settings, body.member_id, "the join was abandoned"))
        return self.state is not before or action.api is not HEARTBEAT or body.error_code != NONE

    def failed(self, action: Action, error: HeadraceError, now: float) -> None:
        """No answer came, or (for ComputeAssignment) the assignor raised."""
        if action is self._heartbeat:
            self._heartbeat = None
            self._next_heartbeat = now + self._pause()
        elif action is self._request:
            self._request = None
            if isinstance(action, ComputeAssignment):
                self.pending_error = error
            elif not error.retriable:
                self._refuse(error, now)
                return
            self._rejoin_after_pause(now)

    def _join_answered(self, body: Any, now: float) -> None:
        code = body.error_code
        if code == NONE:
            self._joined(body, now)
        elif code == ErrorCode.member_id_required:
            self._member_id = body.member_id
        else:
            self._rebalance_failed(code, "JoinGroup", now)

    def _joined(self, body: Any, now: float) -> None:
        self._failures = 0
        self._join_reason = ""
        if self.owned and self._settings.instance_id is not None and body.generation_id > self._generation + 1:
            # A generation has passed without this static member (dynamic ones are removed then). The leader knew only
            # what it owned when it joined last, and may have assigned the rest to others.
            self._lose_generation(keep_id=True)
            self.state = ClassicState.BEGINNING
            return
        self._member_id = body.member_id
        self._generation = body.generation_id
        self.last_identity = self._own_identity
        self._strategy = body.protocol_name or ""
        self._assignments = {}
        self._leader_topics = LeaderTopics()
        self._heartbeat = None
        self._next_heartbeat = now + self._settings.heartbeat_interval
        if self._strategy not in self._assignors:
            strategy = printable(self._strategy, 100)
            self._fail(ProtocolError(f"group {self._settings.group_id} chose the unknown assignor {strategy!r}"))
            return
        self.state = ClassicState.SYNCING
        if body.leader != self._member_id or not body.members:
            return
        members = members_in(body, self._settings.group_id)
        self._leader_topics = LeaderTopics.of(members)
        if not getattr(body, "skip_assignment", False):
            self.state = ClassicState.ASSIGNING
            self._request = ComputeAssignment(self._strategy, members)
            self._outbox.append(self._request)

    def assigned(self, action: ComputeAssignment, assignments: Mapping[str, bytes], counts: Mapping[str, int]) -> None:
        """The leader has computed the assignment, for topics with these partition counts."""
        if action is self._request:
            self._request = None
            self._assignments = assignments
            self.state = ClassicState.SYNCING
            if self._leader_topics.assign(counts):
                self.rejoin(_TOPICS_CHANGED)

    def _sync_answered(self, body: Any, now: float) -> None:
        code = body.error_code
        if code == NONE:
            try:
                assigned, _ = read_assignment(body.assignment)
            except ProtocolError as error:
                self._fail(error)
                return
            self._failures = 0
            self._previous = (assigned, self._generation)
            self._target = frozenset(tp for tp in assigned if tp.topic in self.subscription.topics)
            if self._target != assigned:
                # The leader has not seen this subscription: it has just changed, or a static member has restarted with
                # another one, for which the coordinator starts no rebalance. Nobody consumes the partitions that are
                # left out.
                self._rejoin_reason = self._rejoin_reason or "the assignment is not for the current subscription"
            self._assigned_at = self._stable_at = now
            self.state = ClassicState.TAKING
        elif code == ErrorCode.rebalance_in_progress:
            self._join()  # the next rebalance has started already
        else:
            self._rebalance_failed(code, "SyncGroup", now)

    def _rebalance_failed(self, code: int, api: str, now: float) -> None:
        if code in requests.FENCED:
            self._lose_generation(keep_id=code == ErrorCode.illegal_generation)
            self._rejoin_after_pause(now)
        elif code in requests.RETRIED:
            self._rejoin_after_pause(now)
        else:
            self._refuse(kafka_error(code, f"{api} of group {self._settings.group_id}"), now)

    def _heartbeat_answered(self, action: Send, code: int, now: float) -> None:
        self._next_heartbeat = now + self._settings.heartbeat_interval
        if code == NONE:
            self._failures = 0
            self._stable_at = now
        if code == NONE or action.fields != requests.identity_fields(self._settings, self._own_identity):
            return
        if code == ErrorCode.rebalance_in_progress:
            if self.state in (ClassicState.TAKING, ClassicState.STABLE):
                self._rejoin_reason = self._rejoin_reason or _REBALANCING
                if self._rebalance_since is None:
                    # The rebalance, and with it the coordinator's timeout, started after the last heartbeat. If that
                    # was long ago, it is no evidence: this rebalance is at most half a timeout old.
                    self._rebalance_since = max(self._stable_at, now - self._settings.max_poll_interval / 2)
        elif code in requests.RETRIED:
            self._next_heartbeat = now + self._pause()
        elif code in requests.FENCED:
            self._lose_generation(keep_id=code == ErrorCode.illegal_generation)
            self.state = ClassicState.BEGINNING
        else:
            self._refuse(kafka_error(code, f"Heartbeat of group {self._settings.group_id}"), now)

    def commit_refused(self, code: int, sent: MemberIdentity) -> None:
        """The coordinator rejected a commit: it may have fenced this member."""
        if sent != self.identity or self._generation < 0 or self.state is ClassicState.JOINING:
            return  # the answer to JoinGroup says more: the group may be in the next generation already
        if code == ErrorCode.rebalance_in_progress:
            if self.state is ClassicState.STABLE:
                self._rejoin_reason = self._rejoin_reason or _REBALANCING
        elif code in requests.FENCED:
            self._lose_generation(keep_id=code == ErrorCode.illegal_generation)
            self.state = ClassicState.BEGINNING
        elif code == ErrorCode.fenced_instance_id:
            self._fail(kafka_error(code, f"OffsetCommit of group {self._settings.group_id}"))

    def update_partition_counts(self, counts: Mapping[str, int]) -> None:
        """The partition counts of the group's topics. The leader starts a rebalance when they change."""
        if self.state is ClassicState.ASSIGNING:
            self._leader_topics.latest = counts  # perhaps not what the assignor got: `assigned` compares
        elif self._leader_topics.update(counts, is_assigned=self.state in (ClassicState.TAKING, ClassicState.STABLE)):
            self.rejoin(_TOPICS_CHANGED)

    # -- what follows from them ----------------------------------------------------------------------------------

    def _rejoin_after_pause(self, now: float) -> None:
        self._not_before = now + self._pause()
        # Lost partitions have to be reported first, and only a poll can do that.
        self.state = ClassicState.BEGINNING if self._is_lost and self.owned else ClassicState.JOINING

    def _pause(self) -> float:
        self._failures += 1
        return self._backoff.seconds(self._failures, self._dice())

    def _lose_generation(self, keep_id: bool) -> None:
        self._forget_generation(keep_id)
        self._is_lost = bool(self.owned)

    def _forget_generation(self, keep_id: bool) -> None:
        self._generation = -1
        if not keep_id:
            self._member_id = ""
        self._request = None
        self._heartbeat = None
        self._leader_topics = LeaderTopics()

    def _refuse(self, error: HeadraceError, now: float) -> None:
        """A missing right may be granted at any time, so the member keeps rejoining. Until then it cannot commit, and
        others may get its partitions. It keeps its id: with a new one, it would have to wait until the session of the
        old one expires."""
        if not isinstance(error, AuthorizationError):
            self._fail(error)
            return
        self.pending_error = error
        self._lose_generation(keep_id=True)
        self._rejoin_after_pause(now)
        self._not_before = now + REFUSAL.seconds(self._failures, self._dice())

    def _fail(self, error: HeadraceError) -> None:
        self.failure = error
        if not isinstance(error, KafkaError) and (leave_request := self._leave_request(str(error))) is not None:
            self._outbox.append(leave_request)  # the coordinator does not know of this error
        self._lose_generation(keep_id=False)
        self.state = ClassicState.OUT

    # -- questions ---------------------------------------------------------------------------------------------

    @property
    def revoke_requested_at(self) -> float | None:
        """When the group asked for the partitions in `to_revoke`. None if it did not: this member wants to rejoin."""
        return self._assigned_at if self.state is ClassicState.TAKING else self._rebalance_since

    @property
    def group_topics(self) -> frozenset[str]:
        """The topics of all members, if this one is the leader. It has to know their partition counts."""
        return self._leader_topics.names

    @property
    def unresolved(self) -> frozenset[uuid.UUID]:
        """None: a classic assignment has topic names."""
        return frozenset()

    @property
    def is_member(self) -> bool:
        return self._generation >= 0

    @property
    def identity(self) -> MemberIdentity:
        return self._own_identity if self.is_member else MemberIdentity(instance_id=self._settings.instance_id)
