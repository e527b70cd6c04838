"""RecordScheduler: order, retries and dead letters, held and unassigned partitions, limits."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._machines.backoff import Backoff
from headrace._machines.run.scheduler import FailureAction, Job, RecordScheduler
from headrace.errors import ConfigError
from headrace.types import TopicPartition
from support.harness.scheduler import P, Q, Thing, add, offsets, scheduler, start_all, terms

# -- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "keys", "concurrency", "begin"),
    [
        ("key", "aabb", 4, [0, 2]),
        ("key", "abcdef", 4, [0, 1, 2, 3]),
        ("key", "a.a..", 4, [0, 1, 3, 4]),  # records without a key have no order
        ("partition", "abc", 4, [0]),
        ("partition", "..", 4, [0]),
        ("none", "aaa", 2, [0, 1]),
        ("none", "...", 4, [0, 1, 2]),
    ],
)
def test_order_and_concurrency_decide_which_records_start(
    order: str, keys: str, concurrency: int, begin: list[int]
) -> None:
    assert offsets(start_all(scheduler(keys, order=order, concurrency=concurrency))) == begin


def test_keys_of_a_partition_are_scheduled_in_turn() -> None:
    work = scheduler("aaabbbc", concurrency=1)
    seen = []
    while (job := work.start(0)) is not None:
        seen.append(job.record.offset)
        work.succeeded(job)
    assert seen == [0, 3, 6, 1, 4, 2, 5]
    assert (work.handled, work.running, work.in_flight) == (7, 0, 0)


def test_later_records_of_a_key_wait_for_earlier_ones() -> None:
    work = scheduler("aa")
    (first,) = start_all(work)
    work.succeeded(first)
    add(work, "...a")
    assert offsets(start_all(work)) == [1, 0, 1, 2]
    assert work.in_flight == 5


def test_the_same_key_in_two_partitions_runs_concurrently() -> None:
    work = scheduler("a", {P: 1, Q: 1})
    add(work, "a", Q)
    assert [job.record.tp for job in start_all(work)] == [P, Q]


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_key_waits_while_its_record_is_retried() -> None:
    work = scheduler("aab", retries=2)
    first, other = start_all(work)
    assert work.failed(first, ValueError(), now=10.0, dice=0.5) == (FailureAction.RETRY, True)
    work.succeeded(other)
    assert work.start(10.0) is None
    assert work.next_retry == pytest.approx(10.1)
    assert work.start(10.1) is first
    assert work.failed(first, ValueError(), now=20.0, dice=0.5) == (FailureAction.RETRY, True)
    assert work.next_retry == pytest.approx(20.2)
    assert work.start(20.2) is first
    work.succeeded(first)
    assert offsets(start_all(work, 20.2)) == [1]
    assert (work.handled, work.retried) == (2, 2)


def test_without_dead_letters_a_failure_stops_the_scheduler() -> None:
    work = scheduler("aabb", retries=0)
    first, other = start_all(work)
    assert work.failed(first, ValueError(), now=0, dice=0) == (FailureAction.STOP, True)
    assert (work.is_stopped, work.running, work.in_flight) == (True, 1, 4)
    assert work.succeeded(other), "the last running job must wake the loop"
    assert (work.start(100.0), work.room) == (None, 0)
    assert work.unfinished() == {P}


def test_a_key_waits_while_its_dead_letter_is_written() -> None:
    work = scheduler("aa", retries=1, has_dead_letters=True)
    (job,) = start_all(work)
    first, last = ValueError("1"), ValueError("2")
    work.failed(job, first, now=0, dice=0)
    assert work.start(1.0) is job
    assert work.failed(job, last, now=1, dice=0) == (FailureAction.DEAD_LETTER, False)
    assert (job.is_dead_letter, job.error, job.attempts, work.running) == (True, last, 2, 1)
    assert work.start(9.0) is None, "its key is blocked"
    assert work.failed(job, OSError(), now=2, dice=0)[0] is FailureAction.RETRY
    assert job.error is last
    assert work.start(3.0) is job
    assert job.is_dead_letter
    work.succeeded(job)
    assert (work.dead_lettered, work.handled) == (1, 0)
    assert offsets(start_all(work, 9.0)) == [1]


def test_a_dead_letter_that_cannot_be_written_stops_the_scheduler() -> None:
    work = scheduler("a", retries=0, has_dead_letters=True)
    (job,) = start_all(work)
    assert work.failed(job, ValueError(), 0, 0)[0] is FailureAction.DEAD_LETTER
    assert work.failed(job, OSError(), 0, 0)[0] is FailureAction.STOP


def test_retries_may_be_unlimited() -> None:
    work = scheduler("a", retries=None)
    for attempt in range(1, 51):
        (job,) = start_all(work, now=10.0 * attempt)
        assert work.failed(job, ValueError(), now=10.0 * attempt, dice=1)[0] is FailureAction.RETRY
        assert job.attempts == attempt


def test_an_aborted_record_is_not_handled_and_stops_the_scheduler() -> None:
    work = scheduler("ab")
    first, _ = start_all(work)
    assert work.aborted(first)
    assert (work.is_stopped, work.handled, work.running, work.in_flight) == (True, 0, 1, 2)


# -- held and unassigned partitions ----------------------------------------------------------------------------------


def test_records_of_a_held_partition_start_only_when_it_is_released() -> None:
    work = scheduler("aab", {P: 1, Q: 1}, concurrency=2)
    add(work, "c", Q)
    jobs = start_all(work)
    work.hold({P})
    assert work.busy({P, Q}) == {P}
    assert not work.succeeded(jobs[0])
    assert [job.record.tp for job in start_all(work)] == [Q]
    assert work.succeeded(jobs[1]), "no job of P runs any more: wake the loop"
    assert work.busy({P}) == set()
    assert work.start(0) is None
    work.hold(())
    assert offsets(start_all(work)) == [1]


def test_retries_of_a_held_partition_wait_until_it_is_released() -> None:
    work = scheduler("a")
    (job,) = start_all(work)
    work.hold({P})
    work.failed(job, ValueError(), now=0, dice=0)
    assert work.busy({P}) == set()
    assert work.start(5.0) is None
    work.hold(())
    assert work.start(5.0) is job


def test_records_of_an_unassigned_partition_are_dropped() -> None:
    work = scheduler("aabc", {P: 1, Q: 1}, concurrency=2)
    jobs = start_all(work)
    work.failed(jobs[1], ValueError(), now=0, dice=0)
    work.keep({Q: 1})
    assert (work.dropped, work.in_flight, work.running) == (3, 1, 1)
    assert not work.is_ours(jobs[0])
    work.succeeded(jobs[0])
    assert (work.dropped, work.handled, work.in_flight) == (4, 0, 0)
    assert (work.start(99.0), work.next_retry) == (None, None)


@pytest.mark.parametrize("fails", [True, False])
def test_a_reassigned_partition_starts_anew_and_ignores_old_work(fails: bool) -> None:
    """Queued records are delivered again, and results of jobs that still run are ignored."""
    before, after = object(), object()
    work = scheduler("ab", {P: before}, concurrency=1, retries=0)
    (old,) = start_all(work)
    work.keep({P: after})
    add(work, "ab")
    if fails:
        assert work.failed(old, ValueError(), 0, 0) == (FailureAction.DROP, False)
    else:
        work.succeeded(old)
    assert not work.is_stopped
    assert work.dropped == 2
    new = work.start(0)
    assert new is not None
    assert work.is_ours(new)
    assert new.record.offset == 0


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_max_in_flight_makes_room_again_at_half() -> None:
    work = scheduler("a" * 10, order="none", concurrency=4, max_in_flight=10)
    assert (work.room, work.full_partitions()) == (0, {P})
    news = []
    for _ in range(5):
        job = work.start(0)
        assert job is not None
        assert work.room == 0
        news.append(work.succeeded(job))
    assert news == [False, False, False, False, True]
    assert (work.room, work.full_partitions()) == (5, set())


def test_a_partition_gets_its_portion_of_max_in_flight() -> None:
    ownerships = {TopicPartition("t", number): 1 for number in range(10)}
    work = scheduler("", ownerships, order="none", concurrency=2, max_in_flight=100)
    assert work.room == 10, "one poll may return records of a single partition"
    add(work, "a" * 10)
    assert (work.full_partitions(), work.room) == ({P}, 10)
    news = []
    while P in work.full_partitions():
        job = work.start(0)
        assert job is not None
        news.append(work.succeeded(job))
    assert news == [False, False, False, False, True]
    work.keep({P: 1})
    assert work.room == 95


def test_a_stopped_scheduler_starts_nothing() -> None:
    work = scheduler("ab")
    work.is_stopped = True
    assert (work.start(0), work.room, work.full_partitions()) == (None, 0, {P})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"order": "keys"}, "order='keys': must be key or partition or none"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"max_in_flight": 3}, "max_in_flight=3: must not be below concurrency=4"),
        ({"retries": -1}, "retries=-1"),
        ({"backoff": Backoff(100, 50)}, "retry_backoff"),
    ],
)
def test_invalid_scheduler_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        terms(**wrong)


# -- random simulation -----------------------------------------------------------------------------------------------


NAMES = [P, Q, TopicPartition("u", 0)]


class Chance:
    """Records arrive, jobs succeed, fail and are retried, partitions are revoked, assigned and held, all at random."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        concurrency = dice.randint(1, 5)
        self.terms = terms(
            order=dice.choice(["key", "key", "partition", "none"]),
            concurrency=concurrency,
            max_in_flight=concurrency + dice.randint(0, 15),
            retries=dice.choice([0, 2, None]),
            has_dead_letters=True,
        )
        self.work: RecordScheduler[Thing] = RecordScheduler(self.terms)
        self.now = 0.0
        self.next: Counter[TopicPartition] = Counter()
        self.ownerships: dict[TopicPartition, object] = {}
        self.held: set[TopicPartition] = set()
        self.running: list[Job[Thing]] = []
        self.hung: dict[object, Job[Thing]] = {}  # jobs by their hung calls
        self.open: dict[TopicPartition, set[Thing]] = {}
        self.came = self.over = 0

    def step(self) -> None:
        actions = [self.assign, self.hold, self.poll, self.poll, self.wait, self.start, self.start, self.start]
        if self.running:
            actions += [self.succeed] * 4 + [self.fail] * 2 + [self.hang]
        if self.hung:
            actions += [self.overrun, self.come_back]
        self.dice.choice(actions)()
        self.check_sums()

    def assign(self) -> None:
        """A revoked partition may be assigned again at once, as a new ownership."""
        if self.dice.random() < 0.3 and self.ownerships:
            gone = self.dice.choice(sorted(self.ownerships))
            del self.ownerships[gone]
            self.open.pop(gone, None)
            self.held.discard(gone)
        for tp in self.dice.sample(NAMES, 2):
            self.ownerships.setdefault(tp, object())
        self.work.keep(self.ownerships)

    def hold(self) -> None:
        self.held = {tp for tp in self.ownerships if self.dice.random() < 0.2}
        self.work.hold(self.held)

    def poll(self) -> None:
        """Add at most `room` records, from partitions that are neither full nor held."""
        room = self.work.room
        for tp in sorted(set(self.ownerships) - self.work.full_partitions() - self.held):
            count = self.dice.randint(0, min(room, 6))
            keys = self.dice.choices([b"a", b"b", None], k=count)
            things = [Thing(key, tp, self.next[tp] + number) for number, key in enumerate(keys)]
            self.next[tp] += count
            self.came += count
            room -= count
            self.open.setdefault(tp, set()).update(things)
            self.work.add(tp, things)

    def start(self) -> None:
        job = self.work.start(self.now)
        if job is not None:
            self.check_order(job)
            self.running.append(job)

    def check_order(self, job: Job[Thing]) -> None:
        tp = job.record.tp
        assert tp not in self.held
        assert job.record in self.open[tp]
        lane = self.lane(job.record)
        if lane is not None:
            same = [each for each in self.open[tp] if self.lane(each) == lane]
            assert min(each.offset for each in same) == job.record.offset, "an earlier record is not done"
            mine = [each for each in self.running if self.work.is_ours(each)]
            if not job.is_dead_letter:
                mine += [each for each in self.hung.values() if self.work.is_ours(each) and not each.is_dead_letter]
            assert lane not in [self.lane(each.record) for each in mine], "two records of one key run at the same time"

    def lane(self, thing: Thing) -> object:
        if self.terms.order == "key":
            return None if thing.key is None else (thing.tp, thing.key)
        return thing.tp if self.terms.order == "partition" else None

    def succeed(self) -> None:
        job = self.running.pop(self.dice.randrange(len(self.running)))
        if self.work.is_ours(job):
            self.open[job.record.tp].remove(job.record)
            self.over += 1
        self.work.succeeded(job)

    def fail(self) -> None:
        job = self.dice.choice(self.running)
        if job.is_dead_letter and self.terms.retries is not None:
            return  # it might stop the scheduler, which other tests cover
        action, _ = self.work.failed(job, ValueError(), self.now, 0.5)
        assert action is not FailureAction.STOP
        if action is not FailureAction.DEAD_LETTER:
            self.running.remove(job)

    def hang(self) -> None:
        self.overrun(self.dice.choice(self.running), object())

    def overrun(self, job: Job[Thing] | None = None, call: object = None) -> None:
        if job is None:
            call, job = self.dice.choice([*self.hung.items()])
        if job.is_dead_letter and self.terms.retries is not None:
            return  # as above, or the job was restarted without this call
        self.hung[call] = job
        action, _ = self.work.overran(job, call, TimeoutError())
        assert action is not FailureAction.STOP
        if job in self.running:
            self.running.remove(job)

    def come_back(self) -> None:
        call = self.dice.choice([*self.hung])
        self.work.returned(self.hung.pop(call), call, self.now, 0.5)

    def wait(self) -> None:
        self.now += self.dice.random()

    def check_sums(self) -> None:
        work = self.work
        assert work.running == len(self.running) <= self.terms.concurrency
        lost = sum(not work.is_ours(job) for job in self.running)
        assert work.in_flight == sum(map(len, self.open.values())) + lost <= self.terms.max_in_flight
        assert work.handled + work.dead_lettered == self.over
        assert self.over + work.dropped + work.in_flight == self.came

    def finish(self) -> None:
        """Finish all remaining work."""
        self.held = set()
        self.work.hold(())
        while self.hung:
            self.come_back()
        while True:
            self.now += 60.0
            self.start()
            if not self.running:
                break
            self.succeed()
        assert (self.work.in_flight, self.work.next_retry) == (0, None)
        assert not self.ownerships or self.work.room > 0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_a_scheduler_keeps_order_and_bounds_in_random_runs(seed: int) -> None:
    chance = Chance(seed)
    for _ in range(150):
        chance.step()
    chance.finish()
