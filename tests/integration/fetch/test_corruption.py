"""Damaged bytes on a broker's disk: valid records are returned, and errors name the damaged batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from headrace import LocalBroker, TopicPartition
from headrace.errors import CorruptRecordError
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, numbered, write
from support.harness.consumers import MakeConsumer, assigned, poll_until
from support.harness.waiting import wait_for

MARK = b"here it will be damaged"


@dataclass(frozen=True)
class Damaged:
    servers: str
    topic: str


@pytest.fixture(scope="module")
def damaged() -> Iterator[Damaged]:
    """Partition 0 has 30 records in three batches, the second of which is damaged; partition 1 is intact."""
    with LocalBroker() as broker:
        admin = Admin(broker.bootstrap_servers)
        topic = admin.create("damaged", 2)
        admin.close()
        write(broker.bootstrap_servers, topic, numbered(10))
        write(broker.bootstrap_servers, topic, [Outgoing(MARK)] * 10)
        write(broker.bootstrap_servers, topic, numbered(10, start=20))
        write(broker.bootstrap_servers, topic, numbered(10, partition=1))
        _stop_cleanly(broker)
        segments = list(broker.data_dir.glob(f"**/{topic}-0/00000000000000000000.log"))
        assert len(segments) == 1
        content = segments[0].read_bytes()
        assert content.count(MARK) == 10
        segments[0].write_bytes(content.replace(MARK, MARK[::-1], 1))
        broker.restart(1)
        yield Damaged(broker.bootstrap_servers, topic)


def _stop_cleanly(broker: LocalBroker) -> None:
    """Stop the broker cleanly. After a kill it would check its logs at the next start and truncate the damage."""
    for _ in range(3):
        broker.stop_broker(1)
        if list(broker.data_dir.glob("**/.kafka_cleanshutdown")):
            return
        broker.restart(1)
    raise AssertionError("the broker does not shut down cleanly")


def test_a_damaged_batch_raises_after_the_records_before_it(make: MakeConsumer, damaged: Damaged) -> None:
    tp = TopicPartition(damaged.topic, 0)
    consumer = assigned(make, damaged.servers, damaged.topic, group_id=unique("g"), enable_auto_commit=False)
    assert [record.offset for record in poll_until(consumer, 10)] == list(range(10))
    for _ in range(3):
        with pytest.raises(CorruptRecordError, match=damaged.topic) as caught:
            consumer.poll(60)
        assert caught.value.partition == tp
        assert caught.value.offset == 10
        assert "10" in str(caught.value)
    assert consumer.position(tp) == 10
    consumer.commit()
    consumer.seek(tp, 20)
    assert [record.offset for record in poll_until(consumer, 10)] == list(range(20, 30))
    consumer.seek(tp, 15)  # inside the damaged batch
    with pytest.raises(CorruptRecordError):
        consumer.poll(60)


def test_other_partitions_keep_being_consumed_beside_a_damaged_one(make: MakeConsumer, damaged: Damaged) -> None:
    consumer = assigned(make, damaged.servers, damaged.topic, 2)
    offsets: list[int] = []
    raised = 0

    def poll() -> int:
        """Poll once; return the number of records of the intact partition so far."""
        nonlocal raised
        try:
            offsets.extend(record.offset for record in consumer.poll(1) if record.partition == 1)
        except CorruptRecordError:
            raised += 1
        return len(offsets)

    # The damage is raised when there is nothing else to return, so maybe before the other partition's records arrive.
    (end,) = consumer.end_offsets([(damaged.topic, 1)]).values()
    wait_for("all records and the damage", lambda: poll() >= end and raised, every=0.0)
    write(damaged.servers, damaged.topic, numbered(5, partition=1))
    wait_for("later records", lambda: poll() >= end + 5, every=0.0)
    assert offsets == list(range(end + 5))
    consumer.pause([(damaged.topic, 0)])
    assert len(consumer.poll(0.2)) == 0, "damage in a paused partition is not raised"


def test_an_iteration_returns_all_records_before_a_damaged_batch(make: MakeConsumer, damaged: Damaged) -> None:
    """The damage of the next batch is found while the iteration yields the records before it."""
    consumer = assigned(make, damaged.servers, damaged.topic)
    seen: list[int] = []
    with pytest.raises(CorruptRecordError):
        seen.extend(record.offset for record in consumer)
    assert seen == list(range(10))


def test_without_check_crcs_a_damaged_batch_is_read(make: MakeConsumer, damaged: Damaged) -> None:
    consumer = assigned(make, damaged.servers, damaged.topic, check_crcs=False)
    records = poll_until(consumer, 30)
    assert [record.value for record in records[10:20]] == [MARK[::-1]] + [MARK] * 9
