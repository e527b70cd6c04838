"""The latency of a single record from `produce()` to `poll()`, without other load.

As in Kafka's EndToEndLatency: send, wait for the acknowledgement (acks=all), poll, read the clock. Both Python
consumers get their records from the same confluent-kafka producer.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence, Sized

from headrace.local import java_command

from .readers import Job

CLIENTS = ("headrace", "confluent")
RECORD_BYTES = 100
_WARM_UP = 200
_TOO_LATE = 20.0


def headrace(job: Job) -> dict[str, float]:
    from headrace import Consumer, TopicPartition

    with Consumer(bootstrap_servers=job.servers) as consumer:
        partitions = [TopicPartition(job.topic, number) for number in job.numbers]
        consumer.assign(partitions)
        consumer.seek_to_end()
        for partition in partitions:
            consumer.position(partition)
        return _round_trips(job, lambda: consumer.poll(1.0))


def confluent(job: Job) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": job.servers, "group.id": "benchmark", "enable.auto.commit": False})
    try:
        partitions = [TopicPartition(job.topic, number) for number in job.numbers]
        ends = [consumer.get_watermark_offsets(partition, timeout=10)[1] for partition in partitions]
        consumer.assign([TopicPartition(p.topic, p.partition, end) for p, end in zip(partitions, ends, strict=True)])
        return _round_trips(job, lambda: [m] if (m := consumer.poll(1.0)) else [])
    finally:
        consumer.close()


def _round_trips(job: Job, poll: Callable[[], Sized]) -> dict[str, float]:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": job.servers, "linger.ms": 0, "acks": "all"})
    samples = []
    for number in range(_WARM_UP + job.records):
        value = f"{number:0{RECORD_BYTES}d}".encode()
        started = time.perf_counter()
        producer.produce(job.topic, value, partition=number % job.partitions)
        producer.flush(_TOO_LATE)
        while not len(poll()):
            if time.perf_counter() - started > _TOO_LATE:
                raise TimeoutError(f"record {number} did not arrive in {_TOO_LATE:.0f} seconds")
        samples.append(time.perf_counter() - started)
    return figures([sample * 1e3 for sample in samples[_WARM_UP:]])


def figures(milliseconds: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(milliseconds, n=100, method="inclusive")
    return {"mean": statistics.fmean(milliseconds), "p50": cuts[49], "p99": cuts[98]}


def java_command_line(job: Job) -> list[str]:
    return java_command(
        "org.apache.kafka.tools.EndToEndLatency",
        *(job.servers, job.topic, str(job.records), "all", str(RECORD_BYTES)),
    )


def figures_of_java(output: str) -> dict[str, float]:
    mean = re.search(r"Avg latency: ([\d.]+) ms", output)
    percentiles = re.search(r"50th = (\d+), 99th = (\d+)", output)
    if mean is None or percentiles is None:
        raise ValueError(f"EndToEndLatency printed {output.strip()[-200:]!r}")
    return {"mean": float(mean[1]), "p50": float(percentiles[1]), "p99": float(percentiles[2])}
