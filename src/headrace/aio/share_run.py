"""The loop of a share consumer's `run()`: the logic of both consumers. A job is a record.

- A record is acknowledged as soon as its handler is done with it. What fails is kept back for a while, longer with
  every delivery, and then released: the broker delivers it again, to this member or another one, up to the group's
  limit.
- Locks of all that waits or is worked on are renewed in the background, where brokers can; of a record for
  max.poll.interval.ms at most. Then it is released, while its lock still lasts, and its handler abandoned.
- Nothing has an order, so nothing waits for anything else.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from ..acknowledge import AcknowledgeType
from ..arguments import function_of
from ..errors import ConfigError, StateError
from ..machines.backoff import Backoff
from ..machines.calls import Call, Overrun
from ..records import Record, Records
from .run_loop import Poll, Rest, RunLoop, Step, Steps
from .run_settings import Handler, check_pace

if TYPE_CHECKING:
    from .share_consumer import AsyncShareConsumer

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class ShareProgress:
    """What run() has done so far."""

    accepted: int
    """Records that the handler is done with."""
    released: int
    """Records that it failed with, or gave back: they are delivered again."""
    rejected: int
    """Records that it said no to."""
    running: int
    """Records that are worked on."""
    stuck: int
    """Calls of the handler that are over their time and still run. They count for nothing."""
    in_flight: int
    """The records that are worked on, with those that wait for it, or to be released."""
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
        check_pace(self)
        if self.concurrency < 1:
            raise ConfigError(f"concurrency={self.concurrency}: must be at least 1")
        if self.max_in_flight is not None and self.max_in_flight < self.concurrency:
            raise ConfigError(f"max_in_flight={self.max_in_flight}: must not be below concurrency={self.concurrency}")


class ShareRun(RunLoop[Record, ShareProgress]):
    def __init__(
        self,
        consumer: AsyncShareConsumer,
        handler: Handler,
        settings: ShareRunSettings,
        launch: Callable[[Record], None],
    ) -> None:
        super().__init__(consumer._intake.doorbell, settings, consumer._config.max_poll_interval_ms / 1000, launch)
        if not consumer._intake.member.topics:
            raise StateError("run() works as a member of a group: call subscribe() before it")
        self._intake = consumer._intake
        self._gate = consumer._gate
        self._handler = function_of("handler", handler)
        self._most = settings.max_in_flight or 2 * settings.concurrency
        self._limit = consumer._config.max_poll_records
        self._backoff = Backoff(round(settings.retry_backoff * 1000), round(settings.retry_backoff_max * 1000))
        self._queue: deque[tuple[float, Record]] = deque()  # with the times of their polls
        self._polled_at: dict[int, float] = {}  # of those that are worked on
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
        """A handler may return what is to become of the record."""
        if result is AcknowledgeType.RENEW:
            self.failed(record, ValueError("a handler cannot return RENEW: locks are renewed while it runs"))
            return
        self._settle(record, result if isinstance(result, AcknowledgeType) else AcknowledgeType.ACCEPT)
        self._ended(record)

    def failed(self, record: Record, error: BaseException) -> bool:
        count = record.delivery_count or 1
        pause = self._backoff.seconds(count, random.random())
        log.warning("%s: delivery %d failed, it is released in %.1f s: %r", self._name(record), count, pause, error)
        with self._lock:
            if id(record) in self._working:  # else run() has ended without it
                heapq.heappush(self._delayed, (time.monotonic() + pause, next(self._numbers), record))
        self._ended(record)
        return False

    def _name(self, record: Record) -> str:
        return f"{record.topic}-{record.partition}, offset {record.offset}"

    def _since(self, record: Record, now: float) -> float:
        """Its lock is renewed from then on."""
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
            pause = self._backoff.seconds(record.delivery_count or 1, random.random())
            why = f"That is longer than timeout={self._calls.timeout}"
        heapq.heappush(self._delayed, (now + pause, next(self._numbers), record))
        return f"{why}: the record is released in {pause:.1f} s."

    def _returned(self, call: Call[Record]) -> None:
        """Its record is not ours any more, or will not be."""

    def broke_off(self, record: Record, error: BaseException) -> None:
        self._settle(record, AcknowledgeType.RELEASE)
        with self._lock:
            self._error = self._error or error
        self._ended(record)
        self.ask_to_stop()

    def _settle(self, record: Record, kind: AcknowledgeType) -> None:
        try:
            self._intake.acknowledge(record, kind)
        except StateError as error:  # delivered again meanwhile, and acknowledged then
            log.info("%s", error)
        with self._lock:
            self._counts[kind] += 1

    def _ended(self, record: Record) -> None:
        with self._lock:
            self._working.pop(id(record), None)
            self._polled_at.pop(id(record), None)
            is_news = self._stopped or self._room > 0
        if is_news:
            self._intake.doorbell.ring()

    @property
    def _room(self) -> int:
        """How many records to poll for. Not for one at a time, while there is still something to do."""
        room = self._most - self._in_flight
        return room if not self._queue or room >= self._most // 2 else 0

    # -- the loop ----------------------------------------------------------------------------------------------

    def steps(self) -> Generator[Step, Any, ShareProgress]:
        planner = self._intake.planner
        terms = planner.terms
        try:
            with self._intake.lock:
                planner.accept_all(time.monotonic())
                planner.terms = dataclasses.replace(terms, is_explicit=True, renews=True)
            return (yield from super().steps())
        finally:
            planner.terms = terms  # nothing else, not even the lock: nothing can interrupt it

    def _round(self) -> Steps:
        self._intake.doorbell.clear()  # before the look that a rest may follow
        self._watch()
        self._release_delayed()
        self._tell_progress()
        self.launch()
        with self._lock:
            room = 0 if self._stopped else self._room
            release_due = self._delayed[0][0] if self._delayed else None
        if room <= 0:
            self._intake.is_alive()
            yield Rest(self._resting_time(release_due))
            return
        records: Records = yield Poll(min(room, self._limit), self._resting_time(release_due))
        self._warn_of_locks(records)
        with self._lock:
            polled_at = time.monotonic()
            self._queue.extend((polled_at, record) for record in records)
        self.launch()

    def _warn_of_locks(self, records: Records) -> None:
        if records and not self._has_warned and not self._intake.can_renew(records):
            self._has_warned = True
            log.warning(
                "locks on records cannot be renewed by these brokers (that needs Apache Kafka 4.2): what takes longer "
                "than %s s is given to another member as well",
                self._intake.planner.lock_time,
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
                    record = self._queue.popleft()[1]  # its turn did not come while its lock was renewed
                else:
                    return
            self._settle(record, AcknowledgeType.RELEASE)

    # -- the end -----------------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Takes no lock but that of the gate, which is made for signal handlers."""
        self._stopped = True
        self._gate.wakeup()
        self._intake.doorbell.ring()

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
