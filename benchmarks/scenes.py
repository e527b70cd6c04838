"""The measurements for the charts of `pictures.py`, with a real broker.

polls        records of each partition in successive polls, fair and greedy
heartbeats   a member that works for longer than its session timeout, and for longer than max.poll.interval.ms; the
             state of the group is read from outside
shares       records that a poll of a share group returns, and those that are also locked for its member
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace import Consumer, ShareConsumer, TopicPartition
from headrace._aio.admin import AsyncAdmin

from . import share
from .readers import Job

LIMIT = 300
WAITING = {"A": 2000, "B": 400, "C": 1000}  # records in each partition

SESSION, INTERVAL = 1.5, 5.0  # seconds
WORK = (0.5, 4.0, 0.5, 8.0, 0.5, 0.5, 0.5, 0.5, 0.5)  # seconds between polls that return records
SLOW, OTHER = "slow", "other"
PARTITIONS = 4
LEAST_SESSION = {"group.min.session.timeout.ms": 1000}
"""The broker must allow such a short session timeout."""

SHARE_LIMIT, BATCH, SHARE_POLLS = 20, 100, 12

_LOOK_EVERY = 0.05
_DEADLINE = 60.0


def make_topics(servers: str, topics: Mapping[str, int]) -> None:
    """Create topics with these numbers of partitions."""

    async def make() -> None:
        async with AsyncAdmin(bootstrap_servers=servers) as admin:
            for name, partitions in topics.items():
                await admin.create_topic(name, partitions, 1)

    asyncio.run(make())


# -- KIP-41 ----------------------------------------------------------------------------------------------------------


def polls(servers: str) -> dict[str, list[dict[str, int]]]:
    """By strategy, the number of records of each partition in each poll."""
    make_topics(servers, dict.fromkeys(WAITING, 1))
    for topic, records in WAITING.items():
        share.fill(Job(servers, topic, 1, records, members=records))
    return {strategy: _drained(servers, strategy) for strategy in ("fair", "greedy")}


def _drained(servers: str, strategy: str) -> list[dict[str, int]]:
    settings = {"bootstrap_servers": servers, "auto_offset_reset": "earliest", "max_poll_records": LIMIT}
    found: list[dict[str, int]] = []
    with Consumer(**settings, poll_drain_strategy=strategy) as consumer:
        consumer.assign([TopicPartition(topic, 0) for topic in WAITING])
        left = sum(WAITING.values())
        while left:
            records = consumer.poll(_DEADLINE)
            if not records:
                raise TimeoutError(f"{left} records did not come")
            found.append({tp.topic: len(records[tp]) for tp in records.partitions})
            left -= len(records)
    return found


# -- KIP-62 ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """The state of the group: the number of partitions of each member, None during a rebalance."""

    at: float
    members: Mapping[str, int | None]


@dataclasses.dataclass(frozen=True, slots=True)
class SlowMemberTimeline:
    """All times are in seconds since the first poll. `work` and `polls` have the starts and ends of the slow member's
    work and polls."""

    polls: Sequence[tuple[float, float]]
    work: Sequence[tuple[float, float]]
    looks: Sequence[Look]


def heartbeats(servers: str) -> SlowMemberTimeline:
    """Raises TimeoutError if the members do not get their partitions."""
    topic = group = "heartbeats"
    make_topics(servers, {topic: PARTITIONS})
    share.fill(Job(servers, topic, PARTITIONS, 1000 * PARTITIONS, members=10))
    settings: dict[str, Any] = {
        "bootstrap_servers": servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "partition_assignment_strategy": "cooperative-sticky",
        "session_timeout_ms": round(1000 * SESSION),
        "heartbeat_interval_ms": 300,
        "max_poll_interval_ms": round(1000 * INTERVAL),
        "max_poll_records": 1,
    }
    over = threading.Event()
    with (
        Consumer(settings, client_id=SLOW) as slow,
        Consumer(settings, client_id=OTHER) as other,
        ThreadPoolExecutor(2) as threads,
    ):
        try:
            slow.subscribe([topic])
            other.subscribe([topic])
            quick = threads.submit(_keep_polling, other, over)
            outside = threads.submit(asyncio.run, _look(servers, group, over))
            _divide_partitions(slow, other)
            began = time.monotonic()
            polled, worked = _work(slow)
        finally:
            over.set()
        quick.result(_DEADLINE)
        looks = outside.result(_DEADLINE)

    def since(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(start - began, end - began) for start, end in spans]

    seen = [Look(look.at - began, look.members) for look in looks if look.at >= began]
    return SlowMemberTimeline(since(polled), since(worked), seen)


def _keep_polling(consumer: Consumer, over: threading.Event) -> None:
    while not over.wait(_LOOK_EVERY):
        consumer.poll(_LOOK_EVERY)


def _divide_partitions(*members: Consumer) -> None:
    deadline = time.monotonic() + _DEADLINE
    while any(len(member.assignment()) != PARTITIONS // len(members) for member in members):
        if time.monotonic() > deadline:
            raise TimeoutError("the partitions were not assigned")
        members[0].poll(_LOOK_EVERY)
        time.sleep(_LOOK_EVERY)  # otherwise it would have read all records before the measurement


def _work(consumer: Consumer) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    polled, worked = [], []
    deadline = time.monotonic() + _DEADLINE
    for seconds in WORK:
        records = None
        while not records:
            if time.monotonic() > deadline:
                raise TimeoutError("the slow member got no record")
            asked = time.monotonic()
            records = consumer.poll(0.2)
            polled.append((asked, time.monotonic()))
        time.sleep(seconds)
        worked.append((polled[-1][1], time.monotonic()))
    return polled, worked


async def _look(servers: str, group: str, over: threading.Event) -> list[Look]:
    looks = []
    async with AsyncAdmin(bootstrap_servers=servers) as admin:
        while not over.is_set():
            found = await admin.describe_group(group)
            stable = found is not None and found.listing.state == "Stable"
            members = () if found is None else found.members
            counts = {each.client_id: len(each.partitions) if stable else None for each in members}
            looks.append(Look(time.monotonic(), counts))
            await asyncio.sleep(_LOOK_EVERY)
    return looks


def spans(looks: Sequence[Look], member: str) -> list[tuple[float, float, int | None]]:
    """The times in which the group had the member, with its number of partitions. Each lasts until the next change."""
    found = []
    ends = [look.at for look in (*looks[1:], *looks[-1:])]
    by_state = itertools.groupby(
        zip(looks, ends, strict=True), lambda pair: (member in pair[0].members, pair[0].members.get(member))
    )
    for (is_there, count), run in by_state:
        (first, end), *rest = run
        if is_there:
            found.append((first.at, rest[-1][1] if rest else end, count))
    return found


# -- KIP-1206 --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Portion:
    """`ahead`: other records that are locked for the member; None if the client does not report them."""

    returned: int
    ahead: int | None


def shares(servers: str) -> dict[str, list[Portion]]:
    """By client and mode, the records of each poll, without empty polls."""
    topic = "shares"
    make_topics(servers, {topic: 1})
    share.fill(Job(servers, topic, 1, SHARE_POLLS * BATCH, members=BATCH))
    found = {f"headrace, {mode}": _with_headrace(servers, topic, mode) for mode in share.MODES}
    return found | {"confluent-kafka, batch_optimized": _with_confluent(servers, topic)}


def _with_headrace(servers: str, topic: str, mode: str) -> list[Portion]:
    group = f"{topic}-{mode}"
    share.start_at_the_beginning(servers, group)
    settings = {"bootstrap_servers": servers, "group_id": group, "max_poll_records": SHARE_LIMIT}
    with ShareConsumer(**settings, share_acquire_mode=mode) as consumer:
        consumer.subscribe([topic])

        def poll() -> Portion:
            returned = len(consumer.poll(1.0))
            return Portion(returned, consumer.metrics()["buffered_records"])

        return _portions(poll)


def _with_confluent(servers: str, topic: str) -> list[Portion]:
    from confluent_kafka import ShareConsumer as Peer

    group = f"{topic}-confluent"
    share.start_at_the_beginning(servers, group)
    consumer = Peer({"bootstrap.servers": servers, "group.id": group, "max.poll.records": SHARE_LIMIT, "log_level": 3})
    try:
        consumer.subscribe([topic])
        return _portions(lambda: Portion(len(consumer.poll(1.0)), None))
    finally:
        consumer.close()


def _portions(poll: Callable[[], Portion]) -> list[Portion]:
    deadline = time.monotonic() + _DEADLINE
    found: list[Portion] = []
    while len(found) < SHARE_POLLS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no record came after {len(found)} polls that returned some")
        portion = poll()
        if portion.returned:
            found.append(portion)
    return found
