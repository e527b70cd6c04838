"""Rebalance listeners and interrupted polls of a group member: neither loses records."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from headrace import AsyncConsumer, Consumer, OffsetAndMetadata, RebalanceListener, TopicPartition
from headrace.errors import ClosedError, ConcurrentUseError, StateError, WakeupError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered_topic
from support.harness.consumers import MakeConsumer, poll_until
from support.harness.groups import WAYS, RecordingListener, all_of, fully_assigned, member, poll_all
from support.harness.waiting import wait_for

PARTITIONS = 4
RECORDS = 25  # of each partition


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("listeners", PARTITIONS), PARTITIONS, RECORDS)


# -- listeners -------------------------------------------------------------------------------------------------------


class Seeker(RebalanceListener):
    """A listener that seeks every partition to offset 20."""

    def __init__(self) -> None:
        self.consumer: Any = None
        self.threads: set[str] = set()

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.threads.add(threading.current_thread().name)
        for tp in partitions:
            self.consumer.seek(tp, 20)
        with pytest.raises(StateError, match="listener cannot call poll"):
            self.consumer.poll(0.0)


def test_a_listener_runs_in_poll_and_may_use_the_consumer(servers: str, topic: str, way: dict[str, Any]) -> None:
    seeker = Seeker()
    with Consumer(bootstrap_servers=servers, group_id=unique("g"), **way) as consumer:
        seeker.consumer = consumer
        consumer.subscribe([topic], listener=seeker)
        assert min(r.offset for r in poll_until(consumer, PARTITIONS * (RECORDS - 20))) == 20
    assert seeker.threads == {threading.current_thread().name}


class Meddler(RebalanceListener):
    """A listener that calls a method of its consumer on a revoke by close() or unsubscribe()."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.consumer: Any = None
        self.refusals: list[StateError] = []

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        try:
            getattr(self.consumer, self.method)()
        except StateError as error:
            self.refusals.append(error)


@pytest.mark.parametrize("ending", ["close", "unsubscribe"])
@pytest.mark.parametrize("method", ["poll", "unsubscribe", "close"])
def test_a_listener_may_end_its_consumer_and_not_poll(servers: str, topic: str, ending: str, method: str) -> None:
    """Regression test: close() called itself endlessly and left a thread behind."""
    meddler = Meddler(method)
    consumer = Consumer(bootstrap_servers=servers, group_id=unique("g"), auto_offset_reset="earliest")
    meddler.consumer = consumer
    consumer.subscribe([topic], listener=meddler)
    poll_until(consumer, 1)
    with contextlib.suppress(ClosedError):  # the listener may have closed it
        getattr(consumer, ending)()
    assert bool(meddler.refusals) == (method == "poll")
    consumer.close()
    assert not consumer._portal.is_open


def test_a_listener_may_commit_the_revoked_partitions(servers: str, topic: str, way: dict[str, Any]) -> None:
    class Committer(RebalanceListener):
        def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            consumer.commit({tp: OffsetAndMetadata(consumer.position(tp), "by the listener") for tp in partitions})

    group = unique("g")
    consumer = Consumer(
        bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False, **way
    )
    consumer.subscribe([topic], listener=Committer())
    poll_until(consumer, PARTITIONS * RECORDS)
    consumer.close()
    with Consumer(bootstrap_servers=servers, group_id=group) as reader:
        committed = reader.committed(all_of(topic, PARTITIONS))
    assert set(committed.values()) == {OffsetAndMetadata(RECORDS, "by the listener")}


class Failing(RecordingListener):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        super().on_partitions_assigned(partitions)
        self._fail("assigned")

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        super().on_partitions_revoked(partitions)
        self._fail("revoked")

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        super().on_partitions_lost(partitions)
        self._fail("lost")

    def _fail(self, kind: str) -> None:
        if kind == self.kind:
            self.kind = ""
            raise ZeroDivisionError(kind)


@pytest.mark.parametrize("kind", ["assigned", "revoked"])
def test_an_error_of_a_listener_reaches_the_caller(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any], kind: str
) -> None:
    listener = Failing(kind)
    consumer = member(make, servers, unique("g"), [topic], listener=listener, **way)
    if kind == "assigned":
        with pytest.raises(ZeroDivisionError, match="assigned"):
            poll_until(consumer, 1)
        assert len(poll_until(consumer, PARTITIONS * RECORDS)) == PARTITIONS * RECORDS, "no record is lost"
    else:
        poll_until(consumer, 1)
        with pytest.raises(ZeroDivisionError, match="revoked"):
            consumer.unsubscribe()
        consumer.unsubscribe()
        assert consumer.assignment() == set()
    assert len(listener.events) <= 2


