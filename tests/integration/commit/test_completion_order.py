"""commit.mode=done with a broker: work ends in any order, and commits cover done records without gaps."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer

from headrace import Consumer, OffsetAndMetadata, RebalanceListener, Records, TopicPartition
from headrace._machines.commit.offset_set import OffsetSet
from headrace.errors import ConfigError
from support.brokers.admin import Admin, client_settings, unique
from support.brokers.produce import numbered, numbered_topic, write
from support.harness.consumers import MakeConsumer, poll_until
from support.harness.groups import WAYS, fully_assigned, member, poll_all, stable
from support.harness.interrupts import Interrupter, interrupted_everywhere
from support.members.dead_members import remove_member

RECORDS = 100
DONE: dict[str, Any] = {"commit_mode": "done", "enable_auto_commit": False}


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("completion"), 1, RECORDS)


def test_a_commit_stops_at_the_first_gap_and_notes_what_is_done_behind_it(
    make: MakeConsumer, servers: str, topic: str
) -> None:
    tp, group = TopicPartition(topic, 0), unique("g")
    consumer = member(make, servers, group, [topic], **DONE)
    records = poll_until(consumer, RECORDS)
    assert consumer.in_flight() == {tp: RECORDS}
    consumer.commit()
    assert consumer.committed([tp])[tp] == OffsetAndMetadata(0), "no record is done"
    for offset in (0, 1, 2, 5, 6, 50):
        consumer.done(records[offset])
    consumer.commit()
    committed = consumer.committed([tp])[tp]
    assert committed.offset == 3
    assert OffsetSet.from_text(committed.metadata, 3) == OffsetSet(51, [(3, 5), (7, 50)])
    assert consumer.in_flight([tp]) == {tp: RECORDS - 6}
    for record in records:
        consumer.done(record)
    assert consumer.in_flight() == {}
    consumer.commit()
    committed = consumer.committed([tp])[tp]
    assert (committed.offset, committed.metadata) == (RECORDS, "")


def test_records_committed_as_done_are_not_delivered_again(make: MakeConsumer, servers: str, topic: str) -> None:
    tp, group = TopicPartition(topic, 0), unique("g")
    first = member(make, servers, group, [topic], **DONE)
    records = poll_until(first, RECORDS)
    chance = random.Random(5)
    done = set(chance.sample(range(10, RECORDS), 60))
    for offset in done:
        first.done(records[offset])
    first.commit()
    first.close()

    second = member(make, servers, group, [topic], max_poll_records=7, **DONE)
    again = poll_until(second, RECORDS - len(done))
    assert [record.offset for record in again] == sorted(set(range(RECORDS)) - done)
    assert second.position(tp) == RECORDS
    for record in again:
        second.done(record)
    second.commit()
    assert second.committed([tp])[tp].offset == RECORDS
    second.seek(tp, 90)
    assert [record.offset for record in poll_until(second, 10)] == list(range(90, RECORDS)), (
        "a seek delivers done records again"
    )
    assert second.in_flight() == {tp: 10}


@pytest.mark.parametrize("mode", ["done", "returned"])
def test_a_commit_before_the_first_poll_keeps_what_the_last_owner_noted(
    make: MakeConsumer, servers: str, topic: str, mode: str
) -> None:
    class PauseAtOnce(RebalanceListener):  # the poll that assigns the partition may also return records
        def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            consumer.pause(partitions)

    tp, group = TopicPartition(topic, 0), unique("g")
    noted = OffsetSet(60, [(20, 50)])
    with Consumer(bootstrap_servers=servers, group_id=group) as last_owner:
        last_owner.commit({tp: OffsetAndMetadata(20, noted.to_text())})
    settings = DONE | {"commit_mode": mode, "max_poll_records": 10}
    consumer = member(make, servers, group, [topic], listener=PauseAtOnce(), **settings)
    poll_all([consumer], lambda: bool(consumer.assignment()))
    assert consumer.position(tp) == 20
    consumer.commit()
    assert OffsetSet.from_text(consumer.committed([tp])[tp].metadata, 20) == noted
    consumer.resume([tp])
    first = poll_until(consumer, 10)
    if mode == "done":
        consumer.done(first[0])
    consumer.commit()
    committed = consumer.committed([tp])[tp]
    expected = OffsetSet(60, [(21 if mode == "done" else 30, 50)])
    assert OffsetSet.from_text(committed.metadata, committed.offset) == expected


def test_auto_commit_covers_records_that_are_done(make: MakeConsumer, servers: str, topic: str) -> None:
    tp, group = TopicPartition(topic, 0), unique("g")
    consumer = member(make, servers, group, [topic], commit_mode="done", auto_commit_interval_ms=10)
    records = poll_until(consumer, RECORDS)
    consumer.done(records[0])
    consumer.done(records[9])
    poll_all([consumer], lambda: consumer.committed([tp])[tp] is not None and consumer.committed([tp])[tp].offset == 1)
    consumer.done(records[1])
    consumer.close()
    with Consumer(bootstrap_servers=servers, group_id=group) as reader:
        committed = reader.committed([tp])[tp]
    assert committed is not None
    assert OffsetSet.from_text(committed.metadata, committed.offset) == OffsetSet(10, [(2, 9)])


def test_done_from_other_threads_can_be_waited_for(servers: str, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=servers, group_id=unique("g"), auto_offset_reset="earliest", **DONE) as consumer:
        consumer.subscribe([topic])
        records = poll_until(consumer, RECORDS)
        assert consumer.in_flight(timeout=0.05) == {tp: RECORDS}
        threads = [
            threading.Thread(target=lambda part=part: [consumer.done(r) for r in records[part::4]]) for part in range(4)
        ]
        for thread in threads:
            thread.start()
        assert consumer.in_flight([tp], timeout=60) == {}
        for thread in threads:
            thread.join(60)
        consumer.commit()
        assert consumer.committed([tp])[tp] == OffsetAndMetadata(RECORDS, "", records[-1].leader_epoch)


def test_done_accepts_all_records_of_a_poll(make: MakeConsumer, servers: str, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    consumer = member(make, servers, unique("g"), [topic], max_poll_records=30, **DONE)
    polls = []
    while sum(map(len, polls)) < RECORDS:
        if records := consumer.poll(1.0):
            polls.append(records)
    consumer.done(polls[-1])
    consumer.done(polls[0])
    consumer.commit()
    assert consumer.committed([tp])[tp].offset == len(polls[0])
    assert consumer.in_flight(timeout=0.01) == {tp: RECORDS - len(polls[0]) - len(polls[-1])}


@pytest.mark.parametrize("way", list(WAYS))
def test_a_delayed_revoke_hands_over_without_handling_a_record_twice(
    make_sync: MakeConsumer, servers: str, admin: Admin, way: str
) -> None:
    """The loop of KIP-983: revokes are delayed until their work is done, so no record is handled twice."""
    topic = admin.create("handover", 4)
    for partition in range(4):
        write(servers, topic, numbered(50, partition))
    group, handled = unique("g"), []
    first = member(make_sync, servers, group, [topic], max_poll_records=20, **DONE, **WAYS[way])
    open_work = list(poll_all([first], stable([first], 4)))
    second = member(make_sync, servers, group, [topic], **DONE, **WAYS[way])
    chance = random.Random(7)
    while not fully_assigned([first, second], 4)() or len(first.assignment()) > 2:  # at most two are not revoked
        records = first.poll(0.02)
        open_work += records
        chance.shuffle(open_work)
        for record in open_work[:5]:
            handled.append((record.partition, record.offset))
            first.done(record)
        del open_work[:5]
        first.commit()
        busy = first.in_flight(records.to_be_revoked)
        assert first.delay_revoke(busy)
        for record in second.poll(0.02):
            handled.append((record.partition, record.offset))
            second.done(record)
    for record in open_work:
        if TopicPartition(record.topic, record.partition) in first.assignment():
            handled.append((record.partition, record.offset))
            first.done(record)
    while len(set(handled)) < 200:
        for consumer in (first, second):
            for record in consumer.poll(0.1):
                handled.append((record.partition, record.offset))
                consumer.done(record)
    assert len(handled) == len(set(handled)) == 200


_WORKER = """
import sys
from headrace import Consumer
servers, group, topic = sys.argv[1:]
consumer = Consumer(bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", commit_mode="done",
                    enable_auto_commit=False, client_id="worker")
