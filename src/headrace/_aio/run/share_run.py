"""The loop of a share consumer's `run()`, for both consumers. A job is a record.

- A record is acknowledged as soon as its handler returns. A record that fails is kept for a while, longer with every
  delivery, and then released: the broker delivers it again, to this member or another one, up to the group's limit.
- The locks of all queued and running records are renewed in the background, if the brokers support it; each for
  max.poll.interval.ms at most. Then the record is released, while its lock still lasts, and its handler is abandoned.
- Records have no order, so none waits for another.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

from ..._arguments import function_of
from ..._chance import chance
from ..._machines.backoff import Backoff
from ..._machines.run.handler_calls import HandlerCall, Overrun
from ..._machines.share.member import ShareMember
from ..._machines.share.planner import SharePlanner
from ...config.share import ShareConsumerConfig
from ...errors import ConfigError, StateError
from ...events import Event
from ...records import Record, Records
from ...types import AcknowledgeType, TopicPartition
from ..call_guard import CallGuard
from ..poll_signal import PollSignal
from .loop import AwaitPollSignal, Poll, RunLoop, Step, Steps
from .options import Handler, check_limits

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class ShareProgress:
    """The progress of run() since its start."""

    accepted: int
    """Records that the handler has accepted."""
    released: int
    """Records for which it failed, or that it released: they are delivered again."""
    rejected: int
    """Records that it rejected."""
    running: int
    """Records that are being processed."""
    stuck: int
    """Calls of the handler that are overdue and still running. Their results are ignored."""
    in_flight: int
    """Records that are being processed, are queued, or wait to be released."""
    seconds: float
    """Since run() was called."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShareRunSettings:
    """The parameters of run()."""

    concurrency: int
    max_in_flight: int | None
    retry_backoff: float
    retry_backoff_max: float
    timeout: float | None
    drain: float
    on_progress: Callable[[ShareProgress], Any] | None
    progress_interval: float

    def __post_init__(self) -> None:
        check_limits(self)
        if self.concurrency < 1:
            raise ConfigError(f"concurrency={self.concurrency}: must be at least 1")
        if self.max_in_flight is not None and self.max_in_flight < self.concurrency:
            raise ConfigError(f"max_in_flight={self.max_in_flight}: must not be below concurrency={self.concurrency}")


class RunBuffer(Protocol):
    """The calls of `ShareFetchBuffer` that run() makes. `member` and `planner` are guarded by `lock`."""

    @property
    def poll_signal(self) -> PollSignal: ...
    @property
    def lock(self) -> threading.Lock: ...
    @property
    def member(self) -> ShareMember: ...
    @property
    def planner(self) -> SharePlanner: ...
    def acknowledge(self, work: Record | Records, kind: AcknowledgeType) -> None: ...
    def can_renew(self, work: Record | Records) -> bool: ...
    def keep_alive(self) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class ShareRunParts:
    """The parts of a share consumer that run() uses, apart from its public methods."""

    config: ShareConsumerConfig
    guard: CallGuard
    buffer: RunBuffer
    report: Callable[[Event], None]


