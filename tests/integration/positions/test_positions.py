"""Positions: assign, seek, pause, and the reset policy for partitions without a position."""

from __future__ import annotations

import contextlib
import random
import time

import pytest

from headrace import OffsetAndMetadata, TopicPartition
from headrace.errors import OffsetOutOfRangeError, OffsetResetError, StateError
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, numbered, numbered_topic, write
from support.harness.consumers import AnyConsumer, MakeConsumer, assigned, poll_until, read_rows
from support.harness.waiting import wait_for


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    """Three partitions with the values 0 to 99 at offsets 0 to 99."""
    return numbered_topic(servers, admin.create("positions", 3), 3, 100)


def offsets(consumer: AnyConsumer, count: int) -> list[int]:
    return [record.offset for record in poll_until(consumer, count)]


def test_assign_replaces_the_partitions_that_are_read(make: MakeConsumer, topic: str, servers: str) -> None:
    consumer = assigned(make, servers, topic, 2, max_poll_records=10)
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    assert consumer.assignment() == {first, second}
    seen = {record.partition for record in poll_until(consumer, 40)}
    while seen != {0, 1}:
        seen |= {record.partition for record in poll_until(consumer, 1)}
    before = consumer.position(second)
    assert before > 0

    consumer.assign([(topic, 1), (topic, 2)])  # plain tuples are accepted
    assert consumer.assignment() == {second, third}
    assert consumer.position(second) == before, "a partition that stays keeps its position"
    assert {record.partition for record in poll_until(consumer, 200 - before)} == {1, 2}
    with pytest.raises(StateError, match="not assigned"):
        consumer.position(first)

    consumer.assign([first])
    assert offsets(consumer, 1)[0] == 0, "an unassigned partition loses its position"

    consumer.unsubscribe()
    assert consumer.assignment() == set()
    with pytest.raises(StateError, match="nothing is subscribed or assigned"):
        consumer.poll(0.1)


def test_a_seek_moves_the_position(make: MakeConsumer, topic: str, servers: str) -> None:
    tp = TopicPartition(topic, 0)
    consumer = assigned(make, servers, topic, max_poll_records=10)
    assert offsets(consumer, 10) == list(range(10))
    consumer.seek(tp, 50)
    assert consumer.position(tp) == 50
    assert offsets(consumer, 10) == list(range(50, 60))
    consumer.seek(tp, 5)
    consumer.seek(tp, 7)
    assert offsets(consumer, 10) == list(range(7, 17))

    epoch = consumer.poll(5)[0].leader_epoch
    assert epoch >= 0
    consumer.seek(tp, OffsetAndMetadata(33, "note", epoch))
    assert offsets(consumer, 10) == list(range(33, 43))

    consumer.seek_to_end()
    assert consumer.position(tp) == 100
    consumer.seek_to_beginning([tp])
    assert consumer.position(tp) == 0
    assert offsets(consumer, 10) == list(range(10))
    with pytest.raises(ValueError, match="negative"):
        consumer.seek(tp, -1)
    with pytest.raises(StateError, match="not assigned"):
        consumer.seek((topic, 2), 0)


def test_the_position_follows_the_records_that_poll_returns(make: MakeConsumer, topic: str, servers: str) -> None:
    tp = TopicPartition(topic, 0)
    consumer = assigned(make, servers, topic, max_poll_records=7)
    assert consumer.position(tp) == 0
    for end in (7, 14, 21):
        assert poll_until(consumer, 1)[-1].offset == end - 1
        assert consumer.position(tp) == end


def test_paused_partitions_are_not_read_until_they_are_resumed(make: MakeConsumer, topic: str, servers: str) -> None:
    consumer = assigned(make, servers, topic, 2, max_poll_records=10)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    poll_until(consumer, 20)
    held = consumer.position(first)
    consumer.pause([first])
    assert consumer.paused() == {first}
    rows = [*poll_until(consumer, 100 - consumer.position(second))]
    assert {record.partition for record in rows} == {1}
    assert len(consumer.poll(0.2)) == 0
    assert consumer.position(first) == held

    consumer.resume([first])
    assert consumer.paused() == set()
    assert offsets(consumer, 100 - held) == list(range(held, 100))

    # A seek works while paused.
    consumer.pause([first])
    consumer.seek(first, 90)
    consumer.seek_to_beginning([second])
    poll_until(consumer, 100)
    assert consumer.position(first) == 90
    consumer.resume([first])
    assert offsets(consumer, 10) == list(range(90, 100))


@pytest.mark.parametrize(("policy", "start"), [("earliest", 0), ("latest", 100)])
def test_the_reset_policy_decides_the_first_position(
    make: MakeConsumer, topic: str, servers: str, policy: str, start: int
) -> None:
    consumer = assigned(make, servers, topic, auto_offset_reset=policy, group_id=unique("g"))
    assert consumer.position((topic, 0)) == start


