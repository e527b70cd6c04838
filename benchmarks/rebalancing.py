"""The duration of rebalances when a member joins and when it closes.

Members are threads of one process, each with a consumer that polls all the time. Their listeners report to a ledger.
The group is stable when every partition is owned once and the members' counts differ by at most one. Time runs from
the new member's `subscribe()`, and from its `close()`, until then.

Members learn about a rebalance from their heartbeats, so the heartbeat interval, which is the same for all clients,
dominates the result. Members of headrace that are in one process tell each other. `headrace_apart` shows how long a
rebalance takes when they do not, as when each member has a process of its own.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from headrace.local import java_command

from .joining import JAVA_SOURCE
from .readers import Job

PARTITIONS = 120
SIZES = (1, 10, 50)
ROUNDS = 5
HEARTBEAT_MS = 500
CLIENTS = ("headrace", "headrace_apart", "confluent")
NAMES = {"headrace_apart": "headrace, members apart"}
STRATEGY = "cooperative-sticky"
# KIP-848 members get their heartbeat interval from the broker. By default the broker computes assignments at most once
# a second, which would hide differences between clients when rebalances follow each other.
BROKER = {
    "group.consumer.min.heartbeat.interval.ms": HEARTBEAT_MS,
    "group.consumer.heartbeat.interval.ms": HEARTBEAT_MS,
    "group.consumer.assignment.interval.ms": 0,
}
_POLL = 1.0
_TOO_LATE = 60.0


class Ledger:
    """The owners of partitions. Members write, one thread waits."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._owned: dict[object, set[int]] = {}
        self._changed = threading.Condition()
        self._changed_at = 0.0

    def take(self, member: object, numbers: Iterable[int]) -> None:
        with self._changed:
            self._owned.setdefault(member, set()).update(numbers)
            self._note()

    def drop(self, member: object, numbers: Iterable[int]) -> None:
        with self._changed:
            self._owned.setdefault(member, set()).difference_update(numbers)
            self._note()

    def _note(self) -> None:
        self._changed_at = time.perf_counter()
        self._changed.notify()

    def is_stable(self, members: int) -> bool:
        shares = [share for share in self._owned.values() if share]
        sizes = [len(share) for share in shares]
        return (
            len(shares) == members
            and sum(sizes) == self._partitions
            and len(set().union(*shares)) == self._partitions
            and max(sizes) - min(sizes) <= 1
        )

    def wait(self, members: int) -> float:
        """Wait until a group of this many members is stable; return the time of its last change."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.is_stable(members), _TOO_LATE):
                sizes = sorted(len(share) for share in self._owned.values())
                raise TimeoutError(f"{members} members were not stable after {_TOO_LATE:.0f} seconds: {sizes}")
            return self._changed_at


class Client(Protocol):
    """The interface of a consumer in this benchmark. The client reports to `ledger` under its own identity."""

    def subscribe(self, topic: str, ledger: Ledger) -> None: ...
    def poll(self) -> object: ...
    def close(self) -> None: ...


class Member:
    """A thread with a consumer."""

    def __init__(self, make: Callable[[], Client], topic: str, ledger: Ledger) -> None:
        self._make, self._topic, self._ledger = make, topic, ledger
        self._leave = threading.Event()
        self.subscribed_at = self.closed_at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self._leave.set()

    def join(self) -> None:
        self._thread.join(_TOO_LATE)

    def _run(self) -> None:
        client = self._make()
        self.subscribed_at = time.perf_counter()
        client.subscribe(self._topic, self._ledger)
        while not self._leave.is_set():
            client.poll()
        self.closed_at = time.perf_counter()
        client.close()


def headrace(job: Job) -> dict[str, float]:
    return _rebalance_times(job, headrace_clients(job.servers, _headrace_settings(job)))


def headrace_apart(job: Job) -> dict[str, float]:
    """Only members with the same bootstrap servers tell each other, so each has a list of another length."""
    settings, numbers = _headrace_settings(job), itertools.count(1)
    return _rebalance_times(job, lambda: headrace_clients(",".join([job.servers] * next(numbers)), settings)())


def _headrace_settings(job: Job) -> dict[str, Any]:
    settings: dict[str, Any] = {"group_id": f"rebalancing-{uuid.uuid4()}", "group_protocol": job.protocol}
    if job.protocol == "classic":
        settings |= {"partition_assignment_strategy": STRATEGY, "heartbeat_interval_ms": HEARTBEAT_MS}
    return settings


def confluent(job: Job) -> dict[str, float]:
    settings: dict[str, Any] = {"group.id": f"rebalancing-{uuid.uuid4()}", "group.protocol": job.protocol}
    if job.protocol == "classic":
        settings |= {"partition.assignment.strategy": STRATEGY, "heartbeat.interval.ms": HEARTBEAT_MS}
    return _rebalance_times(job, confluent_clients(job.servers, settings))


def headrace_clients(servers: str, settings: dict[str, Any]) -> Callable[[], Client]:
    from headrace import Consumer, RebalanceListener, TopicPartition

    class Headrace(RebalanceListener):
        def __init__(self) -> None:
            self._consumer = Consumer(bootstrap_servers=servers, **settings)

        def subscribe(self, topic: str, ledger: Ledger) -> None:
            self._ledger = ledger
            self._consumer.subscribe([topic], listener=self)

        def poll(self) -> object:
            return self._consumer.poll(_POLL)

        def close(self) -> None:
            self._consumer.close()

        def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            self._ledger.take(self, (tp.partition for tp in partitions))

        def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            self._ledger.drop(self, (tp.partition for tp in partitions))

    return Headrace


def confluent_clients(servers: str, settings: dict[str, Any]) -> Callable[[], Client]:
    from confluent_kafka import Consumer, TopicPartition

    class Confluent:
        def __init__(self) -> None:
            self._consumer = Consumer({"bootstrap.servers": servers, **settings})

        def subscribe(self, topic: str, ledger: Ledger) -> None:
            self._ledger = ledger
            self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)

        def poll(self) -> object:
            return self._consumer.poll(_POLL)

        def close(self) -> None:
            self._consumer.close()

        def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
            self._ledger.take(self, (tp.partition for tp in partitions))

        def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
            self._ledger.drop(self, (tp.partition for tp in partitions))

    return Confluent


def _rebalance_times(job: Job, make: Callable[[], Client]) -> dict[str, float]:
    ledger = Ledger(job.partitions)
    members = [Member(make, job.topic, ledger) for _ in range(job.members)]
    ledger.wait(job.members)
    joins, closes = [], []
    for _ in range(ROUNDS):
        _let_a_heartbeat_pass()
        newcomer = Member(make, job.topic, ledger)
        members.append(newcomer)
        joins.append(ledger.wait(job.members + 1) - newcomer.subscribed_at)
        _let_a_heartbeat_pass()
        newcomer.leave()
        closes.append(ledger.wait(job.members) - newcomer.closed_at)
    for member in members:
        member.leave()
    for member in members:
        member.join()
    return figures([seconds * 1e3 for seconds in joins], [seconds * 1e3 for seconds in closes])


def _let_a_heartbeat_pass() -> None:
    """Wait for one heartbeat, so that all members are stable, plus a random part of the next interval."""
    time.sleep(HEARTBEAT_MS / 1000 * random.uniform(1, 2))


def figures(joins: list[float], closes: list[float]) -> dict[str, float]:
    """Median milliseconds."""
    return {"join": statistics.median(joins), "close": statistics.median(closes)}


def java_command_line(job: Job) -> list[str]:
    numbers = (job.partitions, job.members, ROUNDS, HEARTBEAT_MS)
    return java_command(str(JAVA_SOURCE), "rebalancing", job.servers, job.topic, job.protocol, *map(str, numbers))


def figures_of_java(output: str) -> dict[str, float]:
    return figures(*json.loads(output))
