"""`group.membership=true`: the driver's member of a group (KIP-62, KIP-983).

    assigned        the group has assigned the partition, and its committed offset is known
    to be revoked   the group revokes it: every poll delays the revoke until the query releases the partition
    released        the query is done with it: once its offsets are committed, the next poll completes the revoke
    lost            the group did not wait, or the query was too slow (max.poll.interval.ms)

The member fetches nothing: all its partitions are paused, and executors read what the query plans. It polls in a thread
of its own, so that heartbeats and rebalances continue while a batch runs. It polls on behalf of the query, as long as
the time between two of Spark's calls stays below max.poll.interval.ms: a query that is stuck must not keep its
partitions. Then it leaves the group, and rejoins with the next call.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import threading
import time
from collections.abc import Mapping

from ..._machines.commit.offset_set import OffsetSet
from ..._machines.group.actions import GroupSettings
from ...config.consumer import ConsumerConfig
from ...errors import CommitFailedError, HeadraceError, StateError, WakeupError
from ...listener import RebalanceListener
from ...sync import Consumer
from ...types import OffsetAndMetadata, TopicPartition
from ..checkpoint import DoneOffsets
from ..options.source import SourceOptions, SubscribePatternStrategy
from .committer import Commits, offsets_to_commit

log = logging.getLogger(__name__)

Partitions = frozenset[TopicPartition]

_POLL_TIMEOUT = 1.0
_RETRY_INTERVAL = 0.5
_CLOSE_TIMEOUT = 2.0


class AssignedPartition:
    """One assignment of a partition. A partition that was revoked and assigned again has another one (compared by
    identity)."""

    __slots__ = ("committed",)

    def __init__(self, committed: OffsetSet | None) -> None:
        self.committed = committed


@dataclasses.dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """The state of the member when Spark calls."""

    has_joined: bool
    assigned: Mapping[TopicPartition, AssignedPartition]
    to_be_revoked: Partitions
    lost: Partitions
    """Since the previous snapshot."""


def create_member_consumer(settings: Mapping[str, str]) -> Consumer:
    return Consumer(
        settings,
        enable_auto_commit=False,
        auto_offset_reset="earliest",  # of positions that are never fetched
        allow_auto_create_topics=False,
        revoke_mode="deferred",
    )


class QueryMember(RebalanceListener):
    """The consumer belongs to the thread `headrace-member`: nobody else calls it, except for wakeup(). Spark's calls
    come from another thread, and wait for this one only where their docstring says so. `_changed` guards what both
    access."""

    def __init__(self, options: SourceOptions, settings: Mapping[str, str]) -> None:
        self._options = options
        self._max_call_interval = GroupSettings.of(ConsumerConfig.parse(settings)).longest_absence
        self._consumer = create_member_consumer(settings)
        self._changed = threading.Condition()
        self._last_call = time.monotonic()
        self._has_joined = False
        self._assigned: dict[TopicPartition, AssignedPartition] = {}
        self._to_be_revoked: Partitions = frozenset()
        self._released: set[TopicPartition] = set()
        self._lost: set[TopicPartition] = set()
        self._to_commit: Commits = {}
        self._requested: Commits = {}  # committed, or to be committed
        self._failure: BaseException | None = None
        self._closing = False
        # Of the member's thread only: assigned, but their committed offsets are not known yet.
        self._without_committed: set[TopicPartition] = set()
        self._thread = threading.Thread(target=self._run, name="headrace-member", daemon=True)
        self._thread.start()

    # -- Spark's calls ---------------------------------------------------------------------------------------------

    def take_snapshot(self) -> MemberSnapshot:
        """Clears the lost partitions. Raises the error that ended the membership."""
        with self._changed:
            self._on_spark_call()
            lost, self._lost = frozenset(self._lost), set()
            return MemberSnapshot(self._has_joined, dict(self._assigned), self._to_be_revoked, lost)

    def wait_for_assignment(self, timeout: float) -> bool:
        """Waits for the first partitions, not for an empty assignment: in a cooperative group the first assignment of a
        new member is always empty, until the others have given up its partitions. Raises the error that ended the
        membership."""
        with self._changed:
            self._on_spark_call()
            self._changed.wait_for(lambda: self._assigned or self._failure is not None, timeout)
            self._on_spark_call()
            return bool(self._assigned)

    def request_commit(self, done: DoneOffsets, released: Partitions) -> None:
        """Makes the member commit these offsets, and then give up the released partitions."""
        with self._changed:
            self._on_spark_call()
            new = {tp: each for tp, each in offsets_to_commit(done).items() if self._requested.get(tp) != each}
            if not new and released == self._released:
                return
            self._requested.update(new)
            self._to_commit.update(new)
            # Replaced, not added to: a partition that the query kept after all and reads again is no longer released.
            self._released = set(released)
        self._consumer.wakeup()

    def wait_for_commits(self, timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._to_commit or self._failure is not None, timeout)

    def close(self) -> None:
        """Commits what is requested, and leaves the group."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._consumer.wakeup()
            self._thread.join(2 * _CLOSE_TIMEOUT)

    def _on_spark_call(self) -> None:
        self._last_call = time.monotonic()
        self._changed.notify_all()
        if self._failure is not None:
            raise self._failure

    # -- the member's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._subscribe()
            while not self._closing:
                try:
                    self._run_once()
                except WakeupError:
                    continue  # there are offsets to commit or to look up, or partitions to give up
                except HeadraceError as error:
                    if not error.retriable:
                        raise
                    log.warning("The member of the group retries after an error: %s", error)
                    with self._changed:
                        self._changed.wait_for(lambda: self._closing, _RETRY_INTERVAL)
            self._final_commit()
        except BaseException as error:  # Spark's next call raises it
            log.exception("The membership in the group ended because of an error")
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            self._consumer.close(timeout=_CLOSE_TIMEOUT)

    def _run_once(self) -> None:
        if (last_call := self._check_last_call()) is not None:
            self._leave_until_called(last_call)
            return  # it may have been closed meanwhile, and then has no subscription
        if self._without_committed:
            self._fetch_committed()
        self._commit()
        try:
            self._consumer.poll(0.0 if self._has_revoke_to_complete else _POLL_TIMEOUT)
        finally:
            # Before anything else: the next poll completes every revoke that is not delayed now.
            self._delay_revokes()

    def _subscribe(self) -> None:
        strategy = self._options.strategy
        if isinstance(strategy, SubscribePatternStrategy):
            self._consumer.subscribe(pattern=to_full_match(strategy.pattern), listener=self)
        else:
            self._consumer.subscribe(strategy.names, listener=self)

    def _check_last_call(self) -> float | None:
        """The time of Spark's last call if that is longer ago than max.poll.interval.ms. From then on Spark's next call
        finds that the member has not joined."""
        with self._changed:
            if time.monotonic() - self._last_call <= self._max_call_interval:
                return None
            self._has_joined = False
            return self._last_call

    @property
    def _has_revoke_to_complete(self) -> bool:
        """A revoke that was delayed takes two more polls."""
        with self._changed:
            return not self._released.isdisjoint(self._to_be_revoked - set(self._to_commit))

    def _leave_until_called(self, last_call: float) -> None:
        """Waits for a call after `last_call`. Leaving takes a while, in which that call may already come: if it were
        read afterwards, it would be taken for the last one, and the query would stay outside until the next trigger."""
        log.warning(
            "The query leaves its group: Spark did not ask for a batch for %g s (max.poll.interval.ms). It rejoins "
            "with the next batch. Raise max.poll.interval.ms if batch and trigger interval take longer",
            self._max_call_interval,
        )
        with self._changed:
            assigned = frozenset(self._assigned)
        self.on_partitions_lost(assigned)
        self._consumer.unsubscribe()
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._last_call > last_call)
        if not self._closing:
            self._subscribe()

    def _commit(self) -> None:
        """Commits what is requested. A commit that fails is retried in the next round, with newer offsets if there are
        any."""
        with self._changed:
            wanted = {tp: each for tp, each in self._to_commit.items() if tp in self._assigned}
        if wanted:
            try:
                self._consumer.commit(wanted, timeout=_CLOSE_TIMEOUT)
            except CommitFailedError as error:
                log.warning("The offsets of a batch were not committed: %s", error)
                if not error.partitions:
                    # The group has removed this member; the next poll reports what is lost.
                    return
            except (WakeupError, StateError):
                raise
            except HeadraceError as error:
                log.warning("The offsets of a batch were not committed, and will be retried: %s", error)
                return
        with self._changed:
            self._to_commit = {
                tp: each for tp, each in self._to_commit.items() if tp in self._assigned and wanted.get(tp) != each
            }
            self._changed.notify_all()

    def _delay_revokes(self) -> None:
        """Delays the revoke of partitions that the query still reads, or whose offsets are not committed yet."""
        to_be_revoked = frozenset(self._consumer.to_be_revoked_partitions())
        with self._changed:
            self._to_be_revoked = to_be_revoked
            self._released &= to_be_revoked
            kept = to_be_revoked - self._released | (to_be_revoked & set(self._to_commit))
        if kept:
            self._consumer.delay_revoke(kept)

    def _fetch_committed(self) -> None:
        found = self._consumer.committed(self._without_committed)
        with self._changed:
            for tp, committed in found.items():
                self._assigned[tp] = AssignedPartition(None if committed is None else _parse_committed(committed))
            self._without_committed = set()
            self._has_joined = True
            self._changed.notify_all()

    def _final_commit(self) -> None:
        try:
            try:
                self._commit()
            except WakeupError:  # that of close(), if it came after the last poll
                self._commit()
        except HeadraceError as error:
            log.warning("The offsets of the last batch were not committed: %s", error)

    # -- rebalances ------------------------------------------------------------------------------------------------

    def on_partitions_assigned(self, partitions: Partitions) -> None:
        self._consumer.pause(partitions)
        self._consumer.wakeup()  # there are no records that would end this poll
        self._without_committed |= partitions
        if not self._without_committed:
            with self._changed:
                self._has_joined = True
                self._changed.notify_all()

    def on_partitions_revoked(self, partitions: Partitions) -> None:
        self._remove(partitions)

    def on_partitions_lost(self, partitions: Partitions) -> None:
        self._remove(partitions)
        with self._changed:
            self._lost |= partitions

    def _remove(self, partitions: Partitions) -> None:
        self._without_committed -= partitions
        with self._changed:
            for tp in partitions:
                self._assigned.pop(tp, None)
                self._to_commit.pop(tp, None)
                self._requested.pop(tp, None)
            self._released -= partitions
            self._to_be_revoked -= partitions


def to_full_match(searched: re.Pattern[str]) -> re.Pattern[str]:
    """Spark searches for a pattern in a topic's name, a consumer matches the whole name. Flags such as `(?i)` are only
    allowed at the beginning; `flags` has them, too. (The line break ends a comment, which is possible with `(?x)`.)"""
    bare = re.sub(r"^(\(\?[aiLmsux]+\))+", "", searched.pattern)
    end = "\n" if searched.flags & re.VERBOSE else ""
    return re.compile(f".*(?:{bare}{end}).*", searched.flags)


def _parse_committed(committed: OffsetAndMetadata) -> OffsetSet:
    return OffsetSet.from_text(committed.metadata, committed.offset)
