"""Members of one group in one thread: they poll in turn."""

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

# What makes a consumer a member by each way of sharing partitions out. Members hear of a rebalance with a heartbeat, so
# these are frequent. A session is longer than a busy machine holds anybody up: that of KIP-848 is the broker's affair.
SESSION = 30.0
_CLASSIC: dict[str, Any] = {"session_timeout_ms": round(SESSION * 1000), "heartbeat_interval_ms": 100}
WAYS: dict[str, dict[str, Any]] = {
    "eager": {**_CLASSIC, "partition_assignment_strategy": "range"},
    "cooperative": {**_CLASSIC, "partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}

Event = tuple[str, frozenset[TopicPartition]]


class RecordingListener(RebalanceListener):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(("assigned", partitions))

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(("revoked", partitions))

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(("lost", partitions))

    def told(self) -> list[Event]:
        """Without those that brought nothing."""
        return [event for event in self.events if event[1]]

    def kinds(self) -> list[str]:
        """Without those that brought nothing."""
        return [kind for kind, _ in self.told()]


def with_session(servers: str, group: str, way: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The settings of a member of this group, whose session timeout is that long."""
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
    """Polls the members in turn until something is true. Returns what they read."""
    deadline = time.monotonic() + timeout
    records: list[Record] = []
    while not until():
        assert time.monotonic() < deadline, f"{[sorted(map(str, each.assignment())) for each in members]}"
        for consumer in members:
            records += consumer.poll(each)
    return records


@contextmanager
def polling(*members: AnyConsumer) -> Iterator[None]:
    """Each polls on a thread of its own, until the end, which raises what a poll has raised."""
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


def at_rest(members: Sequence[AnyConsumer], partitions: int) -> Callable[[], bool]:
    """Whether, besides, no rebalance is under way."""
    is_shared_out = shared_out(members, partitions)

    def check() -> bool:
        groups = [each.metrics()["group"] for each in members]
        return (
            is_shared_out()
            and {group["state"] for group in groups} <= {"stable", "member"}
            and len({group["generation"] for group in groups}) == 1
        )

    return check


def shared_out(members: Sequence[AnyConsumer], partitions: int) -> Callable[[], bool]:
    """Whether they own that many partitions together, none of them twice, and none of them nothing."""

    def check() -> bool:
        owned = [each.assignment() for each in members]
        return all(owned) and sum(map(len, owned)) == partitions == len(set().union(*owned))

    return check