consumer.subscribe([topic])
records = []
while len(records) < 100:
    records += consumer.poll(1.0)
for record in records:
    if record.offset % 3 == 0 or record.offset < 10:
        consumer.done(record)
consumer.commit()
consumer.done(records[98])
print("committed", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def crashed(servers: str, topic: str) -> str:
    """A group whose only member was killed while it worked out of order."""
    group = unique("g")
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER, servers, group, topic], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "committed\n"
    finally:
        worker.kill()
        worker.communicate()
    remove_member(servers, group, "worker")
    return group


def test_after_a_crash_only_records_not_committed_as_done_are_delivered_again(
    crashed: str, servers: str, topic: str
) -> None:
    not_done = [offset for offset in range(10, RECORDS) if offset % 3]
    with Consumer(bootstrap_servers=servers, group_id=crashed) as consumer:
        consumer.subscribe([topic])
        assert [record.offset for record in poll_until(consumer, len(not_done))] == not_done


def test_after_a_crash_another_client_resumes_at_the_plain_offset(crashed: str, servers: str, topic: str) -> None:
    consumer = ConfluentConsumer({**client_settings(servers), "group.id": crashed})
    try:
        consumer.subscribe([topic])
        offsets: list[int | None] = []
        while len(offsets) < RECORDS - 10:
            offsets += [message.offset() for message in consumer.consume(100, timeout=1.0)]
    finally:
        consumer.close()
    assert offsets == list(range(10, RECORDS))


