"""How the cost of a consumer grows with its partitions: from 1 to 10,000 on one broker.

    python -m benchmarks --parts scaling

Each measurement is a process with one consumer that is assigned all partitions of its own topics. They have the same
number of records altogether, so that only the number of partitions differs. The broker is its own, with small indexes:
with Kafka's default of 10 MB for each index it would map 200 GB.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.local import LocalBroker

from . import child, pinning
from .groups import figures
from .process import run
from .process_stats import stat
from .readers import Job
from .results import Figures

if TYPE_CHECKING:
    from headrace import TopicPartition

PARTITIONS = (1, 10, 100, 1_000, 10_000)
IN_A_TOPIC = 1_000  # the controller creates at most 10,000 in one request
CLIENTS = ("headrace", "confluent")
RECORD_BYTES = 100
A_POLL = 500
IDLE = 4.0
"""Seconds for which a consumer that has read everything is watched."""
BROKER = {"log.index.size.max.bytes": 65_536, "log.segment.bytes": 4 * 2**20}
_HEAP = "2g"
_ROUNDS, _IN_A_ROW, _REST = 10, 25, 0.05
_EMPTY_POLLS = 2_000
_SETTLE = 1.5
_TOO_LATE = 60.0
_TIMEOUT = 300.0


# -- in child processes; the job's protocol is the broker's process id -------------------------------------------------


def create(job: Job) -> dict[str, int]:
    """Create the topics; return when all partitions have a leader."""
    return {"partitions": asyncio.run(_create(job))}


async def _create(job: Job) -> int:
    from headrace._aio.admin import AsyncAdmin

    async with AsyncAdmin(bootstrap_servers=job.servers, default_api_timeout_ms=120_000) as admin:
        for topic, size in topics_of(job).items():
            await admin.create_topic(topic, size, 1)
        wanted = partitions_of(job)
        found = await admin.bounds(wanted)
        while len(found) < len(wanted):
            await asyncio.sleep(0.1)
            found = await admin.bounds(wanted)
    return job.partitions


def fill(job: Job) -> dict[str, int]:
    """The same number of records in each partition."""
    from confluent_kafka import Producer

    waiting = {"linger.ms": 200, "queue.buffering.max.messages": 2 * job.records, "queue.buffering.max.kbytes": 2**20}
    producer = Producer({"bootstrap.servers": job.servers, "acks": "all", **waiting})
    partitions = partitions_of(job)
    for number in range(job.records):
        where = partitions[number % len(partitions)]
        producer.produce(where.topic, b"%0*d" % (RECORD_BYTES, number), partition=where.partition)
        producer.poll(0)
    if left := producer.flush(_TIMEOUT):
        raise TimeoutError(f"{left:,} of {job.records:,} records were not written")
    return {"records": job.records}


def headrace(job: Job) -> dict[str, float]:
    from headrace import Consumer

    partitions = partitions_of(job)
    before = resident_bytes()
    with Consumer(bootstrap_servers=job.servers) as consumer:
        consumer.end_offsets(partitions[:1])  # connects

        def assign() -> None:
            consumer.assign(partitions)
            consumer.seek_to_beginning()

        found = _measure(job, assign, lambda wait: consumer.poll(wait, max_records=A_POLL))
        fetches = consumer.metrics()["fetches"]
        found |= _idle(job, lambda: consumer.poll(1.0))
        found["idle fetches/s"] = (consumer.metrics()["fetches"] - fetches) / IDLE
        found["MB"] = (resident_bytes() - before) / 1e6
    return found


def confluent(job: Job) -> dict[str, float]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer
    from confluent_kafka import TopicPartition as Partition

    partitions = [Partition(tp.topic, tp.partition, OFFSET_BEGINNING) for tp in partitions_of(job)]
    before = resident_bytes()
    # Without the second setting, it pauses for a second whenever its queue is full.
    settings = {"group.id": "scaling", "enable.auto.commit": False, "fetch.queue.backoff.ms": 5}
    consumer = Consumer({"bootstrap.servers": job.servers, **settings})
    try:
        consumer.list_topics(partitions[0].topic, timeout=10)
        found = _measure(job, lambda: consumer.assign(partitions), lambda wait: consumer.consume(A_POLL, timeout=wait))
        found |= _idle(job, lambda: consumer.consume(A_POLL, timeout=1.0))
        found["MB"] = (resident_bytes() - before) / 1e6
    finally:
        consumer.close()
    return found


def _measure(job: Job, assign: Callable[[], None], poll: Callable[[float], Sized]) -> dict[str, float]:
    """The time to the first record, and the cost of polls with and without records. Reads all records."""
    started = time.perf_counter()
    assign()
    count = 0
    while not count:
        count = len(poll(1.0))
        _check(started, count, job)
    first = time.perf_counter() - started
    full: list[float] = []
    for _ in range(_ROUNDS):
        time.sleep(_REST)  # the client fetches
        for _ in range(_IN_A_ROW):
            began = time.perf_counter()
            found = len(poll(0))
            took = time.perf_counter() - began
            count += found
            if found == A_POLL:
                full.append(took)
    while count < job.records:
        count += len(poll(1.0))
        _check(started, count, job)
    everything = time.perf_counter() - started
    time.sleep(_SETTLE)
    empty = []
    for _ in range(_EMPTY_POLLS):
        began = time.perf_counter()
        poll(0)
        empty.append(time.perf_counter() - began)
    costs = {"first record ms": first * 1e3, "all records s": everything, "empty poll µs": median_us(empty)}
    if len(full) >= _IN_A_ROW:
        costs["poll µs"] = median_us(full)
    return costs


def _idle(job: Job, poll: Callable[[], Sized]) -> dict[str, float]:
    """Percent of a core that client and broker use while there is nothing to read."""
    pid = int(job.protocol)
    broker, cpu, began = stat(pid).cpu_seconds, time.process_time(), time.perf_counter()
    while (elapsed := time.perf_counter() - began) < IDLE:
        poll()
    return {
        "idle CPU %": (time.process_time() - cpu) / elapsed * 100,
        "broker's idle CPU %": (stat(pid).cpu_seconds - broker) / elapsed * 100,
    }


def _check(started: float, count: int, job: Job) -> None:
    if time.perf_counter() - started > _TOO_LATE:
        raise TimeoutError(f"{count:,} of {job.records:,} records in {_TOO_LATE:.0f} seconds")


def median_us(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1e6


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def topics_of(job: Job) -> dict[str, int]:
    """Topics of at most IN_A_TOPIC partitions, with their sizes."""
    sizes = [min(IN_A_TOPIC, job.partitions - first) for first in range(0, job.partitions, IN_A_TOPIC)]
    return {f"{job.topic}-{number}": size for number, size in enumerate(sizes)}


def partitions_of(job: Job) -> list[TopicPartition]:
    from headrace import TopicPartition

    return [TopicPartition(topic, number) for topic, size in topics_of(job).items() for number in range(size)]


# -- the run -----------------------------------------------------------------------------------------------------------


def measure(records: int, say: Callable[[str], None], sizes: Sequence[int] = PARTITIONS) -> dict[str, Figures]:
    """The figures of each client by number of partitions. Raises CommandFailed if the topics cannot be written."""
    found: dict[str, Figures] = {client: {} for client in CLIENTS}
    with pinning.broker(LocalBroker(properties=BROKER, heap=_HEAP)) as broker:
        for size in sizes:
            pid = broker.pid(broker.live_brokers[0])
            job = Job(broker.bootstrap_servers, f"scaling-{size}", size, records, protocol=str(pid))
            say(f"scaling: creating {size:,} partitions with {records:,} records")
            began = time.monotonic()
            run(child.command("scaling.create", job), _TIMEOUT)
            created = time.monotonic() - began
            run(child.command("scaling.fill", job), _TIMEOUT)
            say(f"scaling: created in {created:.1f} s, filled in {time.monotonic() - began - created:.1f} s")
            for client in CLIENTS:
                figure = figures(child.command(f"scaling.{client}", job), json.loads, _TIMEOUT)
                say(f"scaling: {client}, {size:,} partitions: {figure}")
                found[client][str(size)] = figure
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Growth:
    """The exponents e of cost ~ partitions^e: 0 is constant, 1 is proportional."""

    overall: float | None
    last_decade: float | None


def growth(costs: Sequence[tuple[int, float]]) -> Growth:
    """From the costs by number of partitions, in ascending order."""
    return Growth(exponent(costs), exponent(costs[-2:]))


def exponent(costs: Sequence[tuple[int, float]]) -> float | None:
    """The slope of the line through the logarithms (least squares). None for fewer than two costs above 0."""
    points = [(math.log10(size), math.log10(cost)) for size, cost in costs if cost > 0]
    if len({x for x, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope
