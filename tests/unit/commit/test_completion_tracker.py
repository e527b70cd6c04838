"""CompletionTracker (commit.mode=done): recreated and truncated logs, redelivery, and interrupts."""

from __future__ import annotations

import contextlib
import random
import signal

from headrace._aio.commit.tracker import CompletionTracker
from headrace._aio.fetch.source import ReadingStart
from headrace._machines.commit.offset_set import OffsetSet
from headrace.records import Records, decode
from headrace.types import TopicPartition
from support.brokers.record_batches import Entry, encode_batch
from support.harness.interrupts import Interrupter, interrupted_everywhere, skip_if_locks_stay_held
from support.harness.waiting import Rounds

TP = TopicPartition("t", 0)


def records(start: int, end: int) -> Records:
    data = encode_batch([Entry(value=b"x")] * (end - start), base_offset=start)
    return Records([decode(data, topic=TP.topic, partition=TP.partition, position=start)])


def begun(_: TopicPartition) -> ReadingStart:
    return ReadingStart(None, {}, {})


def test_a_log_that_begins_again_is_not_done_where_the_old_one_was() -> None:
    """The topic was recreated or truncated by an unclean election, or the position was reset to the beginning."""
    it = CompletionTracker()
    old = records(0, 1000)
    it.delivered(old, begun)
    it.done(old)
    new = records(0, 5)
    it.delivered(new, begun)
    it.done(new[0])
    assert it.committable(TP) == OffsetSet(1)
    it.delivered(records(5, 10), begun)
    it.done(new)
    assert it.committable(TP) == OffsetSet(5)


def test_what_comes_again_without_being_done_changes_nothing() -> None:
    """An abandoned iteration gives back the records it has not yielded; run() those it has not processed."""
    it = CompletionTracker()
    all_of_them = records(0, 10)
    it.delivered(all_of_them, begun)
    for record in all_of_them[:6]:
        it.done(record)
    it.delivered(records(6, 10), begun)
    assert it.committable(TP) == OffsetSet(6)
    it.done(all_of_them[8])
    assert it.committable(TP) == OffsetSet(9, [(6, 8)])


def test_done_can_be_interrupted_anywhere() -> None:
    """If the count were too low, nothing would seem to be in flight, and the position would be committed."""

    def scenario(at: int) -> bool:
        it, work = CompletionTracker(), records(0, 10)
        it.delivered(work, begun)
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            it.done(work)
        it.done(work)
        it.delivered(records(10, 20), begun)
        assert it.in_flight(None) == {TP: 10}
        assert it.committable(TP) == OffsetSet(10)
        return interrupter.has_raised

    interrupted_everywhere(scenario, more_than=10)


def test_a_delivery_can_be_interrupted_anywhere() -> None:
    def scenario(at: int) -> bool:
        it, work = CompletionTracker(), records(0, 10)
        it.delivered(work[:5], begun)
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            it.delivered(work[5:], begun)
        it.delivered(work[5:], begun)
        assert it.in_flight(None) == {TP: 10}
        it.done(work)
        assert not it.in_flight(None)
        return interrupter.has_raised

    interrupted_everywhere(scenario, more_than=10)


class Interrupted(BaseException):
    """Raised by a signal handler, like KeyboardInterrupt."""


def test_a_wait_that_is_interrupted_raises_the_interrupt_and_nothing_else() -> None:
    """threading.Condition is Python code: interrupted while its lock is released, it raises RuntimeError."""
    skip_if_locks_stay_held()
    completions, dice = CompletionTracker(), random.Random(4)
    rounds = Rounds("interrupts", 100, at_least=2000)
    completions.delivered(records(0, 10), begun)

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in rounds:
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, 1e-4))
                assert completions.wait(None, 0.0001)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                rounds.met += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
