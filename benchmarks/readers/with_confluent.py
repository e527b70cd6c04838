"""confluent-kafka: librdkafka under Python."""

from __future__ import annotations

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from . import Job, Meter

_AT_ONCE = 10_000


def consume(job: Job, meter: Meter) -> None:
    """`consume(10000)`, its fastest call, with librdkafka's default fetch settings."""
    _values(job, meter, {})


def consume_tuned(job: Job, meter: Meter) -> None:
    """The same with settings that buffer more messages and do not pause fetching."""
    _values(job, meter, {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 5})


def _values(job: Job, meter: Meter, settings: dict[str, int]) -> None:
    consumer = Consumer(
        {"bootstrap.servers": job.servers, "group.id": "benchmark", "enable.auto.commit": False, **settings}
    )
    try:
        consumer.list_topics(job.topic, timeout=10)
        meter.start()
        consumer.assign([TopicPartition(job.topic, number, OFFSET_BEGINNING) for number in job.numbers])
        while True:
            # It waits for the requested number: a request for more than are left would take a second.
            messages = consumer.consume(num_messages=min(_AT_ONCE, meter.left), timeout=1.0)
            nbytes = 0
            for message in messages:
                nbytes += len(message.value())  # type: ignore[arg-type]
            if meter.add(len(messages), nbytes):
                return
    finally:
        consumer.close()
