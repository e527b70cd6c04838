"""What one poll of 500 records costs when they are there already: the client's own time, without waiting.

A client is left alone until it has fetched ahead, then polled a few times in a row and timed, then left alone
again. Polls that bring fewer records had to wait and do not count. `len(value)` of each record is in a second
figure, since clients differ in when they make their objects. A poll of a member of a group has more to look at, as
has one of many partitions, so there are rows for both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sized
from typing import Any

from .consumption import WAYS, consumer_for
from .readers import Job

ROUNDS = 40
IN_A_ROW = 25
RECORDS = 500
MANY_PARTITIONS = 1_000
MANY_RECORDS = 600_000
MOST = 50.0
"""Microseconds that a poll of headrace may cost."""
_REST = 0.05

CLIENTS = {"headrace": WAYS, "confluent": {"": "assigned"}}
"""Each in these ways: with which group protocol, or none, and what that is called."""


def headrace(job: Job) -> dict[str, float]:
    from headrace import Records

    Records().to_arrow()
    with consumer_for(job) as consumer:
        consumer.poll(10.0)
        return _costs(
            lambda: consumer.poll(0, max_records=RECORDS),
            {"values": lambda records: [len(r.value) for r in records], "arrow": lambda records: records.to_arrow()},
            job.records,
        )


def confluent(job: Job) -> dict[str, float]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": job.servers, "group.id": "benchmark", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(job.topic, number, OFFSET_BEGINNING) for number in job.numbers])
        consumer.consume(1, timeout=10.0)
        return _costs(
            lambda: consumer.consume(RECORDS, timeout=0),
            {"values": lambda messages: [len(m.value()) for m in messages]},
            job.records,
        )
    finally:
        consumer.close()


def _costs(poll: Callable[[], Sized], uses: dict[str, Callable[[Any], object]], records: int) -> dict[str, float]:
    """Microseconds: of a poll, and of a poll with each of the uses of what it returned."""
    uses = {"poll": lambda _: None, **uses}
    rounds = min(ROUNDS, records // (len(uses) * RECORDS * IN_A_ROW))
    return {name: _median_cost(poll, use, rounds) for name, use in uses.items()}


def _median_cost(poll: Callable[[], Sized], use: Callable[[Any], object], rounds: int) -> float:
    samples = []
    for _ in range(rounds):
        time.sleep(_REST)
        for _ in range(IN_A_ROW):
            started = time.perf_counter()
            records = poll()
            use(records)
            took = time.perf_counter() - started
            if len(records) == RECORDS:
                samples.append(took * 1e6)
    if len(samples) < IN_A_ROW:
        raise RuntimeError(f"only {len(samples)} polls brought {RECORDS} records: the topic is too small")
    return statistics.median(samples)
