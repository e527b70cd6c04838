"""Share groups on logs with transactions, compaction and large records."""

from __future__ import annotations

import time

import pytest

from headrace import TopicPartition
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, Writer, numbered
from support.harness.share_consumers import MakeShareConsumer, offsets, poll_some, put, share_group

LARGE = 10 * 2**20


def read_all(consumer: object, count: int) -> list[int]:
    """The first `count` values, in order of arrival."""
    found: list[int] = []
    while len(found) < count:
        found += [int(record.value or b"") for record in poll_some(consumer)]
    return found


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("mode", ["batch_optimized", "record_limit"])
def test_a_share_group_skips_transaction_markers_and_keeps_its_isolation_level(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin, isolation: str, mode: str
) -> None:
    """Markers are invisible gaps. Aborted records are visible depending on the group's isolation level."""
    topic = admin.create("transactions")
    writer = Writer(servers, transactional_id=unique("tx"))
    for start, ends in ((0, writer.producer.commit_transaction), (10, writer.producer.abort_transaction)):
        writer.producer.begin_transaction()
        writer.send(topic, numbered(10, start=start))
        writer.producer.flush(30)
        ends(30)
    put(servers, topic, numbered(5, start=20))
    group = share_group(servers, share_isolation_level=isolation)
    consumer = make_sync_share(
        bootstrap_servers=servers,
        group_id=group,
        topics=[topic],
        max_poll_records=4,
        share_acquire_mode=mode,
    )
    expected = [*range(10), *(range(10, 20) if isolation == "read_uncommitted" else ()), *range(20, 25)]
    assert read_all(consumer, len(expected)) == expected
    assert set(consumer.commit().values()) == {None}
    deadline = time.monotonic() + 60
    while consumer.poll(0.3):
        assert time.monotonic() < deadline
    assert consumer.metrics()["refused"] == 0


def test_a_compacted_topic_is_shared_without_rejected_acknowledgements(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    """Compacted offsets are acknowledged as gaps, so the group's start offset moves past them."""
    topic = admin.create("compacted", cleanup_policy="compact", segment_ms=200, min_cleanable_dirty_ratio=0.01)
    for round in range(4):
        put(servers, topic, [Outgoing(b"%d" % (10 * round + n), key=b"%d" % n) for n in range(10)])
        time.sleep(0.25)  # longer than segment.ms: the next record starts a new segment
    put(servers, topic, [Outgoing(b"99", key=b"last")])

    def values() -> list[int]:
        consumer = make_sync_share(bootstrap_servers=servers, group_id=share_group(servers), topics=[topic])
        found = []
        while 99 not in found:
            found += [int(record.value or b"") for record in poll_some(consumer)]
        assert set(consumer.commit().values()) == {None}
        assert consumer.metrics()["refused"] == 0
        consumer.close()
        return found

    deadline = time.monotonic() + 60
    while len(found := values()) == 41:
        assert time.monotonic() < deadline, "the broker did not compact"
    assert found == sorted(found)
    assert {value % 10 for value in found if value != 99} == set(range(10))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_share_consumer_reads_records_of_ten_megabytes(
    make_share: MakeShareConsumer, servers: str, admin: Admin, codec: str
) -> None:
    topic = admin.create("large", max_message_bytes=2 * LARGE)
    body = bytes(range(256)) * (LARGE // 256)
    settings = {"message_max_bytes": 2 * LARGE, "compression_type": codec}
    put(servers, topic, [Outgoing(b"%d" % number + body) for number in range(3)], **settings)
    consumer = make_share(
        bootstrap_servers=servers,
        group_id=share_group(servers),
        topics=[topic],
        share_acquire_mode="record_limit",
        max_poll_records=1,
        fetch_max_bytes=2**20,
    )
    for number in range(3):
        records = poll_some(consumer)
        assert offsets(records) == [number]
        assert records[0].value == b"%d" % number + body
    assert consumer.commit() == {TopicPartition(topic, 0): None}
