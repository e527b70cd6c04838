"""Polls: how many records of which partitions they return, iteration by record, and calls that end a poll."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import AsyncConsumer, Consumer, TopicPartition
from headrace.errors import ClosedError, ConcurrentUseError, WakeupError
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, numbered, write
from support.harness.consumers import (
    AnyConsumer,
    BlockingAsyncConsumer,
    MakeConsumer,
    assigned,
    is_fetching,
    poll_until,
    read_rows,
)
from support.harness.waiting import wait_for


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    topic = admin.create("polling", 3)
    for partition in range(3):
        write(servers, topic, numbered(1000, partition, size=100))
    return topic


# -- limits and fairness --------------------------------------------------------------------------------------


def test_a_poll_returns_at_most_max_poll_records(make: MakeConsumer, topic: str, servers: str) -> None:
    consumer = assigned(make, servers, topic, 3, max_poll_records=17)
    sizes = [len(consumer.poll(5)) for _ in range(20)]
    assert max(sizes) <= 17
    assert sizes.count(17) >= 17, "a poll returns buffered records up to the limit"
    assert len(consumer.poll(5, max_records=3)) == 3
    assert len(consumer.poll(5, max_records=50)) == 50
    assert len(consumer.poll(5)) <= 17
    with pytest.raises(ValueError, match="max_records"):
        consumer.poll(1, max_records=0)


def test_a_poll_without_a_limit_returns_what_is_buffered(make: MakeConsumer, topic: str, servers: str) -> None:
    consumer = assigned(make, servers, topic, 3, max_poll_records=-1)
    wait_for_buffers(consumer, topic, 3)
    counts: list[int] = []
    read = 0
    while read < 3000:
        counts.append(len(consumer.poll(5)))
        read += counts[-1]
    assert max(counts) > 500


def test_a_poll_takes_as_many_records_of_each_partition(make: MakeConsumer, topic: str, servers: str) -> None:
    """KIP-41: each partition gets the same quota, and the others fill an unused part."""
    consumer = assigned(make, servers, topic, 3, max_poll_records=300)
    wait_for_buffers(consumer, topic, 3)
    assert Counter(record.partition for record in consumer.poll(5)) == {0: 100, 1: 100, 2: 100}
    consumer.pause([(topic, 2)])
    assert Counter(record.partition for record in consumer.poll(5)) == {0: 150, 1: 150}
    consumer.resume([(topic, 2)])
    consumer.seek((topic, 1), 990)
    wait_for_buffers(consumer, topic, 3)
    assert Counter(record.partition for record in consumer.poll(5)) == {0: 145, 1: 10, 2: 145}


def test_polls_of_one_record_visit_all_partitions_equally(make: MakeConsumer, topic: str, servers: str) -> None:
    consumer = assigned(make, servers, topic, 3)
    wait_for_buffers(consumer, topic, 3)
    turns = [consumer.poll(5, max_records=1)[0].partition for _ in range(30)]
    assert Counter(turns) == {0: 10, 1: 10, 2: 10}


def wait_for_buffers(consumer: AnyConsumer, topic: str, partitions: int) -> None:
    """Wait until every partition has buffered records."""

    def buffered() -> bool:
        consumer.beginning_offsets([(topic, 0)])  # an asynchronous consumer progresses only inside calls
        found = consumer.metrics()["partitions"]
        return all(found[f"{topic}-{number}"]["buffered_records"] for number in range(partitions))

    wait_for("records of every partition", buffered)


@pytest.fixture(scope="module")
def wide_topic(admin: Admin, servers: str) -> Iterator[str]:
    topic = admin.create("wide", 1000)
    records = (Outgoing(bytes(1000), partition=number % 1000) for number in range(20_000))
    write(servers, topic, records, batch_size=200_000, linger_ms=5000, acks=1)
    yield topic
    admin.delete(topic)


def test_the_buffer_stays_within_its_budget(make: MakeConsumer, wide_topic: str, servers: str) -> None:
    """1,000 partitions with five times the budget."""
    budget = 4 * 2**20
    consumer = assigned(make, servers, wide_topic, 1000, queued_max_bytes=budget, max_poll_records=100)
    seen: Counter[int] = Counter()
    most = 0
    deadline = time.monotonic() + 60
    while seen.total() < 20_000:
        assert time.monotonic() < deadline, seen.total()
        seen.update(record.partition for record in consumer.poll(5))
        most = max(most, consumer.metrics()["buffered_bytes"])
    assert set(seen.values()) == {20}
    assert 0 < most <= budget


def test_buffered_records_of_one_partition_do_not_delay_fetches_of_another(
    make_sync: MakeConsumer, admin: Admin, servers: str
) -> None:
    """The prefetch of KIP-41: with over 1,000 buffered records of A and none of B, only B is fetched."""
    topic = admin.create("retained", 2)
    write(servers, topic, (Outgoing(bytes(1000), partition=0) for _ in range(5000)))
    consumer = assigned(make_sync, servers, topic, 2, max_poll_records=10)
    assert len(poll_until(consumer, 1)) == 10
    wait_for("the prefetch", lambda: not is_fetching(consumer, TopicPartition(topic, 0)))
    fetched = consumer.metrics()["bytes_fetched"]
    retained = consumer.metrics()["partitions"][f"{topic}-0"]["buffered_records"]
    assert 1000 <= retained < 4000
    write(servers, topic, (Outgoing(bytes(1000), partition=1) for _ in range(10)))
    wait_for("records of B", lambda: consumer.metrics()["partitions"][f"{topic}-1"]["buffered_records"] == 10)
    assert consumer.metrics()["partitions"][f"{topic}-0"]["buffered_records"] == retained
    assert consumer.metrics()["bytes_fetched"] - fetched < 12_000, "only records of B"
    assert {record.partition for record in consumer.poll(1)} == {0, 1}


# -- record by record -----------------------------------------------------------------------------------------


def test_an_iteration_returns_every_record_once(make: MakeConsumer, topic: str, servers: str) -> None:
    consumer = assigned(make, servers, topic, 3, max_poll_records=100)
    seen = [(record.partition, record.offset) for record in itertools.islice(consumer, 3000)]
    assert sorted(seen) == [(p, o) for p in range(3) for o in range(1000)]


def test_an_iteration_that_is_left_keeps_what_it_did_not_return(make: MakeConsumer, topic: str, servers: str) -> None:
    """Records that were not yielded come next, by iteration or poll, and are not committed."""
    consumer = assigned(make, servers, topic, 3, max_poll_records=90, group_id=unique("g"))
    seen: Counter[tuple[int, int]] = Counter()
    for length in (1, 45, 90, 91, 200):
        for number, record in enumerate(consumer, 1):
            seen[record.partition, record.offset] += 1
            if number == length:
                break
        positions = {tp: consumer.position(tp) for tp in consumer.assignment()}
        assert sum(positions.values()) == seen.total()
        consumer.commit()
        committed = consumer.committed(consumer.assignment())
        assert {tp: it.offset for tp, it in committed.items()} == positions
        seen.update((record.partition, record.offset) for record in consumer.poll(5, max_records=50))
    rest = read_rows(consumer, consumer.assignment())
    seen.update((each.partition, each.offset) for each in rest)
    assert seen == {(p, o): 1 for p in range(3) for o in range(1000)}


def test_an_iteration_continues_after_a_poll_or_a_seek_inside_of_it(
    make: MakeConsumer, topic: str, servers: str
) -> None:
    consumer = assigned(make, servers, topic, max_poll_records=50)
    offsets = []
    for record in consumer:
        offsets.append(record.offset)
        if record.offset == 9:
            offsets += [it.offset for it in consumer.poll(5, max_records=10)]
        if record.offset == 29:
            consumer.seek((topic, 0), 500)
        if record.offset == 519:
            consumer.assign([(topic, 1)])
        if record.partition == 1:
            break
    assert offsets == [*range(30), *range(500, 520), 0]


def test_an_asynchronous_iteration_that_is_left_keeps_what_it_did_not_return(topic: str, servers: str) -> None:
    """`async for` does not close its iterator on break, so the next poll must not depend on that."""

    async def read() -> list[int]:
        async with AsyncConsumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            offsets = []
            iterator = aiter(consumer)
            offsets.append((await anext(iterator)).offset)
            async for record in consumer:
                offsets.append(record.offset)
                if len(offsets) == 10:
                    break
            offsets += [record.offset for record in await consumer.poll(5, max_records=10)]
            return offsets

    assert asyncio.run(read()) == list(range(20))


# -- wakeup, threads and tasks --------------------------------------------------------------------------------


def soon(call: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(0.2, call)
    timer.start()
    return timer


def test_wakeup_ends_a_waiting_poll(make: MakeConsumer, admin: Admin, servers: str) -> None:
    topic = admin.create("wakeup")
    consumer = assigned(make, servers, topic)
    consumer.position((topic, 0))
    timer = soon(consumer.wakeup)
    began = time.monotonic()
    with pytest.raises(WakeupError):
        consumer.poll(60)
    assert time.monotonic() - began < 30
    timer.join()

    consumer.wakeup()  # no call is waiting: the next poll raises
    with pytest.raises(WakeupError):
        consumer.poll(30)
    write(servers, topic, numbered(3))
    assert [record.offset for record in poll_until(consumer, 3)] == [0, 1, 2]


def test_wakeup_ends_a_waiting_position_call(make: MakeConsumer, servers: str) -> None:
    consumer = make(bootstrap_servers=servers, allow_auto_create_topics=False)
    consumer.assign([(unique("missing"), 0)])
    timer = soon(consumer.wakeup)
    began = time.monotonic()
    with pytest.raises(WakeupError):
        consumer.position(next(iter(consumer.assignment())), timeout=60)
    assert time.monotonic() - began < 30
    timer.join()


def test_a_second_thread_in_one_consumer_is_refused(admin: Admin, servers: str) -> None:
    topic = admin.create("threads")
    with assigned(Consumer, servers, topic) as consumer:
        consumer.position((topic, 0))
        inside = threading.Thread(target=consumer.poll, args=(60.0,))
        inside.start()
        wait_for("the other thread", lambda: consumer.metrics()["polls"])
        for call in (lambda: consumer.poll(0), lambda: consumer.seek((topic, 0), 0), consumer.commit, consumer.close):
            with pytest.raises(ConcurrentUseError):
                call()
        write(servers, topic, numbered(1))
        inside.join(60)
        assert not inside.is_alive()
        assert consumer.position((topic, 0)) == 1, "the consumer still works"


def test_a_second_task_in_one_consumer_is_refused(admin: Admin, servers: str) -> None:
    topic = admin.create("tasks")

    async def run() -> None:
        async with AsyncConsumer(bootstrap_servers=servers) as consumer:
            consumer.assign([(topic, 0)])
            first = asyncio.create_task(consumer.poll(1))
            await asyncio.sleep(0)  # let the poll start
            with pytest.raises(ConcurrentUseError):
                await consumer.poll(1)
            assert len(await first) == 0

    asyncio.run(run())


def test_a_cancelled_poll_loses_nothing(admin: Admin, servers: str) -> None:
    """Polls are cancelled repeatedly while records arrive."""
    topic = admin.create("cancelled")
    count = 2000

    async def run() -> list[int]:
        offsets: list[int] = []
        async with AsyncConsumer(
            bootstrap_servers=servers, auto_offset_reset="earliest", max_poll_records=7
        ) as consumer:
            consumer.assign([(topic, 0)])
            deadline = time.monotonic() + 60
            turns = 0
            while len(offsets) < count:
                assert time.monotonic() < deadline, len(offsets)
                poll = asyncio.create_task(consumer.poll(5))
                turns += 1
                if turns % 2:
                    await asyncio.sleep(0)  # let the poll start
                    poll.cancel()
                try:
                    offsets += [record.offset for record in await poll]
                except asyncio.CancelledError:
                    assert poll.cancelled()
        return offsets

    def write_slowly() -> None:
        for _ in range(count // 100):
            write(servers, topic, numbered(100))

    writing = threading.Thread(target=write_slowly)
    writing.start()
    assert asyncio.run(run()) == list(range(count))
    writing.join()


# -- open and closed ------------------------------------------------------------------------------------------


def test_calls_of_a_closed_consumer_raise_closed_error(make: MakeConsumer, topic: str, servers: str) -> None:
    with assigned(make, servers, topic) as consumer:
        poll_until(consumer, 1)
    closed = consumer._consumer if isinstance(consumer, BlockingAsyncConsumer) else consumer

    async def call(method: str, *args: Any) -> None:
        """Call an asynchronous consumer in a new loop, since its adapter has closed its own."""
        result = getattr(closed, method)(*args)
        if inspect.isawaitable(result):
            await result

    for method, *args in (
        ("poll", 1),
        ("seek", (topic, 0), 0),
        ("assignment",),
        ("position", (topic, 0)),
        ("commit",),
        ("list_topics",),
        ("metrics",),
        ("assign", []),
    ):
        with pytest.raises(ClosedError):
            asyncio.run(call(method, *args))
    asyncio.run(call("close"))
    if closed is consumer:
        assert list(consumer) == []


def test_a_partition_assigned_while_a_fetch_of_another_waits_is_fetched(
    make_sync: MakeConsumer, admin: Admin, servers: str
) -> None:
    """The first stream's fetch of a released partition waits at the broker, and ends while the second stream fetches
    the new partition. After that response it is the first stream's turn."""
    topic = admin.create("handed-on", 2)
    consumer = make_sync(bootstrap_servers=servers, auto_offset_reset="earliest", fetch_max_wait_ms=200)
    for number in range(6):
        consumer.assign([TopicPartition(topic, number % 2)])
        consumer.poll(0.5)  # there is nothing new to read
        write(servers, topic, numbered(1, number % 2), acks=1)
        poll_until(consumer, 1)


