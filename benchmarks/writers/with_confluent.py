"""confluent-kafka: librdkafka under Python."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from . import FIRST, FLUSHED_WITHIN, WriteJob, WriteMeter, check_flushed

_AT_ONCE = 10_000
_FULL = 0.01  # seconds to wait for space in its queue
# It also limits the number of messages; this limit is so high that only the bytes matter.
_MOST_MESSAGES = 10_000_000


def produce(job: WriteJob, meter: WriteMeter) -> None:
    """One call per record, without callbacks: the fastest way, which does not see errors."""
    values = job.values()
    producer = _producer(job)
    topic = job.topic
    meter.start()
    for value in values:
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(_FULL)
    check_flushed(producer.flush(FLUSHED_WITHIN))
    meter.stop(job.records, before=1)


def produce_with_callback(job: WriteJob, meter: WriteMeter) -> None:
    """The same with a callback per record, which programs need to see errors."""
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    values = job.values()
    producer = _producer(job)
    topic = job.topic
    meter.start()
    for value in values:
        while True:
            try:
                producer.produce(topic, value, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(_FULL)
        producer.poll(0)
    check_flushed(producer.flush(FLUSHED_WITHIN))
    meter.stop(job.records, before=1)
    if errors:
        raise RuntimeError(f"{len(errors):,} records failed: {errors[0]}")


def produce_batch(job: WriteJob, meter: WriteMeter) -> None:
    """Lists of 10,000 records, without callbacks."""
    values = job.values()
    producer = _producer(job)
    meter.start()
    left = job.records
    while left:
        messages = [{"value": next(values)} for _ in range(min(_AT_ONCE, left))]
        left -= len(messages)
        while messages:
            _queue(producer, job.topic, messages)
            # It marks the messages that did not fit into its queue.
            messages = [{"value": message["value"]} for message in messages if "_error" in message]
            if messages:
                producer.poll(_FULL)
    check_flushed(producer.flush(FLUSHED_WITHIN))
    meter.stop(job.records, before=1)


def _queue(producer: Producer, topic: str, messages: list[dict[str, Any]]) -> None:
    producer.produce_batch(topic, messages)


def _producer(job: WriteJob) -> Producer:
    settings: dict[str, Any] = {
        "bootstrap.servers": job.servers,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": job.linger_ms,
        "compression.type": job.codec,
    }
    if job.batch_bytes:
        settings["batch.size"] = job.batch_bytes
    if job.buffer_bytes:
        settings["queue.buffering.max.kbytes"] = job.buffer_bytes // 1024
        settings["queue.buffering.max.messages"] = _MOST_MESSAGES
    producer = Producer(settings)
    producer.produce(job.topic, FIRST)
    check_flushed(producer.flush(FLUSHED_WITHIN))
    return producer
