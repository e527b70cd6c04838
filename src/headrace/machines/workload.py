"""Which record may be worked on now: the decisions of `run()` about order, concurrency, bounds and retries.

    queued    -> running    nothing before it in its lane, a place is free, its partition is not held
    running   -> over       it succeeded, or is among the dead letters
    running   -> waiting    it failed and is tried again later; its lane waits with it
    running   -> running    it failed for the last time, and its dead letter is written now (Verdict.BURY)
    running   -> queued     the same with nowhere to put it (Verdict.STUCK): nothing is started any more
    running   -> hung       its call is over its time and cannot be stopped: it has failed, and its place is free
    hung      -> hung       the call still runs after the same time again: it has failed once more
    hung      -> waiting    the call has ended, late: whatever it returned counts for nothing
    hung      -> queued     it failed for the last time: its dead letter is next, or nothing is started any more
    queued, waiting, hung -> over   its partition is not here any more

A *lane* is what has to be worked on one after the other: a key of a partition (order=key), a partition
(order=partition), or a single record (order=none; and, with order=key, every record that has no key). Lanes that are
ready take turns.

A record that hangs is not started again while its call runs, so no record is handled twice at a time, and its lane
waits. Only its dead letter does not wait: a call that never ends must not hold up its lane for ever.

A partition that the group asks back is *held*: nothing of it is started, and what runs is waited for. What was not
started is dropped when it is gone, or goes on when it is given back after all.

Two bounds, each with a low mark at its half at which it opens again, so that it does not open for every single record:
`max_in_flight` for all that is queued or running, and for each partition its share of that, so that a slow one does not
take the places of the others.

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

from ..errors import ConfigError
from ..types import TopicPartition
from .backoff import Backoff

ORDERS = ("key", "partition", "none")


class Keyed(Protocol):
    @property
    def key(self) -> bytes | None: ...


R = TypeVar("R", bound=Keyed)


@dataclasses.dataclass(frozen=True, slots=True)
class Terms:
    """How the work is to be done. Raises ConfigError for terms that make no sense."""

    order: str
    concurrency: int
    max_in_flight: int
    retries: int | None  # None: without end
    backoff: Backoff
    buries: bool  # there is somewhere to put what keeps failing

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ConfigError(f"order={self.order!r}: must be " + " or ".join(ORDERS))
        if self.concurrency < 1:
            raise ConfigError(f"concurrency={self.concurrency}: must be at least 1")
        if self.max_in_flight < self.concurrency:
            raise ConfigError(f"max_in_flight={self.max_in_flight}: must not be below concurrency={self.concurrency}")
        if self.retries is not None and self.retries < 0:
            raise ConfigError(f"retries={self.retries}: must be at least 0, or None for no end")
        if self.backoff.initial_ms < 0 or self.backoff.max_ms < self.backoff.initial_ms:
            raise ConfigError("retry_backoff must not be negative, nor above retry_backoff_max")


class Verdict(enum.Enum):
    """What becomes of work that failed."""

    AGAIN = "again"
    BURY = "bury"
    STUCK = "stuck"
    DROPPED = "dropped"  # its partition is not here any more


class _Gauge:
    """How much is queued or running, and whether that is too much."""

    __slots__ = ("is_full", "most", "queued", "running")

    def __init__(self, most: int) -> None:
        self.most = most
        self.queued = 0
        self.running = 0
        self.is_full = False

    @property
    def level(self) -> int:
        return self.queued + self.running

    def changed(self) -> bool:
        """Whether it has opened again by what was changed."""
        was_full = self.is_full
        self.is_full = self.level >= self.most or (was_full and self.level > self.most // 2)
        return was_full and not self.is_full


class _Tenancy(Generic[R]):
    """A partition, for as long as it is here without a break."""

    __slots__ = ("gauge", "is_held", "is_over", "lanes", "parked", "tenure")

    def __init__(self, tenure: object, most: int) -> None:
        self.tenure = tenure
        self.gauge = _Gauge(most)
        self.lanes: dict[bytes | None, _Lane[R]] = {}
        self.parked: list[_Lane[R]] = []  # ready, but for its being held
        self.is_held = False
        self.is_over = False


class _Lane(Generic[R]):
    """`jobs[0]` is queued, running or waiting; those behind it are queued."""

    __slots__ = ("is_shared", "jobs", "name", "tenancy")

    def __init__(self, tenancy: _Tenancy[R], name: bytes | None, is_shared: bool) -> None:
        self.tenancy = tenancy
        self.name = name
        self.is_shared = is_shared  # it can be found by its name, to be added to
        self.jobs: deque[Job[R]] = deque()


class Job(Generic[R]):
    """A record to be worked on. Whoever runs it tells the workload how it went, and changes nothing here."""

    __slots__ = ("attempts", "burials", "error", "hung_on", "is_burying", "lane", "record")

    def __init__(self, record: R, lane: _Lane[R]) -> None:
        self.record = record
        self.lane = lane
        self.attempts = 0  # that failed
        self.error: BaseException | None = None  # of the last of them
        self.is_burying = False  # what is to be done is its dead letter
        self.burials = 0  # that failed
        self.hung_on: object = None  # the call that has to end before the next attempt


class Workload(Generic[R]):
    """The state above, of all partitions. Methods that end a job return whether the one who polls should look."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._all = _Gauge(terms.max_in_flight)
        self._tenancies: dict[TopicPartition, _Tenancy[R]] = {}
        self._ready: deque[_Lane[R]] = deque()
        self._waiting: list[tuple[float, int, _Lane[R]]] = []
        self._numbers = itertools.count()
        self.is_stopped = False
        self.handled = 0
        self.retried = 0
        self.buried = 0
        self.dropped = 0

    @property
    def running(self) -> int:
        return self._all.running

    @property
    def in_flight(self) -> int:
        return self._all.level

    # -- partitions and records --------------------------------------------------------------------------------

    def keep(self, tenures: Mapping[TopicPartition, object]) -> None:
        """Exactly these partitions are here. One whose tenure is another object than before was away in between: what
        was queued of it will be, or was, delivered again."""
        for tp, tenancy in list(self._tenancies.items()):
            if tenures.get(tp) is not tenancy.tenure:
                self._end(self._tenancies.pop(tp))
        share = self._share(len(tenures))
        for tp, tenure in tenures.items():
            known = self._tenancies.get(tp)
            if known is None:
                self._tenancies[tp] = _Tenancy(tenure, share)
            elif known.gauge.most != share:
                known.gauge.most = share
                known.gauge.changed()

    def _share(self, partitions: int) -> int:
        terms = self._terms
        # At half of it, where it is filled up again, it still has work for every place.
        enough = max(2 * terms.concurrency, terms.max_in_flight // max(1, partitions))
        return min(enough, terms.max_in_flight)

    def _end(self, tenancy: _Tenancy[R]) -> None:
        tenancy.is_over = True
        self.dropped += tenancy.gauge.queued
        self._all.queued -= tenancy.gauge.queued
        self._all.changed()
        tenancy.gauge.queued = 0
        tenancy.lanes.clear()
        tenancy.parked.clear()
        self._ready = deque(lane for lane in self._ready if lane.tenancy is not tenancy)
        self._waiting = [each for each in self._waiting if each[2].tenancy is not tenancy]
        heapq.heapify(self._waiting)

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """Exactly these are asked back."""
        for tp, tenancy in self._tenancies.items():
            tenancy.is_held = tp in partitions
            if not tenancy.is_held and tenancy.parked:
                self._ready.extend(tenancy.parked)
                tenancy.parked.clear()

    def busy(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those of them with work under way."""
        return {tp for tp in partitions if (found := self._tenancies.get(tp)) is not None and found.gauge.running}

    def unfinished(self) -> set[TopicPartition]:
        """Those with work that is queued or under way."""
        return {tp for tp, tenancy in self._tenancies.items() if tenancy.gauge.level}

    def add(self, tp: TopicPartition, records: Iterable[R]) -> None:
        """These were delivered, in the order of the log. `keep` has named the partition."""
        tenancy = self._tenancies[tp]
        order = self._terms.order
        count = 0
        for record in records:
            name = record.key if order == "key" else None
            is_shared = name is not None if order == "key" else order == "partition"
            lane = tenancy.lanes.get(name) if is_shared else None
            if lane is None:
                lane = _Lane(tenancy, name, is_shared)
                if is_shared:
                    tenancy.lanes[name] = lane
                self._ready.append(lane)
            lane.jobs.append(Job(record, lane))
            count += 1
        for gauge in (tenancy.gauge, self._all):
            gauge.queued += count
            gauge.changed()

    @property
    def room(self) -> int:
        """How many records may be delivered at once."""
        if self.is_stopped or self._all.is_full:
            return 0
        return min(self._all.most - self._all.level, self._share(len(self._tenancies)))

    def crowded(self) -> set[TopicPartition]:
        """The partitions of which nothing should be delivered."""
        everything = not self.room
        return {tp for tp, tenancy in self._tenancies.items() if everything or tenancy.gauge.is_full}

    # -- work --------------------------------------------------------------------------------------------------

    def start(self, now: float) -> Job[R] | None:
        """What is to be worked on next, if something may be."""
        if self.is_stopped or self._all.running >= self._terms.concurrency:
            return None
        while self._waiting and self._waiting[0][0] <= now:
            self._ready.append(heapq.heappop(self._waiting)[2])
        while self._ready:
            lane = self._ready.popleft()
            if lane.tenancy.is_held:
                lane.tenancy.parked.append(lane)
                continue
            for gauge in (lane.tenancy.gauge, self._all):
                gauge.queued -= 1
                gauge.running += 1
            return lane.jobs[0]
        return None

    @property
    def next_retry(self) -> float | None:
        """When `start` should be asked again, if not before."""
        return self._waiting[0][0] if self._waiting else None

    def is_ours(self, job: Job[R]) -> bool:
        """Whether its partition is still the one that it came from."""
        return not job.lane.tenancy.is_over

    def succeeded(self, job: Job[R]) -> bool:
        """It was handled, or its dead letter is written."""
        lane = job.lane
        tenancy = lane.tenancy
        if tenancy.is_over:
            self.dropped += 1
        else:
            if job.is_burying:
                self.buried += 1
            else:
                self.handled += 1
            lane.jobs.popleft()
            if lane.jobs:
                self._ready.append(lane)
            elif lane.is_shared:
                del tenancy.lanes[lane.name]
        return self._left(tenancy)

    def failed(self, job: Job[R], error: BaseException, now: float, dice: float) -> tuple[Verdict, bool]:
        """It raised. `dice` is a number from 0 to 1. After Verdict.BURY it goes on running."""
        terms, lane = self._terms, job.lane
        tries = _count(job, error)
        if lane.tenancy.is_over:
            self.dropped += 1
            return Verdict.DROPPED, self._left(lane.tenancy)
        if terms.retries is None or tries <= terms.retries:
            self.retried += 1
            due = now + terms.backoff.seconds(tries, dice)
            heapq.heappush(self._waiting, (due, next(self._numbers), lane))
            self._requeue(lane.tenancy)
            self._left(lane.tenancy)
            return Verdict.AGAIN, True
        if terms.buries and not job.is_burying:
            job.is_burying = True
            return Verdict.BURY, False
        self.is_stopped = True
        self._requeue(lane.tenancy)
        self._left(lane.tenancy)
        return Verdict.STUCK, True

    def overran(self, job: Job[R], call: object, error: BaseException) -> tuple[Verdict, bool]:
        """Its call is over its time and goes on. To be told again for as long as it does, each time for another failed
        attempt. After Verdict.BURY `start` gives the job out again."""
        terms, lane = self._terms, job.lane
        news = self.hangs(job, call)
        if lane.tenancy.is_over:
            return Verdict.DROPPED, news
        tries = _count(job, error)
        if terms.retries is None or tries <= terms.retries:
            self.retried += 1
            return Verdict.AGAIN, True
        if terms.buries and not job.is_burying:
            job.is_burying = True
            job.hung_on = None
            self._ready.appendleft(lane)
            return Verdict.BURY, True
        self.is_stopped = True
        return Verdict.STUCK, True

    def hangs(self, job: Job[R], call: object) -> bool:
        """The next attempt has to wait for this call, whose result counts for nothing. Its place is free."""
        if job.hung_on is call:
            return False
        job.hung_on = call
        if job.lane.tenancy.is_over:
            self.dropped += 1
        else:
            self._requeue(job.lane.tenancy)
        return self._left(job.lane.tenancy)

    def returned(self, job: Job[R], call: object, now: float, dice: float) -> bool:
        """A call that is over its time has ended. The job may have gone on without it."""
        if job.hung_on is not call or job.lane.tenancy.is_over:
            return False
        job.hung_on = None
        due = now + self._terms.backoff.seconds(max(1, job.burials or job.attempts), dice)
        heapq.heappush(self._waiting, (due, next(self._numbers), job.lane))
        return True

    def broke_off(self, job: Job[R]) -> bool:
        """It did not end by itself: nothing is known of it, so it was not handled."""
        if not job.lane.tenancy.is_over:
            self._requeue(job.lane.tenancy)
        self.is_stopped = True
        self._left(job.lane.tenancy)
        return True

    def _requeue(self, tenancy: _Tenancy[R]) -> None:
        tenancy.gauge.queued += 1
        self._all.queued += 1

    def _left(self, tenancy: _Tenancy[R]) -> bool:
        """A place is free."""
        tenancy.gauge.running -= 1
        self._all.running -= 1
        opened = tenancy.gauge.changed() and not tenancy.is_over
        opened |= self._all.changed()
        if self.is_stopped:
            return self._all.running == 0
        return opened or (tenancy.is_held and tenancy.gauge.running == 0)


def _count(job: Job[R], error: BaseException) -> int:
    """One more failure. Returns how many there were."""
    if job.is_burying:
        job.burials += 1
        return job.burials
    job.attempts += 1
    job.error = error
    return job.attempts
