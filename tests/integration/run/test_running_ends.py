"""How run() ends: fatal failures, wakeups, cancellation, signals. Done records are committed."""

from __future__ import annotations

import asyncio
import functools
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from typing import Any

import pytest

from headrace import AsyncConsumer, Consumer, Progress, Record
from headrace._aio.run.consumer_run import ConsumerRun
from headrace.errors import ConfigError, KafkaError, StateError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered_topic
from support.harness.consumers import KINDS, AnyConsumer
from support.harness.run_kinds import DEADLINE, Kind, committed_offsets, until
from support.members.subprocesses import INTERRUPTIBLE

PARTITIONS = 6
COUNT = 150


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("ends", PARTITIONS), PARTITIONS, COUNT)


def done(consumer: AnyConsumer, topic: str) -> set[tuple[int, int]]:
    return committed_offsets(consumer, topic, PARTITIONS, COUNT)


def test_a_stop_iteration_of_a_handler_is_raised_as_it_is(servers: str, topic: str) -> None:
    """run() is built on generators, which cannot raise StopIteration. (Nor can coroutines: AsyncConsumer.run().)"""
    with Consumer(
        bootstrap_servers=servers, group_id=unique("g"), auto_offset_reset="earliest", commit_mode="done"
    ) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(StopIteration):
            consumer.run(lambda record: next(iter(())), retries=0)


def test_without_a_dead_letter_topic_a_failure_ends_run(kind: Kind, servers: str, topic: str) -> None:
    """It ends after running handlers are done and committed. The failed record is not skipped: the next run gets it."""
    group, failing = unique("g"), (3, 40)
    consumer = kind.member(servers, group, topic)
    handled: list[tuple[int, int]] = []
    attempts = 0

    def begin(record: Record) -> float:
        nonlocal attempts
        if (record.partition, record.offset) == failing:
            attempts += 1
            raise ValueError("no")
        return 0.001

    def end(record: Record) -> None:
        handled.append((record.partition, record.offset))

    with pytest.raises(ValueError, match="no") as caught:
        consumer.run(kind.handler(begin, end), order="partition", retries=1, retry_backoff=0.01)
    assert caught.value.__notes__ == [
        f"{topic}-3, offset 40: failed for the last time, after 2 attempts, and ends run()"
    ]
    assert attempts == 2
    assert (3, 39) in handled
    assert (3, 41) not in handled
    assert done(consumer, topic) == set(handled)
    left = PARTITIONS * COUNT - len(handled)
    again: list[tuple[int, int]] = []
    progress = consumer.run(
        kind.handler(lambda record: again.append((record.partition, record.offset))),
        **until(consumer, lambda it: it.handled == left),
    )
    assert progress.handled == left
    assert failing in again
    assert not set(again) & set(handled)


def test_records_that_run_did_not_handle_are_not_in_flight_after_it(kind: Kind, servers: str, topic: str) -> None:
    """Otherwise close(drain=…) would wait for records that are not being handled."""
    consumer = kind.member(servers, unique("g"), topic)
    handled: list[tuple[int, int]] = []
    progress = consumer.run(
        kind.handler(lambda _: 0.001, lambda record: handled.append((record.partition, record.offset))),
        order="none",
        **until(consumer, lambda it: it.handled > 20),
    )
    assert progress.in_flight, "no unhandled records are left to test"
    assert consumer.in_flight() == {}
    consumer.commit()
    assert done(consumer, topic) == set(handled)


class Interrupted(BaseException):
    """Like KeyboardInterrupt."""


def test_after_a_second_interrupt_of_run_unhandled_records_are_delivered_again(
    kind: Kind, servers: str, topic: str
) -> None:
    """run() waits neither for running handlers nor for the last commit."""
    consumer = kind.member(servers, unique("g"), topic)
    handled: set[tuple[int, int]] = set()
    is_slow = True

    def interrupt(progress: Progress) -> None:
        if progress.handled:
            raise Interrupted

    with pytest.raises(Interrupted):
        consumer.run(
            kind.handler(
                lambda record: 1.0 if is_slow and record.offset % 10 == 9 else 0.0,
                lambda record: handled.add((record.partition, record.offset)),
            ),
            on_progress=interrupt,
            progress_interval=0.05,
        )
    is_slow = False
    assert 0 < len(handled) < PARTITIONS * COUNT
    consumer.run(
        kind.handler(lambda record: handled.add((record.partition, record.offset))),
        **until(consumer, lambda _: len(handled) == PARTITIONS * COUNT),
    )
    assert len(handled) == PARTITIONS * COUNT


