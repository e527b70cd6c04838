"""headrace in a group compared with `assign()`: the same loops over the same topic.

The clock starts when the first poll with records returns, so it excludes joining. Records of that poll are not counted.
The variants take turns, so that drift affects all equally.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .readers import Job, Meter
from .readers.tables import counted

if TYPE_CHECKING:
    from headrace import Consumer, Records

STYLES = {"columnar": "headrace columnar", "by_record": "headrace by record"}
WAYS = {"": "assigned", "classic": "subscribed, classic", "consumer": "subscribed, KIP-848"}


def columnar(job: Job) -> dict[str, Any]:
    """All buffered records of each poll as an Arrow table."""
    return _read(job, _table, max_poll_records=-1)


def by_record(job: Job) -> dict[str, Any]:
    """Each record's value, 500 records per poll."""
    return _read(job, _values)


def consumer_for(job: Job, **settings: Any) -> Consumer:
    """A consumer by assignment or subscription, at the beginning of the topic."""
    from headrace import Consumer, TopicPartition

    if not job.protocol:
        consumer = Consumer(bootstrap_servers=job.servers, **settings)
        consumer.assign([TopicPartition(job.topic, number) for number in job.numbers])
        consumer.seek_to_beginning()
        return consumer
    consumer = Consumer(
        bootstrap_servers=job.servers,
        group_id=f"benchmark-{uuid.uuid4()}",
        group_protocol=job.protocol,
        auto_offset_reset="earliest",
        **settings,
    )
    consumer.subscribe([job.topic])
    return consumer


def _read(job: Job, use: Callable[[Records], tuple[int, int]], **settings: Any) -> dict[str, Any]:
    from headrace import Records

    Records().to_arrow()  # import pyarrow before the measurement
    with consumer_for(job, **settings) as consumer:
        waiting = Meter(job.records)
        waiting.start()
        while not (first := use(consumer.poll(1.0))[0]):
            waiting.add(0, 0)
        if first >= job.records:
            raise ValueError(f"the first poll returned all {first:,} records: the topic is too small")
        meter = Meter(job.records - first)
        meter.start()
        while not meter.add(*use(consumer.poll(1.0))):
            pass
    assert meter.reading is not None
    return dataclasses.asdict(meter.reading)


def _table(records: Records) -> tuple[int, int]:
    return counted(records.to_arrow())


def _values(records: Records) -> tuple[int, int]:
    nbytes = 0
    for record in records:
        nbytes += len(record.value)  # type: ignore[arg-type]  # no value is null
    return len(records), nbytes
