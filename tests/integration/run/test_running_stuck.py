"""run() with handlers that do not return: timeouts, dead letters, and released partitions."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from headrace import Record
from headrace.errors import ConfigError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, numbered_topic, write
from support.harness.groups import WAYS, RecordingListener
from support.harness.run_kinds import DEADLINE, Kind, committed_offsets, in_thread, until
from support.harness.waiting import wait_for

PARTITIONS = 3
COUNT = 20
TOTAL = PARTITIONS * COUNT
BAD = (1, 4)  # partition and offset
PartitionAndOffset = tuple[int, int]


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("stuck", PARTITIONS), PARTITIONS, COUNT)


def partition_and_offset_of(record: Record) -> PartitionAndOffset:
    return record.partition, record.offset


class Handling:
    """Handlers that do not return for some records until `let_go`. Threads block; coroutines wait and, if `stubborn`,
    ignore cancellation."""

    def __init__(
        self, kind: Kind, is_stuck: Callable[[PartitionAndOffset, int], bool], *, stubborn: bool = False
    ) -> None:
        self._kind = kind
        self._is_stuck = is_stuck
        self._is_stubborn = stubborn
        self._free = threading.Event()
        self._lock = threading.Lock()
        self._running: Counter[PartitionAndOffset] = Counter()
        self.calls: Counter[PartitionAndOffset] = Counter()
        self.handled: Counter[PartitionAndOffset] = Counter()
        self.came_late: list[PartitionAndOffset] = []
        self.at_once = 0  # concurrent calls with one record

    @property
    def handler(self) -> Any:
        return self._plain if self._kind.name == "sync" else self._coroutine

    def let_go(self) -> None:
        """Release the handlers. Coroutines can only end while their loop runs, so run it until they do."""
        self._free.set()
        for consumer in self._kind.made:
            if self._kind.name == "async" and not consumer._loop.is_closed() and not consumer._loop.is_running():
                consumer._loop.run_until_complete(self._ends())

    async def _ends(self) -> None:
        stuck = [task for task in asyncio.all_tasks() if "_work" in repr(task.get_coro())]
        if stuck:
            await asyncio.wait(stuck, timeout=DEADLINE)

    def _begin(self, at: PartitionAndOffset) -> bool:
        with self._lock:
            self.calls[at] += 1
            self._running[at] += 1
            self.at_once = max(self.at_once, self._running[at])
            return self._is_stuck(at, self.calls[at])

    def _end(self, at: PartitionAndOffset, was_stuck: bool) -> None:
        with self._lock:
            self._running[at] -= 1
            if was_stuck:
                self.came_late.append(at)
            else:
                self.handled[at] += 1

    def _plain(self, record: Record) -> None:
        at = partition_and_offset_of(record)
        if is_stuck := self._begin(at):
            self._free.wait(2 * DEADLINE)
        self._end(at, is_stuck)

    async def _coroutine(self, record: Record) -> None:
        at = partition_and_offset_of(record)
        is_stuck = self._begin(at)
        try:
            while is_stuck and not self._free.is_set():
                try:
                    await asyncio.sleep(0.02)  # a stuck handler that polls for its release and may ignore cancellation
                except asyncio.CancelledError:
                    if not self._is_stubborn:
                        raise
        finally:
            self._end(at, is_stuck)


def test_a_handler_past_its_timeout_is_retried(
    kind: Kind, servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A coroutine is cancelled and retried at once. On a thread, the record and its key wait until the call returns."""
    caplog.set_level(logging.WARNING, "headrace")
    consumer = kind.member(servers, unique("g"), topic)
    work = Handling(kind, lambda at, call: at == BAD and call == 1)
    seen: list[Any] = []

    def enough(progress: Any) -> bool:
        if kind.name == "sync" and progress.handled == TOTAL - 1 and progress.retried > 1:
            assert work.calls[BAD] == 1
            work.let_go()
        return bool(progress.handled == TOTAL)

    progress = consumer.run(
        work.handler, concurrency=4, timeout=0.3, retries=None, retry_backoff=0.01, **until(consumer, enough, seen)
    )
    assert (progress.handled, progress.running, progress.stuck, progress.in_flight) == (TOTAL, 0, 0, 0)
    assert progress.retried >= 1
    assert (work.calls[BAD], work.handled[BAD], work.came_late, work.at_once) == (2, 1, [BAD], 1)
    assert set(work.handled.values()) == {1}
    assert len(committed_offsets(consumer, topic, PARTITIONS, COUNT)) == TOTAL
    if kind.name == "sync":
        assert max(it.stuck for it in seen) == 1
    report = next(each.getMessage() for each in caplog.records if f"{topic}-1, offset 4" in each.getMessage())
    assert "timeout" in report
    assert __file__ in report, "the report must show where the handler is"
    assert ("_free.wait" if kind.name == "sync" else "asyncio.sleep") in report


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_record_whose_handler_never_returns_becomes_a_dead_letter(
    kind: Kind, servers: str, topic: str, stubborn: bool
) -> None:
    """run() ends without waiting for the call; its late result is ignored."""
    consumer = kind.member(servers, unique("g"), topic)
    work = Handling(kind, lambda at, _: at == BAD, stubborn=stubborn)
    buried: list[tuple[PartitionAndOffset, BaseException]] = []

    def keep_dead_letter(record: Record, error: BaseException) -> None:
        buried.append((partition_and_offset_of(record), error))

    progress = consumer.run(
        work.handler,
        order="partition",
        concurrency=2,
        timeout=0.3,
        retries=1,
        retry_backoff=0.01,
        dead_letter=keep_dead_letter,
        **until(consumer, lambda it: it.handled + it.dead_lettered == TOTAL),
    )
    assert (progress.handled, progress.dead_lettered, progress.retried, progress.running) == (TOTAL - 1, 1, 1, 0)
    ((at, error),) = buried
    assert at == BAD
    assert isinstance(error, TimeoutError)
    assert str(error) == f"{topic}-1, offset 4: the handler did not return within 0.3 s (timeout)"
    can_be_stopped = kind.name == "async" and not stubborn
    assert work.calls[BAD] == (2 if can_be_stopped else 1), "no second call while the first one runs"
    assert work.at_once == 1
    assert progress.stuck == (not can_be_stopped)
    assert progress.seconds < 25, "run() waited for the stuck call"
    assert len(committed_offsets(consumer, topic, PARTITIONS, COUNT)) == TOTAL
    work.let_go()
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < 5


