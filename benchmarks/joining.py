"""The time from `subscribe()` to the first record in a new group.

Each sample is a new consumer in a new group, all in one process. The first one is reported separately, since it
includes everything that a library loads, compiles or looks up once.
"""

from __future__ import annotations

import json
import statistics
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from headrace.local import java_command

from .readers import Job

PARTITIONS = 12
SAMPLES = 8
CLIENTS = ("headrace", "confluent")
PROTOCOLS = {"classic": "classic", "consumer": "KIP-848"}
JAVA_SOURCE = Path(__file__).parent / "java" / "Groups.java"
_TOO_LATE = 20.0


def headrace(job: Job) -> dict[str, float]:
    from headrace import Consumer

    def sample() -> float:
        with Consumer(
            bootstrap_servers=job.servers,
            group_id=f"joining-{uuid.uuid4()}",
            group_protocol=job.protocol,
            auto_offset_reset="earliest",
        ) as consumer:
            started = time.perf_counter()
            consumer.subscribe([job.topic])
            return _first_record(lambda: bool(consumer.poll(1.0)), started)

    return figures([sample() for _ in range(SAMPLES)])


def confluent(job: Job) -> dict[str, float]:
    from confluent_kafka import Consumer

    def sample() -> float:
        consumer = Consumer(
            {
                "bootstrap.servers": job.servers,
                "group.id": f"joining-{uuid.uuid4()}",
                "group.protocol": job.protocol,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            started = time.perf_counter()
            consumer.subscribe([job.topic])
            return _first_record(lambda: consumer.poll(1.0) is not None, started)
        finally:
            consumer.close()

    return figures([sample() for _ in range(SAMPLES)])


def _first_record(poll: Callable[[], bool], started: float) -> float:
    """Milliseconds until the first record."""
    while not poll():
        if time.perf_counter() - started > _TOO_LATE:
            raise TimeoutError(f"no record came in {_TOO_LATE:.0f} seconds")
    return (time.perf_counter() - started) * 1e3


def figures(samples: list[float]) -> dict[str, float]:
    first, *later = samples
    return {"first": first, "later": statistics.median(later), "slowest": max(later)}


def java_command_line(job: Job) -> list[str]:
    return java_command(str(JAVA_SOURCE), "joining", job.servers, job.topic, job.protocol, str(SAMPLES))


def figures_of_java(output: str) -> dict[str, float]:
    return figures(json.loads(output))
