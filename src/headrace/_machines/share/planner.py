"""Which requests a share consumer sends to which broker, and when. `responses.py` handles the answers.

    a poll waits, the buffer is empty     ShareFetch with the pending acknowledgements, no longer than the poll waits
    the user is fast, answers are full    ShareFetch ahead, for more than one poll at a time
    acknowledgements, and no such fetch   ShareAcknowledge: soon, or at once if somebody waits for it
    half of a lock's time has passed      renew it: see `renewal.py`

- `batch_optimized`: all brokers are asked at the same time, first for as many records as a poll returns. A broker
  acquires whole batches. A poll still returns no more than its limit; the rest stays in the buffer.
- `record_limit`: one fetch at a time, to one broker after the other, only for a poll and only when the buffer is empty,
  so nothing is acquired above the limit. An answer may arrive after its poll; the next poll returns its records. With
  several brokers, each is asked without waiting before one of them is waited for.
- `sizing.py` decides how much is fetched at once and ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import HeadraceError, StateError
from ...types import AcknowledgeType, TopicPartition
from ..backoff import Backoff
from ..cluster import Cluster, TopicIdPartition
from .acquired import AcquiredRecords, Outcome
from .broker_session import BrokerSession, RequestCounts, ShareFetchSize, ShareRequest, ShareSettings
from .buffer import AcquiredBatch, RecordColumns, ShareBuffer, ShareHandover
from .renewal import renew_due_locks, renew_later
from .sizing import MOST, FetchSizing

_LINGER = 0.05  # seconds that acknowledgements wait for a ShareFetch
_TURN = 0.1  # seconds to wait for one broker of several
_IN_USE = "the records of the last poll() are not all acknowledged: acknowledge each before the next one"


class SharePlanner:
    """The owner's lock guards it. After every event the streams ask `plan`."""

    def __init__(self, settings: ShareSettings, cluster: Cluster, backoff: Backoff, dice: Callable[[], float]) -> None:
        self.settings = settings
        self.cluster = cluster
        self.buffer = ShareBuffer()
        self.sessions: dict[int, BrokerSession] = {}
        self.outcomes: list[Outcome] = []
        self.fault: HeadraceError | None = None
        """The next poll without records raises it."""
        self.lock_timeout: float | None = None
        """The acquisition lock timeout of the broker, in seconds."""
        self.topics: frozenset[str] = frozenset()
        self._backoff = backoff
        self._dice = dice
        self._wanted: dict[int, dict[TopicIdPartition, TopicPartition]] = {}
        self._acquired: dict[TopicPartition, list[AcquiredRecords]] = {}  # the newest last
        self._limit = 0  # of the poll that waits; 0: none waits
        self._until = 0.0
        self._nudged: set[int] = set()  # brokers to ask once, after a poll that did not wait
        self._last_limit = 0
        self._sizing = FetchSizing()
        self._turn = 0
        self._empty_turns = 0

    # -- partitions --------------------------------------------------------------------------------------------

    def follow(self, assignment: Iterable[TopicIdPartition]) -> frozenset[Any]:
        """Fetches these partitions from their leaders. Returns the topics whose names are unknown."""
        wanted: dict[int, dict[TopicIdPartition, TopicPartition]] = {}
        unknown = set()
        for tip in sorted(assignment):
            name = self.cluster.topic_name(tip.topic_id)
            if name is None:
                unknown.add(tip.topic_id)
                continue
            tp = TopicPartition(name, tip.partition)
            leader = self.cluster.leader(tp)
            if leader is not None:
                wanted.setdefault(leader.node, {})[tip] = tp
        self._wanted = wanted
        for node in wanted:
            if node not in self.sessions:
                self.sessions[node] = BrokerSession(node, self.settings)
        return frozenset(unknown)

    @property
    def partitions(self) -> set[TopicPartition]:
        return {tp for tips in self._wanted.values() for tp in tips.values()}

    def subscribe(self, topics: frozenset[str], now: float) -> None:
        """Releases the buffered records of other topics."""
        self.topics = topics
        self._release(lambda batch: batch.acquired.tp.topic not in topics, now)

    def release_buffered(self, now: float) -> None:
        """The member left the group: releases the buffered records for other members."""
        self._release(lambda batch: True, now)

    def _release(self, is_unwanted: Callable[[AcquiredBatch], bool], now: float) -> None:
        for batch in self.buffer.remove(is_unwanted):
            batch.acquired.decide_unseen(batch.records.runs(), AcknowledgeType.RELEASE, batch.lock)
            self.schedule_acks(batch.acquired, now)

    # -- the user ----------------------------------------------------------------------------------------------

    def poll_begins(self, now: float) -> bool:
        """Returns whether sleeping streams have to be woken for acknowledgements. Raises StateError in explicit mode
        if records are not acknowledged."""
        is_news = False
        for tp, of_partition in list(self._acquired.items()):
            for acquired in [each for each in of_partition if each.in_hand]:
                if not self.settings.is_explicit:
                    acquired.decide_all(AcknowledgeType.ACCEPT)
                    is_news |= self.schedule_acks(acquired, now) and self.sessions[acquired.node].in_flight is None
                elif acquired.lost is not None:
                    continue
                elif not self.settings.renews and (first := acquired.undecided()) is not None:
                    raise StateError(f"{_IN_USE} (offset {first} of {tp}, for one)")
            self._acquired[tp] = [each for each in of_partition if not each.is_idle or each is of_partition[-1]]
        for session in self.sessions.values():
            if session.acks_due == math.inf and session.has_acks:  # a call was interrupted after its decision
                session.acks_due = now
        self._sizing.back(now)
        self._empty_turns = 0
        return is_news

    def wait(self, limit: int, until: float) -> None:
        """The poll found no records, and waits."""
        self._limit = self._last_limit = limit
        self._until = until

    def nudge(self, limit: int) -> None:
        """The poll does not wait: each broker is asked once, for records of the next poll."""
        if not self._limit:
            self._last_limit = limit
            self._nudged = set(self._wanted)

    def take(self, limit: int, now: float, handover: ShareHandover | None = None) -> list[RecordColumns]:
        """The records of a poll. If they do not reach the user, the handover says what to put back."""
        records = self.buffer.take(limit, now, handover or ShareHandover())
        if records:
            self._limit = 0  # the poll no longer waits
            self._last_limit = limit
            self._sizing.returned(sum(map(len, records)), now)
            if self.settings.renews:
                for session in self.sessions.values():
                    renew_later(session, self.lock_timeout, now)
        return records

    def poll_ends(self) -> None:
        self._limit = 0

    def decide(self, tp: TopicPartition, runs: Iterable[tuple[int, int]], kind: int, now: float) -> bool:
        """Returns whether to wake the streams. Raises StateError if some offsets are not in hand; the others are
        decided."""
        is_news = False
        for first, last in runs:
            left = last - first + 1
            for acquired in reversed(self._acquired.get(tp, ())):
                if done := acquired.decide(first, last, kind):
                    left -= done
                    is_news |= self.schedule_acks(acquired, now)
                if left == 0:
                    break
            if left:
                raise StateError(
                    f"{left} of the offsets {first} to {last} of {tp} cannot be acknowledged: poll() did not return "
                    f"them, or they are acknowledged already"
                )
        return is_news

    def handed_over(self, records: Iterable[tuple[TopicPartition, RecordColumns]]) -> ShareHandover:
        """The handover of the poll that returned these, for those that are still in hand."""
        batches = []
        for tp, columns in records:
            for acquired in reversed(self._acquired.get(tp, ())):
                if lock := acquired.lock_of(columns.runs()):
                    batches.append(AcquiredBatch(acquired, columns, lock))
                    break
        return ShareHandover(batches, is_moved=True)

    def put_back(self, handover: ShareHandover, now: float) -> None:
        """The user has not seen these. If it is interrupted, it can be called again."""
        self.buffer.put_back(handover)
        self._release(lambda batch: batch.acquired.tp.topic not in self.topics, now)

    def release_since(self, since: float, now: float) -> bool:
        """Releases what polls have returned since then and is undecided. Returns whether to wake the streams."""
        is_news = False
        for acquired in [each for of_partition in self._acquired.values() for each in of_partition]:
            for run in list(acquired.in_hand):
                if run.value.taken_at is not None and run.value.taken_at >= since:
                    acquired.decide(run.first, run.last, AcknowledgeType.RELEASE)
                    is_news |= self.schedule_acks(acquired, now)
        return is_news

    def accept_all(self, now: float) -> None:
        """In implicit mode: accepts the records of the last poll."""
        if not self.settings.is_explicit:
            self.poll_begins(now)

    def schedule_acks(self, acquired: AcquiredRecords, now: float) -> bool:
        """Of records that were decided. Returns whether they are the first for their broker."""
        if acquired.lost is not None:
            if outcome := acquired.lose_late():
                self.outcomes.append(outcome)
            return False
        session = self.sessions[acquired.node]
        is_first = session.acks_due == math.inf
        if is_first:
            session.acks_due = now + _LINGER
        return is_first

    def acquired_of(self, tip: TopicIdPartition, tp: TopicPartition, node: int) -> AcquiredRecords:
        """Of this partition, from this broker."""
        acquired = self.sessions[node].acquired_of(tip, tp)
        known = self._acquired.setdefault(tp, [])
        if not known or known[-1] is not acquired:
            known.append(acquired)
        return acquired

    @property
    def in_hand(self) -> int:
        """The number of records that the user has and has not decided about."""
        return sum(len(each.in_hand) for of_partition in self._acquired.values() for each in of_partition)

    # -- acknowledgements that somebody waits for ----------------------------------------------------------------

    def flush(self) -> dict[int, RequestCounts]:
        """Sends all acknowledgements at once. Returns which requests to wait for, by broker."""
        goals = {}
        for node, session in self.sessions.items():
            acks, renewals = session.has_acks, session.has_renewals
            if acks or renewals:
                session.is_urgent = True
            if acks or renewals or (session.in_flight is not None and session.in_flight.acknowledged):
                goals[node] = session.begun.plus(acks, renewals)
        return goals

    def is_over(self, goals: Mapping[int, RequestCounts]) -> bool:
        return all(self.sessions[node].ended.covers(goal) for node, goal in goals.items())

    def unsettled(self) -> set[TopicPartition]:
        """Partitions with unanswered acknowledgements."""
        return {
            acquired.tp
            for session in self.sessions.values()
            for acquired in session.acquired.values()
            if acquired.is_under_way
        }

    def can_renew(self, tp: TopicPartition) -> bool:
        of_partition = self._acquired.get(tp)
        return not of_partition or of_partition[-1].lost is not None or self.sessions[of_partition[-1].node].can_renew

    @property
    def has_retries(self) -> bool:
        """Whether acknowledgements have to be sent again."""
        return any(acquired.has_retries for session in self.sessions.values() for acquired in session.acquired.values())

    # -- requests ----------------------------------------------------------------------------------------------

    def is_wanted(self, node: int) -> bool:
        """Whether this broker leads assigned partitions."""
        return bool(self._wanted.get(node))

    def connected(self, node: int, *, can_renew: bool) -> None:
        session = self.sessions[node]
        session.is_up = True
        session.can_renew = can_renew

    def needs_fetch(self, now: float) -> bool:
        """Whether to ask some broker for records now."""
        return any(
            session.in_flight is None and self._fetch_size(session, now) is not None
            for session in self.sessions.values()
        )

    def plan(self, node: int, now: float) -> ShareRequest | None:
        """The next request to this broker. It ends with `handle_response` or `lose_session`."""
        session = self.sessions[node]
        if session.in_flight is not None or now < session.not_before:
            return None
        wanted = self._wanted.get(node, {})
        renew_due_locks(session, self.buffer, self.settings, self.lock_timeout, now)
        if not session.is_open:
            if session.has_acks or session.has_renewals:  # the connection is still open, so the locks are valid
                return session.fetch(wanted, ShareFetchSize(0), now)
            return self._fetch(session, wanted, self._fetch_size(session, now), now)
        if session.has_renewals:
            return session.renew(now)
        size = self._fetch_size(session, now)
        if session.has_acks and self._goes_alone(session, wanted, size, now):
            return session.acknowledge(now)
        return self._fetch(session, wanted, size, now)

    def closing_request(self, node: int, now: float) -> ShareRequest | None:
        """The next request of a consumer that is being closed: first the remaining acknowledgements, in as many
        requests as needed, then the one that closes the session, which releases all other records. None: nothing to
        send."""
        session = self.sessions[node]
        if not session.has_acks:
            return session.close_request(now)
        if not session.is_open:
            return session.fetch(self._wanted.get(node, {}), ShareFetchSize(0), now)
        return session.acknowledge(now)

    def _goes_alone(
        self,
        session: BrokerSession,
        wanted: Mapping[TopicIdPartition, TopicPartition],
        size: ShareFetchSize | None,
        now: float,
    ) -> bool:
        """Whether to send acknowledgements now, without a fetch."""
        if session.has_strays(wanted):
            return True
        if size is None:
            return session.is_urgent or now >= session.acks_due
        # From a partition that is full of locks a fetch gets nothing, even if it gives locks back.
        return len(wanted) > 1 and session.is_crowded(size.records if self.settings.is_strict else MOST // 2)

    def _fetch(
        self,
        session: BrokerSession,
        wanted: Mapping[TopicIdPartition, TopicPartition],
        size: ShareFetchSize | None,
        now: float,
    ) -> ShareRequest | None:
        if size is None:
            return None
        if self.settings.is_strict:
            self._nudged.clear()
        self._nudged.discard(session.node)
        return session.fetch(wanted, size, now)

    def next_wake(self, node: int, now: float) -> float:
        """When to call `plan` again, if no event comes before."""
        session = self.sessions[node]
        times = [session.renew_at]
        if session.has_acks:
            times.append(session.acks_due)
        if session.not_before > now:
            times.append(session.not_before)
        return max(min(times), session.not_before)

    def _fetch_size(self, session: BrokerSession, now: float) -> ShareFetchSize | None:
        if not self._wanted.get(session.node) or not session.is_up or now < session.not_before:
            return None
        is_awaited = self._limit > 0 and now < self._until
        if (is_awaited or session.node in self._nudged) and not self.buffer.count:
            wait = min(self._longest_wait, self._until - now) if is_awaited else 0.0
            return (
                self._fetch_size_in_turn(session, wait, now)
                if self.settings.is_strict
                else ShareFetchSize(self._portion(session), wait)
            )
        if self.settings.is_strict or not session.was_full or not self._sizing.is_quick(now, self.lock_timeout):
            return None
        portion = self._portion(session)
        is_time = self._sizing.is_time(self.buffer.count, self._last_limit, portion, session.round_trip)
        return ShareFetchSize(portion) if is_time else None

    @property
    def _longest_wait(self) -> float:
        """Acknowledgements and renewals wait behind a fetch, so it must not take much of a lock's time."""
        return (
            self.settings.max_wait if self.lock_timeout is None else min(self.settings.max_wait, self.lock_timeout / 8)
        )

    def _portion(self, session: BrokerSession) -> int:
        """The limit of a poll, or more if the last answer was full."""
        if not session.was_full:
            return self._last_limit
        return self._sizing.portion(self._last_limit, len(self._wanted[session.node]), session.asked)

    @property
    def is_acquiring(self) -> bool:
        """Whether a fetch is in flight, or its records are being decoded."""
        return any(
            each.arriving > 0 or (each.in_flight is not None and each.in_flight.size.records > 0)
            for each in self.sessions.values()
        )

    def _fetch_size_in_turn(self, session: BrokerSession, wait: float, now: float) -> ShareFetchSize | None:
        if self.is_acquiring:
            return None
        able = [
            node for node in sorted(self._wanted) if self.sessions[node].is_up and self.sessions[node].not_before <= now
        ]
        if able[self._turn % len(able)] != session.node:
            return None
        if len(able) == 1:
            return ShareFetchSize(self._last_limit, wait)
        return ShareFetchSize(self._last_limit, 0.0 if self._empty_turns < len(able) else min(wait, _TURN))

    def end_turn(self, is_empty: bool) -> None:
        """With record_limit: the next broker follows."""
        self._turn += 1
        self._empty_turns = self._empty_turns + 1 if is_empty else 0

    # -- errors -----------------------------------------------------------------------------------------------

    def pause(self, session: BrokerSession, now: float) -> None:
        session.failures += 1
        session.not_before = now + self._backoff.seconds(session.failures, self._dice())

    def lose_session(self, node: int, error: HeadraceError) -> None:
        """The connection to the broker was lost, and with it the session and all locks."""
        session = self.sessions[node]
        session.share_session.broken()
        session.begun = session.begun.plus(True, True)  # ends the wait for requests that were about to be sent
        session.end()
        session.was_full = session.is_up = False
        session.is_urgent = False
        session.arriving = 0  # a stream that was decoding them may have been cancelled
        session.acks_due = session.renew_at = math.inf
        for acquired in session.acquired.values():
            if outcome := acquired.lose(error):
                self.outcomes.append(outcome)
        session.acquired = {}
