"""Small topics with the same number of records in each partition, written by confluent-kafka's producer."""

from __future__ import annotations

from .readers import Job

RECORD_BYTES = 100
_TOO_LATE = 120.0


def evenly(job: Job) -> dict[str, int]:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": job.servers,
            "acks": "all",
            "linger.ms": 100,
            "queue.buffering.max.messages": 2 * job.records,
        }
    )
    for number in range(job.records):
        value = f"{number:0{RECORD_BYTES}d}".encode()
        producer.produce(job.topic, value, partition=number % job.partitions)
        producer.poll(0)
    if left := producer.flush(_TOO_LATE):
        raise TimeoutError(f"{left:,} of {job.records:,} records were not written in {_TOO_LATE:.0f} seconds")
    return {"records": job.records}
