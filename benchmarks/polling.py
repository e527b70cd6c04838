"""The cost of one poll of 500 buffered records: the client's own time, without waiting.

The benchmark pauses until the client has prefetched, then times a few polls in a row, then pauses again. Polls that
return fewer records had to wait and do not count. A second figure includes `len(value)` of each record, since clients
create their objects at different times. Polls of group members and of many partitions have more work, so there are
rows for both.
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
"""The maximum cost of a poll of headrace in microseconds."""
_REST = 0.05

CLIENTS = {"headrace": WAYS, "confluent": {"": "assigned"}}
"""The group protocols of each client ("" for none), with their names in the report."""


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
    """Microseconds of a poll, and of a poll with each use of its records."""
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
        raise RuntimeError(f"only {len(samples)} polls returned {RECORDS} records: the topic is too small")
    return statistics.median(samples)