@pytest.mark.parametrize("step", ["_take_in", "_block"])
def test_an_interrupt_between_the_steps_of_run_loses_nothing(
    kind: Kind, servers: str, topic: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example with records that were polled but not scheduled yet, or partitions that are blocked during a poll."""
    consumer = kind.member(servers, unique("g"), topic)
    handled: set[tuple[int, int]] = set()
    original = getattr(ConsumerRun, step)

    def interrupted(self: ConsumerRun, work: Any) -> Any:
        if not (work if step == "_take_in" else self._buffer.partitions()):
            return original(self, work)
        monkeypatch.undo()
        if step == "_block":
            original(self, None)
        raise Interrupted

    monkeypatch.setattr(ConsumerRun, step, interrupted)
    with pytest.raises(Interrupted):
        consumer.run(kind.handler(lambda _: 0.001, lambda record: handled.add((record.partition, record.offset))))
    deadline = time.monotonic() + DEADLINE
    while len(handled) < PARTITIONS * COUNT:
        assert time.monotonic() < deadline, "unhandled records did not come again"
        handled |= {(record.partition, record.offset) for record in consumer.poll(1.0)}


def test_a_dead_letter_function_gets_records_that_keep_failing(kind: Kind, servers: str, topic: str) -> None:
    """It is retried like a handler, and run() raises its last error."""
    consumer = kind.member(servers, unique("g"), topic)
    buried: list[tuple[int, str]] = []
    handled: list[int] = []
    tries: Counter[tuple[int, int]] = Counter()

    def begin(record: Record) -> None:
        if record.offset % 50 == 7:
            raise ValueError(str(record.offset))

    def keep_dead_letter(record: Record, error: BaseException) -> None:
        tries[record.partition, record.offset] += 1
        if record.offset == 57 and tries[record.partition, 57] == 1:
            raise OSError("try again")
        if record.offset == 107:
            raise OSError("full")
        buried.append((record.offset, str(error)))

    async def keep_dead_letter_soon(record: Record, error: BaseException) -> None:
        await asyncio.sleep(0)  # a real suspension
        keep_dead_letter(record, error)

    with pytest.raises(OSError, match="full"):
        consumer.run(
            kind.handler(begin, lambda record: handled.append(record.offset)),
            order="partition",
            retries=3,
            retry_backoff=0.005,
            dead_letter=keep_dead_letter if kind.name == "sync" else keep_dead_letter_soon,
        )
    assert set(buried) <= {(7, "7"), (57, "57")}
    assert buried.count((57, "57")) >= 1
    assert len(done(consumer, topic)) == len(handled) + len(buried)


def test_a_dead_letter_that_cannot_be_written_ends_run(kind: Kind, admin: Admin, servers: str, topic: str) -> None:
    letters = admin.create("small", max_message_bytes=60)

    def begin(record: Record) -> None:
        raise ValueError("no")

    consumer = kind.member(servers, unique("g"), topic)
    with pytest.raises(
        KafkaError, match=rf"the dead letter of {topic}-\d, offset 0, to {letters}: .*MESSAGE_TOO_LARGE"
    ):
        consumer.run(kind.handler(begin), order="partition", retries=1, retry_backoff=0.01, dead_letter=letters)
    assert done(consumer, topic) == set()


def test_run_refuses_missing_subscriptions_and_wrong_options(kind: Kind, servers: str, topic: str) -> None:
    consumer = KINDS[kind.name](bootstrap_servers=servers, group_id=unique("g"), commit_mode="done")
    kind.made.append(consumer)
    with pytest.raises(StateError, match=r"subscribe\(\)"):
        consumer.run(kind.handler(lambda _: None))
    consumer.subscribe([topic])
    for wrong in ({"order": "any"}, {"concurrency": 0}, {"max_in_flight": 3}, {"retries": -1}, {"retry_backoff": -1}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))}"):
            consumer.run(kind.handler(lambda _: None), **wrong)
    with pytest.raises(TypeError, match="dead_letter"):
        consumer.run(kind.handler(lambda _: None), dead_letter=5)
    with pytest.raises(ConfigError, match=r"commit\.mode=done"):
        kind.member(servers, unique("g"), topic, commit_mode="returned").run(kind.handler(lambda _: None))


def test_a_run_on_threads_refuses_coroutines(servers: str, topic: str) -> None:
    """A coroutine that is never awaited would count as done."""

    async def handler(record: Record) -> None: ...

    with KINDS["sync"](
        bootstrap_servers=servers, group_id=unique("g"), commit_mode="done", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([topic])
        for disguised in (handler, lambda record: handler(record)):
            with pytest.raises(TypeError, match=r"use AsyncConsumer\.run\(\)"):
                consumer.run(disguised)
        assert done(consumer, topic) == set()


def test_a_run_in_tasks_refuses_plain_functions(servers: str, topic: str) -> None:
    """They would block the event loop. Whether a function returns an awaitable is known when it has returned."""
    called: list[Record] = []

    def nothing(record: Record) -> None:
        called.append(record)

    with KINDS["async"](
        bootstrap_servers=servers, group_id=unique("g"), commit_mode="done", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([topic])
        for plain in (nothing, functools.partial(nothing), lambda record: None):
            with pytest.raises(TypeError, match=r"use Consumer\.run\(\).* on threads"):
                consumer.run(plain)
        assert called == []
        with pytest.raises(TypeError, match=r"AsyncConsumer\.run\(\) awaits coroutines"):
            consumer.run(lambda record: called.append(record))
        assert len(called) == 1, "no other job has called it"
        assert done(consumer, topic) == set()


def test_a_run_in_tasks_takes_what_returns_an_awaitable(servers: str, topic: str) -> None:
    async def handle(record: Record) -> None: ...

    class Handler:
        async def __call__(self, record: Record) -> None: ...

    def decorated(record: Record) -> Any:
        return handle(record)

    for handler in (lambda record: handle(record), functools.partial(handle), Handler(), decorated):
        with KINDS["async"](
            bootstrap_servers=servers, group_id=unique("g"), commit_mode="done", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe([topic])
            assert consumer.run(handler, **until(consumer, lambda it: it.handled > 0)).handled > 0


@pytest.mark.parametrize("what", ["its task", "what it awaits"])
def test_a_cancellation_inside_of_a_handler_is_an_error_that_names_the_record(
    servers: str, topic: str, what: str
) -> None:
    """A CancelledError would say that the task was cancelled that awaits run()."""

    async def handler(record: Record) -> None:
        if what == "its task":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(60)
        awaited = asyncio.get_running_loop().create_future()
        awaited.cancel()
        await awaited

    async def main() -> None:
        running = asyncio.current_task()
        assert running is not None
        async with AsyncConsumer(
            bootstrap_servers=servers, group_id=unique("g"), commit_mode="done", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe([topic])
            with pytest.raises(StateError, match=rf"{topic}-\d, offset \d+: the handler.* cancelled") as caught:
                await consumer.run(handler, retries=0)
            assert isinstance(caught.value.__cause__, asyncio.CancelledError)
            assert not running.cancelling()

    asyncio.run(main())


def test_a_cancelled_run_finishes_and_commits_started_records(servers: str, topic: str) -> None:
    """run() raises CancelledError after started records are done and committed."""
    started: list[tuple[int, int]] = []
    handled: list[tuple[int, int]] = []
    kind = Kind("async")
    consumer = kind.member(servers, unique("g"), topic)

    async def cancelled() -> None:
        begun = asyncio.Event()

        async def handler(record: Record) -> None:
            started.append((record.partition, record.offset))
            begun.set()
            await asyncio.sleep(0.05)  # simulated work, during which other handlers start
            handled.append((record.partition, record.offset))

        task = asyncio.create_task(consumer._consumer.run(handler))
        await asyncio.wait_for(begun.wait(), DEADLINE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    consumer._loop.run_until_complete(cancelled())
    assert sorted(handled) == sorted(started)
    assert 16 <= len(handled) < PARTITIONS * COUNT
    assert done(consumer, topic) == set(handled)
    consumer.close()


CHILD = """
import asyncio, os, sys, time
from headrace import AsyncConsumer, Consumer

kind, servers, group, topic = sys.argv[1:]
settings = dict(bootstrap_servers=servers, group_id=group, commit_mode="done", auto_offset_reset="earliest")

written = 0

def seconds_of_work():
    return 0.02 if written < 60 else 0.3  # slow, so that the signal comes before all records are handled

def report(record):
    global written
    written += 1
    os.write(1, b"%d %d\\n" % (record.partition, record.offset))

def plain(record):
    time.sleep(seconds_of_work())  # simulated work
    report(record)

async def coroutine(record):
    await asyncio.sleep(seconds_of_work())  # simulated work
    report(record)

async def main():
    async with AsyncConsumer(settings) as consumer:
        consumer.subscribe([topic])
        return await consumer.run(coroutine, order="none")

if kind == "async":
    progress = asyncio.run(main())
else:
    with Consumer(settings) as consumer:
        consumer.subscribe([topic])
        progress = consumer.run(plain, order="none")
print("ended", progress.handled, progress.running)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_run_after_handled_records_are_committed(
    kind: Kind, servers: str, topic: str, number: signal.Signals
) -> None:
    group = unique("g")
    command = [sys.executable, "-c", INTERRUPTIBLE + CHILD, kind.name, servers, group, topic]
    with (
        tempfile.TemporaryFile("w+") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as child,
    ):
        watchdog = threading.Timer(DEADLINE, child.kill)
        watchdog.start()
        try:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(50)]
            child.send_signal(number)
            lines += child.stdout.readlines()
            child.wait(DEADLINE)
        finally:
            watchdog.cancel()
            child.kill()
        stderr.seek(0)
        errors = stderr.read()
    words_of = [line.split() for line in lines]
    handled = {(int(words[0]), int(words[1])) for words in words_of if words[0] != "ended"}
    assert 50 <= len(handled) < PARTITIONS * COUNT
    watcher = kind.member(servers, group, topic)
    assert done(watcher, topic) == handled
    if (kind.name, number) == ("async", signal.SIGINT):
        # asyncio.run() cancels the tasks and then raises KeyboardInterrupt.
        assert errors.rstrip().endswith("KeyboardInterrupt")
    else:
        assert words_of[-1] == ["ended", str(len(handled)), "0"]
        assert (child.returncode, errors) == (0, "")
