"""run() with a producer: consumed offsets and outputs are committed together."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from typing import Any

import pytest

from headrace import AsyncProducer, GroupMetadata, Producer, ProducerRecord, Record, TopicPartition
from headrace.errors import ConfigError, ProducerFencedError
from support.brokers.admin import Admin, unique
from support.brokers.group_configs import set_session_timeout
from support.brokers.produce import numbered_topic
from support.brokers.topic_contents import oracle_rows
from support.harness.run_kinds import DEADLINE, Kind, until
from support.harness.waiting import wait_for
from support.members.child import Child

PARTITIONS = 4
KILLS = 20 if os.environ.get("SOAK") else 3
BEFORE_A_KILL = 400  # records


def filled(admin: Admin, servers: str, partitions: int, records: int) -> str:
    return numbered_topic(servers, admin.create("numbers", partitions), partitions, records)


def outputs(servers: str, topic: str, partitions: int = 1) -> list[bytes]:
    found = [row.value for row in oracle_rows(servers, topic, partitions, isolation="read_committed")]
    return [value for value in found if value is not None]


def transactional(kind: Kind, servers: str, name: str = "") -> Any:
    settings = {"bootstrap_servers": servers, "transactional_id": name or unique("x"), "linger_ms": 0}
    return Producer(**settings) if kind.name == "sync" else AsyncProducer(**settings)


def close(kind: Kind, producer: Any, consumer: Any) -> None:
    if kind.name == "sync":
        producer.close()
    else:
        consumer._loop.run_until_complete(producer.close())


def copying(kind: Kind, target: str) -> Any:
    def copy(record: Record) -> ProducerRecord:
        return ProducerRecord(target, record.value, record.key)

    async def copy_in_a_task(record: Record) -> ProducerRecord:
        return copy(record)

    return copy if kind.name == "sync" else copy_in_a_task


def test_outputs_and_offsets_are_committed_together(
    kind: Kind, admin: Admin, servers: str, way: dict[str, Any]
) -> None:
    source, target = filled(admin, servers, PARTITIONS, 500), admin.create("copies", 2)
    consumer = kind.member(servers, unique("g"), source, enable_auto_commit=False, **way)
    producer = transactional(kind, servers)
    total = 500 * PARTITIONS
    consumer.run(
        copying(kind, target), producer=producer, **until(consumer, lambda progress: progress.handled >= total)
    )
    close(kind, producer, consumer)
    assert len(outputs(servers, target, 2)) == total
    places = [TopicPartition(source, number) for number in range(PARTITIONS)]
    committed = consumer.committed(places)
    assert {at.offset for at in committed.values() if at is not None} == {500}


def test_a_dead_letter_is_part_of_the_transaction(kind: Kind, admin: Admin, servers: str) -> None:
    source, target, letters = filled(admin, servers, 1, 20), admin.create("copies"), admin.create("letters")
    consumer = kind.member(servers, unique("g"), source, enable_auto_commit=False)
    producer = transactional(kind, servers)

    def fail(record: Record) -> ProducerRecord:
        if record.offset == 7:
            raise ValueError("never")
        return ProducerRecord(target, record.value)

    async def fail_in_a_task(record: Record) -> ProducerRecord:
        return fail(record)

    consumer.run(
        fail if kind.name == "sync" else fail_in_a_task,
        producer=producer,
        retries=1,
        retry_backoff=0.01,
        dead_letter=letters,
        **until(consumer, lambda progress: progress.handled + progress.dead_lettered >= 20),
    )
    close(kind, producer, consumer)
    assert len(outputs(servers, target)) == 19
    (letter,) = oracle_rows(servers, letters, isolation="read_committed")
    assert dict(letter.headers)["headrace.dlt.offset"] == b"7"


def test_outputs_of_a_run_that_failed_are_written_by_the_next_one(kind: Kind, admin: Admin, servers: str) -> None:
    """The outputs of the second half are too large in the first run."""
    source, target = filled(admin, servers, 1, 100), admin.create("copies")
    consumer = kind.member(servers, unique("g"), source, enable_auto_commit=False)
    producer = transactional(kind, servers)
    is_mended = False

    def copy(record: Record) -> ProducerRecord:
        value = record.value if is_mended or record.offset < 50 else b"x" * 2**21
        return ProducerRecord(target, value)

    async def copy_in_a_task(record: Record) -> ProducerRecord:
        return copy(record)

    handler = copy if kind.name == "sync" else copy_in_a_task
    with pytest.raises(ValueError, match=r"max\.request\.size"):
        consumer.run(handler, producer=producer, **until(consumer, lambda progress: False))
    is_mended = True
    consumer.run(
        handler,
        producer=producer,
        **until(consumer, lambda progress: len(outputs(servers, target)) >= 100),
    )
    close(kind, producer, consumer)
    assert sorted(map(int, outputs(servers, target))) == list(range(100))


def test_the_open_transaction_of_a_killed_predecessor_does_not_delay_its_successor(
    kind: Kind, admin: Admin, servers: str
) -> None:
    """It hides the committed offsets, so the successor gets no record before it has aborted that transaction."""
    source, target, group = filled(admin, servers, 1, 100), admin.create("copies"), unique("g")
    name = unique("x")
    killed = Producer(bootstrap_servers=servers, transactional_id=name, transaction_timeout_ms=600_000)
    killed.begin()
    killed.send(target, "lost")
    killed.send_offsets({TopicPartition(source, 0): 50}, GroupMetadata(group))
    killed.flush()
    consumer = kind.member(servers, group, source, enable_auto_commit=False)
    producer = transactional(kind, servers, name)
    consumer.run(
        copying(kind, target),
        producer=producer,
        **until(consumer, lambda progress: len(outputs(servers, target)) >= 100),
    )
    close(kind, producer, consumer)
    with pytest.raises(ProducerFencedError):
        killed.commit()
    killed.close()
    assert sorted(map(int, outputs(servers, target))) == list(range(100))


def test_nothing_is_lost_or_doubled_when_members_are_killed(admin: Admin, servers: str, way: dict[str, Any]) -> None:
    """Two members, one of which is killed repeatedly while records are written."""
    source, target, group = admin.create("numbers", PARTITIONS), admin.create("copies", 2), unique("g")
    settings = [f"{name.replace('_', '.')}={value}" for name, value in way.items()]
    if "group.protocol=consumer" in settings:
        set_session_timeout(servers, group, 2000)
    else:
        settings += ["session.timeout.ms=2000", "heartbeat.interval.ms=200"]
    program = [sys.executable, "-m", "support.programs.exactly_once_member", servers, group, source, target]
    seed = random.randrange(2**32)
    chance = random.Random(seed)

    def start(number: int) -> Child:
        return Child([*program, f"{group}-{number}", *settings])

    def end(member: Child) -> None:
        member.kill()
        printed.extend(member.lines())  # until the process ends
        member.process.close()

    members = [start(0), start(1)]
    sent, printed = 0, list[str]()
    try:
        with Producer(bootstrap_servers=servers) as writer:
            for kill in range(KILLS):
                for _ in range(BEFORE_A_KILL):
                    writer.send(source, str(sent), key=str(sent % 40))
                    sent += 1
                writer.flush()
                enough = chance.randrange(sent - BEFORE_A_KILL, sent)
                wait_for(
                    f"{enough} outputs", lambda enough=enough: len(outputs(servers, target, 2)) >= enough, DEADLINE
                )
                end(members[kill % 2])
                members[kill % 2] = start(kill % 2)
        wait_for(f"{sent} outputs", lambda: len(outputs(servers, target, 2)) >= sent, DEADLINE)
    finally:
        for member in members:
            end(member)
        print(*printed, sep="")  # warnings of the members, which pytest shows if this fails
    counts = Counter(map(int, outputs(servers, target, 2)))
    assert counts == Counter(range(sent)), f"seed {seed}"


@pytest.mark.parametrize("polls_before", [False, True])
def test_records_of_aborted_transactions_have_no_outputs(
    kind: Kind, admin: Admin, servers: str, polls_before: bool
) -> None:
    source, target = admin.create("in"), admin.create("copies")
    with transactional(Kind("sync"), servers) as writer:
        for number in range(60):
            writer.begin()
            writer.send(source, f"{number}".rjust(5).encode()).result(30)
            writer.abort() if number % 2 else writer.commit()
    consumer = kind.member(servers, unique("g"), source, enable_auto_commit=False, max_poll_records=3)
    if polls_before:  # the rest is fetched ahead, without regard to transactions
        found: list[Record] = []
        while len(found) < 3:
            found += consumer.poll(1)
        consumer.seek_to_beginning()
        for record in consumer.poll(10, max_records=1):
            consumer.seek((source, 0), record.offset)
    producer = transactional(kind, servers)
    consumer.run(
        copying(kind, target),
        producer=producer,
        **until(consumer, lambda progress: len(outputs(servers, target)) >= 30),
    )
    close(kind, producer, consumer)
    assert sorted(map(int, outputs(servers, target))) == list(range(0, 60, 2))


def test_settings_that_cannot_be_exactly_once_are_refused(admin: Admin, servers: str) -> None:
    source = admin.create("in")
    kind = Kind("sync")
    plain, producer = Producer(bootstrap_servers=servers), transactional(kind, servers)
    consumer = kind.member(servers, unique("g"), source)
    auto = kind.member(servers, unique("g"), source, enable_auto_commit=True)
    lanes = kind.member(servers, unique("g"), source, enable_auto_commit=False, enable_parallel_rebalance=True)
    dirty = kind.member(servers, unique("g"), source, enable_auto_commit=False, isolation_level="read_uncommitted")
    for member, chosen, error, text in (
        (consumer, plain, ConfigError, "transactional.id"),
        (auto, producer, ConfigError, "enable.auto.commit=false"),
        (lanes, producer, ConfigError, "enable.parallel.rebalance"),
        (dirty, producer, ConfigError, "isolation.level=read_committed"),
        (consumer, "producer", TypeError, "must be a Producer"),
    ):
        with pytest.raises(error, match=text):
            member.run(lambda record: None, producer=chosen)
    kind.close()
    plain.close()
    producer.close()
