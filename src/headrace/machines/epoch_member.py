"""A member of a KIP-848 group: one request, ConsumerGroupHeartbeat, and the coordinator decides.

    state       what happens                                             who moves it on
    OUT         nothing is subscribed                                    subscribe
    BEGINNING   to join: what was lost has to be reported first          a poll: JOINING
    JOINING     the heartbeat with epoch 0 is out, or waits              the answer: MEMBER
    MEMBER      heartbeats; partitions follow the target                 a fence: BEGINNING

- The target comes with an answer, by topic id. Polls work towards it: first what is gone is revoked, then what is
  new and has a known name is taken. Each step is told to the coordinator at once, by a heartbeat with the list of
  what is owned: until then it gives nothing of it to others, and after the rebalance timeout it throws out a member
  that owes it that.
- A heartbeat says only what has changed since the last one that was answered. After an error nobody knows what the
  coordinator has heard, so it says everything.
- Fenced, unknown or too long without a poll: everything is lost, the epoch is 0 again, the member id stays. The same
  when the right to the group is missing; it then joins again and again, until somebody has granted it.
- What is owned goes by topic id: a topic made again under its old name is another one, and its partitions are
  revoked and taken anew.
"""

from __future__ import annotations

import enum
import math
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from ..errors import AuthorizationError, HeadraceError, UnsupportedVersionError
from ..protocol.codes import NONE, kafka_error
from ..protocol.messages import CONSUMER_GROUP_HEARTBEAT
from ..types import TopicPartition
from .backoff import Backoff
from .heartbeats import HeartbeatTimes
from .membership import (
    Action,
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

_JOIN = 0
_LEAVE = -1
_LEAVE_FOR_A_WHILE = -2

_MOVED = {ErrorCode.coordinator_not_available, ErrorCode.not_coordinator}
_FENCED = {ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id}

_Slot = tuple[uuid.UUID, int]  # a partition by its topic's id


class State(enum.Enum):
    OUT = "out"
    BEGINNING = "beginning"
    JOINING = "joining"
    MEMBER = "member"


class _Release(enum.Enum):
    """Of a static member's place that the coordinator says is taken: perhaps by this member itself."""

    NOT_TRIED = "not tried"
    NEEDED = "needed"
    TRIED = "tried"


class EpochMember:
    """The machine above. `member_id` is made by the client and kept; `dice` gives numbers from 0 to 1."""

    def __init__(self, settings: GroupSettings, member_id: str, backoff: Backoff, dice: Callable[[], float]) -> None:
        self.state = State.OUT
        self.failure: HeadraceError | None = None
        self.complaint: HeadraceError | None = None
        self.subscription = Subscription()
        self.is_expired = False
        self.asked_at: float | None = None
        """When the group asked for partitions."""
        self._settings = settings
        self._member_id = member_id
        self._clock = PollClock(settings.longest_absence)

        self._epoch = _JOIN
        self._owned: dict[TopicPartition, uuid.UUID] = {}
        self._target: frozenset[_Slot] = frozenset()
        self._names: Mapping[uuid.UUID, str] = {}
        self._denied: frozenset[str] = frozenset()
        self._unresolved: frozenset[uuid.UUID] | None = None
        self._is_lost = False
        self._is_settled = False  # polls have nothing to do: spares them a look at every partition
        self._offered: dict[TopicPartition, uuid.UUID] = {}  # what a poll is about to take

        self._request: Send | None = None
        self._to_say: dict[str, Any] | None = None  # what `_everything` found, until something of it changes
        self._said: dict[str, Any] = {}
        self._heard: dict[str, Any] = {}  # what the coordinator knows of this member
        # Whether the coordinator may know a pattern of this member: from a request that was not answered, or from
        # whoever had a static member's place before, for it inherits that.
        self._may_have_pattern = settings.instance_id is not None
        self._release = _Release.NOT_TRIED
        self._times = HeartbeatTimes(settings.heartbeat_interval, backoff, dice)
        self._outbox: list[Action] = []

    @property
    def owned(self) -> Partitions:
        return frozenset(self._owned)

    # -- the user ----------------------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        self.failure = None
        self.subscription = subscription
        self._to_say = None
        if self.state is State.OUT:
            self.state = State.BEGINNING

    def rejoin(self, reason: str) -> None:
        """The coordinator alone decides when to rebalance."""

    def poll_begins(self) -> None:
        self._clock.begins()
        self.is_expired = False

    def poll_ends(self, now: float) -> None:
        self._clock.ends(now)

    def duty(self, held: Partitions = frozenset()) -> Duty | None:
        """What the poll has to do now. It is asked again after `done`. The revoke of what is `held` is put off
        (KIP-983): it is not asked for."""
        self._offer({})
        if self._is_lost and self._owned:
            return Lose(self.owned)
        if self.state is State.BEGINNING:
            self.state = State.JOINING
            self._heard = {}
        if self.state is not State.MEMBER or self._is_settled:
            return None
        unwanted = self.unwanted
        if to_revoke := unwanted - held:
            return Revoke(to_revoke)
        self._offer({tp: topic for tp, topic in self._named_target().items() if tp not in self._owned})
        if self._offered:
            added = frozenset(self._offered)
            return Take(self.owned | added, added)
        self._is_settled = not unwanted
        return None

    @property
    def unwanted(self) -> Partitions:
        """What has to be given up."""
        if self.state is not State.MEMBER or self._is_settled:
            return frozenset()
        return frozenset(tp for tp, topic in self._owned.items() if (topic, tp.partition) not in self._target)

    def _offer(self, partitions: dict[TopicPartition, uuid.UUID]) -> None:
        if partitions or self._offered:
            self._offered = partitions
            self._to_say = None

    def _named_target(self) -> dict[TopicPartition, uuid.UUID]:
        names = self._names
        return {TopicPartition(names[topic], number): topic for topic, number in self._target if topic in names}

    def done(self, duty: Duty) -> None:
        self._to_say = None
        if isinstance(duty, Take):
            # The target may have changed while the listener ran: the next duty takes care of that.
            self._owned.update((tp, self._offered[tp]) for tp in duty.added)
            self._offered = {}
            self._is_lost = self.state is not State.MEMBER
            return
        for tp in duty.partitions:
            self._owned.pop(tp, None)
        if isinstance(duty, Lose):
            self._is_lost = False

    def parting(self) -> Duty | None:
        if not self._owned:
            return None
        return Lose(self.owned) if self._is_lost else Revoke(self.owned)

    def leave(self, reason: str) -> Send | None:
        """Out of the group. A static member's place is kept for the session timeout."""
        farewell = self._farewell()
        self._lose_epoch()
        self.state = State.OUT
        self.subscription = Subscription()
        self._to_say = None
        self._owned = {}
        self._is_lost = False
        return farewell

    def _farewell(self) -> Send | None:
        if self.state not in (State.JOINING, State.MEMBER):
            return None
        fields = {
            "group_id": self._settings.group_id,
            "member_id": self._member_id,
            "member_epoch": _LEAVE if self._settings.instance_id is None else _LEAVE_FOR_A_WHILE,
            "instance_id": self._settings.instance_id,
            "rebalance_timeout": -1,
            "topic_partitions": None,
        }
        return Send(CONSUMER_GROUP_HEARTBEAT, fields, self._settings.request_timeout)

    # -- the clock ---------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        if now >= self._clock.deadline and self.state is not State.OUT and not self.is_expired:
            self._expire()
        actions, self._outbox = self._outbox, []
        if self._request is None and now >= self._due():
            self._request = self._farewell() if self._release is _Release.NEEDED else self._heartbeat()
            assert self._request is not None
            actions.append(self._request)
        return actions

    def next_tick(self) -> float:
        times = [math.inf if self.state is State.OUT or self.is_expired else self._clock.deadline]
        if self._outbox:
            times.append(0.0)
        if self._request is None:
            times.append(self._due())
        return min(times)

    def _due(self) -> float:
        if self.state is State.JOINING:
            return self._times.not_before
        if self.state is not State.MEMBER:
            return math.inf
        if self._news():
            return self._times.not_before
        return max(self._times.not_before, self._times.next)

    def _expire(self) -> None:
        """The user has not polled for too long: others shall have the partitions (KIP-62)."""
        self.is_expired = True
        farewell = self._farewell()
        if farewell is not None:
            self._outbox.append(farewell)
        self._lose_epoch()
        self.state = State.BEGINNING

    # -- the request -------------------------------------------------------------------------------------------

    def _everything(self) -> dict[str, Any]:
        if self._to_say is None:
            self._to_say = self._look_at_everything()
        return self._to_say

    def _look_at_everything(self) -> dict[str, Any]:
        # What is being taken counts: the coordinator gives to others what a list leaves out, and a listener that runs
        # for long can be overtaken by a target without it.
        owned: defaultdict[uuid.UUID, list[int]] = defaultdict(list)
        for tp, topic in (self._owned | self._offered).items():
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

    def _news(self) -> dict[str, Any]:
        """What the coordinator has not heard yet."""
        now = self._everything()
        if now is self._heard:
            return {}
        return {name: value for name, value in now.items() if name not in self._heard or self._heard[name] != value}

    def _heartbeat(self) -> Send:
        news = self._news()
        if self.subscription.server_pattern is not None:
            self._may_have_pattern = True
        elif self._may_have_pattern and "subscribed_topic_regex" in news:
            news["subscribed_topic_regex"] = ""  # null would leave it as it was
        partitions = news.get("topic_partitions")
        fields = {
            "group_id": self._settings.group_id,
            "member_id": self._member_id,
            "member_epoch": self._epoch,
            "instance_id": self._settings.instance_id,
            "rack_id": news.get("rack_id"),
            "rebalance_timeout": news.get("rebalance_timeout", -1),
            "subscribed_topic_names": news.get("subscribed_topic_names"),
            "subscribed_topic_regex": news.get("subscribed_topic_regex"),
            "server_assignor": news.get("server_assignor"),
            "topic_partitions": None
            if partitions is None
            else [{"topic_id": topic, "partitions": numbers} for topic, numbers in partitions],
        }
        self._said = self._everything()
        return Send(CONSUMER_GROUP_HEARTBEAT, fields, self._settings.request_timeout)

    # -- answers -----------------------------------------------------------------------------------------------

    def answered(self, action: Send, body: Any, now: float) -> None:
        if action is not self._request:
            return
        self._request = None
        code = body.error_code
        if self._release is _Release.NEEDED:
            self._released(code, now)
            return
        if code == NONE:
            self._accepted(body, now)
            return
        self._heard = {}
        doing = f"ConsumerGroupHeartbeat of group {self._settings.group_id}"
        if code in _FENCED:
            self._lose_epoch()
            # What is owned, or being taken right now, has to be reported as lost first, and only a poll can do that.
            # Joining before would make it look as if the new epoch had given it.
            self.state = State.BEGINNING if self._owned or self._offered else State.JOINING
            self._times.retry_at_once(now)
        elif code in _MOVED:
            self._times.retry_at_once(now)
        elif code == ErrorCode.coordinator_load_in_progress:
            self._times.retry_later(now)
        elif code == ErrorCode.unreleased_instance_id and self._release is _Release.NOT_TRIED:
            # When this member was fenced, or an answer or its farewell got lost, the place is still its own, and the
            # coordinator lets nobody in, not even itself. Giving it up with its own member id helps; if another one
            # has the place, that is refused.
            self._release = _Release.NEEDED
            self._times.retry_at_once(now)
        elif code == ErrorCode.topic_authorization_failed:
            self._times.refused(now)
            if self._times.failures > 1:  # else metadata will say which topics, and the next heartbeat leaves them out
                self.complaint = kafka_error(code, doing, body.error_message)
        elif code == ErrorCode.unsupported_version:
            self._fail(
                UnsupportedVersionError(
                    f"{doing}: this cluster does not have the consumer group protocol of KIP-848 (feature "
                    f"group.version is 0): set group.protocol=classic"
                )
            )
        else:
            self._refuse(kafka_error(code, doing, body.error_message), now)

    def _released(self, code: int, now: float) -> None:
        if code in _MOVED or code == ErrorCode.coordinator_load_in_progress:
            self._times.retry_later(now)
        else:
            self._release = _Release.TRIED

    def _accepted(self, body: Any, now: float) -> None:
        self._release = _Release.NOT_TRIED
        self._heard = self._said
        self._may_have_pattern = self._said["subscribed_topic_regex"] is not None
        self._epoch = body.member_epoch
        self.state = State.MEMBER
        if body.assignment is not None:
            self._target = frozenset(
                (topic.topic_id, number) for topic in body.assignment.topic_partitions for number in topic.partitions
            )
            self._unresolved = None
            self._is_settled = False
            self.asked_at = now
            self._times.changed()
        self._times.accepted(body.heartbeat_interval.total_seconds(), now)

    def failed(self, action: Action, error: HeadraceError, now: float) -> None:
        if action is not self._request:
            return
        self._request = None
        self._heard = {}
        if self._release is _Release.TRIED:
            self._release = _Release.NOT_TRIED  # this member may have got the place after all
        if error.retriable:
            self._times.retry_later(now)
        else:
            self._refuse(error, now)

    def commit_refused(self, code: int, sent: Identity) -> None:
        if sent == self.identity and self._epoch > 0 and code in _FENCED:
            self._lose_epoch()
            self.state = State.BEGINNING

    def names_known(self, names: Mapping[uuid.UUID, str]) -> None:
        """The names of topics, by id, as far as they are known."""
        if names != self._names:
            self._names = names
            self._unresolved = None
            self._is_settled = False

    def deny(self, topics: frozenset[str]) -> None:
        """Brokers tell this client nothing of these topics: the coordinator would refuse any heartbeat that names one
        of them, for the others as well."""
        if topics != self._denied:
            self._denied = topics
            self._to_say = None

    # -- what follows from them --------------------------------------------------------------------------------

    def _lose_epoch(self) -> None:
        self._epoch = _JOIN
        self._release = _Release.NOT_TRIED
        self._may_have_pattern = self._may_have_pattern or self._settings.instance_id is not None
        self._target = frozenset()
        self._unresolved = None
        self._times.changed()
        self._is_settled = False
        self._is_lost = bool(self._owned)
        self._request = None
        self._heard = {}

    def _refuse(self, error: HeadraceError, now: float) -> None:
        """A right may be granted at any time, so the member joins again and again. Until then nothing can be committed,
        and others may be given its partitions."""
        if not isinstance(error, AuthorizationError):
            self._fail(error)
            return
        self.complaint = error
        self._lose_epoch()
        self.state = State.BEGINNING if self._owned or self._offered else State.JOINING
        self._times.refused(now)

    def _fail(self, error: HeadraceError) -> None:
        self.failure = error
        self._lose_epoch()
        self.state = State.OUT

    # -- questions ---------------------------------------------------------------------------------------------

    @property
    def unresolved(self) -> frozenset[uuid.UUID]:
        """Topics of the target whose names are not known."""
        if self._unresolved is None:
            self._unresolved = frozenset(topic for topic, _ in self._target if topic not in self._names)
        return self._unresolved

    @property
    def identity(self) -> Identity:
        if self._epoch <= 0:
            return Identity(instance_id=self._settings.instance_id)
        return Identity(self._epoch, self._member_id, self._settings.instance_id)
