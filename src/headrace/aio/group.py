"""The user's side of a group membership: subscriptions, and what polls have to do for the group.

`attend`, `part` and what they call are generators of steps. They run on the thread of the user, listeners included,
and yield what has to be awaited: commits, on the consumer's own thread (`Background`), and what a listener returned, in
the user's event loop (`Foreground`). So there is one logic for both consumers, and a listener of either may use its
consumer.

The time that a listener takes is the user's: KIP-62's clock runs meanwhile, and stops for the steps in the background,
which have deadlines of their own.

The member (a machine) is guarded by the intake's lock, as is all that is shared between threads. Only one poll can
be under way, so duties are done one at a time.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import inspect
import logging
import random
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Iterator
from typing import Any

from kio.schema.errors import ErrorCode

from ..arguments import pattern_of, topics_in
from ..config import ConsumerConfig
from ..errors import ConfigError
from ..listener import RebalanceListener
from ..machines.assignors import Assignor, assignors_of
from ..machines.backoff import Backoff
from ..machines.classic_member import ClassicMember
from ..machines.classic_member import State as ClassicState
from ..machines.cluster import Cluster
from ..machines.epoch_member import EpochMember
from ..machines.membership import Duty, GroupSettings, Identity, Partitions, Revoke, Subscription, Take
from ..machines.pace import RETRIED, STAYS
from ..machines.revocation import Revocations
from ..protocol.codes import kafka_error
from ..types import GroupMetadata, TopicPartition
from .intake import Intake
from .portal import Portal

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Background:
    """A step for the consumer's own thread."""

    work: Callable[[], Coroutine[Any, Any, None]]


@dataclasses.dataclass(frozen=True, slots=True)
class Foreground:
    """What the user's code has returned, to be awaited where the user is."""

    result: Awaitable[None]


Step = Background | Foreground
Steps = Generator[Step, None, None]
AutoCommit = Callable[[Partitions], Coroutine[Any, Any, None]]


def _nobody() -> None:
    """Nobody is there yet to be woken."""


