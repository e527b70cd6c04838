"""What a consumer with commit.mode=done remembers of its partitions, when their logs are not what they were."""

from __future__ import annotations

import random
import signal
import time

from headrace.aio.completions import Completions
from headrace.machines.lanes import Lanes
from headrace.offsets import OffsetSet
from headrace.records import Records, decode
from headrace.types import TopicPartition
from support.batches import Entry, encode_batch

TP = TopicPartition("t", 0)


def records(start: int, end: int) -> Records:
    data = encode_batch([Entry(value=b"x")] * (end - start), base_offset=start)
    return Records([decode(data, topic=TP.topic, partition=TP.partition, position=start)])


def begun(_: TopicPartition) -> tuple[OffsetSet | None, Lanes | None]:
    return None, None


def test_a_log_that_begins_again_is_not_done_where_the_old_one_was() -> None:
    """The topic was made again, or cut short by an unclean election, or its position was reset to its beginning."""
    it = Completions()
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
    """An iteration that was left gives back what it has not handed out; run() what it has not worked on."""
    it = Completions()
    all_of_them = records(0, 10)
    it.delivered(all_of_them, begun)
    for record in all_of_them[:6]:
        it.done(record)
    it.delivered(records(6, 10), begun)
    assert it.committable(TP) == OffsetSet(6)
    it.done(all_of_them[8])
    assert it.committable(TP) == OffsetSet(9, [(6, 8)])


class Interrupted(BaseException):
    """Raised by a signal's handler, as KeyboardInterrupt is."""


def test_a_wait_that_is_interrupted_raises_the_interrupt_and_nothing_else() -> None:
    """A Condition, which is written in Python, would raise RuntimeError where its lock is not held."""
    completions, dice, count = Completions(), random.Random(4), 0
    completions.delivered(records(0, 10), begun)

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, 1e-4))
                assert completions.wait(None, 0.0001)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                count += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert count > 100, "else nothing was tried"
