"""A fetch buffer with one partition, which tests fill."""

from __future__ import annotations

from headrace import TopicPartition
from headrace._aio.fetch.buffer import FetchBuffer
from headrace._machines.fetch.partition import Position
from headrace.config.consumer import ConsumerConfig
from headrace.records import Batch, Records, decode
from support.brokers.record_batches import Entry, encode_batch

TP = TopicPartition("t", 0)


def buffer() -> FetchBuffer:
    made = FetchBuffer(ConsumerConfig.parse(bootstrap_servers="b:1"))
    made.assignment.assign([TP])
    return made


def batch(start: int, end: int, epoch: int) -> Batch:
    data = encode_batch([Entry(value=b"x") for _ in range(end - start)], base_offset=start, leader_epoch=epoch)
    return decode(data, topic=TP.topic, partition=TP.partition, position=start)


def polled(made: FetchBuffer, start: int, end: int) -> Records:
    """The records that a poll takes after these offsets were fetched. They are not confirmed."""
    state = made.assignment.state(TP)
    if state.position is None:
        state.seek(Position(start))
    state.arrived(100, end)
    state.decoded(start, 100, batch(start, end, 0), end)
    made.poll_begins()
    records = made.take(500)
    assert records is not None
    return records


def delivered(made: FetchBuffer, start: int, end: int) -> list[int]:
    """The offsets that a poll returns after these offsets were fetched."""
    records = polled(made, start, end)
    made.handover.is_confirmed = True
    return [record.offset for record in records]


def position_of(made: FetchBuffer) -> int:
    position = made.assignment.state(TP).position
    assert position is not None
    return position.offset
