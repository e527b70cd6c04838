"""A member of a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup (KIP-62 included).

    state       what happens                                       who moves it on
    OUT         nothing is subscribed                              subscribe
    BEGINNING   a rebalance has to begin                           a poll: what must be given up is, then JOINING
    JOINING     JoinGroup is out, or waits for its next try        the answer: leader ASSIGNING, else SYNCING
    ASSIGNING   the leader shares the partitions out               `assigned`: SYNCING
    SYNCING     SyncGroup is out                                   the answer: TAKING
    TAKING      the new assignment is known                        a poll: what is gone is revoked, the rest taken
    STABLE      at rest                                            a wish to join again, in a poll: BEGINNING

- An eager member gives everything up before it joins; a cooperative one only what it no longer subscribes, and
  what the answer takes away. If that was anything it joins again at once, so that others can have it.
- Heartbeats go out from the answer to JoinGroup until the next JoinGroup, in whichever state. One that says
  REBALANCE_IN_PROGRESS makes the next poll begin; heartbeats go on until then.
- A generation that is lost (fenced, unknown member, too long without a poll) takes all partitions with it: they may
  be read by others already. The next poll reports them as lost and joins anew.
- When the right to the group is missing, the generation is lost as well, and the member joins again and again until
  somebody has granted it.
- An answer counts only if it answers the newest request of its kind; one to a request sent under an older
  generation may be about a rebalance that is over.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from ..errors import AuthorizationError, HeadraceError, KafkaError, ProtocolError
from ..protocol.codes import NONE, kafka_error, legible
from ..protocol.group_data import MemberSubscription, read_assignment
from ..protocol.messages import JOIN_GROUP
from .assignors import Assignor, is_cooperative
from .backoff import REFUSAL, Backoff
from .classic_requests import heartbeat_request, join_request, leave_request, sync_request, who, with_user_data
from .leading import members_in
from .membership import (
    Action,
    Assign,
    Duty,
    GroupSettings,
    Identity,
    Lose,
    Partitions,
    PollClock,
    Revoke,
    Send,
    Subscription,
    Take,
)

_TRY_AGAIN = {
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.rebalance_in_progress,
}


class State(enum.Enum):
    OUT = "out"
    BEGINNING = "beginning"
    JOINING = "joining"
    ASSIGNING = "assigning"
    SYNCING = "syncing"
    TAKING = "taking"
    STABLE = "stable"


_HEARTBEATING = {State.BEGINNING, State.ASSIGNING, State.SYNCING, State.TAKING, State.STABLE}


class ClassicMember:
    """The machine above. `dice` gives numbers from 0 to 1, for the jitter of pauses."""

    def __init__(
        self,
        settings: GroupSettings,
        assignors: Sequence[Assignor],
        backoff: Backoff,
        dice: Callable[[], float],
    ) -> None:
        self.state = State.OUT
        self.owned: Partitions = frozenset()
        self.failure: HeadraceError | None = None
        self.complaint: HeadraceError | None = None
        self.subscription = Subscription()
        self.group_topics: frozenset[str] = frozenset()
        """The topics of all members, if this one leads: their partitions have to be watched."""
        self.is_expired = False
        self._settings = settings
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._cooperative = is_cooperative(assignors)
        self._backoff = backoff
        self._dice = dice
        self._clock = PollClock(settings.longest_absence)

        self._member_id = ""
        self._generation = -1
        self._strategy = ""
        self._assignments: Mapping[str, bytes] = {}
        self._target: Partitions = frozenset()
        self._previous: tuple[Partitions, int] = (frozenset(), -1)
        self._layout: Mapping[str, int] | None = None  # the partition counts that this leader's assignment is for
        self._latest_layout: Mapping[str, int] | None = None  # came while the assignor was at work
        self._is_lost = False  # what is owned was the lost generation's
        self._given_at = 0.0  # when the newest assignment came
        self._at_rest = 0.0  # the group last said then that it is
        self._rebalance_at: float | None = None  # when it began, at the earliest, if the group has said so
        self._wish: str | None = None  # why to join again ...
        self._reason = ""  # ... and what JoinGroup says of it

        self._request: Action | None = None  # of the rebalance: JoinGroup, the assignment or SyncGroup
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
        if self.state is State.OUT:
            self.state = State.BEGINNING

    def rejoin(self, reason: str) -> None:
        self._wish = reason

    def poll_begins(self) -> None:
        self._clock.begins()
        self.is_expired = False

    def poll_ends(self, now: float) -> None:
        self._clock.ends(now)

    def duty(self, held: Partitions = frozenset()) -> Duty | None:
        """What the poll has to do now. It is asked again after `done`. The revoke of what is `held` is put off
        (KIP-983): it is not asked for, and what has to wait for it waits."""
        if self._is_lost and self.owned:
            return Lose(self.owned)
        if self.state is State.STABLE and self._wish is not None:
            self.state = State.BEGINNING
        if self.state is State.BEGINNING and not self._outdated():
            self._join()
        if to_revoke := self.unwanted - held:
            return Revoke(to_revoke)
        if self.state is State.TAKING:
            kept = self.owned & held
            return Take(self._target | kept if kept else self._target, self._target - self.owned)
        return None

    @property
    def unwanted(self) -> Partitions:
        """What has to be given up: before joining, or because the last assignment does not have it."""
        if self._is_lost:
            return frozenset()
        # Every poll asks: at rest it must not cost a look at every partition.
        gone: Partitions = frozenset() if self.owned is self._target else self.owned - self._target
        return gone | self._outdated() if self.state is State.BEGINNING else gone

    def _outdated(self) -> Partitions:
        """What has to be given up before joining."""
        if not self._cooperative:
            return self.owned
        return frozenset(tp for tp in self.owned if tp.topic not in self.subscription.topics)

    def done(self, duty: Duty) -> None:
        if isinstance(duty, Lose):
            self.owned -= duty.partitions
            self._is_lost = False
        elif isinstance(duty, Revoke):
            self.owned -= duty.partitions
            # A generation lost while the listener ran takes only what is left: nothing may stay marked as lost that
            # a later generation gives.
            self._is_lost = self._is_lost and bool(self.owned)
            if self._cooperative and self.state is not State.BEGINNING:
                self._wish = self._wish or "partitions were revoked, for others to have them"
        else:
            self.owned = duty.partitions
            if self.state is State.TAKING:
                self.state = State.STABLE
            else:
                self._is_lost = bool(self.owned)  # a heartbeat lost the generation while the listener ran

    def parting(self) -> Duty | None:
        """What has to be done before `leave`."""
        if not self.owned:
            return None
        return Lose(self.owned) if self._is_lost else Revoke(self.owned)

    def leave(self, reason: str) -> Send | None:
        """Out of the group. Static members send nothing: they may come back within the session timeout."""
        farewell = self._farewell(reason)
        self._forget_generation(keep_id=False)
        self.state = State.OUT
        self.subscription = Subscription()
        self._previous = (frozenset(), -1)
        self._wish = None
        self._is_lost = False
        self.owned = frozenset()
        return farewell

    def not_left(self, farewell: Send) -> None:
        """The coordinator did not allow it: a new id would have to wait until the session of this one ends."""
        self._member_id = self._member_id or farewell.fields["members"][0]["member_id"]

    def _farewell(self, reason: str) -> Send | None:
        if not self._member_id or self._settings.instance_id is not None:
            return None
        return leave_request(self._settings, self._member_id, reason)

    # -- the clock ---------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        """What is to be sent now."""
        if now >= self._clock.deadline and self.state is not State.OUT and not self.is_expired:
            self._expire()
        actions, self._outbox = self._outbox, []
        if self._request is None and now >= self._not_before:
            if self.state is State.JOINING:
                try:
                    self._request = self._join_request()
                except HeadraceError as error:
                    self._fail(error)
            elif self.state is State.SYNCING:
                self._request = sync_request(self._settings, self._seat, self._strategy, self._assignments)
            if self._request is not None:
                actions.append(self._request)
        if self._heartbeat is None and self._is_heartbeating and now >= self._next_heartbeat:
            self._heartbeat = heartbeat_request(self._settings, self._seat)
            actions.append(self._heartbeat)
        return actions

    def next_tick(self) -> float:
        times = [math.inf if self.state is State.OUT or self.is_expired else self._clock.deadline]
        if self._outbox:
            times.append(0.0)
        if self._request is None and self.state in (State.JOINING, State.SYNCING):
            times.append(self._not_before)
        if self._heartbeat is None and self._is_heartbeating:
            times.append(self._next_heartbeat)
        return min(times)

    @property
    def _is_heartbeating(self) -> bool:
        return self.state in _HEARTBEATING and self._generation >= 0

    def _expire(self) -> None:
        """The user has not polled for too long: others shall have the partitions (KIP-62)."""
        self.is_expired = True
        farewell = self._farewell("poll() was not called within max.poll.interval.ms")
        if farewell is not None:
            self._outbox.append(farewell)
        self._lose_generation(keep_id=False)
        self.state = State.BEGINNING

    # -- requests ----------------------------------------------------------------------------------------------

    def _join(self) -> None:
        self.state = State.JOINING
        self._rebalance_at = None
        self._request = None
        self._heartbeat = None

    def _join_request(self) -> Send:
        if self._wish is not None:  # kept for further tries: the broker logs that of the last one
            self._reason, self._wish = self._wish, None
        now = MemberSubscription(self.subscription.topics, self.owned, self._generation, self._settings.rack)
        subscriptions = with_user_data(now, self._assignors, *self._previous)
        return join_request(self._settings, self._member_id, subscriptions, self._reason)

    @property
    def _seat(self) -> Identity:
        return Identity(self._generation, self._member_id, self._settings.instance_id)

    # -- answers -----------------------------------------------------------------------------------------------

    def answered(self, action: Send, body: Any, now: float) -> None:
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
            # Nobody waits for it any more, but the coordinator has noted the id, and a rebalance would wait for it
            # until its session times out.
            self._outbox.append(leave_request(self._settings, body.member_id, "the join was given up"))

    def failed(self, action: Action, error: HeadraceError, now: float) -> None:
        """No answer came, or (for Assign) the assignor raised."""
        if action is self._heartbeat:
            self._heartbeat = None
            self._next_heartbeat = now + self._pause()
        elif action is self._request:
            self._request = None
            if isinstance(action, Assign):
                self.complaint = error
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
        elif code in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self._lose_generation(keep_id=code == ErrorCode.illegal_generation)
            self._rejoin_after_pause(now)
        elif code in _TRY_AGAIN:
            self._rejoin_after_pause(now)
        else:
            self._refuse(kafka_error(code, f"JoinGroup of group {self._settings.group_id}"), now)

    def _joined(self, body: Any, now: float) -> None:
        self._failures = 0
        self._reason = ""
        if self.owned and self._settings.instance_id is not None and body.generation_id > self._generation + 1:
            # A generation has passed without this member. Another one would have been thrown out; the place of a
            # static one is kept, but the leader knew only what it owned when it joined last, and may have given the
            # rest to others.
            self._lose_generation(keep_id=True)
            self.state = State.BEGINNING
            return
        self._member_id = body.member_id
        self._generation = body.generation_id
        self._strategy = body.protocol_name or ""
        self._assignments = {}
        self._layout = self._latest_layout = None
        self._heartbeat = None
        self._next_heartbeat = now + self._settings.heartbeat_interval
        self.group_topics = frozenset()
        if self._strategy not in self._assignors:
            strategy = legible(self._strategy, 100)
            self._fail(ProtocolError(f"group {self._settings.group_id} chose the unknown strategy {strategy!r}"))
            return
        self.state = State.SYNCING
        if body.leader != self._member_id or not body.members:
            return
        members = members_in(body, self._settings.group_id)
        self.group_topics = frozenset().union(*(each.topics for each in members.values()))
        if not getattr(body, "skip_assignment", False):
            self.state = State.ASSIGNING
            self._request = Assign(self._strategy, members)
            self._outbox.append(self._request)

    def assigned(self, action: Assign, assignments: Mapping[str, bytes], layout: Mapping[str, int]) -> None:
        """The leader has shared out what these topics have."""
        if action is self._request:
            self._request = None
            self._assignments = assignments
            self._layout = {topic: count for topic, count in layout.items() if topic in self.group_topics}
            self.state = State.SYNCING
            if self._latest_layout is not None:
                self.topics_changed(self._latest_layout)

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
                # The leader has not seen this subscription: it has just changed, or a static member has come back
                # with another one, for which the coordinator makes no rebalance. Nobody reads what is left out.
                self._wish = self._wish or "the assignment is not for the current subscription"
            self._given_at = self._at_rest = now
            self.state = State.TAKING
        elif code in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self._lose_generation(keep_id=code == ErrorCode.illegal_generation)
            self._rejoin_after_pause(now)
        elif code == ErrorCode.rebalance_in_progress:
            self._join()  # the next one has begun already
        elif code in _TRY_AGAIN:
            self._rejoin_after_pause(now)
        else:
            self._refuse(kafka_error(code, f"SyncGroup of group {self._settings.group_id}"), now)

    def _heartbeat_answered(self, action: Send, code: int, now: float) -> None:
        self._next_heartbeat = now + self._settings.heartbeat_interval
        if code == NONE:
            self._failures = 0
            self._at_rest = now
        if code == NONE or action.fields != who(self._settings, self._seat):
            return
        if code == ErrorCode.rebalance_in_progress:
            if self.state in (State.TAKING, State.STABLE):
                self._wish = self._wish or "the group is rebalancing"
                if self._rebalance_at is None:
                    # It began after the last heartbeat, and the coordinator's patience with it. One that is longer ago
                    # than that was not about this rebalance.
                    self._rebalance_at = max(self._at_rest, now - self._settings.max_poll_interval / 2)
        elif code in _TRY_AGAIN:
            self._next_heartbeat = now + self._pause()
        elif code in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self._lose_generation(keep_id=code == ErrorCode.illegal_generation)
            self.state = State.BEGINNING
        else:
            self._refuse(kafka_error(code, f"Heartbeat of group {self._settings.group_id}"), now)

    def commit_refused(self, code: int, sent: Identity) -> None:
        """The coordinator did not take a commit: what that says of the membership."""
        if sent != self.identity or self._generation < 0 or self.state is State.JOINING:
            return  # when it joins, the answer to that says more: the group may be in the next generation already
        if code == ErrorCode.rebalance_in_progress:
            if self.state is State.STABLE:
                self._wish = self._wish or "the group is rebalancing"
        elif code in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self._lose_generation(keep_id=code == ErrorCode.illegal_generation)
            self.state = State.BEGINNING
        elif code == ErrorCode.fenced_instance_id:
            self._fail(kafka_error(code, f"OffsetCommit of group {self._settings.group_id}"))

    def topics_changed(self, layout: Mapping[str, int]) -> None:
        """How many partitions the group's topics have now. The leader starts a rebalance when that changes."""
        now = {topic: count for topic, count in layout.items() if topic in self.group_topics}
        if self.state is State.ASSIGNING:
            self._latest_layout = layout  # perhaps not what the assignor was given: `assigned` compares
        elif self._layout is None:
            if self.group_topics and self.state in (State.TAKING, State.STABLE):
                self._layout = now  # a static leader that came back: the assignment is not of its making
        elif now != self._layout:
            self._layout = now
            self.rejoin("the topics have changed")

    # -- what follows from them ----------------------------------------------------------------------------------

    def _rejoin_after_pause(self, now: float) -> None:
        self._not_before = now + self._pause()
        # What was lost has to be reported first, and only a poll can do that.
        self.state = State.BEGINNING if self._is_lost and self.owned else State.JOINING

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
        self._layout = None
        self.group_topics = frozenset()

    def _refuse(self, error: HeadraceError, now: float) -> None:
        """A right may be granted at any time, so the member joins again and again. Until then nothing can be committed,
        and others may be given its partitions. It keeps its id: a new one would have to wait until the coordinator
        gives the old one up."""
        if not isinstance(error, AuthorizationError):
            self._fail(error)
            return
        self.complaint = error
        self._lose_generation(keep_id=True)
        self._rejoin_after_pause(now)
        self._not_before = now + REFUSAL.seconds(self._failures, self._dice())

    def _fail(self, error: HeadraceError) -> None:
        self.failure = error
        if not isinstance(error, KafkaError) and (farewell := self._farewell(str(error))) is not None:
            self._outbox.append(farewell)  # the coordinator does not know of it
        self._lose_generation(keep_id=False)
        self.state = State.OUT

    # -- questions ---------------------------------------------------------------------------------------------

    @property
    def asked_at(self) -> float | None:
        """When the group asked for what is `unwanted`. None if it did not: the rebalance is this member's wish."""
        return self._given_at if self.state is State.TAKING else self._rebalance_at

    @property
    def identity(self) -> Identity:
        if self._generation < 0:
            return Identity(instance_id=self._settings.instance_id)
        return self._seat
