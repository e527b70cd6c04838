"""The user's side of a group membership: subscriptions, and the poll actions of a rebalance.

`reconcile`, `revoke_all` and the methods that they call are generators of steps (`steps.py`).

A listener uses the user's time: the clock of max.poll.interval.ms (KIP-62) runs meanwhile. It stops for steps in the
background, which have deadlines of their own.

The buffer's lock guards the member (a machine), as everything that several threads use. Only one poll can run at a
time, so poll actions are carried out one by one.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from typing import Any

from ..._arguments import pattern_of, topics_in
from ..._chance import chance
from ..._machines.backoff import Backoff
from ..._machines.cluster import Cluster
from ..._machines.error_pacing import RETRIED, STAYS
from ..._machines.group.actions import (
    AssignPartitions,
    GroupSettings,
    MemberIdentity,
    Partitions,
    PollAction,
    Revoke,
    Subscription,
)
from ..._machines.group.assignors import Assignor, assignors_of
from ..._machines.group.classic import ClassicMember, ClassicState
from ..._machines.group.consumer_protocol import ConsumerProtocolMember
from ..._machines.group.membership_watch import MembershipWatch
from ..._machines.group.revocation import Revocations
from ..._machines.missing_topics import Pattern, Wanted
from ...config.consumer import ConsumerConfig
from ...errors import ConfigError
from ...events import Event
from ...listener import RebalanceListener
from ...types import GroupMetadata, TopicPartition
from ..background import nobody
from ..callbacks import log_event
from ..fetch.buffer import FetchBuffer
from .member_id import new_member_id
from .steps import Background, Steps, awaited

log = logging.getLogger(__name__)


_NO_LISTENER = RebalanceListener()
AutoCommit = Callable[[Partitions], Coroutine[Any, Any, None]]


class Rebalancer:
    """Of a consumer with a group.id, whether or not it has subscribed."""

    def __init__(
        self,
        config: ConsumerConfig,
        buffer: FetchBuffer,
        auto_commit: AutoCommit,
        final_commit: AutoCommit | None,
        forget: Callable[[Partitions], None],
    ) -> None:
        assert config.group_id is not None
        self.group_id = config.group_id
        self.assignors: dict[str, Assignor] = {}
        self.wake: Callable[[], None] = nobody  # the background: set by the runtime, callable from any thread
        self.report: Callable[[Event], None] = log_event  # set by the consumer's parts, callable from any thread
        # The group waits for the rebalance timeout after its request; the revoke has to be reported before that.
        timeout = config.max_poll_interval_ms / 1000
        self._revoke_timeout = timeout - min(1.0, timeout / 10)
        self._config = config
        self._buffer = buffer
        self._auto_commit = auto_commit
        self._final_commit = final_commit
        self._forget = forget
        # The consumer holds it: it may refer to the consumer, which would otherwise never be collected.
        self._listener_ref: weakref.ref[RebalanceListener] | None = None
        # Called with partitions that are revoked or lost, on the polling thread: run() starts no more of their records.
        self.before_listener: Callable[[Partitions], None] | None = None
        self.in_listener = False
        self._is_revoking_all = False
        self.revocations = Revocations()
        self.has_news = False  # partitions were requested or lost since the poll started
        self.has_requests = False  # revokes were requested, and no poll has reported them yet
        # The revokes and losses that the last returning poll has reported: set as its last steps that can raise.
        self.reported: Partitions = frozenset()
        self.reported_lost: Partitions = frozenset()
        self.rebalances = 0
        self.partitions_lost = 0
        self.lost_for_good: Partitions = frozenset()  # and not assigned again since: must not be committed
        self._defers = config.revoke_mode == "deferred"
        self.is_subscribed = False  # to names, a pattern, or a pattern that the coordinator evaluates
        self._names: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._server_pattern: str | None = None
        settings = GroupSettings.of(config)
        self.longest_absence = settings.longest_absence
        self._longest_wait = self.longest_absence / 4
        self.health = MembershipWatch(
            config.group_id,
            session_timeout=settings.session_timeout or None,
            heartbeat_interval=settings.heartbeat_interval,
            poll_limit=self.longest_absence,
        )
        backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self.member: ClassicMember | ConsumerProtocolMember
        if config.group_protocol == "classic":
            assignors = assignors_of(config.partition_assignment_strategy)
            self.assignors = {assignor.name: assignor for assignor in assignors}
            self.member = ClassicMember(settings, assignors, backoff, chance.random)
        else:
            self.member = ConsumerProtocolMember(settings, new_member_id(), backoff, chance.random)

    @property
    def _listener(self) -> RebalanceListener:
        listener = None if self._listener_ref is None else self._listener_ref()
        return _NO_LISTENER if listener is None else listener

    # -- subscriptions -----------------------------------------------------------------------------------------

    @property
    def wants_all_topics(self) -> bool:
        """Whether a pattern is evaluated here, which needs the names of all topics."""
        return self._pattern is not None

    def subscribe(
        self,
        topics: Iterable[str] | None,
        pattern: str | re.Pattern[str] | None,
        listener: RebalanceListener | None,
    ) -> None:
        if (topics is None) == (pattern is None):
            raise ConfigError("subscribe() needs either topics or a pattern")
        names, compiled, remote = frozenset[str](), None, None
        if topics is not None:
            names = topics_in(topics)
        elif isinstance(expression := pattern_of(pattern), str) and isinstance(self.member, ConsumerProtocolMember):
            remote = expression
        else:
            compiled = _compile(expression)
        if listener is not None and not isinstance(listener, RebalanceListener):
            raise TypeError("a listener must be a headrace.RebalanceListener")
        with self._buffer.lock:
            self._listener_ref = None if listener is None else weakref.ref(listener)
            self._names, self._pattern, self._server_pattern = names, compiled, remote
            self.is_subscribed = True
            self._buffer.denied = frozenset()
            self._buffer.pace.forget()
            self._refresh(self._buffer.cluster)
        self.wake()

    def resubscription(self) -> Callable[[], None]:
        """Returns a function that restores the current subscription, if there is none then."""
        names, pattern, listener = self._names or None, self._pattern or self._server_pattern, self._listener

        def subscribe() -> None:
            if not self.is_subscribed:
                self.subscribe(names, pattern, listener)

        return subscribe

    def subscription(self) -> set[str]:
        """The subscribed topics; for a pattern, those that match it now."""
        with self._buffer.lock:
            if self._server_pattern is not None:
                return {tp.topic for tp in self.member.owned}
            return set(self.member.subscription.topics)

    def _refresh(self, cluster: Cluster) -> None:
        names = self._names
        if self._pattern is not None:
            internal = not self._config.exclude_internal_topics
            names = frozenset(
                topic.name
                for topic in cluster.topics.values()
                if self._pattern.fullmatch(topic.name) and (internal or not topic.internal)
            )
        wanted = Subscription(names, self._server_pattern)
        if wanted != self.member.subscription or self.member.failure is not None:
            self.member.subscribe(wanted)

    def follow(self, cluster: Cluster) -> None:
        """New metadata. Called with the lock held."""
        member = self.member
        if not self.is_subscribed:
            return
        if self._pattern is not None and member.failure is None:  # only subscribe() ends a failure
            self._refresh(cluster)
        if (invalid := cluster.invalid_topic_error(self._names)) is not None:
            member.pending_error = invalid
        self._buffer.denied = cluster.denied(self._names)
        if isinstance(member, ClassicMember):
            member.update_partition_counts({name: len(topic.partitions) for name, topic in cluster.topics.items()})
        else:
            member.update_topic_names(cluster.topic_names())
            member.deny(self._buffer.denied)

    def wanted(self) -> Wanted:
        """What is subscribed. Called with the lock held."""
        if self._server_pattern is not None:
            return Wanted(pattern=Pattern(self._server_pattern, bool(self.member.owned), is_remote=True))
        if self._pattern is not None:
            return Wanted(pattern=Pattern(self._pattern.pattern, bool(self.member.subscription.topics)))
        return Wanted(self._names)

    def topics_to_watch(self) -> set[str]:
        """Called with the lock held."""
        if isinstance(self.member, ClassicMember):
            return set(self.member.subscription.topics | self.member.group_topics)
        return set(self.member.subscription.topics)

    # -- polls -------------------------------------------------------------------------------------------------

    def poll_begins(self) -> None:
        with self._buffer.lock:
            self.member.poll_begins()

    def poll_ends(self) -> None:
        with self._buffer.lock:
            self.member.poll_ends(time.monotonic())

    def poll_waits(self) -> float:
        """The poll is about to wait. KIP-62's clock runs meanwhile: if the user's event loop is blocked, the poll makes
        no progress. Returns for how long it may wait: the clock stops when the poll looks again."""
        now = time.monotonic()
        with self._buffer.lock:
            self.member.poll_ends(now)
        return min(self._longest_wait, self.revocations.next_deadline - now)

    @contextlib.contextmanager
    def _users_code(self) -> Iterator[None]:
        """KIP-62's clock runs while a listener runs: one that hangs must not keep the partitions forever."""
        self.in_listener = True
        self.poll_ends()
        try:
            yield
        finally:
            self.in_listener = False
            self.poll_begins()

    def reconcile(self, *, begins: bool) -> Steps | None:
        """The steps before a poll looks for records, each time it does. None if there are none, which is the usual case
        and must be cheap. `begins`: the first time in this poll."""
        if not begins:
            self.poll_begins()  # the poll has waited
        lists = self.revocations
        is_quiet = (
            not (lists.next or lists.thereafter or lists.lost or self.has_news)
            and not self._buffer.lost
            and self._next_poll_action(lists.next) is None  # a pending action stays the same until it is done
            and self.member.failure is None
            and self.member.pending_error is None
        )
        return None if is_quiet else self._reconcile(begins)

    def _reconcile(self, begins: bool) -> Steps:
        """Raises the error that ended the membership."""
        if begins:
            yield from self._begin()
        while (poll_action := self._next_poll_action(self.revocations.pending)) is not None:
            if self._defers and isinstance(poll_action, Revoke):
                self._request(poll_action.partitions)
            else:
                yield from self._perform(poll_action)
        if self.revocations.pending:
            yield from self._review()
        yield from self._report_lost_ranges()
        self.raise_failure()
        member, pace, now = self.member, self._buffer.pace, time.monotonic()
        pending_error, member.pending_error = member.pending_error, None
        if pending_error is not None and pace.admits(pending_error, now, RETRIED):
            raise pending_error

    def raise_failure(self, *, is_late: bool = False) -> None:
        """Raises the error that ended the membership, unless it was raised recently. `is_late`: the poll's timeout has
        passed."""
        failure = self.member.failure
        if failure is not None and self._buffer.pace.admits(failure, time.monotonic(), STAYS, is_late=is_late):
            raise failure.with_traceback(None)  # without the frames of the last time

    def _begin(self) -> Steps:
        """The first step of a poll: completes the revokes that the last poll reported and the user did not delay. A
        poll that raised has reported nothing, so this one reports its requests and losses."""
        self.revocations.forget_lost(self.reported_lost)
        self.reported_lost = frozenset()
        reported, self.reported = self.reported, frozenset()
        self.has_requests = bool(self.revocations.next - reported)
        self.has_news = self.has_requests or bool(self.revocations.lost)
        if self.revocations.pending:
            with self._buffer.lock:
                due = self.revocations.next & reported & self.member.to_revoke
            if due:
                yield from self._perform(Revoke(due))
        self.revocations.poll_begins()

    def _next_poll_action(self, deferred: Partitions) -> PollAction | None:
        member = self.member
        with self._buffer.lock:
            before = member.state
            poll_action = member.poll_action(deferred)
            moved = member.state is not before
        if moved:
            self.wake()
        return poll_action

    def _request(self, partitions: Partitions) -> None:
        """KIP-983: from now on polls return no records of these; the next poll revokes them. This poll returns at once
        and without records: processing them would take from the time that the group waits (max.poll.interval.ms), and a
        user who delays nothing gets all of it (KIP-62)."""
        requested_at = self.member.revoke_requested_at or time.monotonic()
        log.info("group %s: revoke of %s requested", self.group_id, _shown(partitions))
        # After an interrupt in between, they are withheld, and the next poll requests them again.
        self._buffer.withhold(partitions, True)
        self.reported -= partitions  # from an earlier request
        self.revocations.request(partitions, requested_at + self._revoke_timeout)
        self.has_news = self.has_requests = True

    def _review(self) -> Steps:
        """Cancels revokes that a later rebalance made obsolete, and loses those that the group no longer waits for."""
        with self._buffer.lock:
            back = self.revocations.pending - self.member.to_revoke
        if back:
            log.info("group %s: revoke of %s cancelled", self.group_id, _shown(back))
            self.revocations.cancel(back)
            self._buffer.withhold(back, False)
        if overdue := self.revocations.overdue(time.monotonic()):
            # The user loses them. To the group they are revoked, so that the rebalance continues with this member.
            yield from self._lose(overdue, Revoke(overdue))

    def _perform(self, poll_action: PollAction) -> Steps:
        """If it is interrupted before the call of the listener, nothing has happened: the next poll repeats it."""
        if isinstance(poll_action, AssignPartitions):
            log.info("group %s: assigned %s", self.group_id, _shown(poll_action.added))
            self._buffer.assign(sorted(poll_action.partitions))
            self.lost_for_good -= poll_action.added
            self.rebalances += 1
            yield from self._call_listener(poll_action, self._listener.on_partitions_assigned, poll_action.added)
        elif isinstance(poll_action, Revoke):
            log.info("group %s: revoked %s", self.group_id, _shown(poll_action.partitions))
            self._announce(poll_action.partitions)
            if self._config.enable_auto_commit:
                yield Background(lambda: self._auto_commit(poll_action.partitions))
            yield from self._call_listener(poll_action, self._listener.on_partitions_revoked, poll_action.partitions)
        else:
            yield from self._lose(poll_action.partitions, poll_action)

    def _lose(self, partitions: Partitions, poll_action: PollAction) -> Steps:
        log.warning("group %s: lost %s", self.group_id, _shown(partitions))
        self._announce(partitions)
        self._drop(partitions)
        self.revocations.mark_lost(partitions)
        self.lost_for_good |= partitions
        self.partitions_lost += len(partitions)
        self.has_news = True
        yield from self._call_listener(poll_action, self._listener.on_partitions_lost, partitions)

    def _announce(self, partitions: Partitions) -> None:
        if self.before_listener is not None:
            self.before_listener(partitions)

    def _call_listener(
        self, poll_action: PollAction, listener: Callable[[Partitions], Awaitable[None] | None], partitions: Partitions
    ) -> Steps:
        """Once the listener was called, the action is done, whatever it raises."""
        failure: Exception | None = None
        try:
            try:
                with self._users_code():
                    yield from awaited(listener(partitions))
            except Exception as error:  # noqa: BLE001  # the user's, raised below
                failure = error
            if isinstance(poll_action, Revoke) and (final_commit := self._final_commit) is not None:
                yield Background(lambda: final_commit(partitions))
            if failure is not None:
                raise failure
        finally:
            if isinstance(poll_action, Revoke):
                self._drop(poll_action.partitions)
                self.revocations.complete(poll_action.partitions)
            with self._buffer.lock:
                self.member.done(poll_action)
            self.wake()

    def _report_lost_ranges(self) -> Steps:
        lost = self._buffer.lost
        while lost:
            with self._users_code():
                yield from awaited(self._listener.on_lost_range(*lost.popleft()))

    def _drop(self, partitions: Partitions) -> None:
        self._buffer.assign(tp for tp in self._buffer.ordered_partitions() if tp not in partitions)
        self._forget(partitions)

    # -- the end -----------------------------------------------------------------------------------------------

    def revoke_all(self) -> Steps:
        """Revokes everything, before `leave`. A listener that is called for it may close the consumer itself."""
        if self._is_revoking_all:
            return
        self._is_revoking_all = True
        try:
            with self._buffer.lock:
                poll_action = self.member.final_revoke()
            if poll_action is not None:
                yield from self._perform(poll_action)
        finally:
            self._is_revoking_all = False

    def unsubscribed(self) -> None:
        """Called with the lock held, when the member has left."""
        self.is_subscribed = False
        self.health.forget()
        self._names, self._pattern, self._server_pattern = frozenset(), None, None
        self._listener_ref = None
        self.revocations = Revocations()
        self.reported = self.reported_lost = frozenset()
        self.has_news = self.has_requests = False
        self.lost_for_good = frozenset()
        self._buffer.lost.clear()
        self._buffer.denied = frozenset()
        self._buffer.pace.forget()
        self.member.failure = self.member.pending_error = None

    def delay(self, partitions: Collection[TopicPartition]) -> bool:
        with self._buffer.lock:
            member = self.member
            # The background may know of a loss that the next poll will report.
            owned = member.owned if member.identity.generation >= 0 else frozenset()
        return self.revocations.delay(partitions, owned)

    # -- questions ---------------------------------------------------------------------------------------------

    def rejoin(self, reason: str) -> None:
        if isinstance(self.member, ConsumerProtocolMember):
            log.info(
                "group %s: enforce_rebalance() has no effect with group.protocol=consumer: the coordinator decides",
                self.group_id,
            )
        with self._buffer.lock:
            self.member.rejoin(reason)

    def identity(self) -> MemberIdentity:
        """With which to commit now."""
        with self._buffer.lock:
            return self.member.identity

    def has_moved_on(self, sent: MemberIdentity) -> bool:
        """Whether the member has another generation since it sent a request, or is about to get one."""
        with self._buffer.lock:
            now = self.member.identity
            is_joining = self.member.state is ClassicState.JOINING
        return bool(now.member_id) and now.member_id == sent.member_id and (now != sent or is_joining)

    def has(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether the user has all of these: from before the listener's on_partitions_assigned until after its
        on_partitions_revoked."""
        return set(partitions) <= set(self._buffer.ordered_partitions())

    def metadata(self) -> GroupMetadata:
        """For transactions. A member that left or was removed keeps its identity until it joins again: coordinators
        reject offsets of a former member, but accept them without checks if they have no identity at all. With
        assign(), there is none."""
        with self._buffer.lock:
            is_assigned = not self.is_subscribed and bool(self._buffer.assignment)
            identity = MemberIdentity() if is_assigned else self.member.last_identity
        return GroupMetadata(self.group_id, identity.generation, identity.member_id, self._config.group_instance_id)

    def describe(self) -> dict[str, Any]:
        """For metrics()."""
        identity = self.identity()
        return {"state": self.member.state.value, "generation": identity.generation, "member_id": identity.member_id}

    def commit_refused(self, code: int, sent: MemberIdentity) -> None:
        with self._buffer.lock:
            self.member.commit_refused(code, sent)
        self.wake()


def _compile(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a regular expression: {error}") from None


def _shown(partitions: Partitions) -> str:
    return ", ".join(map(str, sorted(partitions))) or "nothing new"
