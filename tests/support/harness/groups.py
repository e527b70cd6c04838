"""Members of one group in one thread, which poll in turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from headrace import RebalanceListener, Record, TopicPartition
from support.brokers.group_configs import set_session_timeout
from support.harness.consumers import AnyConsumer, MakeConsumer

# Member settings for each rebalance protocol. Members learn about a rebalance from a heartbeat, so heartbeats are
# frequent. Sessions outlast the pauses of a busy machine. For KIP-848 the broker sets both.
SESSION = 30.0
_CLASSIC: dict[str, Any] = {"session_timeout_ms": round(SESSION * 1000), "heartbeat_interval_ms": 100}
WAYS: dict[str, dict[str, Any]] = {
    "eager": {**_CLASSIC, "partition_assignment_strategy": "range"},
    "cooperative": {**_CLASSIC, "partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}

Event = tuple[str, frozenset[TopicPartition]]


class RecordingListener(RebalanceListener):
    """Records its calls."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(("assigned", partitions))

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(("revoked", partitions))

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(("lost", partitions))

    def changes(self) -> list[Event]:
        """Events with at least one partition."""
        return [event for event in self.events if event[1]]

    def kinds(self) -> list[str]:
        """Kinds of events with at least one partition."""
        return [kind for kind, _ in self.changes()]


def with_session(servers: str, group: str, way: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Member settings with this session timeout."""
    if way.get("group_protocol") == "consumer":
        set_session_timeout(servers, group, round(seconds * 1000))
        return way
    return {**way, "session_timeout_ms": round(seconds * 1000)}


def all_of(topic: str, partitions: int) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for number in range(partitions)}


def member(make: MakeConsumer, servers: str, group: str, topics: Iterable[str], **settings: Any) -> AnyConsumer:
    listener = settings.pop("listener", None)
    consumer = make(bootstrap_servers=servers, group_id=group, **({"auto_offset_reset": "earliest"} | settings))
    consumer.subscribe(list(topics), listener=listener)
    return consumer


def poll_all(
    members: Sequence[AnyConsumer], until: Callable[[], bool], timeout: float = 60.0, each: float = 0.05
) -> list[Record]:
    """Poll the members in turn until `until` is true. Return their records."""
    deadline = time.monotonic() + timeout
    records: list[Record] = []
    while not until():
        assert time.monotonic() < deadline, f"{[sorted(map(str, each.assignment())) for each in members]}"
        for consumer in members:
            records += consumer.poll(each)
    return records


@contextmanager
def polling(*members: AnyConsumer) -> Iterator[None]:
    """Poll each member on its own thread until the block ends, then raise the error of a poll, if any."""
    over = threading.Event()

    def poll(consumer: AnyConsumer) -> None:
        while not over.is_set():
            consumer.poll(0.05)

    with ThreadPoolExecutor(len(members)) as threads:
        running = [threads.submit(poll, consumer) for consumer in members]
        try:
            yield
        finally:
            over.set()
    for each in running:
        each.result()


def stable(members: Sequence[AnyConsumer], partitions: int) -> Callable[[], bool]:
    """Like `fully_assigned`, and no rebalance is in progress."""
    is_fully_assigned = fully_assigned(members, partitions)

    def check() -> bool:
        groups = [each.metrics()["group"] for each in members]
        return (
            is_fully_assigned()
            and {group["state"] for group in groups} <= {"stable", "member"}
            and len({group["generation"] for group in groups}) == 1
        )

    return check


def fully_assigned(members: Sequence[AnyConsumer], partitions: int) -> Callable[[], bool]:
    """Whether the members own this many partitions together, none twice, and at least one each."""

    def check() -> bool:
        owned = [each.assignment() for each in members]
        return all(owned) and sum(map(len, owned)) == partitions == len(set().union(*owned))

    return check
