"""What the threads of a share consumer share, and the lock that guards it.

The user's thread takes records out of the stock and decides about them; the one with the event loop sends, and takes
answers in. The lock is held for short, synchronous steps only.

Signal handlers that raise (Ctrl-C) can interrupt the user's thread inside of each step. `share_stock.py` says how a
poll's records survive that; the other steps can be repeated.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from ..acknowledge import AcknowledgeType
from ..errors import AuthenticationError, HeadraceError
from ..machines.backoff import Backoff
from ..machines.cluster import Cluster
from ..machines.pace import RETRIED, STAYS, Pace
from ..machines.share_holding import Outcome
from ..machines.share_member import ShareMember
from ..machines.share_place import ShareTerms, Talk
from ..machines.share_planner import Planner
from ..machines.share_stock import Handover
from ..records import Batch, Record, Records
from ..share_config import ShareConsumerConfig
from ..types import TopicPartition
from .doorbell import Doorbell

log = logging.getLogger(__name__)


def nobody() -> None:
    """Nobody is there yet to be woken."""


class ShareIntake:
    """Every method takes the lock itself."""

    def __init__(self, config: ShareConsumerConfig) -> None:
        self.lock = threading.Lock()
        self.cluster = Cluster()
        self.doorbell = Doorbell()
        self.wake: Callable[[], None] = nobody  # the streams: set by the engine, to be called from any thread
        self.wake_group: Callable[[], None] = nobody  # the membership, likewise
        self.polls = 0
        self.records_returned = 0
        self.news: list[Outcome] = []  # what became of acknowledgements, and was not told yet
        self.acknowledged = 0
        self.refused = 0
        backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self.member = ShareMember(
            config.group_id,
            member_id,
            backoff,
            random.random,
            rack=config.client_rack or None,
            max_poll_interval=config.max_poll_interval_ms / 1000,
            request_timeout=config.request_timeout_ms / 1000,
        )
        terms = ShareTerms(
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
        self.planner = Planner(terms, self.cluster, backoff, random.random)
        self._has_acks = False  # that the streams have not heard of
        self.pace = Pace()
        self._crash: BaseException | None = None
        self._obstacle: HeadraceError | None = None

    def watch(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """A task that must not end by itself. If it does, that is a bug of ours, and polls tell it."""
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the task %s ended: %r", task.get_name(), error, exc_info=error)
            self._crash = error
            self.doorbell.ring()

    def obstructed(self, error: HeadraceError | None) -> None:
        """No broker can be asked, for a reason that trying again does not mend: polls tell it. None: it is over."""
        self._obstacle = error
        self.doorbell.ring()

    # -- polls ---------------------------------------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str]) -> None:
        with self.lock:
            self.member.subscribe(topics)
            self.planner.subscribe(topics, time.monotonic())
        self.pace.forget()
        self.wake_group()

    def poll_begins(self) -> None:
        """Raises StateError in explicit mode if something is not acknowledged."""
        with self.lock:
            was = self.member.state
            self._has_acks |= self.planner.poll_begins(time.monotonic())
            self.member.poll_begins()
            is_back = self.member.state is not was
        self.polls += 1
        if is_back:
            self.wake_group()

    def is_alive(self) -> None:
        """The user does not poll, since it has enough to do; that is no reason to leave the group."""
        with self.lock:
            self.member.poll_begins()
            self.member.poll_ends(time.monotonic())

    def poll_ends(self) -> None:
        with self.lock:
            self.planner.poll_ends()
            self.member.poll_ends(time.monotonic())

    def look(self, limit: int, deadline: float, handover: Handover) -> Records | None:
        """What a poll returns; None if it is to wait. Raises what stands in the way of records."""
        now = time.monotonic()
        with self.lock:
            batches: list[Batch] = self.planner.take(limit, now, handover)  # type: ignore[assignment]  # of decode()
            if batches:
                # A poll that finds nothing fetches, which takes acknowledgements along; this one may not.
                is_hungry = self._has_acks or self.planner.is_hungry(now)
            else:
                self._raise(now, now >= deadline)
                if now < deadline:
                    self.planner.wait(limit, deadline)
                else:
                    self.planner.nudge(limit)
                is_hungry = True
        if is_hungry:
            self.wake()
            self._has_acks = False
        if not batches:
            return None if now < deadline else Records.EMPTY
        records = Records(batches)
        handover.total = self.records_returned + len(records)
        return records

    def _raise(self, now: float, is_late: bool) -> None:
        """What was not raised just now: what is retried comes again."""
        pace = self.pace
        if self.member.failure is not None and pace.admits(self.member.failure, now, STAYS, is_late=is_late):
            raise self.member.failure.with_traceback(None)  # of the last time
        for owner, name in ((self.member, "complaint"), (self.planner, "fault")):
            error: HeadraceError | None = getattr(owner, name)
            setattr(owner, name, None)
            if error is not None and pace.admits(error, now, RETRIED):
                raise error
        if (obstacle := self._obstacle) is not None:
            is_final = isinstance(obstacle, AuthenticationError) and obstacle.is_final
            if pace.admits(obstacle, now, STAYS if is_final else RETRIED, is_late=is_late and is_final):
                raise obstacle.with_traceback(None)
        if self._crash is not None:
            crash = HeadraceError(f"a background task of this consumer ended: {self._crash!r}")
            if pace.admits(crash, now, STAYS, is_late=is_late):
                raise crash from self._crash

    def handed_over(self, records: Records) -> Handover:
        """These, as the poll that returned them had taken them."""
        parts = [(TopicPartition(batch.topic, batch.partition), batch) for batch in records._batches]
        with self.lock:
            return self.planner.handed_over(parts)

    def put_back(self, handover: Handover) -> None:
        """The user has not seen these. May be called again until it got through."""
        with self.lock:
            self.planner.put_back(handover, time.monotonic())

    # -- acknowledgements ------------------------------------------------------------------------------------------

    def acknowledge(self, work: Record | Records, kind: AcknowledgeType) -> None:
        """Raises StateError for what is not in hand."""
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
        """What polls have returned since then and nobody will decide about. May be called again until it got
        through."""
        with self.lock:
            is_news = self.planner.release_since(since, time.monotonic())
        if is_news:
            self.wake()

    def can_renew(self, work: Record | Records) -> bool:
        """Whether the brokers that these came from can. Of those that are gone nothing is known: others will tell."""
        parts = work._batches if isinstance(work, Records) else [work]
        with self.lock:
            return all(self.planner.can_renew(TopicPartition(part.topic, part.partition)) for part in parts)

    def hurry(self) -> dict[int, Talk]:
        """Has everything sent that is to be acknowledged; in implicit mode also what the last poll returned."""
        with self.lock:
            self.planner.accept_all(time.monotonic())
            goals = self.planner.hurry()
        if goals:
            self.wake()
        return goals

    def next_outcome(self) -> Outcome | None:
        """What became of acknowledgements, one after the other; `told` is the next step. Until then it is the next."""
        if self.planner.outcomes:
            with self.lock:
                self.news += self.planner.outcomes
                self.planner.outcomes = []
        return self.news[0] if self.news else None

    # -- questions -------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, Any]:
        with self.lock:
            planner, member = self.planner, self.member
            return {
                "polls": self.polls,
                "records_returned": self.records_returned,
                "acknowledged": self.acknowledged,
                "refused": self.refused,
                "in_hand": planner.in_hand,
                "buffered_records": planner.stock.count,
                "expired_in_buffer": planner.stock.expired,
                "partitions": sorted(map(str, planner.partitions)),
                "acquisition_lock_timeout": planner.lock_time,
                "group": {
                    "state": member.state.value,
                    "epoch": member.epoch,
                    "member_id": member.member_id,
                },
            }