def test_without_a_dead_letter_topic_a_handler_that_never_returns_ends_run(
    kind: Kind, servers: str, topic: str
) -> None:
    """The record is not skipped: the next run gets it."""
    consumer = kind.member(servers, unique("g"), topic)
    work = Handling(kind, lambda at, _: at == BAD, stubborn=True)
    with pytest.raises(TimeoutError, match=rf"{topic}-1, offset 4: the handler did not return within 0\.2 s"):
        consumer.run(work.handler, order="partition", concurrency=4, timeout=0.2, retries=1, drain=DEADLINE)
    assert work.calls[BAD] == 1
    work.let_go()
    left = TOTAL - sum(work.handled.values())
    again: list[PartitionAndOffset] = []
    consumer.run(
        kind.handler(lambda record: again.append(partition_and_offset_of(record))),
        **until(consumer, lambda it: it.handled == left),
    )
    assert len(again) == left
    assert BAD in again
    assert not set(again) & set(work.handled)


def test_run_raises_when_too_many_handlers_never_return(kind: Kind, servers: str, topic: str) -> None:
    """Stuck calls do not count towards the concurrency, until there are too many of them."""
    consumer = kind.member(servers, unique("g"), topic)
    work = Handling(kind, lambda *_: True, stubborn=True)
    try:
        with pytest.raises(TimeoutError, match=r"\d calls of the handler are overdue .* concurrency=2"):
            consumer.run(work.handler, order="none", concurrency=2, timeout=0.2, retries=None, drain=0.0)
        assert 3 <= len(work.calls) <= 4
        assert committed_offsets(consumer, topic, PARTITIONS, COUNT) == set()
    finally:
        work.let_go()


def test_run_refuses_invalid_timeouts(kind: Kind, servers: str, topic: str) -> None:
    consumer = kind.member(servers, unique("g"), topic)
    for wrong, error in ((0, ConfigError), (-1.0, ConfigError), ("1", TypeError)):
        with pytest.raises(error, match="timeout"):
            consumer.run(kind.handler(lambda _: None), timeout=wrong)


# -- max.poll.interval.ms ----------------------------------------------------------------------------------------------

INTERVAL = 2.0


