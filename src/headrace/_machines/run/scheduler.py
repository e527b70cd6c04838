"""Which record may be processed now: the decisions of `run()` about order, concurrency, bounds and retries.

    queued    -> running    it is the first of its queue, the concurrency allows it, its partition is not held
    running   -> finished   it succeeded, or its dead letter is written
    running   -> waiting    it failed and is retried later; its queue waits with it
    running   -> running    it failed for the last time, and its dead letter is written now (DEAD_LETTER)
    running   -> queued     it failed for the last time, without dead letters (STOP): nothing is started any more
    running   -> hung       its call is overdue and cannot be stopped: it counts as failed, and another job may start
    hung      -> hung       the call is still running after another timeout: it has failed once more
    hung      -> waiting    the call has ended, late: its result is ignored
    hung      -> queued     it failed for the last time: its dead letter is next, or nothing is started any more
    queued, waiting, hung -> finished   its partition is no longer assigned

A *queue* has the records that must be processed one after the other: those of a key of a partition (order=key), those
of a partition (order=partition), or a single record (order=none; and, with order=key, every record without a key).
Queues that are ready take turns.

A record that hangs is not started again while its call runs, so no record is handled twice at the same time, and its
queue waits. Only its dead letter does not wait: a call that never ends must not block its queue forever.

A partition that the group asks back is *held*: none of its records is started, and running ones are waited for. Records
that were not started are dropped when the partition is gone, or continue if the group leaves it here after all.

There are two bounds: `max_in_flight` for all records that are queued or running, and for each partition its quota of
that, so that a slow partition does not take the room of the others. A bound that was reached opens again at half of it,
and not for every single record.

Nothing here locks, waits or reads a clock.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
import itertools
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from ...errors import ConfigError
from ...types import TopicPartition
from ..backoff import Backoff

ORDERS = ("key", "partition", "none")


class Keyed(Protocol):
    @property
    def key(self) -> bytes | None: ...


R = TypeVar("R", bound=Keyed)


@dataclasses.dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Raises ConfigError for invalid settings."""

    order: str
    concurrency: int
    max_in_flight: int
    retries: int | None  # None: without limit
    backoff: Backoff
    has_dead_letters: bool

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ConfigError(f"order={self.order!r}: must be " + " or ".join(ORDERS))
        if self.concurrency < 1:
            raise ConfigError(f"concurrency={self.concurrency}: must be at least 1")
        if self.max_in_flight < self.concurrency:
            raise ConfigError(f"max_in_flight={self.max_in_flight}: must not be below concurrency={self.concurrency}")
        if self.retries is not None and self.retries < 0:
            raise ConfigError(f"retries={self.retries}: must be at least 0, or None for no limit")
        if self.backoff.initial_ms < 0 or self.backoff.max_ms < self.backoff.initial_ms:
            raise ConfigError("retry_backoff must not be negative, nor above retry_backoff_max")


class FailureAction(enum.Enum):
    """What happens to a job that failed."""

    RETRY = "retry"
    DEAD_LETTER = "dead letter"
    STOP = "stop"
    DROP = "drop"  # its partition is no longer assigned


