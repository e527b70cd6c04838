"""group.membership=true: a query as one of several members of its group."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from headrace import Consumer, TopicPartition
from headrace._aio.admin import AsyncAdmin
from support.brokers.admin import Admin, unique
from support.brokers.consumer_groups_tool import describe
from support.brokers.produce import numbered, numbered_topic, write
from support.brokers.steady_writer import SteadyWriter
from support.harness.waiting import wait_for
from support.members.commands import Membership, java_command
from support.members.events import Read
from support.members.processes import Peers
from support.spark.batches import LONG, Batches, metrics
from support.spark.streams import Stream

pytestmark = pytest.mark.timeout(600)

FAST = {"kafka.heartbeat.interval.ms": 100, "kafka.session.timeout.ms": 30_000}
SHORT = {"kafka.heartbeat.interval.ms": 100, "kafka.session.timeout.ms": 1500}
SESSION = 6.0
"""Seconds, longer than the pauses of a busy machine."""
MODERN = {"kafka.group.protocol": "consumer"}


class Queries:
    """Queries that are members of one group. They are stopped with the test."""

    def __init__(self, spark: SparkSession, servers: str, where: Path) -> None:
        self._spark, self._servers, self._where = spark, servers, where
        self.group = unique("members")
        self._running: list[StreamingQuery] = []

    def new(self, topic: str, **options: Any) -> Batches:
        where = self._where / unique("query")
        where.mkdir()
        stream = Stream(self._spark, self._servers, topic, where)
        stream.options |= {"kafka.group.id": self.group, "group.membership": "true", **options}
        return Batches(stream)

    def start(self, batches: Batches) -> StreamingQuery:
        query = batches.start(processingTime="50 milliseconds")
        self._running.append(query)
        return query

    def stop(self, *queries: StreamingQuery) -> None:
        for query in queries:
            query.stop()
            assert query.awaitTermination(LONG)

    def wait_gone(self) -> None:
        """Wait until the group is empty. Spark does not wait for a reader's process, which leaves it later."""
        wait_for("the group to be empty", lambda: not asyncio.run(self._members()), LONG)

    async def _members(self) -> Sequence[object]:
        async with AsyncAdmin(bootstrap_servers=self._servers) as admin:
            found = await admin.describe_group(self.group)
        return () if found is None else found.members

    def stop_all(self) -> None:
        self.stop(*(query for query in self._running if query.isActive))


@pytest.fixture
def queries(spark: SparkSession, servers: str, tmp_path: Path) -> Iterator[Queries]:
    queries = Queries(spark, servers, tmp_path)
    yield queries
    queries.stop_all()


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("owned", 2), 2, 100)


def committed(servers: str, group: str, topic: str) -> list[int | None]:
    with Consumer(bootstrap_servers=servers, group_id=group) as consumer:
        found = consumer.committed([TopicPartition(topic, number) for number in range(2)])
    return [each and each.offset for each in found.values()]


def all_before(ends: dict[tuple[str, int], int]) -> list[tuple[int, int]]:
    return sorted((number, offset) for (_, number), end in ends.items() for offset in range(end))


@pytest.mark.parametrize(
    "protocol", [pytest.param(FAST, id="classic", marks=pytest.mark.soak), pytest.param(MODERN, id="consumer")]
)
def test_a_query_alone_resumes_commits_and_leaves_its_group(
    queries: Queries, servers: str, topic: str, protocol: dict[str, Any]
) -> None:
    """It resumes at the group's offsets, commits, and leaves at its end, so that the next query need not wait."""
    with Consumer(bootstrap_servers=servers, group_id=queries.group) as consumer:
        consumer.commit({TopicPartition(topic, 0): 30})
    batches = queries.new(topic, startingOffsets="latest", maxOffsetsPerTrigger=50, **protocol)
    batches.run()
    assert batches.places() == [(0, offset) for offset in range(30, 100)]
    queries.wait_gone()
    assert committed(servers, queries.group, topic) == [100, 100]
    assert describe(servers, queries.group)[queries.group].state.members == 0, "the query has left"
    write(servers, topic, numbered(10, 1))
    run = batches.run()
    assert batches.places()[70:] == [(1, offset) for offset in range(100, 110)]
    assert metrics(run)[0] == {
        "liveLag": 0,
        "backlogOpen": 0,
        "partitionsOwned": 2,
        "pendingRevokes": 0,
        "partitionsLost": 0,
        "readOfLost": 0,
    }
    queries.wait_gone()
    assert committed(servers, queries.group, topic) == [100, 110]
    # Meanwhile another member has committed.
    with Consumer(bootstrap_servers=servers, group_id=queries.group) as consumer:
        write(servers, topic, numbered(20, 0))
        consumer.commit({TopicPartition(topic, 0): 115})
    batches.run()
    assert batches.places()[70:75] == [(0, offset) for offset in range(115, 120)]


