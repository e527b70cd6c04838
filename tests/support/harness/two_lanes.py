"""Consumers with a live lane and a backlog lane, and the contents of their two commit logs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition

from headrace import Consumer, OffsetAndMetadata, Record, TopicPartition
from headrace._machines.lanes.commit_metadata import BACKLOG_SUFFIX, CommitMark
from headrace.errors import KafkaError
from support.brokers.admin import client_settings, unique
from support.brokers.produce import numbered, write
from support.harness.consumers import AnyConsumer, MakeConsumer, poll_until
from support.harness.groups import WAYS

_TIMEOUT = 30.0

# Only the test commits.
BY_HAND: dict[str, Any] = {"enable_parallel_rebalance": True, "enable_auto_commit": False}


def laned(make: MakeConsumer, servers: str, group: str, topic: str, **settings: Any) -> AnyConsumer:
    """Consumes partition 0 of the topic in two lanes, by assignment, so that a new consumer can take over at once."""
    consumer = make(
        bootstrap_servers=servers, group_id=group, **(BY_HAND | {"auto_offset_reset": "earliest"} | settings)
    )
    consumer.assign([TopicPartition(topic, 0)])
    return consumer


def read_in_two_lanes(make: MakeConsumer, servers: str, tp: TopicPartition) -> tuple[str, AnyConsumer]:
    """A group that had committed 70, and a consumer that has read [70, 120) as backlog and [120, 130) live."""
    group = behind(servers, tp, 70, 120)
    consumer = laned(make, servers, group, tp.topic)
    assert consumer.position(tp) == 120
    grow(servers, tp, 130, 120)
    poll_until(consumer, 60)
    return group, consumer


def two_lane_member(
    make: MakeConsumer, servers: str, group: str, topic: str, way: str | None = None, **settings: Any
) -> AnyConsumer:
    """Like `laned`, as a member of the group."""
    listener = settings.pop("listener", None)
    chosen = BY_HAND | (WAYS[way] if way else {}) | {"auto_offset_reset": "earliest"} | settings
    consumer = make(bootstrap_servers=servers, group_id=group, **chosen)
    consumer.subscribe([topic], listener=listener)
    return consumer


def commit_of(servers: str, group: str, tp: TopicPartition) -> OffsetAndMetadata | None:
    """The commit in the group's log. (confluent-kafka does not read all of its metadata.)"""
    with Consumer(bootstrap_servers=servers, group_id=group) as reader:
        runtime = reader._parts.lifecycle.start()

        async def ask() -> OffsetAndMetadata | None:
            answer = (await runtime.offset_requests.committed([tp]))[tp]
            if isinstance(answer, KafkaError):
                raise answer
            return answer

        found: OffsetAndMetadata | None = reader._portal.run(
            lambda: runtime.client.retries.run("committed", time.monotonic() + _TIMEOUT, ask)
        )
    return None if found is None else found._replace(leader_epoch=None)


def both_logs(servers: str, group: str, tp: TopicPartition) -> tuple[CommitMark | None, CommitMark | None]:
    """The marks in the first and in the second commit log."""
    first, second = commit_of(servers, group, tp), commit_of(servers, group + BACKLOG_SUFFIX, tp)
    return None if first is None else CommitMark.read(first), None if second is None else CommitMark.read(second)


def open_ranges(mark: CommitMark) -> list[tuple[int, int]]:
    """The open ranges of the mark's token."""
    return mark.done.open(0, mark.offset) if mark.token else []


def offsets(records: Iterable[Record], lane: str | None = None, partition: int = 0) -> list[int]:
    return [record.offset for record in records if record.partition == partition and lane in (None, record.lane)]


def grow(servers: str, tp: TopicPartition, to: int, start: int = 0) -> None:
    """Write the records from `start` to before `to`. A record's value is its number."""
    write(servers, tp.topic, numbered(to - start, tp.partition, start))


def crash(consumer: AnyConsumer) -> None:
    """Crash the consumer: it commits nothing, does not leave the group, and its connections break."""
    inner = consumer if isinstance(consumer, Consumer) else consumer._consumer
    inner._parts.guard.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        inner._parts.lifecycle._finalizer()


def behind(servers: str, tp: TopicPartition, committed: int, end: int) -> str:
    """A group that has committed `committed`, in a log that ends at `end`."""
    group = unique("g")
    grow(servers, tp, end)
    commit_plainly(servers, group, tp, committed)
    return group


def commit_plainly(servers: str, group: str, tp: TopicPartition, offset: int) -> None:
    """Commit like another Kafka client, without metadata."""
    other = ConfluentConsumer({**client_settings(servers), "group.id": group, "enable.auto.commit": False})
    other.commit(offsets=[ConfluentPartition(tp.topic, tp.partition, offset)], asynchronous=False)
    other.close()


def read_by_confluent(servers: str, group: str, tp: TopicPartition, count: int) -> list[int]:
    """The offsets of the next records that confluent-kafka reads as a member of the group."""
    other = ConfluentConsumer(
        {**client_settings(servers), "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "error"}
    )
    other.assign([ConfluentPartition(tp.topic, tp.partition)])
    messages = other.consume(count, _TIMEOUT)
    other.close()
    return [message.offset() for message in messages]