def test_a_closed_consumer_keeps_no_receive_buffers(topic: str, servers: str) -> None:
    """A reference to a closed consumer, or a reference cycle, does not keep megabytes alive."""
    with Consumer(bootstrap_servers=servers, max_poll_records=-1) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(3)])
        consumer.seek_to_beginning()
        read = 0
        while read < 3000:
            read += len(consumer.poll(5))
        runtime = consumer._parts.lifecycle.runtime
        assert runtime is not None
        frames = runtime.client.connections.frames
        wait_for("a returned buffer", lambda: len(frames._spare) > 0)
    assert frames._spare == []


def test_highly_compressed_records_stay_within_the_buffer_limit(make: MakeConsumer, servers: str, admin: Admin) -> None:
    """8 KB on the wire expand to 96 MiB in memory. Decoding stops when the estimated size was too low."""
    size, each, partitions = 4 * 2**20, 8, 3
    topic = admin.create("bombs", partitions)
    for _ in range(each):  # one record per batch
        filled = [Outgoing(bytes(size), partition=number) for number in range(partitions)]
        write(servers, topic, filled, compression_type="zstd", message_max_bytes=2 * size)
    consumer = assigned(make, servers, topic, partitions, queued_max_bytes=2**20, max_poll_records=1)
    seen: list[tuple[int, int]] = []
    most = 0
    while len(seen) < each * partitions:
        seen += [(record.partition, record.offset) for record in poll_until(consumer, 1)]
        most = max(most, consumer.metrics()["buffered_bytes"])
    assert sorted(seen) == [(number, offset) for number in range(partitions) for offset in range(each)]
    assert most <= 2 * 2**20 + 4 * (size + 100), "twice the budget, and a record for each decoding thread"
