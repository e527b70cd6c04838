"""kafka-python."""

from __future__ import annotations

from kafka import KafkaConsumer, TopicPartition  # type: ignore[import-untyped]

from . import Job, Meter


def poll(job: Job, meter: Meter) -> None:
    """`poll()` with its default of 500 records."""
    consumer = KafkaConsumer(bootstrap_servers=job.servers, enable_auto_commit=False)
    try:
        partitions = [TopicPartition(job.topic, number) for number in job.numbers]
        consumer.end_offsets(partitions)
        meter.start()
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while True:
            count = nbytes = 0
            for records in consumer.poll(timeout_ms=1000).values():
                count += len(records)
                for record in records:
                    nbytes += len(record.value)
            if meter.add(count, nbytes):
                return
    finally:
        consumer.close()
