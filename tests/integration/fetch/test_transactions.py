"""Aborted and open transactions at each isolation level, and the markers between records."""

from __future__ import annotations

import pytest

from headrace import TopicPartition, Watermarks
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, Writer, numbered, write
from support.brokers.topic_contents import oracle_rows
from support.harness.consumers import MakeConsumer, assigned, read_rows
from support.harness.waiting import wait_for

LEVELS = ("read_uncommitted", "read_committed")


@pytest.fixture(scope="module")
def interleaved(admin: Admin, servers: str) -> str:
    """A topic written in turns by three transactional producers and a plain one. Every third transaction is aborted."""
    topic = admin.create("interleaved", 2)
    plain = Writer(servers)
    writers = [Writer(servers, transactional_id=unique("tx"), compression_codec="lz4") for _ in range(3)]
    number = 0
    for turn in range(12):
        for writer in writers:
            writer.producer.begin_transaction()
        for _ in range(3):
            for writer in [*writers, plain]:
                for partition in (0, 1):
                    writer.send(
                        topic, [Outgoing(b"%d" % number, partition=partition, headers=[("turn", b"%d" % turn)])]
                    )
                    writer.flush()
                    number += 1
        for index, writer in enumerate(writers):
            if (turn + index) % 3 == 0:
                writer.producer.abort_transaction(60)
            else:
                writer.producer.commit_transaction(60)
    for partition in (0, 1):
        admin.wait_end(topic, 144 + 36, partition)  # including a marker for each transaction
    return topic


@pytest.mark.parametrize("level", LEVELS)
def test_interleaved_transactions_are_read_as_confluent_kafka_reads_them(
    make: MakeConsumer, interleaved: str, servers: str, level: str
) -> None:
    # Small fetches, so that transactions span several responses.
    consumer = assigned(
        make, servers, interleaved, 2, isolation_level=level, max_partition_fetch_bytes=700, max_poll_records=7
    )
    rows = read_rows(consumer, consumer.assignment())
    assert len(rows) == 288 if level == "read_uncommitted" else len(rows) == 72 + 216 * 2 // 3
    assert rows == oracle_rows(servers, interleaved, 2, level)


@pytest.mark.parametrize("level", LEVELS)
def test_markers_move_the_position_and_can_be_committed(
    make: MakeConsumer, admin: Admin, servers: str, level: str
) -> None:
    """A log that ends with aborted records and markers is read to its end."""
    topic = admin.create("markers")
    tp = TopicPartition(topic, 0)
    writer = Writer(servers, transactional_id=unique("tx"))
    writer.producer.begin_transaction()
    writer.send(topic, numbered(3))
    writer.producer.commit_transaction(60)  # offsets 0 to 2, marker 3
    writer.producer.begin_transaction()
    writer.send(topic, numbered(2))
    writer.flush()
    writer.producer.abort_transaction(60)  # offsets 4 and 5, marker 6
    admin.wait_end(topic, 7)

    consumer = assigned(make, servers, topic, isolation_level=level, group_id=unique("g"), enable_auto_commit=False)
    rows = read_rows(consumer, [tp])
    assert [each.offset for each in rows] == ([0, 1, 2, 4, 5] if level == "read_uncommitted" else [0, 1, 2])
    assert consumer.position(tp) == 7
    consumer.commit()
    committed = consumer.committed([tp])[tp]
    assert committed is not None
    assert committed.offset == 7


def test_read_committed_stops_before_an_open_transaction(make: MakeConsumer, admin: Admin, servers: str) -> None:
    topic = admin.create("open")
    tp = TopicPartition(topic, 0)
    write(servers, topic, numbered(5))
    writer = Writer(servers, transactional_id=unique("tx"))
    writer.producer.begin_transaction()
    writer.send(topic, numbered(5, start=5))
    writer.flush()
    write(servers, topic, numbered(5, start=10))  # not part of the transaction, but after its first record

    committed = assigned(make, servers, topic, isolation_level="read_committed")
    everything = assigned(make, servers, topic)
    assert committed.end_offsets([tp]) == {tp: 5}
    assert everything.end_offsets([tp]) == {tp: 15}
    assert committed.watermarks(tp) == everything.watermarks(tp) == Watermarks(0, 15)
    assert [each.offset for each in read_rows(everything, [tp])] == list(range(15))
    assert [each.offset for each in read_rows(committed, [tp])] == list(range(5))
    assert len(committed.poll(0.3)) == 0
    assert committed.position(tp) == 5
    committed.seek_to_end()
    assert committed.position(tp) == 5

    writer.producer.commit_transaction(60)
    wait_for("its marker", lambda: committed.end_offsets([tp]) == {tp: 16})
    assert [each.offset for each in read_rows(committed, [tp])] == list(range(5, 15))
    assert committed.position(tp) == committed.end_offsets([tp])[tp] == 16
