"""headrace with default settings, except `max.poll.records` where noted."""

from __future__ import annotations

from headrace import Consumer, Records, TopicPartition

from ..observed import observed
from . import Job, Meter
from .tables import counted


def columnar(job: Job, meter: Meter) -> None:
    """All buffered records of each poll as an Arrow table."""
    _tables(job, meter, max_poll_records=-1)


def columnar_observed(job: Job, meter: Meter) -> None:
    """The same with OpenTelemetry."""
    with observed():
        columnar(job, meter)


def columnar_by_500(job: Job, meter: Meter) -> None:
    """An Arrow table of 500 records at each poll."""
    _tables(job, meter)


def by_record(job: Job, meter: Meter) -> None:
    """Each record's value, 500 records per poll."""
    _values(job, meter)


def by_record_unlimited(job: Job, meter: Meter) -> None:
    """Each record's value, with all buffered records in each poll."""
    _values(job, meter, max_poll_records=-1)


def _tables(job: Job, meter: Meter, **settings: int) -> None:
    """Counts rows and the bytes of values, but not those of the other columns."""
    # The first table imports pyarrow and perhaps pandas, which must not be measured.
    Records().to_arrow()
    with Consumer(bootstrap_servers=job.servers, **settings) as consumer:
        _begin(consumer, job, meter)
        while True:
            if meter.add(*counted(consumer.poll(1.0).to_arrow())):
                return


def _values(job: Job, meter: Meter, **settings: int) -> None:
    with Consumer(bootstrap_servers=job.servers, **settings) as consumer:
        _begin(consumer, job, meter)
        while True:
            records = consumer.poll(1.0)
            nbytes = 0
            for record in records:
                nbytes += len(record.value)  # type: ignore[arg-type]  # no value is null
            if meter.add(len(records), nbytes):
                return


def _begin(consumer: Consumer, job: Job, meter: Meter) -> None:
    partitions = [TopicPartition(job.topic, number) for number in job.numbers]
    consumer.end_offsets(partitions)
    meter.start()
    consumer.assign(partitions)
    consumer.seek_to_beginning()
