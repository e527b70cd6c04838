"""The Spark source compared with Spark's own connector: both in one session of PySpark 4.2, in turns.

Everything runs in `spark_session`, in a separate environment (`spark_peer`). This module creates its jobs.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import child, spark_peer
from .datasets import Dataset, create_topic, records_in, write
from .process import CommandFailed, run
from .readers import Job
from .results import Figure

Say = Callable[[str], None]

SOURCES = ("kafka", "headrace")
SINKS = ("agg", "noop")
PARTITIONS = (1, 4, 16, 64)
_SCALING_SHARE = 6  # divisor of the first dataset's records
LATENCY_RECORDS = 10_000
LATENCY_RATE = 500
_TIMEOUT = 4 * 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class Sparks:
    """Medians by source: batches by dataset and sink, streams by dataset, topics by their partitions, and latencies in
    milliseconds. A string is the reason why there is none."""

    rounds: int
    batches: Mapping[str, Mapping[str, Figure]]
    streams: Mapping[str, Mapping[str, Figure]]
    partitions: Mapping[int, Mapping[str, Figure]]
    latencies: Mapping[str, Figure]
    missing: str = ""


def measure(servers: str, datasets: Sequence[Dataset], repeat: int, say: Say) -> Sparks:
    try:
        peer = spark_peer.prepare(say)
    except spark_peer.Unavailable as reason:
        return Sparks(repeat, {}, {}, {}, {}, str(reason))
    for dataset in datasets:
        say(f"Spark: {dataset.name}: writing {dataset.title}")
        write(dataset, servers)
    few = max(1, datasets[0].records // _SCALING_SHARE)
    scaling = {count: _spread(count, few, servers, say) for count in PARTITIONS}
    create_topic("spark-latency", 2, servers)
    batches = {f"{each.name}, {sink}": (each, sink) for each in datasets for sink in SINKS}
    job = {
        "servers": servers,
        "jars": peer.jars,
        "repeat": repeat,
        "batch": [
            *(_reading(name, each.topic, each.records, sink=sink) for name, (each, sink) in batches.items()),
            *(_reading(f"{count}", topic, few, sink="noop") for count, topic in scaling.items()),
        ],
        "streams": [_reading(f"stream {each.name}", each.topic, each.records) for each in datasets],
        "latency": {
            **_reading("latency", "spark-latency", LATENCY_RECORDS),
            "writer": child.command("spark.steadily", Job(servers, "spark-latency", 2, LATENCY_RECORDS)),
        },
    }
    try:
        found = _figures(run(peer.command("spark_session", job), _TIMEOUT).output, say)
    except CommandFailed as failure:
        return Sparks(repeat, {}, {}, {}, {}, str(failure))
    return Sparks(
        repeat,
        {name: found[name] for name in batches},
        {each.name: found[f"stream {each.name}"] for each in datasets},
        {count: found[f"{count}"] for count in scaling},
        found["latency"],
    )


def _reading(name: str, topic: str, records: int, **more: str) -> dict[str, Any]:
    return {"name": name, "topic": topic, "records": records, **more}


def _spread(partitions: int, records: int, servers: str, say: Say) -> str:
    topic = f"spark-{partitions}-partitions-{records}"
    say(f"Spark: writing {records:,} records to {partitions} partitions")
    create_topic(topic, partitions, servers)
    if not records_in(topic, servers):
        run(child.command("filling.evenly", Job(servers, topic, partitions, records)), 600)
    return topic


def _figures(output: str, say: Say) -> dict[str, dict[str, Figure]]:
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    for line in output.splitlines():
        if line.startswith('{"what"'):
            found = json.loads(line)
            what, source = found.pop("what"), found.pop("source")
            runs.setdefault(what, {}).setdefault(source, []).append(found)
            say(f"Spark: {what}, {source}: {found}")
    return {
        what: {source: _median(by_source.get(source, [])) for source in SOURCES} for what, by_source in runs.items()
    }


def _median(found: Sequence[Mapping[str, float]]) -> Figure:
    if not found:
        return "not measured"
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def steadily(job: Job) -> dict[str, int]:
    """Write single records at an even rate."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": job.servers, "linger.ms": 0})
    began = time.perf_counter()
    for number in range(job.records):
        time.sleep(max(0.0, began + number / LATENCY_RATE - time.perf_counter()))
        producer.produce(job.topic, b"%0100d" % number, partition=number % job.partitions)
        producer.poll(0)
    if left := producer.flush(60):
        raise TimeoutError(f"{left:,} of {job.records:,} records were not written")
    return {"records": job.records}