def test_a_loss_whose_poll_raises_is_in_the_records_of_the_next_one(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    listener = Failing("lost")
    consumer = member(make, servers, unique("g"), [topic], listener=listener, max_poll_interval_ms=1000, **way)
    poll_all([consumer], fully_assigned([consumer], PARTITIONS))
    generation = consumer.group_metadata().generation_id
    wait_for("the group to remove it", lambda: consumer.metrics()["group"]["generation"] != generation)
    with pytest.raises(ZeroDivisionError, match="lost"):
        consumer.poll(0.0)
    assert consumer.lost_partitions() == all_of(topic, PARTITIONS)
    records = consumer.poll(0.0)
    assert records.lost == all_of(topic, PARTITIONS) == consumer.lost_partitions()
    assert consumer.poll(0.0).lost == frozenset() == consumer.lost_partitions()
    assert listener.kinds().count("lost") == 1


def test_listeners_of_a_plain_consumer_may_not_be_coroutines(servers: str, topic: str) -> None:
    """A coroutine would run on the consumer's own thread, where any call of the consumer would deadlock."""

    class Waiter(RebalanceListener):
        async def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None: ...

    with Consumer(bootstrap_servers=servers, group_id=unique("g")) as consumer:
        with pytest.raises(TypeError, match="AsyncConsumer"):
            consumer.subscribe([topic], listener=Waiter())
        assert consumer.subscription() == set()


def test_listeners_of_an_async_consumer_may_be_coroutines(servers: str, topic: str, way: dict[str, Any]) -> None:
    class Waiter(RebalanceListener):
        def __init__(self) -> None:
            self.positions: dict[TopicPartition, int] = {}

        async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            for tp in partitions:
                self.positions[tp] = await consumer.position(tp)

    waiter = Waiter()

    async def read() -> int:
        async with consumer:
            consumer.subscribe([topic], listener=waiter)
            count = 0
            async for _ in consumer:
                count += 1
                if count == PARTITIONS * RECORDS:
                    return count
        return 0

    consumer = AsyncConsumer(bootstrap_servers=servers, group_id=unique("g"), auto_offset_reset="earliest", **way)
    assert asyncio.run(asyncio.wait_for(read(), 60)) == PARTITIONS * RECORDS
    assert waiter.positions == dict.fromkeys(all_of(topic, PARTITIONS), 0)


# -- interrupts ---------------------------------------------------------------------------------------------------


def test_wakeups_before_polls_of_a_member_lose_no_record(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    consumer = member(make, servers, unique("g"), [topic], **way)
    read = []
    for _ in range(5):
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.poll(60.0)
        read += consumer.poll(0.01)
    read += poll_until(consumer, PARTITIONS * RECORDS - len(read))
    assert len({(r.partition, r.offset) for r in read}) == len(read) == PARTITIONS * RECORDS


def test_a_wakeup_from_another_thread_ends_a_waiting_poll(servers: str, topic: str, way: dict[str, Any]) -> None:
    with Consumer(bootstrap_servers=servers, group_id=unique("g"), **way) as consumer:
        consumer.subscribe([topic])
        poll_all([consumer], fully_assigned([consumer], PARTITIONS))
        timer = threading.Timer(0.2, consumer.wakeup)
        timer.start()
        with pytest.raises(WakeupError):
            consumer.poll(60.0)
        timer.join()
        assert consumer.poll(0.0) is not None


def test_a_second_thread_is_refused_while_another_polls(servers: str, topic: str) -> None:
    with Consumer(bootstrap_servers=servers, group_id=unique("g"), **WAYS["eager"]) as consumer:
        consumer.subscribe([topic])
        poll_all([consumer], fully_assigned([consumer], PARTITIONS))

        def poll() -> None:
            while True:
                try:
                    consumer.poll(60.0)
                except ConcurrentUseError:  # the other thread was inside subscribe()
                    continue
                except WakeupError:
                    return

        inside = threading.Thread(target=poll)
        inside.start()

        def refused() -> bool:
            try:
                consumer.subscribe([topic])
            except ConcurrentUseError:
                return True
            return False

        wait_for("the other thread's poll", refused)
        with pytest.raises(ConcurrentUseError, match="another thread"):
            consumer.poll(0.0)
        consumer.wakeup()
        inside.join(60)
        assert not inside.is_alive()


def test_cancelled_polls_of_a_member_lose_no_record(servers: str, topic: str, way: dict[str, Any]) -> None:
    async def read() -> list[tuple[int, int]]:
        places: list[tuple[int, int]] = []
        async with AsyncConsumer(
            bootstrap_servers=servers, group_id=unique("g"), auto_offset_reset="earliest", max_poll_records=7, **way
        ) as consumer:
            consumer.subscribe([topic])
            delay = 0.001
            while len(places) < PARTITIONS * RECORDS:
                polling = asyncio.create_task(consumer.poll(1.0))
                await asyncio.wait([polling], timeout=delay)
                delay = min(delay * 1.3, 0.5)
                if polling.done() or not polling.cancel():
                    places += [(r.partition, r.offset) for r in polling.result()]
                else:
                    await asyncio.wait([polling])
                    if not polling.cancelled():
                        places += [(r.partition, r.offset) for r in polling.result()]
        return places

    places = asyncio.run(asyncio.wait_for(read(), 60))
    assert len(places) == len(set(places)) == PARTITIONS * RECORDS
