"""`group.membership=true`: the driver's member of a group (KIP-62, KIP-983).

    arrived      the group has assigned it; what it has committed of it is known
    asked back   the group wants it: the revoke is delayed, poll by poll, until the query releases it
    released     the query is done with it: when its offsets are committed, the next poll gives it up
    lost         the group did not wait, or the query was too slow (max.poll.interval.ms)

The member reads nothing: all its partitions are paused, and executors read what the query plans. A thread of its own
polls, so heartbeats and rebalances go on while a batch runs. It does so on the query's behalf, for as long as Spark's
calls are not further apart than max.poll.interval.ms: a query that is stuck must not keep its partitions. It leaves the
group then, and joins again with the next call.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import threading
import time
from collections.abc import Mapping

from ..config import ConsumerConfig
from ..errors import CommitFailedError, HeadraceError, StateError, WakeupError
from ..listener import RebalanceListener
from ..machines.membership import GroupSettings
from ..offsets import OffsetSet
from ..sync import Consumer
from ..types import OffsetAndMetadata, TopicPartition
from .checkpoint import Done
from .committing import Commits, commits_of
from .options import Matching, SourceOptions

log = logging.getLogger(__name__)

Partitions = frozenset[TopicPartition]

_POLL = 1.0
_PAUSE = 0.5
_CLOSE = 2.0


class Arrival:
    """One stay of a partition with this member. A partition that went and came back has another one."""

    __slots__ = ("committed",)

    def __init__(self, committed: OffsetSet | None) -> None:
        self.committed = committed


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """What the member has, when it is asked."""

    has_joined: bool
    arrivals: Mapping[TopicPartition, Arrival]
    asked_back: Partitions
    lost: Partitions
    """Since it was asked before."""


def member_consumer(settings: Mapping[str, str]) -> Consumer:
    return Consumer(
        settings,
        enable_auto_commit=False,
        auto_offset_reset="earliest",  # of positions that nobody reads
        allow_auto_create_topics=False,
        revoke_mode="deferred",
    )


class Member(RebalanceListener):
    """The consumer belongs to the thread `headrace-member`: nobody else calls it, but for wakeup(). Spark's calls come
    on another thread, and wait for this one only where they say so. What both touch is behind `_changed`."""

    def __init__(self, options: SourceOptions, settings: Mapping[str, str]) -> None:
        self._options = options
        self._longest_absence = GroupSettings.of(ConsumerConfig.parse(settings)).longest_absence
        self._consumer = member_consumer(settings)
        self._changed = threading.Condition()
        self._last_call = time.monotonic()
        self._has_joined = False
        self._arrivals: dict[TopicPartition, Arrival] = {}
        self._asked_back: Partitions = frozenset()
        self._released: set[TopicPartition] = set()
        self._lost: set[TopicPartition] = set()
        self._to_commit: Commits = {}
        self._offered: Commits = {}  # committed, or to be
        self._failure: BaseException | None = None
        self._closing = False
        # Of the member's thread alone: assigned, but what is committed of them is not known yet.
        self._newcomers: set[TopicPartition] = set()
        self._thread = threading.Thread(target=self._run, name="headrace-member", daemon=True)
        self._thread.start()

    # -- Spark's calls ---------------------------------------------------------------------------------------------

    def standing(self) -> Standing:
        """Raises what ended the membership."""
        with self._changed:
            self._called()
            lost, self._lost = frozenset(self._lost), set()
            return Standing(self._has_joined, dict(self._arrivals), self._asked_back, lost)

    def join(self, within: float) -> bool:
        """Waits for the first partitions. An assignment without any is not the last word: in a cooperative group a
        newcomer's first one is always empty, until the others have given up what it gets. Raises what ended the
        membership."""
        with self._changed:
            self._called()
            self._changed.wait_for(lambda: self._arrivals or self._failure is not None, within)
            self._called()
            return bool(self._arrivals)

    def is_done(self, done: Done, released: Partitions) -> None:
        """So much of these partitions is done, to be committed; those that are released are then given up."""
        with self._changed:
            self._called()
            new = {tp: each for tp, each in commits_of(done).items() if self._offered.get(tp) != each}
            if not new and released == self._released:
                return
            self._offered.update(new)
            self._to_commit.update(new)
            # Not added to: one that was given back, and is read again, is not released any more.
            self._released = set(released)
        self._consumer.wakeup()

    def settle(self, within: float) -> None:
        """Waits until all is committed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._to_commit or self._failure is not None, within)

    def close(self) -> None:
        """Commits what is done, and leaves the group."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._consumer.wakeup()
            self._thread.join(2 * _CLOSE)

    def _called(self) -> None:
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
                    self._turn()
                except WakeupError:
                    continue  # there is something to commit, to give up or to welcome
                except HeadraceError as error:
                    if not error.retriable:
                        raise
                    log.warning("the membership goes on after: %s", error)
                    with self._changed:
                        self._changed.wait_for(lambda: self._closing, _PAUSE)
            self._bid_farewell()
        except BaseException as error:  # Spark's next call raises it
            log.exception("the membership has ended")
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            self._consumer.close(timeout=_CLOSE)

    def _turn(self) -> None:
        if (last_call := self._absent_since()) is not None:
            self._leave(last_call)
            return  # it may have been closed meanwhile, and is then subscribed to nothing
        if self._newcomers:
            self._welcome()
        self._commit()
        try:
            self._consumer.poll(0.0 if self._gives_up else _POLL)
        finally:
            # Before anything else: what is not delayed now is given up by the next poll.
            self._hold()

    def _subscribe(self) -> None:
        strategy = self._options.strategy
        if isinstance(strategy, Matching):
            self._consumer.subscribe(pattern=whole_name(strategy.pattern), listener=self)
        else:
            self._consumer.subscribe(strategy.names, listener=self)

    def _absent_since(self) -> float | None:
        """When Spark called last, if that is too long ago. From then on its next call finds nothing to plan."""
        with self._changed:
            if time.monotonic() - self._last_call <= self._longest_absence:
                return None
            self._has_joined = False
            return self._last_call

    @property
    def _gives_up(self) -> bool:
        """A revoke that was delayed takes two more polls."""
        with self._changed:
            return not self._released.isdisjoint(self._asked_back - set(self._to_commit))

    def _leave(self, last_call: float) -> None:
        """Until a call that is later than `last_call`. Leaving takes a while, in which it may already come: read after
        that, it would pass for the last one, and the query would stay outside until the trigger after it."""
        log.warning(
            "Spark did not ask for a batch for %g s (max.poll.interval.ms): the query leaves its group until it does",
            self._longest_absence,
        )
        with self._changed:
            mine = frozenset(self._arrivals)
        self.on_partitions_lost(mine)
        self._consumer.unsubscribe()
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._last_call > last_call)
        if not self._closing:
            self._subscribe()

    def _commit(self) -> None:
        """Tries what is to be committed. What fails is tried again by the next turn, with what is new by then."""
        with self._changed:
            wanted = {tp: each for tp, each in self._to_commit.items() if tp in self._arrivals}
        if wanted:
            try:
                self._consumer.commit(wanted, timeout=_CLOSE)
            except CommitFailedError as error:
                log.warning("the offsets of a batch were not committed: %s", error)
                if not error.partitions:
                    # The group goes on without this member; the next poll tells what is lost.
                    return
            except (WakeupError, StateError):
                raise
            except HeadraceError as error:
                log.warning("the offsets of a batch were not committed, they will be: %s", error)
                return
        with self._changed:
            self._to_commit = {
                tp: each for tp, each in self._to_commit.items() if tp in self._arrivals and wanted.get(tp) != each
            }
            self._changed.notify_all()

    def _hold(self) -> None:
        """Delays the revoke of what the query still reads."""
        asked = frozenset(self._consumer.to_be_revoked_partitions())
        with self._changed:
            self._asked_back = asked
            self._released &= asked
            held = asked - self._released | (asked & set(self._to_commit))
        if held:
            self._consumer.delay_revoke(held)

    def _welcome(self) -> None:
        found = self._consumer.committed(self._newcomers)
        with self._changed:
            for tp, committed in found.items():
                self._arrivals[tp] = Arrival(None if committed is None else _done(committed))
            self._newcomers = set()
            self._has_joined = True
            self._changed.notify_all()

    def _bid_farewell(self) -> None:
        try:
            try:
                self._commit()
            except WakeupError:  # that of close(), which came after the last poll
                self._commit()
        except HeadraceError as error:
            log.warning("the offsets of the last batch were not committed: %s", error)

    # -- what the group tells --------------------------------------------------------------------------------------

    def on_partitions_assigned(self, partitions: Partitions) -> None:
        self._consumer.pause(partitions)
        self._consumer.wakeup()  # there are no records for which this poll would end
        self._newcomers |= partitions
        if not self._newcomers:
            with self._changed:
                self._has_joined = True
                self._changed.notify_all()

    def on_partitions_revoked(self, partitions: Partitions) -> None:
        self._gone(partitions)

    def on_partitions_lost(self, partitions: Partitions) -> None:
        self._gone(partitions)
        with self._changed:
            self._lost |= partitions

    def _gone(self, partitions: Partitions) -> None:
        self._newcomers -= partitions
        with self._changed:
            for tp in partitions:
                self._arrivals.pop(tp, None)
                self._to_commit.pop(tp, None)
                self._offered.pop(tp, None)
            self._released -= partitions
            self._asked_back -= partitions


def whole_name(searched: re.Pattern[str]) -> re.Pattern[str]:
    """Spark's patterns are searched for, a consumer's have to fit the whole name. Flags such as `(?i)` may stand at the
    beginning only; they are in `flags` as well. (The line break ends a comment, which there may be with `(?x)`.)"""
    bare = re.sub(r"^(\(\?[aiLmsux]+\))+", "", searched.pattern)
    end = "\n" if searched.flags & re.VERBOSE else ""
    return re.compile(f".*(?:{bare}{end}).*", searched.flags)


def _done(committed: OffsetAndMetadata) -> OffsetSet:
    return OffsetSet.from_text(committed.metadata, committed.offset)
