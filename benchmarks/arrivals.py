"""The age of records when a poll returns them, at a consumer that works between polls.

Another process writes a record every millisecond. Records that arrive during the work should be returned by the next
poll, so the age is at best half of the work on average.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import subprocess
import time
from collections.abc import Callable, Sequence

from . import child
from .datasets import create_topic
from .groups import figures as run_child
from .latency import figures
from .markdown import latency_table
from .readers import Job
from .results import Figure, Figures, median_figure

RECORDS = 3_000
_EVERY = 0.001
_WORK_MS = (0, 1, 3)
_CLIENTS = ("headrace", "confluent")
_SKIPPED = RECORDS // 10
_TOO_LATE = 30.0
_AGE = struct.Struct("d")
_Poll = Callable[[], Sequence[bytes]]


def measure(servers: str, repeat: int, say: Callable[[str], None]) -> Figures:
    """Clients take turns; the first round warms the broker up."""
    job = Job(servers, "arrivals", 1, RECORDS)
    create_topic(job.topic, job.partitions, servers)
    rounds: dict[str, list[Figure]] = {}
    for turn in range(repeat + 1):
        for work in _WORK_MS:
            for client in _CLIENTS:
                say(f"arrivals: {client}, {work} ms of work")
                working = dataclasses.replace(job, work_ms=work)
                found = run_child(child.command(f"arrivals.{client}", working), json.loads)
                if turn:
                    rounds.setdefault(f"{client}, {work} ms of work", []).append(found)
    return {name: median_figure(each) for name, each in rounds.items()}


def headrace(job: Job) -> dict[str, float]:
    from headrace import Consumer, TopicPartition

    with Consumer(bootstrap_servers=job.servers) as consumer:
        partition = TopicPartition(job.topic, 0)
        consumer.assign([partition])
        consumer.seek_to_end()
        consumer.position(partition)
        return _ages(job, lambda: [record.value or b"" for record in consumer.poll(1.0)])


def confluent(job: Job) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": job.servers, "group.id": "benchmark", "enable.auto.commit": False})

    def poll() -> Sequence[bytes]:
        first = consumer.poll(1.0)  # consume() would wait until it has all
        return [m.value() for m in [first, *consumer.consume(499, 0)]] if first else []

    try:
        end = consumer.get_watermark_offsets(TopicPartition(job.topic, 0), timeout=10)[1]
        consumer.assign([TopicPartition(job.topic, 0, end)])
        return _ages(job, poll)
    finally:
        consumer.close()


def _ages(job: Job, poll: _Poll) -> dict[str, float]:
    ages: list[float] = []
    with subprocess.Popen(child.command("arrivals.write", job), stdout=subprocess.DEVNULL) as writer:
        began = time.monotonic()
        while len(ages) < job.records:
            values, now = poll(), time.time()
            ages += [(now - _AGE.unpack_from(value)[0]) * 1e3 for value in values]
            if values:
                time.sleep(job.work_ms / 1e3)  # the work
            elif time.monotonic() - began > _TOO_LATE:
                writer.kill()
                raise TimeoutError(f"{len(ages):,} of {job.records:,} records arrived in {_TOO_LATE:.0f} seconds")
    return figures(ages[_SKIPPED:])


def write(job: Job) -> dict[str, int]:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": job.servers, "linger.ms": 0})
    began = time.perf_counter()
    for sent in range(job.records):
        time.sleep(max(0.0, began + sent * _EVERY - time.perf_counter()))
        producer.produce(job.topic, _AGE.pack(time.time()).ljust(100, b"."), partition=0)
        producer.poll(0)
    if left := producer.flush(_TOO_LATE):
        raise TimeoutError(f"{left:,} of {job.records:,} records were not written")
    return {"records": job.records}


def section(found: Figures) -> str:
    return "\n\n".join(
        [
            "## Age of records at a consumer that works between polls",
            "Another process writes a record every millisecond. The consumer sleeps for some milliseconds after each "
            "poll that has returned records. Milliseconds from `produce()` until the poll with the record returns.",
            latency_table(found),
        ]
    )
