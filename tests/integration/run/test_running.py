"""run() with a broker, on threads and as tasks: order, retries, dead letters, limits, rebalances."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from headrace import RebalanceListener, Record, TopicPartition
from headrace._machines.commit.offset_set import OffsetSet
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, numbered_topic, write
from support.harness.consumers import KINDS, poll_until
from support.harness.groups import WAYS, RecordingListener, with_session
from support.harness.run_kinds import DEADLINE, Kind, committed, in_thread, until
from support.harness.waiting import wait_for

PARTITIONS = 6
PATIENT = 30.0
"""A session timeout in seconds that is long enough on a busy machine."""


# -- order, failures, limits -----------------------------------------------------------------------------------------

KEYS = 10_000
ROUNDS = 2


@pytest.fixture(scope="module")
def many_keys(admin: Admin, servers: str) -> str:
    """A topic with a few numbered records of each key."""
    topic = admin.create("keys", PARTITIONS)
    write(
        servers,
        topic,
        (
            Outgoing(b"%d" % number, b"key-%d" % key, key % PARTITIONS, headers=[("h", b"%d" % key), ("empty", None)])
            for number in range(ROUNDS)
            for key in range(KEYS)
        ),
        enable_idempotence=True,  # a retried batch must not change the order
    )
    return topic


def test_run_keeps_the_order_of_ten_thousand_keys(kind: Kind, admin: Admin, servers: str, many_keys: str) -> None:
    """For some keys the first attempts fail, for others all attempts."""
    letters, group = admin.create("letters"), unique("g")
    guard = threading.Lock()
    order: dict[bytes, list[tuple[int, int]]] = defaultdict(list)  # offsets and numbers by key
    attempts: Counter[tuple[bytes, bytes]] = Counter()
    running: set[bytes] = set()
    most = 0

    def begin(record: Record) -> None:
        nonlocal most
        key, number = record.key, record.value
        assert key is not None
        assert number is not None
        with guard:
            assert key not in running, "two records of a key at the same time"
            running.add(key)
            most = max(most, len(running))
            attempts[key, number] += 1
            tries = attempts[key, number]
            if tries == 1:
                order[key].append((record.offset, int(number)))
        try:
            which = int(key.removeprefix(b"key-"))
            if which % 500 == 0:
                raise ValueError(f"never {key.decode()}")
            if which % 100 == 1 and tries <= 2:
                raise OSError("not yet")
        finally:
            with guard:
                running.discard(key)

    consumer = kind.member(servers, group, many_keys)
    total, seen = KEYS * ROUNDS, []
    bad, hard = KEYS // 500 * ROUNDS, KEYS // 100 * ROUNDS
    progress = consumer.run(
        kind.handler(begin),
        concurrency=8,
        max_in_flight=400,
        retries=2,
        retry_backoff=0.01,
        dead_letter=letters,
        **until(consumer, lambda it: it.handled + it.dead_lettered == total, seen),
    )
    assert (progress.handled, progress.dead_lettered, progress.dropped) == (total - bad, bad, 0)
    assert progress.retried == 2 * bad + 2 * hard
    assert (progress.running, progress.in_flight, progress.lag) == (0, 0, 0)
    assert most <= 8
    assert max(it.in_flight for it in seen) <= 400
    assert len(order) == KEYS
    assert [key for key, seen in order.items() if seen != sorted(seen)] == []
    assert {tuple(number for _, number in each) for each in order.values()} == {tuple(range(ROUNDS))}
    ends = consumer.end_offsets([(many_keys, number) for number in range(PARTITIONS)])
    assert committed(consumer, many_keys, PARTITIONS) == {tp.partition: OffsetSet(end) for tp, end in ends.items()}
    _check_letters(servers, letters, many_keys, group, bad)


def _check_letters(servers: str, letters: str, topic: str, group: str, count: int) -> None:
    reader = KINDS["sync"](bootstrap_servers=servers, auto_offset_reset="earliest")
    try:
        reader.assign([(letters, 0)])
        found = poll_until(reader, count)
        origins = set()
        for letter in found:
            assert letter.key is not None
            which = int(letter.key.removeprefix(b"key-"))
            assert which % 500 == 0
            assert letter.headers[:2] == (("h", b"%d" % which), ("empty", None))
            added = {name.removeprefix("headrace.dlt."): value for name, value in letter.headers[2:]}
            assert added["topic"] == topic.encode()
            assert added["partition"] == b"%d" % (which % PARTITIONS)
            assert added["group"] == group.encode()
            assert added["error.class"] == b"ValueError"
            assert added["error.message"] == b"never " + letter.key
            assert added["attempts"] == b"3"
            assert abs(int(added["timestamp"]) - letter.timestamp) < 600_000
            origins.add((letter.key, letter.value, added["offset"]))
        assert len(found) == len(origins) == count
        reader.assign([(topic, number) for number in range(PARTITIONS)])
        for key, value, offset in random.sample(sorted(origins), 5):
            place = TopicPartition(topic, int(key.removeprefix(b"key-")) % PARTITIONS)
            reader.pause(reader.assignment() - {place})
            reader.seek(place, int(offset))
            origin = poll_until(reader, 1)[0]
            assert (origin.key, origin.value) == (key, value)
            reader.resume(reader.assignment())
    finally:
        reader.close()


def test_a_slow_partition_does_not_block_the_others_in_run(kind: Kind, servers: str, many_keys: str) -> None:
    """With order=partition, records of one partition are slow. Records of the others are handled meanwhile, within the
    limits, and partitions that the user has paused stay paused."""
    consumer = kind.member(servers, unique("g"), many_keys)
    slow, paused = TopicPartition(many_keys, 0), TopicPartition(many_keys, 1)
    others = consumer.end_offsets([(many_keys, number) for number in range(PARTITIONS)])
    free = sum(end for tp, end in others.items() if tp not in (slow, paused))
    seen: list[Any] = []
    started: Counter[int] = Counter()

    def begin(record: Record) -> float | None:
        started[record.partition] += 1
        return None if record.partition != slow.partition else 0.05

    def enough(progress: Any) -> bool:
        if paused in kind.plain(consumer).assignment():
            kind.plain(consumer).pause([paused])
        return sum(started[number] for number in range(2, PARTITIONS)) == free

    progress = consumer.run(
        kind.handler(begin),
        order="partition",
        concurrency=PARTITIONS,
        max_in_flight=300,
        **until(consumer, enough, seen),
    )
    assert sum(started[number] for number in range(2, PARTITIONS)) == free
    assert started[0] < others[slow] / 2, "the partition was not slow"
    assert max(it.in_flight for it in seen) <= 300
    assert consumer.paused() == {paused}
    assert started[1] < others[paused]
    assert progress.handled == sum(started.values())


def test_run_polls_at_a_limited_rate_while_max_in_flight_is_reached(kind: Kind, servers: str, many_keys: str) -> None:
    """Polls continue, to keep the membership, but at a limited rate."""
    consumer = kind.member(servers, unique("g"), many_keys)
    polls: list[int] = []

    def begin(record: Record) -> float:
        polls.append(kind.plain(consumer).metrics()["polls"])
        return 0.1

    def enough(progress: Any) -> bool:
        return progress.handled >= 24 and polls[-1] - polls[0] > 5

    progress = consumer.run(kind.handler(begin), concurrency=4, max_in_flight=8, **until(consumer, enough))
    assert progress.seconds > 0.6
    assert 5 < polls[-1] - polls[0] < 40 * progress.seconds + 40


# -- rebalances ------------------------------------------------------------------------------------------------------

COUNT = 150


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("run", PARTITIONS), PARTITIONS, COUNT)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("auto_commit", [True, False], ids=["auto-commit", "own-commits"])
def test_partitions_move_between_runs_without_repeats(
    kind: Kind, servers: str, topic: str, way: str, auto_commit: bool
) -> None:
    """A second member joins while the first works, and leaves before the end."""
    group, total = unique("g"), PARTITIONS * COUNT
    settings = with_session(servers, group, WAYS[way], PATIENT)
    guard = threading.Lock()
    handled: Counter[tuple[int, int]] = Counter()
    by: Counter[str] = Counter()
    dice = random.Random(5)

    def seconds(_: Record) -> float:
        # The first member is slow until the second has joined, so that records are left for it.
        return 0.3 if by["first"] > 50 and not by["second"] else dice.random() * 0.02

    def start(name: str, is_enough: Callable[[], bool]) -> Future[Any]:
        def end(record: Record) -> None:
            with guard:
                handled[record.partition, record.offset] += 1
                by[name] += 1

        consumer = kind.member(servers, group, topic, enable_auto_commit=auto_commit, **settings)
        handler = kind.handler(seconds, end)

        def work() -> Any:
            try:
                return consumer.run(handler, order="none", **until(consumer, lambda _: is_enough()))
            finally:
                consumer.close()

        return in_thread(work)

    first = start("first", lambda: len(handled) == total)
    wait_for("the first member's work", lambda: by["first"] > 50)
    second = start("second", lambda: by["second"] > 50)
    figures = second.result(DEADLINE + 5)
    assert figures.handled == by["second"] > 50
    assert first.result(DEADLINE + 5).handled == by["first"]
    assert len(handled) == total
    assert set(handled.values()) == {1}, "handled twice"


def test_work_on_a_lost_partition_is_dropped_and_repeated_by_the_next_owner(
    kind: Kind, servers: str, topic: str
) -> None:
    """Work that outlasts max.poll.interval.ms continues, but its result is dropped, and the next owner repeats it. The
    partition is lost, or revoked if the call was already stuck for that long."""
    group, total = unique("g"), PARTITIONS * COUNT
    settings = {**WAYS["eager"], "session_timeout_ms": 1500}
    listener = RecordingListener()
    first = kind.member(servers, group, topic, listener=listener, max_poll_interval_ms=1500, **settings)
    began: list[tuple[int, int]] = []
    handled: Counter[tuple[int, int]] = Counter()
    is_over = threading.Event()

    def begin(record: Record) -> float | None:
        began.append((record.partition, record.offset))
        if kind.name == "async":
            return 2 * DEADLINE  # or until run() ends
        is_over.wait(2 * DEADLINE)
        return None

    def is_lost(_: Any) -> bool:
        return bool(began) and not {"lost", "revoked"}.isdisjoint(listener.kinds())

    def work() -> Any:
        try:
            return first.run(kind.handler(begin), concurrency=1, drain=0.0, **until(first, is_lost))
        finally:
            first.close()

    stuck = in_thread(work)
    wait_for("the first record", lambda: began)
    second = kind.member(servers, group, topic, **(settings | {"session_timeout_ms": round(1000 * PATIENT)}))

    def handle(record: Record) -> None:
        handled[record.partition, record.offset] += 1

    other = in_thread(
        lambda: second.run(kind.handler(lambda _: None, handle), **until(second, lambda _: len(handled) == total))
    )
    figures = stuck.result(DEADLINE + 5)
    is_over.set()
    assert figures.handled == 0
    assert figures.running + figures.stuck == len(began), "the only slot stays occupied until the end"
    assert figures.dropped > 0
    other.result(DEADLINE + 5)
    assert len(handled) == total
    assert set(handled.values()) == {1}


def test_no_handler_starts_with_a_partition_that_the_listener_knows_is_gone(
    kind: Kind, servers: str, topic: str
) -> None:
    """With revoke.mode=immediate, run() waits for no handler. While the listener runs, other partitions keep going.

    run() does not poll meanwhile. So all records are in flight before the second member joins, and no handler returns
    before the listener is called: there is work of every partition then, on slow and on quick machines."""
    group, total, concurrency = unique("g"), PARTITIONS * COUNT, 4
    settings = {**WAYS["cooperative"], "session_timeout_ms": round(1000 * PATIENT), "revoke_mode": "immediate"}
    starts: list[int] = []  # the partitions of all calls
    is_called, has_returned = threading.Event(), threading.Event()
    before: list[int] = []
    meanwhile: list[int] = []
    gone: set[int] = set()

    class Patient(RebalanceListener):
        """Returns when a handler has been called with each record of the other partitions."""

        def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> Any:
            gone.update(tp.partition for tp in partitions)
            before.extend(starts)
            is_called.set()
            deadline = time.monotonic() + DEADLINE
            return self._in_loop(deadline) if kind.name == "async" else self._in_thread(deadline)

        def _in_thread(self, deadline: float) -> None:
            while self._is_work_left() and time.monotonic() < deadline:
                time.sleep(0.01)  # polling, as wait_for
            self._end()

        async def _in_loop(self, deadline: float) -> None:
            while self._is_work_left() and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # polling, as wait_for
            self._end()

        def _is_work_left(self) -> bool:
            return sum(number not in gone for number in starts) < COUNT * (PARTITIONS - len(gone))

        def _end(self) -> None:
            meanwhile.extend(starts[len(before) :])
            has_returned.set()

    def handle(record: Record) -> None:
        starts.append(record.partition)
        is_called.wait(DEADLINE)

    async def handle_in_loop(record: Record) -> None:
        starts.append(record.partition)
        while not is_called.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    first = kind.member(servers, group, topic, listener=Patient(), **settings)
    seen: list[Any] = []
    arguments = until(first, lambda _: has_returned.is_set(), seen)
    handler = handle if kind.name == "sync" else handle_in_loop
    running = in_thread(
        lambda: first.run(handler, order="none", concurrency=concurrency, max_in_flight=2 * total, **arguments)
    )
    wait_for("all records in flight", lambda: seen and seen[-1].in_flight == total and len(starts) == concurrency)
    second = kind.member(servers, group, topic, **settings)
    other = in_thread(lambda: poll_until(second, 1))
    progress = running.result(DEADLINE + 5)
    other.result(DEADLINE + 5)
    assert 0 < len(gone) < PARTITIONS
    assert gone.isdisjoint(meanwhile), "a handler started with a record of a revoked partition"
    kept = {number: COUNT for number in range(PARTITIONS) if number not in gone}
    assert Counter(number for number in before + meanwhile if number not in gone) == kept
    assert len(starts) == len(before) + len(meanwhile), "a handler started later with a record of a revoked partition"
    assert progress.dropped >= COUNT * len(gone) - concurrency
