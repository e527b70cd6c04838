"""The contents of a topic, read by confluent-kafka's consumer and by headrace."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, TopicPartition

from headrace import Record
from support.brokers.admin import client_settings

_TIMEOUT = 60.0


class Row(NamedTuple):
    """All fields of a record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def row(record: Record) -> Row:
    return Row(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.key,
        record.value,
        record.headers,
    )


def oracle_rows(
    bootstrap_servers: str, topic: str, partitions: int = 1, isolation: str = "read_uncommitted"
) -> list[Row]:
    """All records of the topic that are visible at this isolation level, by partition and offset."""
    consumer = Consumer(
        {
            **client_settings(bootstrap_servers),
            "group.id": "oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "fetch.message.max.bytes": 16 * 2**20,
            "check.crcs": True,
            "fetch.wait.max.ms": 20,
            "fetch.error.backoff.ms": 20,
        }
    )
    rows: list[Row] = []
    unread = set(range(partitions))
    deadline = time.monotonic() + _TIMEOUT
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in unread])
        while unread:
            assert time.monotonic() < deadline, f"the oracle has not read {topic}: {unread}"
            for message in consumer.consume(10_000, 0.05):
                error = message.error()
                if error is None:
                    rows.append(_row(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise AssertionError(f"the oracle cannot read {topic}: {error}")
    finally:
        consumer.close()
    return by_place(rows)


def _row(message: Any) -> Row:
    kind, timestamp = message.timestamp()
    return Row(
        message.topic(),
        message.partition(),
        message.offset(),
        timestamp,
        1 if kind == TIMESTAMP_LOG_APPEND_TIME else 0,
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )


def by_place(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda each: (each.topic, each.partition, each.offset))