class ShareRun(RunLoop[Record, ShareProgress]):
    def __init__(
        self,
        parts: ShareRunParts,
        handler: Handler,
        settings: ShareRunSettings,
        launch: Callable[[Record], None],
    ) -> None:
        config = parts.config
        limit = config.max_poll_interval_ms / 1000
        super().__init__(parts.guard, parts.buffer.poll_signal, settings, limit, launch, config.group_id, parts.report)
        if not parts.buffer.member.topics:
            raise StateError("run() works as a member of a group: call subscribe() before it")
        self._buffer = parts.buffer
        self._handler = function_of("handler", handler)
        self._most = settings.max_in_flight or 2 * settings.concurrency
        self._limit = config.max_poll_records
        self._backoff = Backoff(round(settings.retry_backoff * 1000), round(settings.retry_backoff_max * 1000))
        self._queue: deque[tuple[float, Record]] = deque()  # with the times of their polls
        self._polled_at: dict[int, float] = {}  # of those that are being processed
        self._delayed: list[tuple[float, int, Record]] = []
        self._numbers = itertools.count()
        self._working: dict[int, Record] = {}
        self._counts = dict.fromkeys(AcknowledgeType, 0)
        self._has_warned = False
        self._stopped = False  # only ever set, so without the lock

    # -- jobs: on any thread -----------------------------------------------------------------------------------

    def take(self) -> Record | None:
        with self._lock:
            if self._stopped or len(self._working) >= self.concurrency or not self._queue:
                return None
            polled_at, record = self._queue.popleft()
            self._working[id(record)] = record
            self._polled_at[id(record)] = polled_at
            return record

    def call(self, record: Record) -> Any:
        return self._handler(record)

    def succeeded(self, record: Record, result: Any) -> None:
        """A handler may return another acknowledgement than ACCEPT."""
        if result is AcknowledgeType.RENEW:
            self.failed(record, ValueError("a handler cannot return RENEW: run() renews locks while it runs"))
            return
        self._settle(record, result if isinstance(result, AcknowledgeType) else AcknowledgeType.ACCEPT)
        self._ended(record)

    def failed(self, record: Record, error: BaseException) -> bool:
        count = record.delivery_count or 1
        pause = self._backoff.seconds(count, chance.random())
        log.warning(
            "%s: delivery %d failed, the record is released in %.1f s: %r", self._name(record), count, pause, error
        )
        with self._lock:
            if id(record) in self._working:  # otherwise run() has ended without it
                heapq.heappush(self._delayed, (time.monotonic() + pause, next(self._numbers), record))
        self._ended(record)
        return False

    def _place(self, record: Record) -> tuple[TopicPartition, int]:
        return TopicPartition(record.topic, record.partition), record.offset

    def _since(self, record: Record, now: float) -> float:
        """Its lock has been renewed since its poll."""
        return self._polled_at.get(id(record), now)

    def _overran(self, overrun: Overrun[Record], now: float) -> str | None:
        record = overrun.call.job
        overrun.call.forget_timeout()
        if not overrun.is_news or self._working.pop(id(record), None) is None:
            return None
        self._polled_at.pop(id(record), None)
        if overrun.is_final:
            pause, why = 0.0, "It was polled more than max.poll.interval.ms ago"
        else:
            pause = self._backoff.seconds(record.delivery_count or 1, chance.random())
            why = f"That is longer than timeout={self._calls.timeout}"
        heapq.heappush(self._delayed, (now + pause, next(self._numbers), record))
        return f"{why}: the record is released in {pause:.1f} s."

    def _returned(self, call: HandlerCall[Record]) -> None:
        """Its record was or will be released."""

    def aborted(self, record: Record, error: BaseException) -> None:
        self._settle(record, AcknowledgeType.RELEASE)
        with self._lock:
            self._error = self._error or error
        self._ended(record)
        self.ask_to_stop()

    def _settle(self, record: Record, kind: AcknowledgeType) -> None:
        try:
            self._buffer.acknowledge(record, kind)
        except StateError as error:  # it was delivered again meanwhile, and acknowledged then
            log.info("%s", error)
        with self._lock:
            self._counts[kind] += 1

    def _ended(self, record: Record) -> None:
        with self._lock:
            self._working.pop(id(record), None)
            self._polled_at.pop(id(record), None)
            is_news = self._stopped or self._room > 0
        if is_news:
            self._buffer.poll_signal.notify()

    @property
    def _room(self) -> int:
        """The maximum number of records to poll. Never one at a time while others are queued."""
        room = self._most - self._in_flight
        return room if not self._queue or room >= self._most // 2 else 0

    # -- the loop ----------------------------------------------------------------------------------------------

    def steps(self) -> Generator[Step, Any, tuple[ShareProgress, BaseException | None]]:
        planner = self._buffer.planner
        settings = planner.settings
        try:
            with self._buffer.lock:
                planner.accept_all(time.monotonic())
                planner.settings = dataclasses.replace(settings, is_explicit=True, renews=True)
            return (yield from super().steps())
        finally:
            planner.settings = settings  # only this, without the lock, so that nothing can interrupt it

    def _round(self) -> Steps:
        self._buffer.poll_signal.clear()  # before the queue is checked, after which it may wait
        self._watch()
        self._release_delayed()
        self._report_progress()
        self.launch()
        with self._lock:
            room = 0 if self._stopped else self._room
            release_due = self._delayed[0][0] if self._delayed else None
        if room <= 0:
            self._buffer.keep_alive()
            yield AwaitPollSignal(self._wait_time(release_due))
            return
        records: Records = yield Poll(min(room, self._limit), self._wait_time(release_due))
        self._warn_of_locks(records)
        with self._lock:
            polled_at = time.monotonic()
            self._queue.extend((polled_at, record) for record in records)
        self.launch()

    def _warn_of_locks(self, records: Records) -> None:
        if records and not self._has_warned and not self._buffer.can_renew(records):
            self._has_warned = True
            log.warning(
                "locks on records cannot be renewed by these brokers (that needs Apache Kafka 4.2): a record that "
                "takes longer than %s s is delivered to another member as well",
                self._buffer.planner.lock_timeout,
            )

    @property
    def _in_flight(self) -> int:
        return len(self._queue) + len(self._working) + len(self._delayed)

    def _release_delayed(self) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                if self._delayed and self._delayed[0][0] <= now:
                    record = heapq.heappop(self._delayed)[2]
                elif self._queue and self._queue[0][0] + self._calls.limit <= now:
                    record = self._queue.popleft()[1]  # it was queued for as long as its lock was renewed
                else:
                    return
            self._settle(record, AcknowledgeType.RELEASE)

    # -- the end -----------------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Takes no lock except the guard's, which is safe in signal handlers."""
        self._stopped = True
        self._guard.wakeup()
        self._buffer.poll_signal.notify()

    def end(self) -> None:
        self._stopped = True

    def _stop(self, why: str) -> None:
        log.info("run() ends: %s", why)
        self._stopped = True

    @property
    def _is_stopped(self) -> bool:
        return self._stopped

    @property
    def running(self) -> int:
        return len(self._working)

    def _finish(self) -> Steps:
        self._release_rest()
        yield from super()._finish()

    def _release_rest(self) -> None:
        with self._lock:
            left = [
                *(record for _, record in self._queue),
                *(record for _, _, record in self._delayed),
                *self._working.values(),
            ]
            self._queue.clear()
            self._delayed.clear()
            self._working.clear()
        for record in left:
            self._settle(record, AcknowledgeType.RELEASE)

    def progress(self) -> ShareProgress:
        with self._lock:
            return ShareProgress(
                accepted=self._counts[AcknowledgeType.ACCEPT],
                released=self._counts[AcknowledgeType.RELEASE],
                rejected=self._counts[AcknowledgeType.REJECT],
                running=len(self._working),
                stuck=self._calls.abandoned,
                in_flight=self._in_flight,
                seconds=time.monotonic() - self._began,
            )