@pytest.mark.parametrize(("way", "auto_commit"), [*((way, True) for way in WAYS), ("eager", False)])
def test_a_stuck_handler_s_partition_moves_to_another_member(
    kind: Kind, admin: Admin, servers: str, way: str, auto_commit: bool
) -> None:
    """The group requests no revoke: the member leaves properly, and the other one takes over. Then it rejoins."""
    topic, group, listener = admin.create("given-up", PARTITIONS), unique("g"), RecordingListener()
    everything = {(number, offset) for number in range(PARTITIONS) for offset in range(COUNT)}
    work = Handling(kind, lambda at, _: at[1] == 4, stubborn=True)
    other: Counter[PartitionAndOffset] = Counter()
    settings = {**WAYS[way], "enable_auto_commit": auto_commit}
    first = kind.member(
        servers, group, topic, listener=listener, max_poll_interval_ms=round(1000 * INTERVAL), **settings
    )
    second = kind.member(servers, group, topic, **settings)
    is_over = threading.Event()

    def take(record: Record) -> None:
        other[partition_and_offset_of(record)] += 1

    def is_back(_: Any) -> bool:
        kinds = listener.kinds()
        return len(work.handled + other) == len(everything) and kinds[-1] == "assigned"

    def start(consumer: Any, handler: Any, is_enough: Callable[[Any], bool]) -> Future[Any]:
        return in_thread(lambda: consumer.run(handler, order="partition", **until(consumer, is_enough)))

    ended = start(first, work.handler, is_back)
    took = start(second, kind.handler(lambda _: None, take), lambda _: is_over.is_set())
    try:
        wait_for(
            "partitions of both members",
            lambda: (mine := owned(kind, first)) and (rest := owned(kind, second)) and len(mine | rest) == PARTITIONS,
        )
        for number in range(PARTITIONS):
            write(servers, topic, numbered(COUNT, number))
        progress = ended.result(DEADLINE + 5)
    finally:
        is_over.set()
        work.let_go()
        took.result(DEADLINE + 5)
    assert work.calls.total() > work.handled.total(), "no handler was stuck"
    assert set(work.calls.values()) == {1}, "it rejoined before the other member had taken over"
    assert "lost" not in listener.kinds(), "it must leave properly"
    assert work.handled + other == Counter(everything)
    assert progress.handled == work.handled.total()
    assert first.subscription() == {topic}


def owned(kind: Kind, consumer: Any) -> set[Any]:
    return set(kind.plain(consumer).assignment())


@pytest.mark.parametrize("ends_by", ["wakeup", "signal"])
def test_run_can_be_ended_while_its_consumer_has_left_the_group(
    kind: Kind, servers: str, topic: str, caplog: pytest.LogCaptureFixture, ends_by: str
) -> None:
    """The consumer keeps its subscription."""
    caplog.set_level(logging.WARNING, "headrace")
    listener = RecordingListener()
    work = Handling(kind, lambda at, call: at == BAD and call == 1, stubborn=True)
    settings = {"max_poll_interval_ms": 2_000, "session_timeout_ms": 30_000, "group_instance_id": "one"}
    consumer = kind.member(servers, unique("g"), topic, listener=listener, **settings)
    if ends_by == "signal":
        consumer.subscribe(pattern=topic, listener=listener)

    def is_away(_: Any) -> bool:
        if "revoked" in listener.kinds() and ends_by == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
            return False
        return "revoked" in listener.kinds()

    progress = consumer.run(work.handler, **until(consumer, is_away))
    assert progress.seconds < 20
    assert progress.stuck == 1
    assert progress.handled == sum(work.handled.values())
    said = [each.getMessage() for each in caplog.records]
    assert any(f"{topic}-1, offset 4: the handler is still running after" in each for each in said)
    assert any("leaving it for 30.1 s" in each and f"{topic}-1, offset 4" in each for each in said)
    assert consumer.subscription() == {topic}
    left = TOTAL - progress.handled
    rest = consumer.run(work.handler, **until(consumer, lambda it: it.handled == left))
    assert rest.handled == left
    assert work.handled[BAD] == 1
    work.let_go()


def test_only_the_revoked_partition_of_stuck_handlers_is_given_up(kind: Kind, servers: str, topic: str) -> None:
    """The group revokes a partition while its handler is stuck: the member stays and keeps its other partitions."""
    group, listener = unique("g"), RecordingListener()
    work = Handling(kind, lambda at, _: at[1] == 0, stubborn=True)
    settings = WAYS["cooperative"]
    first = kind.member(
        servers, group, topic, listener=listener, max_poll_interval_ms=round(1000 * INTERVAL), **settings
    )
    other: list[int] = []
    is_over = threading.Event()
    ended = in_thread(
        lambda: first.run(
            work.handler, order="partition", timeout=0.5, retries=None, **until(first, lambda _: is_over.is_set())
        )
    )
    wait_for("the stuck calls", lambda: len(work.calls) == PARTITIONS)
    second = kind.member(servers, group, topic, **settings)
    took = in_thread(
        lambda: second.run(
            kind.handler(lambda record: other.append(record.offset)),
            order="partition",
            **until(second, lambda it: it.handled >= COUNT),
        )
    )
    try:
        assert took.result(DEADLINE + 5).handled >= COUNT
        (gone,) = [partitions for kind, partitions in listener.changes() if kind != "assigned"][:1]
        assert len(gone) == 1, "more partitions than the group requested"
    finally:
        is_over.set()
        work.let_go()
        ended.result(DEADLINE + 5)
