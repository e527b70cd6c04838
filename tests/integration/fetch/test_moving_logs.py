"""Logs that change while they are consumed: a new log start, and topics that are deleted, recreated, or grow."""

from __future__ import annotations

import time

import pytest

from headrace import TopicPartition
from headrace.errors import OffsetOutOfRangeError, OffsetResetError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.consumers import AnyConsumer, MakeConsumer, assigned, is_fetching, poll_until, read_rows
from support.harness.waiting import wait_for

SIZE = 1000


def half_read(make: MakeConsumer, servers: str, topic: str, policy: str) -> AnyConsumer:
    """A paused consumer that has returned some records and has buffered some of the others."""
    consumer = assigned(
        make, servers, topic, auto_offset_reset=policy, max_partition_fetch_bytes=100 * SIZE, max_poll_records=100
    )
    tp = TopicPartition(topic, 0)
    consumer.seek(tp, 0)
    poll_until(consumer, 1)

    def has_some() -> bool:
        consumer.beginning_offsets([tp])  # an asynchronous consumer progresses only inside calls
        return bool(consumer.metrics()["buffered_records"])

    def is_settled() -> bool:
        consumer.beginning_offsets([tp])
        return not is_fetching(consumer, tp)

    wait_for("prefetched records", has_some)
    consumer.pause([tp])
    wait_for("fetches in flight", is_settled)
    assert len(consumer.poll(0.1)) == 0
    return consumer


def make_segments(admin: Admin, servers: str) -> str:
    topic = admin.create("moving", segment_bytes=2**20)
    write(servers, topic, numbered(5000, size=SIZE), batch_size=20 * SIZE)
    return topic


@pytest.mark.parametrize(
    ("policy", "how"),
    [("earliest", "retention"), ("latest", "retention"), ("none", "retention"), ("earliest", "delete_records")],
)
def test_a_log_start_that_moves_past_the_position_applies_the_reset_policy(
    make: MakeConsumer, admin: Admin, servers: str, policy: str, how: str
) -> None:
    """Buffered records are returned first. Then the reset policy decides."""
    topic = make_segments(admin, servers)
    tp = TopicPartition(topic, 0)
    consumer = half_read(make, servers, topic, policy)
    position = consumer.position(tp)
    buffered = consumer.metrics()["partitions"][str(tp)]["buffered_records"]
    assert 0 < buffered < 1000
    if how == "retention":
        admin.configure(topic, retention_bytes=2 * 2**20)
        start = wait_for("retention", lambda: admin.bounds(topic)[0])
    else:
        start = 4000
        admin.delete_records(topic, start)
    assert position + buffered < start
    consumer.resume([tp])

    kept = [record.offset for record in poll_until(consumer, buffered)]
    assert kept[:buffered] == list(range(position, position + buffered))
    if policy == "earliest":
        rest = kept[buffered:] + [each.offset for each in read_rows(consumer, [tp])]
        # Retention may have deleted more meanwhile.
        assert rest == list(range(rest[0], 5000))
        assert rest[0] >= start
    elif policy == "latest":
        wait_for("the reset", lambda: len(consumer.poll(0.1)) == 0 and consumer.position(tp) == 5000)
    else:
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError, match=f"{position + buffered}") as caught:
                consumer.poll(60)
            assert caught.value.offsets == {tp: position + buffered}
        consumer.seek_to_beginning()
        assert poll_until(consumer, 1)[0].offset >= start


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
def test_a_recreated_topic_is_read_from_its_start_or_raises(
    make: MakeConsumer, admin: Admin, servers: str, policy: str
) -> None:
    """Old offsets are invalid in the new topic: it is consumed from its first record, or an error is raised."""
    topic = admin.create("remade")
    tp = TopicPartition(topic, 0)
    write(servers, topic, numbered(50))
    consumer = make(
        bootstrap_servers=servers, auto_offset_reset=policy, max_poll_records=10, allow_auto_create_topics=False
    )
    consumer.assign([tp])
    consumer.seek(tp, 0)
    assert [record.offset for record in poll_until(consumer, 10)] == list(range(10))
    admin.delete(topic)
    wait_for("the deletion", lambda: topic not in consumer.list_topics())
    admin.recreate(topic)
    write(servers, topic, numbered(200, start=1000))

    values: list[int] = []
    error: OffsetResetError | None = None
    deadline = time.monotonic() + 60
    while error is None and values[-1:] != [1199]:
        assert time.monotonic() < deadline, values
        try:
            values += [int(record.value) for record in consumer.poll(0.5)]
        except OffsetResetError as caught:
            error = caught
    new = [value for value in values if value >= 1000]
    old = values[: len(values) - len(new)]
    assert old == list(range(10, 10 + len(old))), "records fetched before are in order"
    if policy == "none":
        assert error is not None
        assert "recreated" in str(error)
        assert error.partitions == {tp}
        assert new == []
        consumer.seek_to_beginning()
        new = [int(record.value or b"") for record in poll_until(consumer, 200)]
    assert new == list(range(1000, 1200))


def test_a_partition_assigned_before_it_exists_is_read_once_it_does(
    make: MakeConsumer, admin: Admin, servers: str
) -> None:
    topic = admin.create("growing")
    write(servers, topic, numbered(5))
    consumer = assigned(make, servers, topic)
    poll_until(consumer, 5)
    # The partition is assigned before it exists.
    consumer.assign([(topic, 0), (topic, 1)])
    assert len(consumer.poll(0.3)) == 0
    admin.add_partitions(topic, 2)
    wait_for("the new partition", lambda: len(consumer.partitions_for_topic(topic)) == 2)
    write(servers, topic, numbered(5, partition=1))
    assert [(r.partition, r.offset) for r in poll_until(consumer, 5)] == [(1, number) for number in range(5)]


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_a_topic_created_after_the_first_poll_is_read(
    make: MakeConsumer, admin: Admin, servers: str, policy: str
) -> None:
    topic = unique("late")
    consumer = assigned(make, servers, topic, auto_offset_reset=policy, allow_auto_create_topics=False)
    assert len(consumer.poll(0.5)) == 0
    admin.create("", name=topic)
    if policy == "latest":
        assert consumer.position((topic, 0)) == 0
    write(servers, topic, numbered(5))
    assert [record.offset for record in poll_until(consumer, 5)] == list(range(5))


def test_assigning_a_missing_topic_creates_it(make: MakeConsumer, servers: str) -> None:
    topic = unique("auto")
    consumer = assigned(make, servers, topic)
    assert consumer.position((topic, 0)) == 0
    assert [info.partition for info in consumer.partitions_for_topic(topic)] == [0]