def test_close_with_drain_waits_for_records_in_flight(servers: str, topic: str) -> None:
    tp, group = TopicPartition(topic, 0), unique("g")
    consumer = Consumer(bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", commit_mode="done")
    consumer.subscribe([topic])
    records = poll_until(consumer, RECORDS)
    finish = threading.Timer(0.3, lambda: [consumer.done(record) for record in records[:-1]])
    last = threading.Timer(0.6, lambda: consumer.done(records[-1]))
    finish.start()
    last.start()
    consumer.close(drain=60.0)
    with Consumer(bootstrap_servers=servers, group_id=group) as reader:
        committed = reader.committed([tp])[tp]
    assert committed is not None
    assert committed.offset == RECORDS


def test_records_that_an_iteration_has_not_returned_are_not_in_flight(
    make: MakeConsumer, servers: str, topic: str
) -> None:
    tp, counts = TopicPartition(topic, 0), []
    consumer = member(make, servers, unique("g"), [topic], **DONE)
    for record in consumer:
        counts.append(consumer.in_flight().get(tp))
        if record.offset % 2:
            consumer.done(record)
        if record.offset == 5:
            break
    assert counts == [1, 2, 2, 3, 3, 4]
    assert consumer.in_flight() == {tp: 3}
    for record in consumer:
        assert record.offset == 6, "the first record that was not delivered"
        break
    consumer.commit()
    committed = consumer.committed([tp])[tp]
    assert OffsetSet.from_text(committed.metadata, committed.offset) == OffsetSet(6, [(0, 1), (2, 3), (4, 5)])


@pytest.mark.parametrize("parallel", [False, True], ids=["one lane", "two lanes"])
def test_records_that_an_interrupted_poll_did_not_return_are_not_in_flight(
    servers: str, topic: str, parallel: bool
) -> None:
    """Otherwise close(drain=…) would wait for records that were never returned."""
    settings = {"max_poll_records": 10, "enable_parallel_rebalance": parallel, **DONE}
    with member(Consumer, servers, unique("g"), [topic], **settings) as consumer:
        poll_until(consumer, 1)

        def scenario(at: int) -> bool:
            consumer.seek_to_beginning()
            poll_until(consumer, 1)
            count, records = sum(consumer.in_flight().values()), Records.EMPTY
            with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
                records = consumer.poll(1.0)
            assert sum(consumer.in_flight().values()) == count + len(records)
            return interrupter.has_raised

        interrupted_everywhere(scenario, more_than=50)


def test_done_without_commit_mode_done_is_refused(make: MakeConsumer, servers: str, topic: str) -> None:
    consumer = member(make, servers, unique("g"), [topic])
    records = poll_until(consumer, 1)
    with pytest.raises(ConfigError, match=r"commit\.mode=done"):
        consumer.done(records[0])
    with pytest.raises(ConfigError, match=r"commit\.mode=done"):
        consumer.in_flight()
    with pytest.raises(ConfigError, match=r"commit\.mode=done"):
        consumer.close(drain=1.0)
