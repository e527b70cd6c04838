"""Exactly-once run() whose outputs cannot be sent for a while: it keeps polling, and ends soon when it is stopped."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import AsyncProducer, LocalBroker, Producer, ProducerRecord, Record
from headrace.errors import RequestTimeoutError
from support.brokers.admin import Admin, unique
from support.brokers.fixtures import KAFKA_VERSION
from support.brokers.produce import numbered_topic
from support.brokers.topic_contents import oracle_rows
from support.harness.groups import RecordingListener
from support.harness.run_kinds import Kind

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


def returning(kind: Kind, target: str, size: int = 1) -> Any:
    def output(record: Record) -> ProducerRecord:
        return ProducerRecord(target, f"{record.offset}".rjust(size).encode())

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
    paused_at = 0.0
    is_paused = False

    def look(progress: Any) -> None:
        nonlocal paused_at, is_paused
        now = time.monotonic()
        looks.append(now)
        if not paused_at and progress.handled:
            pausable.pause()
            paused_at, is_paused = now, True
        elif is_paused and now > paused_at + 2 * MAX_POLL_INTERVAL:
            pausable.resume()
            is_paused = False
        elif not is_paused and (len(written(servers, target)) == COUNT or now > paused_at + 60):
            consumer.wakeup()

    handler = returning(kind, target, size=1000)
    consumer.run(handler, producer=producer, on_progress=look, progress_interval=0.05, concurrency=1)
    close(kind, producer, consumer)
    admin.close()
    assert written(servers, target) == list(range(COUNT))
    assert max(b - a for a, b in itertools.pairwise(looks)) < MAX_POLL_INTERVAL
    assert listener.kinds() == ["assigned"]
