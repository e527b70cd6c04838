"""The rate of a share consumer in both modes with several limits. Runs in child processes.

Each measurement is the only member of a new share group. After a warm-up of `WARM_UP` seconds or a fifth of the
records, time runs until all are read or `SECONDS` have passed. The next poll accepts all records (implicit mode).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from headrace.local import java_command

from .readers import Job

CLIENTS = ("headrace", "confluent")
MODES = ("batch_optimized", "record_limit")
WARM_UP = 1.5
SECONDS = 3.0
RECORD_BYTES = 100
JAVA_SOURCE = Path(__file__).parent / "java" / "Shares.java"
_TOO_LATE = 30.0


def fill(job: Job) -> dict[str, int]:
    """Write batches of exactly `members` records."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": job.servers,
            "acks": "all",
            "linger.ms": 5000,
            "batch.num.messages": job.members,
            "batch.size": 2 * RECORD_BYTES * max(100, job.members),
            "queue.buffering.max.messages": 2 * job.records,
        }
    )
    for number in range(job.records):
        value = f"{number:0{RECORD_BYTES}d}".encode()
        producer.produce(job.topic, value, partition=number // job.members % job.partitions)
        producer.poll(0)
    if left := producer.flush(120):
        raise TimeoutError(f"{left:,} of {job.records:,} records were not written")
    return {"records": job.records}


def words(mode: str, limit: int, group: str) -> str:
    """The other arguments of a reader, passed as the job's protocol."""
    return f"{mode} {limit} {group}"


def headrace(job: Job) -> dict[str, float]:
    from headrace import ShareConsumer

    mode, limit, group = job.protocol.split()
    start_at_the_beginning(job.servers, group)
    settings = {"bootstrap.servers": job.servers, "group.id": group, "max.poll.records": limit}
    with ShareConsumer(settings, share_acquire_mode=mode) as consumer:
        consumer.subscribe([job.topic])
        found = _timed(lambda: len(consumer.poll(1.0)), job.records)
        consumer.commit()
        return found | {"bytes": consumer.metrics()["bytes_fetched"]}


def confluent(job: Job) -> dict[str, float]:
    from confluent_kafka import ShareConsumer

    mode, limit, group = job.protocol.split()
    if mode != MODES[0]:
        raise ValueError(f"it has no {mode}")
    start_at_the_beginning(job.servers, group)
    settings = {"bootstrap.servers": job.servers, "group.id": group, "max.poll.records": int(limit), "log_level": 3}
    consumer = ShareConsumer(settings)
    try:
        consumer.subscribe([job.topic])
        return _timed(lambda: len(consumer.poll(1.0)), job.records)
    finally:
        consumer.close()


def _timed(poll: Callable[[], int], records: int) -> dict[str, float]:
    asked = time.perf_counter()
    while not (first := poll()):
        if time.perf_counter() - asked > _TOO_LATE:
            raise TimeoutError(f"no record came in {_TOO_LATE:.0f} seconds")
    began = time.perf_counter()
    while first < records // 5 and time.perf_counter() - began < WARM_UP:
        first += poll()
    started, cpu = time.perf_counter(), time.process_time()
    count = polls = 0
    while first + count < records and time.perf_counter() - started < SECONDS:
        count += poll()
        polls += 1
    seconds = time.perf_counter() - started
    if not count:
        raise TimeoutError(f"nothing came after the first {first} records")
    return {
        "rate": count / seconds,
        "polls": polls / seconds,
        "cpu": (time.process_time() - cpu) / count * 1e6,
        "records": first + count,
    }


def start_at_the_beginning(servers: str, group: str) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave most of them out
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers})
    admin.incremental_alter_configs([resource])[resource].result(30)


def java_command_line(job: Job) -> list[str]:
    mode, limit, group = job.protocol.split()
    times = (str(round(WARM_UP * 1000)), str(round(SECONDS * 1000)))
    arguments = (job.servers, group, job.topic, mode, limit, str(job.records), *times)
    return java_command(str(JAVA_SOURCE), *arguments)


def figures_of_java(output: str) -> dict[str, float]:
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise ValueError(f"Shares.java printed {output.strip()[-200:]!r}")
    found: dict[str, float] = json.loads(lines[-1])
    return found
