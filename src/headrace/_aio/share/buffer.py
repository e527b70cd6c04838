"""The state that the threads of a share consumer have in common, and the lock that guards it.

The user's thread takes records out of the buffer and decides about them; the thread with the event loop sends requests
and handles answers. The lock is held for short, synchronous steps only.

Signal handlers that raise (Ctrl-C) can interrupt the user's thread inside of each step. `_machines/share/buffer.py`
says how the records of a poll survive that; the other steps can be repeated.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from ..._chance import chance
from ..._machines.backoff import Backoff
from ..._machines.cluster import Cluster
from ..._machines.error_pacing import RETRIED, STAYS, ErrorPacing
from ..._machines.group.membership_watch import MembershipWatch
from ..._machines.share.acquired import Outcome
from ..._machines.share.broker_session import RequestCounts, ShareSettings
from ..._machines.share.buffer import ShareHandover
from ..._machines.share.member import DEFAULT_INTERVAL, ShareMember
from ..._machines.share.planner import SharePlanner
from ...config.share import ShareConsumerConfig
from ...errors import HeadraceError
from ...events import Event
from ...records import Batch, Record, Records
from ...types import AcknowledgeType, TopicPartition
from ..background import BackgroundErrors, nobody, watch
from ..callbacks import log_event
from ..group.member_id import new_member_id
from ..poll_signal import PollSignal


class ShareFetchBuffer:
    """Every method takes the lock itself."""

    def __init__(self, config: ShareConsumerConfig) -> None:
        self.lock = threading.Lock()
        self.cluster = Cluster()
        self.poll_signal = PollSignal()
        self.wake: Callable[[], None] = nobody  # the streams: set by the runtime, callable from any thread
        self.wake_group: Callable[[], None] = nobody  # the membership: likewise
        self.report: Callable[[Event], None] = log_event  # set by the consumer's parts, callable from any thread
        self.polls = 0
        self.records_returned = 0  # decreases when an iteration ends early: the rest is returned again
        self._most_returned = 0  # that metrics() has reported: a counter never decreases
        # Counted here, because unsubscribe() ends the sessions. Changed on the loop's thread only.
        self.fetches = 0
        self.acknowledge_requests = 0
        self.bytes_fetched = 0
        self.news: list[Outcome] = []  # of acknowledgements, and not reported to the callback yet
        self.acknowledged = 0
        self.refused = 0
        backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        member_id = new_member_id()
        self.member = ShareMember(
            config.group_id,
            member_id,
            backoff,
            chance.random,
            rack=config.client_rack or None,
            max_poll_interval=config.max_poll_interval_ms / 1000,
            request_timeout=config.request_timeout_ms / 1000,
        )
        self.health = MembershipWatch(
            config.group_id,
            session_timeout=None,
            heartbeat_interval=DEFAULT_INTERVAL,
            poll_limit=config.max_poll_interval_ms / 1000,
        )
        settings = ShareSettings(
            config.group_id,
            member_id,
            is_explicit=config.share_acknowledgement_mode == "explicit",
            is_strict=config.share_acquire_mode == "record_limit",
            renews=config.renew == "auto",
            must_renew=config.renew == "auto",
            max_poll_interval=config.max_poll_interval_ms / 1000,
            max_wait=config.fetch_max_wait_ms / 1000,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
        )
        self.planner = SharePlanner(settings, self.cluster, backoff, chance.random)
        self._has_acks = False  # and the streams do not know it yet
        self.pace = ErrorPacing()
        self._background = BackgroundErrors()

    def watch(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """For a task that must not end by itself: polls raise its crash."""
        return watch(task, self._crashed)

    def _crashed(self, error: BaseException) -> None:
        self._background.crash = error
        self.poll_signal.notify()

    def obstructed(self, error: HeadraceError | None) -> None:
        """No broker accepts requests, and a retry does not help: polls raise it. None: it is over."""
        self._background.obstacle = error
        self.poll_signal.notify()

    # -- polls ---------------------------------------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str]) -> None:
        with self.lock:
            self.member.subscribe(topics)
            self.planner.subscribe(topics, time.monotonic())
        self.pace.forget()
        self.wake_group()

    def poll_begins(self) -> None:
        """Raises StateError in explicit mode if records are not acknowledged."""
        with self.lock:
            was = self.member.state
            self._has_acks |= self.planner.poll_begins(time.monotonic())
            self.member.poll_begins()
            is_back = self.member.state is not was
        self.polls += 1
        if is_back:
            self.wake_group()

    def keep_alive(self) -> None:
        """Restarts the clock of max.poll.interval.ms: run() does not poll while it has enough records."""
        with self.lock:
            self.member.poll_begins()
            self.member.poll_ends(time.monotonic())

    def poll_ends(self) -> None:
        with self.lock:
            self.planner.poll_ends()
            self.member.poll_ends(time.monotonic())

    def look(self, limit: int, deadline: float, handover: ShareHandover) -> Records | None:
        """The records of a poll; None if it has to wait. Raises pending errors if there are no records."""
        now = time.monotonic()
        with self.lock:
            batches: list[Batch] = self.planner.take(limit, now, handover)  # type: ignore[assignment]  # of decode()
            if batches:
                # A poll without records fetches, and the fetch carries acknowledgements; this one may not fetch.
                needs_fetch = self._has_acks or self.planner.needs_fetch(now)
            else:
                self._raise(now, now >= deadline)
                if now < deadline:
                    self.planner.wait(limit, deadline)
                else:
                    self.planner.nudge(limit)
                needs_fetch = True
        if needs_fetch:
            self.wake()
            self._has_acks = False
        if not batches:
            return None if now < deadline else Records.EMPTY
        records = Records(batches)
        handover.total = self.records_returned + len(records)
        return records

    def _raise(self, now: float, is_late: bool) -> None:
        """Raises a pending error, unless the same was raised recently."""
        pace = self.pace
        if self.member.failure is not None and pace.admits(self.member.failure, now, STAYS, is_late=is_late):
            raise self.member.failure.with_traceback(None)  # without the frames of the last time
        for owner, name in ((self.member, "pending_error"), (self.planner, "fault")):
            error: HeadraceError | None = getattr(owner, name)
            setattr(owner, name, None)
            if error is not None and pace.admits(error, now, RETRIED):
                raise error
        self._background.raise_due(pace, now, is_late)

    def handed_over(self, records: Records) -> ShareHandover:
        """The handover of the poll that returned these."""
        parts = [(TopicPartition(batch.topic, batch.partition), batch) for batch in records._batches]
        with self.lock:
            return self.planner.handed_over(parts)

    def put_back(self, handover: ShareHandover) -> None:
        """The user has not seen these. Can be repeated after an interrupt."""
        with self.lock:
            self.planner.put_back(handover, time.monotonic())

    # -- acknowledgements ------------------------------------------------------------------------------------------

    def acknowledge(self, work: Record | Records, kind: AcknowledgeType) -> None:
        """Raises StateError for records that are not in hand."""
        now = time.monotonic()
        if isinstance(work, Record):
            parts: Iterable[tuple[TopicPartition, list[tuple[int, int]]]] = [
                (TopicPartition(work.topic, work.partition), [(work.offset, work.offset)])
            ]
        else:
            parts = [(TopicPartition(batch.topic, batch.partition), batch.runs()) for batch in work._batches]
        is_news = False
        with self.lock:
            for tp, runs in parts:
                is_news |= self.planner.decide(tp, runs, kind, now)
        if is_news:
            self.wake()

    def release_since(self, since: float) -> None:
        """Releases what polls have returned since then and is undecided. Can be repeated after an interrupt."""
        with self.lock:
            is_news = self.planner.release_since(since, time.monotonic())
        if is_news:
            self.wake()

    def can_renew(self, work: Record | Records) -> bool:
        """Whether the brokers that these came from support it. Brokers that are gone count as if they did."""
        parts = work._batches if isinstance(work, Records) else [work]
        with self.lock:
            return all(self.planner.can_renew(TopicPartition(part.topic, part.partition)) for part in parts)

    def flush(self) -> dict[int, RequestCounts]:
        """Sends all acknowledgements now; in implicit mode also those of the last poll."""
        with self.lock:
            self.planner.accept_all(time.monotonic())
            goals = self.planner.flush()
        if goals:
            self.wake()
        return goals

    def next_outcome(self) -> Outcome | None:
        """The oldest unreported outcome. It stays the same until the caller removes it from `news`."""
        if self.planner.outcomes:
            with self.lock:
                self.news += self.planner.outcomes
                self.planner.outcomes = []
        return self.news[0] if self.news else None

    # -- questions -------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, Any]:
        with self.lock:
            planner, member = self.planner, self.member
            batches: Iterable[Batch] = [each.records for each in planner.buffer]  # type: ignore[misc]  # of decode()
            self._most_returned = max(self._most_returned, self.records_returned)
            return {
                "polls": self.polls,
                "records_returned": self._most_returned,
                "fetches": self.fetches,
                "acknowledgements": self.acknowledge_requests,
                "bytes_fetched": self.bytes_fetched,
                "acknowledged": self.acknowledged,
                "refused": self.refused,
                "in_hand": planner.in_hand,
                "buffered_records": planner.buffer.count,
                "buffered_bytes": sum(batch.nbytes for batch in batches),
                "expired_in_buffer": planner.buffer.expired,
                "partitions": sorted(map(str, planner.partitions)),
                "acquisition_lock_timeout": planner.lock_timeout,
                "rebalances": member.rebalances,
                **self.health.describe(time.monotonic()),
                "group": {
                    "state": member.state.value,
                    "epoch": member.epoch,
                    "member_id": member.member_id,
                },
            }