@pytest.mark.parametrize(
    "strategy", [pytest.param(None, id="consumer"), pytest.param("range", id="range", marks=pytest.mark.soak)]
)
def test_two_queries_and_a_java_member_share_a_group(
    queries: Queries, servers: str, admin: Admin, strategy: str | None
) -> None:
    """One query joins and leaves. Every record is read once."""
    topic = admin.create("mixed", 6)
    membership = Membership(servers, queries.group, topic, strategy)
    options = MODERN if strategy is None else {**FAST, "kafka.partition.assignment.strategy": strategy}
    first, second = (queries.new(topic, **options) for _ in range(2))
    with (
        Peers((topic, number) for number in range(6)) as peers,
        SteadyWriter(servers, topic, 6, limit=120_000) as writer,
    ):
        queries.start(first)
        wait_for("the first query", lambda: {place[0] for place in first.places()} == set(range(6)), LONG)
        java = peers.start("java", java_command(membership, "java", peers.directory))
        peers.wait("Java's records", lambda: any(isinstance(each, Read) for each in java.events), LONG)
        second.run()  # to the log ends at its start; then it leaves
        count = len(first.places())
        wait_for("more records of the first query", lambda: len(first.places()) > count + 50, LONG)
        peers.stop(java)
        ends = writer.finish()
        expected = all_before(ends)
        seen = [
            (number, offset)
            for event in java.events
            if isinstance(event, Read)
            for (_, number), (start, end) in event.ranges.items()
            for offset in range(start, end)
        ]
        wait_for("the rest", lambda: len(first.places() + second.places() + seen) >= len(expected), LONG)
    queries.stop_all()
    assert sorted(first.places() + second.places() + seen) == expected
    assert seen
    assert second.places()


def test_a_batch_longer_than_the_session_timeout_keeps_its_partitions(
    queries: Queries, servers: str, topic: str
) -> None:
    """Another member gets its partitions when the batch is complete."""
    short = FAST | {"kafka.session.timeout.ms": int(1000 * SESSION)}
    batches = queries.new(topic, **short, **{"kafka.partition.assignment.strategy": "cooperative-sticky"})
    begun, may_end = threading.Event(), threading.Event()

    def take_long(batch: DataFrame, number: int) -> None:
        if not batch.isEmpty():
            begun.set()
            assert may_end.wait(LONG)

    batches.before_each = take_long
    queries.start(batches)
    assert begun.wait(LONG)
    settings = {"heartbeat.interval.ms": 100, "partition.assignment.strategy": "cooperative-sticky"}
    with Consumer(settings, bootstrap_servers=servers, group_id=queries.group, enable_auto_commit=False) as other:
        other.subscribe([topic])
        until = time.monotonic() + SESSION + 2.0
        while time.monotonic() < until:
            assert not other.poll(0.1)
            assert not other.assignment(), "the batch is not complete"
        may_end.set()
        wait_for("its partition", lambda: other.poll(0.1) is not None and other.assignment(), LONG)
        (mine,) = other.assignment()
        assert other.position(mine) == 100
        write(servers, topic, numbered(5, mine.partition))
        found: list[int] = []

        def read_on() -> bool:
            found.extend(record.offset for record in other.poll(0.5))
            return len(found) >= 5

        wait_for("its records", read_on, LONG)
        assert found == list(range(100, 105))
        assert len(batches.places()) == 200
        assert len(batches.is_run_again) == 0


@pytest.mark.parametrize("protocol", [pytest.param(SHORT, id="classic"), pytest.param(MODERN, id="consumer")])
def test_a_batch_longer_than_max_poll_interval_loses_its_partitions(
    queries: Queries, servers: str, topic: str, protocol: dict[str, Any]
) -> None:
    """They are lost after max.poll.interval.ms, not only after Kafka's default session timeout of 45 s."""
    batches = queries.new(topic, **protocol, **{"kafka.max.poll.interval.ms": 2000})
    begun, may_end = threading.Event(), threading.Event()

    def take_long(batch: DataFrame, number: int) -> None:
        if not batch.isEmpty():
            begun.set()
            assert may_end.wait(LONG)

    batches.before_each = take_long
    query = queries.start(batches)
    assert begun.wait(LONG)
    with Consumer(bootstrap_servers=servers, group_id=queries.group, auto_offset_reset="earliest") as other:
        other.subscribe([topic])
        found: set[tuple[int, int]] = set()

        def read_on() -> bool:
            found.update((record.partition, record.offset) for record in other.poll(0.2))
            return len(found) == 200

        wait_for("the records of the lost partitions", read_on, 30)
    may_end.set()
    write(servers, topic, numbered(10, 0))
    wait_for("new records", lambda: (0, 109) in batches.places(), LONG)
    assert len(batches.places()) == 210, "the query resumes after the other member"
    seen = wait_for(
        "the loss in the progress", lambda: [each for each in metrics(query) if each["partitionsLost"]], LONG
    )
    assert seen[-1]["partitionsLost"] == 2
    assert seen[-1]["readOfLost"] == 200
