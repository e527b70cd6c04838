"""RecordScheduler: overdue handler calls that do not return."""

from __future__ import annotations

import pytest

from headrace._machines.run.scheduler import FailureAction
from support.harness.scheduler import P, Q, offsets, scheduler, start_all


def test_a_hung_call_is_not_retried_before_it_ends() -> None:
    work, call = scheduler("aab", concurrency=1, retries=2), object()
    job = work.start(0)
    assert job is not None
    assert work.overran(job, call, TimeoutError()) == (FailureAction.RETRY, True)
    assert (work.running, work.in_flight, work.retried, work.busy({P})) == (0, 3, 1, set())
    assert offsets(start_all(work)) == [2], "another record may run, but its key is blocked"
    assert work.next_retry is None
    assert work.returned(job, call, now=5.0, dice=0.5)
    assert work.next_retry == pytest.approx(5.1)
    assert work.start(9.0) is None, "one at a time"
    assert not work.returned(job, call, now=6.0, dice=0.5), "only once"


def test_each_timeout_of_a_hung_call_counts_as_an_attempt() -> None:
    work, call, last = scheduler("aa", retries=1, has_dead_letters=True), object(), TimeoutError("2")
    (job,) = start_all(work)
    assert work.overran(job, call, TimeoutError("1"))[0] is FailureAction.RETRY
    assert work.start(99.0) is None
    assert work.overran(job, call, last)[0] is FailureAction.DEAD_LETTER
    assert (job.attempts, job.error, job.is_dead_letter, work.running) == (2, last, True, 0)
    assert work.start(99.0) is job, "its dead letter does not wait for the hung call"
    assert not work.returned(job, call, now=99.0, dice=0), "nothing waits for the call any more"
    assert work.next_retry is None
    work.succeeded(job)
    assert (work.dead_lettered, work.handled) == (1, 0)
    assert offsets(start_all(work, 99.0)) == [1]


def test_a_dead_letter_that_hangs_stops_the_scheduler() -> None:
    work, first, second = scheduler("a", retries=1, has_dead_letters=True), object(), object()
    (job,) = start_all(work)
    for _ in range(2):
        work.overran(job, first, TimeoutError())
    assert work.start(0) is job
    assert work.overran(job, second, TimeoutError())[0] is FailureAction.RETRY
    assert not work.returned(job, first, now=0, dice=0), "it does not wait for the first call"
    assert work.overran(job, second, TimeoutError())[0] is FailureAction.STOP
    assert (work.is_stopped, work.running, work.in_flight, work.unfinished()) == (True, 0, 1, {P})


def test_a_hung_call_of_an_unassigned_partition_is_dropped() -> None:
    work, call, other = scheduler("abc", {P: 1}, retries=None), object(), object()
    first, second, _ = start_all(work)
    work.overran(first, call, TimeoutError())
    work.keep({Q: 1})
    assert (work.dropped, work.running, work.in_flight) == (1, 2, 2)
    assert work.overran(first, call, TimeoutError())[0] is FailureAction.DROP
    assert work.overran(second, other, TimeoutError())[0] is FailureAction.DROP
    assert (work.dropped, work.running, work.in_flight, first.attempts) == (2, 1, 1, 1)
    assert not work.returned(first, call, now=0, dice=0)
    assert not work.returned(second, other, now=0, dice=0)
    assert work.start(99.0) is None


def test_a_hung_call_does_not_keep_a_held_partition_busy() -> None:
    work, call = scheduler("aab"), object()
    first, second = start_all(work)
    work.hold({P})
    assert not work.mark_hung(first, call)
    assert work.busy({P}) == {P}
    assert work.succeeded(second), "no job of P runs any more: wake the loop"
    assert first.attempts == 0, "the call has not failed"
    assert work.returned(first, call, now=0, dice=0)
    assert work.start(9.0) is None
    work.hold(())
    assert work.start(9.0) is first