def test_with_latest_only_new_records_are_read(make: MakeConsumer, admin: Admin, servers: str) -> None:
    topic = admin.create("latest")
    write(servers, topic, numbered(10))
    consumer = assigned(make, servers, topic, auto_offset_reset="latest")
    assert consumer.position((topic, 0)) == 10
    write(servers, topic, numbered(3, start=10))
    assert offsets(consumer, 3) == [10, 11, 12]


def test_without_reset_policy_and_position_a_poll_raises(make: MakeConsumer, topic: str, servers: str) -> None:
    tp = TopicPartition(topic, 0)
    consumer = assigned(make, servers, topic, auto_offset_reset="none", group_id=unique("g"))
    for _ in range(2):
        with pytest.raises(OffsetResetError, match="no committed offset") as caught:
            consumer.poll(60)
        assert caught.value.partitions == {tp}
    with pytest.raises(OffsetResetError):
        consumer.position(tp)
    consumer.seek(tp, 98)
    assert offsets(consumer, 2) == [98, 99]


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_an_offset_outside_of_the_log_applies_the_reset_policy(
    make: MakeConsumer, topic: str, servers: str, policy: str
) -> None:
    tp = TopicPartition(topic, 0)
    consumer = assigned(make, servers, topic, auto_offset_reset=policy)
    consumer.seek(tp, 5000)
    expected = 0 if policy == "earliest" else 100
    began = time.monotonic()
    if policy == "earliest":
        assert offsets(consumer, 1)[0] == expected
    else:
        wait_for("the reset", lambda: len(consumer.poll(0.1)) == 0 and consumer.position(tp) == expected)
    assert time.monotonic() - began < 30


def test_an_offset_outside_of_the_log_without_a_reset_policy_raises(
    make: MakeConsumer, topic: str, servers: str
) -> None:
    tp = TopicPartition(topic, 0)
    consumer = assigned(make, servers, topic, 2, auto_offset_reset="none")
    consumer.seek(tp, 5000)
    consumer.seek((topic, 1), 90)
    beside: list[int] = []
    deadline = time.monotonic() + 60
    while len(beside) < 10:
        assert time.monotonic() < deadline
        with contextlib.suppress(OffsetOutOfRangeError):  # raised by a poll before the other partition's records arrive
            beside += [record.offset for record in consumer.poll(1)]
    assert beside == list(range(90, 100)), "the other partition is consumed nevertheless"
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError, match="5000") as caught:
            consumer.poll(60)
        assert caught.value.offsets == {tp: 5000}
    consumer.seek(tp, 0)
    assert offsets(consumer, 100) == list(range(100))


def test_a_reset_by_duration_starts_at_the_first_record_within_it(
    make: MakeConsumer, admin: Admin, servers: str
) -> None:
    """The position is the first record of the last two hours, or the log end if there is none."""
    topic = admin.create("durations", 2)
    now = int(time.time() * 1000)
    ages = [10 * 3600, 5 * 3600, 3600, 60, 1]
    write(servers, topic, [Outgoing(b"%d" % age, timestamp=now - age * 1000) for age in ages])
    write(servers, topic, [Outgoing(b"old", partition=1, timestamp=now - 4 * 3600 * 1000) for _ in range(4)])
    consumer = assigned(make, servers, topic, 2, auto_offset_reset="by_duration:PT2H")
    assert consumer.position((topic, 0)) == 2
    assert consumer.position((topic, 1)) == 4
    assert offsets(consumer, 3) == [2, 3, 4]
    write(servers, topic, [Outgoing(b"new", partition=1)])
    assert offsets(consumer, 1) == [4]


def test_all_records_of_all_assigned_partitions_are_returned(make: MakeConsumer, topic: str, servers: str) -> None:
    consumer = assigned(make, servers, topic, 3)
    rows = read_rows(consumer, consumer.assignment())
    assert [(each.partition, each.offset) for each in rows] == [(p, o) for p in range(3) for o in range(100)]


def test_a_seek_drops_responses_that_are_under_way(make_sync: MakeConsumer, admin: Admin, servers: str) -> None:
    """Dropped responses release their memory exactly once; otherwise two responses would share it."""
    topic = admin.create("restless", 2)
    for partition in range(2):
        write(servers, topic, numbered(8000, partition, size=1000))
    consumer = assigned(make_sync, servers, topic, 2, max_poll_records=50)
    chance = random.Random(3)
    for _ in range(300):
        partition, offset = chance.randrange(2), chance.randrange(8000)
        consumer.seek((topic, partition), offset)
        for record in consumer.poll(chance.choice((0, 0, 0.005))):
            assert int(record.value or b"") == record.offset
    consumer.seek((topic, 0), 0)
    consumer.seek((topic, 1), 0)
    found = [(record.partition, record.offset, int(record.value or b"")) for record in poll_until(consumer, 16_000)]
    assert sorted(found) == [(partition, offset, offset) for partition in range(2) for offset in range(8000)]