class Group:
    """What a consumer with a group.id is, or may become, a member of."""

    def __init__(
        self,
        config: ConsumerConfig,
        intake: Intake,
        auto_commit: AutoCommit,
        farewell: AutoCommit,
        forget: Callable[[Partitions], None],
    ) -> None:
        assert config.group_id is not None
        self.group_id = config.group_id
        self.assignors: dict[str, Assignor] = {}
        self.wake: Callable[[], None] = _nobody  # the background: set by the engine, to be called from any thread
        # The group waits for the rebalance timeout from when it asked; what it is told has to reach it before.
        patience = config.max_poll_interval_ms / 1000
        self._patience = patience - min(1.0, patience / 10)
        self._config = config
        self._intake = intake
        self._auto_commit = auto_commit
        self._farewell = farewell
        self._forget = forget
        self._listener = RebalanceListener()
        self.in_listener = False
        self._is_parting = False
        self.revocations = Revocations()
        self.has_news = False  # something was asked back or lost since the poll began
        self.has_requests = False  # partitions are asked back, and no poll has returned to say so yet
        # What the last poll that returned has told of: set by it with nothing behind it that can raise.
        self.told: Partitions = frozenset()
        self.lost_for_good: Partitions = frozenset()  # and not given again since: not to be committed
        self._defers = config.revoke_mode == "deferred"
        self.is_subscribed = False  # to names, a pattern, or one that the coordinator matches
        self._names: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._server_pattern: str | None = None
        settings = GroupSettings.of(config)
        self.longest_absence = settings.longest_absence
        self._longest_wait = self.longest_absence / 4
        backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self.member: ClassicMember | EpochMember
        if config.group_protocol == "classic":
            assignors = assignors_of(config.partition_assignment_strategy)
            self.assignors = {assignor.name: assignor for assignor in assignors}
            self.member = ClassicMember(settings, assignors, backoff, random.random)
        else:
            member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            self.member = EpochMember(settings, member_id, backoff, random.random)

    # -- subscriptions -----------------------------------------------------------------------------------------

    @property
    def wants_all_topics(self) -> bool:
        """Whether the names of all topics have to be known, for a pattern that is matched here."""
        return self._pattern is not None

    def subscribe(
        self,
        topics: Iterable[str] | None,
        pattern: str | re.Pattern[str] | None,
        listener: RebalanceListener | None,
    ) -> None:
        if (topics is None) == (pattern is None):
            raise ConfigError("subscribe() needs topics or a pattern, one of them")
        names, compiled, remote = frozenset[str](), None, None
        if topics is not None:
            names = topics_in(topics)
        elif isinstance(expression := pattern_of(pattern), str) and isinstance(self.member, EpochMember):
            remote = expression
        else:
            compiled = _compile(expression)
        if listener is not None and not isinstance(listener, RebalanceListener):
            raise TypeError("a listener must be a headrace.RebalanceListener")
        with self._intake.lock:
            self._listener = listener or RebalanceListener()
            self._names, self._pattern, self._server_pattern = names, compiled, remote
            self.is_subscribed = True
            self._intake.denied = frozenset()
            self._intake.pace.forget()
            self._refresh(self._intake.cluster)
        self.wake()

    def resubscription(self) -> Callable[[], None]:
        """Makes the present subscription again, if there is none by then."""
        names, pattern, listener = self._names or None, self._pattern or self._server_pattern, self._listener

        def subscribe() -> None:
            if not self.is_subscribed:
                self.subscribe(names, pattern, listener)

        return subscribe

    def subscription(self) -> set[str]:
        """The topics by name; of a pattern those that match it now."""
        with self._intake.lock:
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
        if self._pattern is not None and member.failure is None:  # which only subscribe() ends
            self._refresh(cluster)
        for name in self._names:
            if cluster.topic_errors.get(name) == ErrorCode.invalid_topic_exception:
                member.complaint = kafka_error(ErrorCode.invalid_topic_exception, f"Metadata of topic {name}")
        self._intake.denied = cluster.denied(self._names)
        if isinstance(member, ClassicMember):
            member.topics_changed({name: len(topic.partitions) for name, topic in cluster.topics.items()})
        else:
            member.names_known(cluster.topic_names())
            member.deny(self._intake.denied)

    def topics_to_watch(self) -> set[str]:
        """Called with the lock held."""
        if isinstance(self.member, ClassicMember):
            return set(self.member.subscription.topics | self.member.group_topics)
        return set(self.member.subscription.topics)

    # -- polls -------------------------------------------------------------------------------------------------

    def poll_begins(self) -> None:
        with self._intake.lock:
            self.member.poll_begins()

    def poll_ends(self) -> None:
        with self._intake.lock:
            self.member.poll_ends(time.monotonic())

    def poll_waits(self) -> float:
        """The poll is about to wait, and KIP-62's clock runs: a user's event loop that is blocked makes no progress.
        Returns for how long it may wait: the clock stops when it looks again."""
        now = time.monotonic()
        with self._intake.lock:
            self.member.poll_ends(now)
        return min(self._longest_wait, self.revocations.next_deadline - now)

    @contextlib.contextmanager
    def _users_code(self) -> Iterator[None]:
        """KIP-62's clock runs while a listener works: one that hangs must not keep the partitions for ever."""
        self.in_listener = True
        self.poll_ends()
        try:
            yield
        finally:
            self.in_listener = False
            self.poll_begins()

    def attend(self, *, begins: bool) -> Steps | None:
        """What has to be done before a poll looks for records, the first time and again. None if that is nothing, as
        nearly always; it must not cost more than a look then."""
        if not begins:
            self.poll_begins()  # it has waited
        lists, backlog = self.revocations, self._intake.backlog
        is_quiet = (
            not (lists.next or lists.thereafter or lists.lost or self.has_news)
            and not self._intake.lost
            and (backlog is None or not backlog.lost)
            and self._next_duty(lists.next) is None  # one that there is stays the same until it is done
            and self.member.failure is None
            and self.member.complaint is None
        )
        return None if is_quiet else self._attend(begins)

    def _attend(self, begins: bool) -> Steps:
        """Raises what ended the membership."""
        if begins:
            yield from self._begin()
        while (duty := self._next_duty(self.revocations.pending)) is not None:
            if self._defers and isinstance(duty, Revoke):
                self._request(duty.partitions)
            else:
                yield from self._perform(duty)
        if self.revocations.pending:
            yield from self._review()
        yield from self._tell_of_lost_ranges()
        self.raise_failure()
        member, pace, now = self.member, self._intake.pace, time.monotonic()
        complaint, member.complaint = member.complaint, None
        if complaint is not None and pace.admits(complaint, now, RETRIED):
            raise complaint

    def raise_failure(self, *, is_late: bool = False) -> None:
        """What ended the membership, if it was not raised just now; `is_late` when the poll's time is up."""
        failure = self.member.failure
        if failure is not None and self._intake.pace.admits(failure, time.monotonic(), STAYS, is_late=is_late):
            raise failure.with_traceback(None)  # of the last time

    def _begin(self) -> Steps:
        """What a poll does first, once: it completes the revokes that the one before has told of and that are not
        delayed. A poll that raised has told nothing, so what was asked for in it is told by this one."""
        told, self.told = self.told, frozenset()
        self.has_news = self.has_requests = bool(self.revocations.next - told)
        if self.revocations.pending:
            with self._intake.lock:
                due = self.revocations.next & told & self.member.unwanted
            if due:
                yield from self._perform(Revoke(due))
        self.revocations.poll_begins()

    def _next_duty(self, held: Partitions) -> Duty | None:
        member = self.member
        with self._intake.lock:
            before = member.state
            duty = member.duty(held)
            moved = member.state is not before
        if moved:
            self.wake()
        return duty

    def _request(self, partitions: Partitions) -> None:
        """KIP-983: from now on nothing of these is handed out; the next poll gives them up. This one returns at once,
        and without records: the work on those would take from the time that the group waits (max.poll.interval.ms),
        of which a user who delays nothing shall have all (KIP-62)."""
        asked_at = self.member.asked_at or time.monotonic()
        log.info("group %s: %s to be revoked", self.group_id, _shown(partitions))
        # Interrupted in between, they are withheld, and asked for again by the next poll.
        self._intake.withhold(partitions, True)
        self.told -= partitions  # of an earlier time
        self.revocations.requested(partitions, asked_at + self._patience)
        self.has_news = self.has_requests = True

    def _review(self) -> Steps:
        """Whether a later rebalance has left them here after all, or the group waits no longer."""
        with self._intake.lock:
            back = self.revocations.pending - self.member.unwanted
        if back:
            log.info("group %s: %s not to be revoked any more", self.group_id, _shown(back))
            self.revocations.given_back(back)
            self._intake.withhold(back, False)
        if overdue := self.revocations.overdue(time.monotonic()):
            # Lost to the user. To the group they are given up, so that it goes on, with this member and the rest.
            yield from self._lose(overdue, Revoke(overdue))

    def _perform(self, duty: Duty) -> Steps:
        """Interrupted before the listener was called, it is as if it had not begun: the next poll does it again."""
        if isinstance(duty, Take):
            log.info("group %s: assigned %s", self.group_id, _shown(duty.added))
            self._intake.assign(sorted(duty.partitions))
            self.lost_for_good -= duty.added
            yield from self._tell(duty, self._listener.on_partitions_assigned, duty.added)
        elif isinstance(duty, Revoke):
            log.info("group %s: revoked %s", self.group_id, _shown(duty.partitions))
            if self._config.enable_auto_commit:
                yield Background(lambda: self._auto_commit(duty.partitions))
            yield from self._tell(duty, self._listener.on_partitions_revoked, duty.partitions)
        else:
            yield from self._lose(duty.partitions, duty)

    def _lose(self, partitions: Partitions, duty: Duty) -> Steps:
        log.warning("group %s: lost %s", self.group_id, _shown(partitions))
        self._drop(partitions)
        self.revocations.is_lost(partitions)
        self.lost_for_good |= partitions
        self.has_news = True
        yield from self._tell(duty, self._listener.on_partitions_lost, partitions)

    def _tell(
        self, duty: Duty, listener: Callable[[Partitions], Awaitable[None] | None], partitions: Partitions
    ) -> Steps:
        """Once the listener is called, the step is done, whatever it raises."""
        failure: Exception | None = None
        try:
            try:
                with self._users_code():
                    yield from _awaited(listener(partitions))
            except Exception as error:  # noqa: BLE001  # it is the user's, and is raised below
                failure = error
            if isinstance(duty, Revoke) and self._intake.backlog is not None:
                yield Background(lambda: self._farewell(partitions))
            if failure is not None:
                raise failure
        finally:
            if isinstance(duty, Revoke):
                self._drop(duty.partitions)
                self.revocations.completed(duty.partitions)
            with self._intake.lock:
                self.member.done(duty)
            self.wake()

    def _tell_of_lost_ranges(self) -> Steps:
        backlog = self._intake.backlog
        for lost in (self._intake.lost,) if backlog is None else (self._intake.lost, backlog.lost):
            while lost:
                with self._users_code():
                    yield from _awaited(self._listener.on_lost_range(*lost.popleft()))

    def _drop(self, partitions: Partitions) -> None:
        self._intake.assign(tp for tp in self._intake.ordered_partitions() if tp not in partitions)
        self._forget(partitions)

    # -- the end -----------------------------------------------------------------------------------------------

    def part(self) -> Steps:
        """Gives up what is owned, before `leave`. A listener that is told so may close the consumer itself."""
        if self._is_parting:
            return
        self._is_parting = True
        try:
            with self._intake.lock:
                duty = self.member.parting()
            if duty is not None:
                yield from self._perform(duty)
        finally:
            self._is_parting = False

    def unsubscribed(self) -> None:
        """Called with the lock held, when the member has left."""
        self.is_subscribed = False
        self._names, self._pattern, self._server_pattern = frozenset(), None, None
        self._listener = RebalanceListener()
        self.revocations = Revocations()
        self.told = frozenset()
        self.has_news = self.has_requests = False
        self.lost_for_good = frozenset()
        self._intake.lost.clear()
        self._intake.denied = frozenset()
        self._intake.pace.forget()
        self.member.failure = self.member.complaint = None

    def delay(self, partitions: Collection[TopicPartition]) -> bool:
        with self._intake.lock:
            member = self.member
            # The background may know of a loss that the next poll will tell.
            owned = member.owned if member.identity.generation >= 0 else frozenset()
        return self.revocations.delay(partitions, owned)

    # -- questions ---------------------------------------------------------------------------------------------

    def rejoin(self, reason: str) -> None:
        if isinstance(self.member, EpochMember):
            log.info("group %s: the coordinator decides about rebalances with group.protocol=consumer", self.group_id)
        with self._intake.lock:
            self.member.rejoin(reason)

    def identity(self) -> Identity:
        """Who commits now."""
        with self._intake.lock:
            return self.member.identity

    def has_moved_on(self, sent: Identity) -> bool:
        """Whether the member that sent something under an identity has another one since, or is about to."""
        with self._intake.lock:
            now = self.member.identity
            is_joining = self.member.state is ClassicState.JOINING
        return bool(now.member_id) and now.member_id == sent.member_id and (now != sent or is_joining)

    def has(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether all of these are the user's: from before a listener hears of the assignment until it has heard of the
        revocation."""
        return set(partitions) <= set(self._intake.ordered_partitions())

    def metadata(self) -> GroupMetadata:
        identity = self.identity()
        return GroupMetadata(self.group_id, identity.generation, identity.member_id, self._config.group_instance_id)

    def describe(self) -> dict[str, Any]:
        """For metrics()."""
        identity = self.identity()
        return {"state": self.member.state.value, "generation": identity.generation, "member_id": identity.member_id}

    def commit_refused(self, code: int, sent: Identity) -> None:
        with self._intake.lock:
            self.member.commit_refused(code, sent)
        self.wake()


async def perform(steps: Steps, portal: Portal) -> None:
    """Awaits the steps, in the user's event loop."""
    try:
        step = next(steps)
        while True:
            try:
                if isinstance(step, Background):
                    await portal.wait(step.work)
                else:
                    await step.result
            except BaseException as error:  # noqa: BLE001  # the generator decides what it means
                step = steps.throw(error)
            else:
                step = next(steps)
    except StopIteration:
        pass


def _compile(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a regular expression: {error}") from None


def _shown(partitions: Partitions) -> str:
    return ", ".join(map(str, sorted(partitions))) or "nothing new"


def _awaited(result: Awaitable[None] | None) -> Steps:
    """What a listener returned: nothing, or a coroutine."""
    if inspect.isawaitable(result):
        yield Foreground(result)