class _Occupancy:
    """How many records are queued or running, and whether that is too many."""

    __slots__ = ("is_full", "limit", "queued", "running")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.queued = 0
        self.running = 0
        self.is_full = False

    @property
    def level(self) -> int:
        return self.queued + self.running

    def changed(self) -> bool:
        """To be called after a change. Whether there is room again."""
        was_full = self.is_full
        self.is_full = self.level >= self.limit or (was_full and self.level > self.limit // 2)
        return was_full and not self.is_full


class _OwnedPartition(Generic[R]):
    """A partition, for as long as it is assigned without interruption."""

    __slots__ = ("is_held", "is_over", "occupancy", "ownership", "parked", "queues")

    def __init__(self, ownership: object, limit: int) -> None:
        self.ownership = ownership
        self.occupancy = _Occupancy(limit)
        self.queues: dict[bytes | None, _OrderedQueue[R]] = {}
        self.parked: list[_OrderedQueue[R]] = []  # ready, except that the partition is held
        self.is_held = False
        self.is_over = False


class _OrderedQueue(Generic[R]):
    """`jobs[0]` is queued, running or waiting; those behind it are queued."""

    __slots__ = ("is_named", "jobs", "name", "owned")

    def __init__(self, owned: _OwnedPartition[R], name: bytes | None, is_named: bool) -> None:
        self.owned = owned
        self.name = name
        self.is_named = is_named  # later records of the same name are added to it
        self.jobs: deque[Job[R]] = deque()


class Job(Generic[R]):
    """A record to be processed. The caller runs it, and reports the result to the scheduler."""

    __slots__ = ("attempts", "dead_letter_attempts", "error", "hung_on", "is_dead_letter", "queue", "record")

    def __init__(self, record: R, queue: _OrderedQueue[R]) -> None:
        self.record = record
        self.queue = queue
        self.attempts = 0  # that failed
        self.error: BaseException | None = None  # of the last of them
        self.is_dead_letter = False  # its dead letter is to be written
        self.dead_letter_attempts = 0  # that failed
        self.hung_on: object = None  # the call that has to end before the next attempt


class RecordScheduler(Generic[R]):
    """The state above, of all partitions. Methods that end a job return whether the polling loop should look again."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._all = _Occupancy(settings.max_in_flight)
        self._partitions: dict[TopicPartition, _OwnedPartition[R]] = {}
        self._ready: deque[_OrderedQueue[R]] = deque()
        self._waiting: list[tuple[float, int, _OrderedQueue[R]]] = []
        self._numbers = itertools.count()
        self.is_stopped = False
        self.handled = 0
        self.retried = 0
        self.dead_lettered = 0
        self.dropped = 0

    @property
    def running(self) -> int:
        return self._all.running

    @property
    def in_flight(self) -> int:
        return self._all.level

    # -- partitions and records --------------------------------------------------------------------------------

    def keep(self, ownerships: Mapping[TopicPartition, object]) -> None:
        """Exactly these partitions are assigned. If the ownership of one is another object than before, it was revoked
        in between: its queued records will be, or were, delivered again."""
        for tp, owned in list(self._partitions.items()):
            if ownerships.get(tp) is not owned.ownership:
                self._end(self._partitions.pop(tp))
        quota = self._quota(len(ownerships))
        for tp, ownership in ownerships.items():
            known = self._partitions.get(tp)
            if known is None:
                self._partitions[tp] = _OwnedPartition(ownership, quota)
            elif known.occupancy.limit != quota:
                known.occupancy.limit = quota
                known.occupancy.changed()

    def _quota(self, partitions: int) -> int:
        settings = self._settings
        # At half of it, where it is refilled, there is still a record for every concurrent call.
        enough = max(2 * settings.concurrency, settings.max_in_flight // max(1, partitions))
        return min(enough, settings.max_in_flight)

    def _end(self, owned: _OwnedPartition[R]) -> None:
        owned.is_over = True
        self.dropped += owned.occupancy.queued
        self._all.queued -= owned.occupancy.queued
        self._all.changed()
        owned.occupancy.queued = 0
        owned.queues.clear()
        owned.parked.clear()
        self._ready = deque(queue for queue in self._ready if queue.owned is not owned)
        self._waiting = [each for each in self._waiting if each[2].owned is not owned]
        heapq.heapify(self._waiting)

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """The group asks exactly these partitions back."""
        for tp, owned in self._partitions.items():
            owned.is_held = tp in partitions
            if not owned.is_held and owned.parked:
                self._ready.extend(owned.parked)
                owned.parked.clear()

    def busy(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those of them with running records."""
        return {tp for tp in partitions if (found := self._partitions.get(tp)) is not None and found.occupancy.running}

    def unfinished(self) -> set[TopicPartition]:
        """Those with queued or running records."""
        return {tp for tp, owned in self._partitions.items() if owned.occupancy.level}

    def add(self, tp: TopicPartition, records: Iterable[R]) -> None:
        """These records were delivered, in the order of the log. `keep` must have named the partition before."""
        owned = self._partitions[tp]
        order = self._settings.order
        count = 0
        for record in records:
            name = record.key if order == "key" else None
            is_named = name is not None if order == "key" else order == "partition"
            queue = owned.queues.get(name) if is_named else None
            if queue is None:
                queue = _OrderedQueue(owned, name, is_named)
                if is_named:
                    owned.queues[name] = queue
                self._ready.append(queue)
            queue.jobs.append(Job(record, queue))
            count += 1
        for occupancy in (owned.occupancy, self._all):
            occupancy.queued += count
            occupancy.changed()

    @property
    def room(self) -> int:
        """How many records the next poll may deliver."""
        if self.is_stopped or self._all.is_full:
            return 0
        return min(self._all.limit - self._all.level, self._quota(len(self._partitions)))

    def full_partitions(self) -> set[TopicPartition]:
        """The partitions of which the next poll should deliver nothing."""
        everything = not self.room
        return {tp for tp, owned in self._partitions.items() if everything or owned.occupancy.is_full}

    # -- work --------------------------------------------------------------------------------------------------

    def start(self, now: float) -> Job[R] | None:
        """The next job to run, or None if none may start now."""
        if self.is_stopped or self._all.running >= self._settings.concurrency:
            return None
        while self._waiting and self._waiting[0][0] <= now:
            self._ready.append(heapq.heappop(self._waiting)[2])
        while self._ready:
            queue = self._ready.popleft()
            if queue.owned.is_held:
                queue.owned.parked.append(queue)
                continue
            for occupancy in (queue.owned.occupancy, self._all):
                occupancy.queued -= 1
                occupancy.running += 1
            return queue.jobs[0]
        return None

    @property
    def next_retry(self) -> float | None:
        """When `start` has to be called again at the latest."""
        return self._waiting[0][0] if self._waiting else None

    def is_ours(self, job: Job[R]) -> bool:
        """Whether its partition has been assigned without interruption since its record was delivered."""
        return not job.queue.owned.is_over

    def succeeded(self, job: Job[R]) -> bool:
        """It was handled, or its dead letter is written."""
        queue = job.queue
        owned = queue.owned
        if owned.is_over:
            self.dropped += 1
        else:
            if job.is_dead_letter:
                self.dead_lettered += 1
            else:
                self.handled += 1
            queue.jobs.popleft()
            if queue.jobs:
                self._ready.append(queue)
            elif queue.is_named:
                del owned.queues[queue.name]
        return self._left(owned)

    def failed(self, job: Job[R], error: BaseException, now: float, dice: float) -> tuple[FailureAction, bool]:
        """It raised. `dice` is a random number from 0 to 1. After FailureAction.DEAD_LETTER the job keeps running."""
        settings, queue = self._settings, job.queue
        tries = _count(job, error)
        if queue.owned.is_over:
            self.dropped += 1
            return FailureAction.DROP, self._left(queue.owned)
        if settings.retries is None or tries <= settings.retries:
            self.retried += 1
            due = now + settings.backoff.seconds(tries, dice)
            heapq.heappush(self._waiting, (due, next(self._numbers), queue))
            self._requeue(queue.owned)
            self._left(queue.owned)
            return FailureAction.RETRY, True
        if settings.has_dead_letters and not job.is_dead_letter:
            job.is_dead_letter = True
            return FailureAction.DEAD_LETTER, False
        self.is_stopped = True
        self._requeue(queue.owned)
        self._left(queue.owned)
        return FailureAction.STOP, True

    def overran(self, job: Job[R], call: object, error: BaseException) -> tuple[FailureAction, bool]:
        """Its call is overdue and still running. To be called again after each further timeout: each time counts as a
        failed attempt. After FailureAction.DEAD_LETTER `start` returns the job again."""
        settings, queue = self._settings, job.queue
        news = self.mark_hung(job, call)
        if queue.owned.is_over:
            return FailureAction.DROP, news
        tries = _count(job, error)
        if settings.retries is None or tries <= settings.retries:
            self.retried += 1
            return FailureAction.RETRY, True
        if settings.has_dead_letters and not job.is_dead_letter:
            job.is_dead_letter = True
            job.hung_on = None
            self._ready.appendleft(queue)
            return FailureAction.DEAD_LETTER, True
        self.is_stopped = True
        return FailureAction.STOP, True

    def mark_hung(self, job: Job[R], call: object) -> bool:
        """The next attempt has to wait for this call, whose result is ignored. Another job may start."""
        if job.hung_on is call:
            return False
        job.hung_on = call
        if job.queue.owned.is_over:
            self.dropped += 1
        else:
            self._requeue(job.queue.owned)
        return self._left(job.queue.owned)

    def returned(self, job: Job[R], call: object, now: float, dice: float) -> bool:
        """An overdue call has ended. The job may have continued without it."""
        if job.hung_on is not call or job.queue.owned.is_over:
            return False
        job.hung_on = None
        due = now + self._settings.backoff.seconds(max(1, job.dead_letter_attempts or job.attempts), dice)
        heapq.heappush(self._waiting, (due, next(self._numbers), job.queue))
        return True

    def aborted(self, job: Job[R]) -> bool:
        """It was interrupted: its record does not count as handled."""
        if not job.queue.owned.is_over:
            self._requeue(job.queue.owned)
        self.is_stopped = True
        self._left(job.queue.owned)
        return True

    def _requeue(self, owned: _OwnedPartition[R]) -> None:
        owned.occupancy.queued += 1
        self._all.queued += 1

    def _left(self, owned: _OwnedPartition[R]) -> bool:
        """A job is no longer running."""
        owned.occupancy.running -= 1
        self._all.running -= 1
        opened = owned.occupancy.changed() and not owned.is_over
        opened |= self._all.changed()
        if self.is_stopped:
            return self._all.running == 0
        return opened or (owned.is_held and owned.occupancy.running == 0)


def _count(job: Job[R], error: BaseException) -> int:
    """Counts one more failure. Returns how many there were."""
    if job.is_dead_letter:
        job.dead_letter_attempts += 1
        return job.dead_letter_attempts
    job.attempts += 1
    job.error = error
    return job.attempts
