"""The time to the first record of a topic with 1,000 partitions, in a fresh process.

Time runs from before the import of the library until the first poll with records returns. Each sample is one process
and one new group.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .readers import Job

if TYPE_CHECKING:  # it imports headrace, whose import is measured
    from .results import Figure

PARTITIONS = 1_000
RECORDS = 10_000
SAMPLES = 5
CLIENTS = ("headrace", "confluent")
_TOO_LATE = 60.0


def headrace(job: Job) -> dict[str, float]:
    started = time.perf_counter()
    from headrace import Consumer

    with Consumer(
        bootstrap_servers=job.servers,
        group_id=f"wide-{uuid.uuid4()}",
        group_protocol=job.protocol,
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe([job.topic])
        return _first_record(lambda: bool(consumer.poll(1.0)), started)


def confluent(job: Job) -> dict[str, float]:
    started = time.perf_counter()
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": job.servers,
            "group.id": f"wide-{uuid.uuid4()}",
            "group.protocol": job.protocol,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([job.topic])
        return _first_record(lambda: consumer.poll(1.0) is not None, started)
    finally:
        consumer.close()


def _first_record(poll: Callable[[], bool], started: float) -> dict[str, float]:
    while not poll():
        if time.perf_counter() - started > _TOO_LATE:
            raise TimeoutError(f"no record came in {_TOO_LATE:.0f} seconds")
    return {"first": (time.perf_counter() - started) * 1e3}


def summary(samples: Sequence[Figure]) -> Figure:
    """The first sample, which with the first protocol is also the first group of its broker, and the median of the
    others. Or the error of one."""
    times = []
    for sample in samples:
        if isinstance(sample, str):
            return sample
        times.append(sample["first"])
    return {"first": times[0], "later": statistics.median(times[1:]), "slowest": max(times[1:])}
