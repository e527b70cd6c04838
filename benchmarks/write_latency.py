"""The time until one record is acknowledged, one record at a time, without linger."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

from headrace.local import java_command

from .latency import RECORD_BYTES, figures
from .readers import Job

CLIENTS = {
    "headrace": "`Producer.send(…).result()`",
    "headrace_async": "`await (await AsyncProducer.send(…))`",
    "confluent": "`produce()`, then `flush()`",
    "aiokafka": "`await send_and_wait()`",
    "kafka_python": "`send().get()`",
}
"""The clients, with the call that waits."""
JAVA_SOURCE = Path(__file__).parent / "java" / "Acknowledged.java"
WARM_UP = 200
_TOO_LATE = 20.0


def headrace(job: Job) -> dict[str, float]:
    from headrace import Producer

    with Producer(bootstrap_servers=job.servers, acks="all", linger_ms=0) as producer:
        return _timed(job, lambda value: producer.send(job.topic, value, partition=0).result(_TOO_LATE))


def headrace_async(job: Job) -> dict[str, float]:
    return asyncio.run(_headrace_async(job))


async def _headrace_async(job: Job) -> dict[str, float]:
    from headrace import AsyncProducer

    async with AsyncProducer(bootstrap_servers=job.servers, acks="all", linger_ms=0) as producer:
        samples = []
        for number in range(WARM_UP + job.records):
            value = _value(number)
            started = time.perf_counter()
            await (await producer.send(job.topic, value, partition=0))
            samples.append(time.perf_counter() - started)
    return _figures(samples)


def confluent(job: Job) -> dict[str, float]:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": job.servers, "acks": "all", "enable.idempotence": True, "linger.ms": 0})

    def send(value: bytes) -> None:
        producer.produce(job.topic, value, partition=0)
        if producer.flush(_TOO_LATE):
            raise TimeoutError(f"no acknowledgement in {_TOO_LATE:.0f} seconds")

    return _timed(job, send)


def aiokafka(job: Job) -> dict[str, float]:
    return asyncio.run(_aiokafka(job))


async def _aiokafka(job: Job) -> dict[str, float]:
    from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]

    producer = AIOKafkaProducer(bootstrap_servers=job.servers, acks="all", enable_idempotence=True, linger_ms=0)
    await producer.start()
    try:
        samples = []
        for number in range(WARM_UP + job.records):
            value = _value(number)
            started = time.perf_counter()
            await producer.send_and_wait(job.topic, value, partition=0)
            samples.append(time.perf_counter() - started)
    finally:
        await producer.stop()
    return _figures(samples)


def kafka_python(job: Job) -> dict[str, float]:
    from kafka import KafkaProducer  # type: ignore[import-untyped]

    producer = KafkaProducer(bootstrap_servers=job.servers, acks="all", enable_idempotence=True, linger_ms=0)
    try:
        return _timed(job, lambda value: producer.send(job.topic, value, partition=0).get(_TOO_LATE))
    finally:
        producer.close()


def _timed(job: Job, send: Callable[[bytes], object]) -> dict[str, float]:
    samples = []
    for number in range(WARM_UP + job.records):
        value = _value(number)
        started = time.perf_counter()
        send(value)
        samples.append(time.perf_counter() - started)
    return _figures(samples)


def _value(number: int) -> bytes:
    return b"%0*d" % (RECORD_BYTES, number)


def _figures(samples: list[float]) -> dict[str, float]:
    return figures([sample * 1e3 for sample in samples[WARM_UP:]])


def java_command_line(job: Job) -> list[str]:
    arguments = (job.servers, job.topic, str(job.records), str(WARM_UP), str(RECORD_BYTES))
    return java_command(str(JAVA_SOURCE), *arguments)


def figures_of_java(output: str) -> dict[str, float]:
    """It prints milliseconds as one JSON list."""
    lines = [line for line in output.splitlines() if line.startswith("[")]
    if not lines:
        raise ValueError(f"Acknowledged.java printed {output.strip()[-200:]!r}")
    return figures(json.loads(lines[-1]))
