"""run() whose outputs or dead letters cannot be sent for a while: it keeps polling, says so, and ends soon if asked."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import AsyncProducer, LocalBroker, Producer, ProducerRecord, Record
from headrace.errors import HeadraceError, RequestTimeoutError
from support.brokers.admin import Admin, unique
from support.brokers.fixtures import KAFKA_VERSION
from support.brokers.produce import numbered_topic
from support.brokers.topic_contents import oracle_rows
from support.harness.groups import RecordingListener
from support.harness.run_kinds import Kind, until
from support.harness.waiting import wait_for

COUNT = 50
MAX_POLL_INTERVAL = 2.5  # seconds


@pytest.fixture
def pausable() -> Iterator[LocalBroker]:
    with LocalBroker(version=KAFKA_VERSION, start_timeout=100.0) as broker:
        yield broker


def transactional(kind: Kind, servers: str, **settings: Any) -> Any:
    settings |= {"bootstrap_servers": servers, "transactional_id": unique("x"), "allow_auto_create_topics": False}
    return Producer(**settings) if kind.name == "sync" else AsyncProducer(**settings)


def close(kind: Kind, producer: Any, consumer: Any) -> None:
    if kind.name == "sync":
        producer.close()
    else:
        consumer._loop.run_until_complete(producer.close())


def returning(kind: Kind, target: str) -> Any:
    def output(record: Record) -> ProducerRecord:
        return ProducerRecord(target, f"{record.offset}".encode())

    async def output_in_a_task(record: Record) -> ProducerRecord:
        return output(record)

    return output if kind.name == "sync" else output_in_a_task


def member(kind: Kind, servers: str, source: str, listener: RecordingListener) -> Any:
    interval = round(MAX_POLL_INTERVAL * 1000)
    settings = {"enable_auto_commit": False, "max_poll_interval_ms": interval, "session_timeout_ms": 60_000}
    return kind.member(servers, unique("g"), source, listener=listener, **settings)


def written(servers: str, topic: str) -> list[int]:
    rows = oracle_rows(servers, topic, isolation="read_committed")
    return sorted(int(row.value) for row in rows if row.value is not None)


def test_a_missing_output_topic_does_not_cost_the_member_its_partitions(
    kind: Kind, admin: Admin, servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    source = numbered_topic(servers, admin.create("numbers"), 1, COUNT)
    target, listener = unique("missing"), RecordingListener()
    consumer, producer = member(kind, servers, source, listener), transactional(kind, servers)
    began = time.monotonic()
    is_created = False

    def look(progress: Any) -> None:
        nonlocal is_created
        is_warned = any(target in each.getMessage() for each in caplog.records)
        if not is_created and is_warned and time.monotonic() > began + 2 * MAX_POLL_INTERVAL:
            is_created = True
            admin.create("", name=target)
        if (is_created and len(written(servers, target)) == COUNT) or time.monotonic() > began + 60:
            consumer.wakeup()

    consumer.run(returning(kind, target), producer=producer, on_progress=look, progress_interval=0.1)
    close(kind, producer, consumer)
    assert is_created, "no line names the topic"
    assert written(servers, target) == list(range(COUNT))
    assert listener.kinds() == ["assigned"]


def test_a_run_that_waits_for_its_output_topic_ends_soon_and_names_it(kind: Kind, admin: Admin, servers: str) -> None:
    source = numbered_topic(servers, admin.create("numbers"), 1, COUNT)
    target = unique("missing")
    consumer = member(kind, servers, source, RecordingListener())
    producer = transactional(kind, servers)
    stopped: list[float] = []

    def stop(progress: Any) -> None:
        if progress.handled == COUNT and not stopped:
            stopped.append(time.monotonic())
            consumer.wakeup()

    with pytest.raises(RequestTimeoutError, match=target):
        consumer.run(returning(kind, target), producer=producer, on_progress=stop, progress_interval=0.1)
    close(kind, producer, consumer)
    assert time.monotonic() < stopped[0] + 12


def test_outputs_that_exceed_the_memory_do_not_stop_polls_while_the_broker_is_away(
    kind: Kind, pausable: LocalBroker
) -> None:
    servers = pausable.bootstrap_servers
    admin = Admin(servers)
    source, target = numbered_topic(servers, admin.create("numbers"), 1, COUNT), admin.create("out")
    listener = RecordingListener()
    consumer = member(kind, servers, source, listener)
    producer = transactional(kind, servers, buffer_memory=10_000, batch_size=1000)
    looks: list[float] = []
    paused_at: list[float] = []
    is_resumed = False

    def output(record: Record) -> ProducerRecord:
        if record.offset == 10:  # the producer knows everything that it needs
            wait_for("the first outputs", lambda: len(written(servers, target)) == 10)
            pausable.pause(*pausable.brokers)
            paused_at.append(time.monotonic())
        return ProducerRecord(target, f"{record.offset}".rjust(1000).encode())

    async def output_in_a_task(record: Record) -> ProducerRecord:
        return await asyncio.to_thread(output, record)

    def look(progress: Any) -> None:
        nonlocal is_resumed
        now = time.monotonic()
        looks.append(now)
        if paused_at and not is_resumed and now > paused_at[0] + 2 * MAX_POLL_INTERVAL:
            pausable.resume(*pausable.brokers)
            is_resumed = True
        elif is_resumed and (len(written(servers, target)) == COUNT or now > paused_at[0] + 60):
            consumer.wakeup()

    handler = output if kind.name == "sync" else output_in_a_task
    consumer.run(handler, producer=producer, on_progress=look, progress_interval=0.05, order="partition")
    close(kind, producer, consumer)
    admin.close()
    assert written(servers, target) == list(range(COUNT))
    assert max(b - a for a, b in itertools.pairwise(looks)) < MAX_POLL_INTERVAL
    assert listener.kinds() == ["assigned"]


def test_a_run_and_its_producer_end_soon_while_the_broker_is_away(kind: Kind, pausable: LocalBroker) -> None:
    """Some outputs are on their way, others do not fit into memory."""
    servers = pausable.bootstrap_servers
    admin = Admin(servers)
    source, target = numbered_topic(servers, admin.create("numbers"), 1, COUNT), admin.create("out")
    admin.close()
    consumer = member(kind, servers, source, RecordingListener())
    producer = transactional(kind, servers, buffer_memory=10_000, batch_size=1000)
    stopped: list[float] = []

    def output(record: Record) -> ProducerRecord:
        if record.offset == 10:
            wait_for("the first outputs", lambda: len(written(servers, target)) == 10)
            pausable.pause(*pausable.brokers)
        return ProducerRecord(target, f"{record.offset}".rjust(1000).encode())

    async def output_in_a_task(record: Record) -> ProducerRecord:
        return await asyncio.to_thread(output, record)

    def stop(progress: Any) -> None:
        if progress.handled == COUNT and not stopped:
            stopped.append(time.monotonic())
            consumer.wakeup()

    handler = output if kind.name == "sync" else output_in_a_task
    with pytest.raises(RequestTimeoutError, match=target):
        consumer.run(handler, producer=producer, on_progress=stop, progress_interval=0.05, order="partition")
    with contextlib.suppress(HeadraceError):  # the records of the aborted transaction
        close(kind, producer, consumer)
    ended = time.monotonic()
    pausable.resume(*pausable.brokers)
    assert ended < stopped[0] + 15


def test_a_dead_letter_that_cannot_be_written_is_warned_of(
    kind: Kind, admin: Admin, servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not only when the last attempt has failed, minutes later."""
    caplog.set_level(logging.WARNING, "headrace")
    source = numbered_topic(servers, admin.create("numbers"), 1, 1)
    consumer = kind.member(servers, unique("g"), source)
    attempts: list[int] = []

    def fail(record: Record) -> None:
        raise KeyError("never")

    def write(record: Record, error: BaseException) -> None:
        attempts.append(record.offset)
        if len(attempts) < 3:
            raise RequestTimeoutError("topic letters is not there")

    async def fail_in_a_task(record: Record) -> None:
        fail(record)

    async def write_in_a_task(record: Record, error: BaseException) -> None:
        write(record, error)

    consumer.run(
        fail if kind.name == "sync" else fail_in_a_task,
        retries=3,
        retry_backoff=0.01,
        dead_letter=write if kind.name == "sync" else write_in_a_task,
        **until(consumer, lambda progress: progress.dead_lettered == 1),
    )
    lines = [each.getMessage() for each in caplog.records if "topic letters" in each.getMessage()]
    assert [line.split(":")[0] for line in lines] == [f"the dead letter of {source}-0, offset 0"] * 2
