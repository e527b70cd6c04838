"""Consumers with run(): `commit.mode=done`, and exactly once with a transactional producer."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import ExitStack

from chaos.clients.process import CONSUMER, Process, runs_of, start
from chaos.rules.copies import copy_value
from headrace import Consumer, Producer, ProducerRecord, RebalanceListener, Record, TopicPartition
from headrace.errors import TransactionFatalError

_CONCURRENCY = 8
_WORK = 0.004
_TIMEOUT_MS = 10_000


class Listener(RebalanceListener):
    def __init__(self, process: Process) -> None:
        self._ledger = process.ledger

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._ledger.write("assigned", partitions=[tp.partition for tp in partitions])

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._ledger.write("revoked", partitions=[tp.partition for tp in partitions])

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._ledger.write("lost", partitions=[tp.partition for tp in partitions])


def main() -> None:
    process = start()
    while not _has_run(process):
        pass
    process.closed()


def _has_run(process: Process) -> bool:
    """False if a transaction took longer than its timeout: a new producer continues."""
    try:
        _run(process)
    except TransactionFatalError as error:
        process.ledger.write("refused", error=f"{type(error).__name__}: {error}")
        return False
    return True


def _run(process: Process) -> None:
    def handle(record: Record) -> None:
        process.ledger.write("received", runs=runs_of([record]))
        time.sleep(process.dice.random() * _WORK)  # simulated work
        process.ledger.write("handled", runs=runs_of([record]))

    def copy(record: Record) -> ProducerRecord:
        handle(record)
        value = copy_value((record.partition, record.offset), (record.value or b"").decode())
        return ProducerRecord(process.target, value, record.key)

    exactly_once = process.kind == "exactly_once"
    with ExitStack() as stack:
        producer = None
        if exactly_once:
            producer = stack.enter_context(
                Producer(**process.settings, transactional_id=process.client, transaction_timeout_ms=_TIMEOUT_MS)
            )
        consumer = stack.enter_context(
            Consumer(
                **process.settings,
                **CONSUMER,
                group_id=process.group,
                group_protocol="consumer",
                commit_mode="done",
                enable_auto_commit=not exactly_once,
                auto_commit_interval_ms=300,
                isolation_level="read_committed",
            )
        )
        consumer.subscribe([process.topic], listener=Listener(process))
        if producer is not None:
            consumer.run(copy, producer=producer, concurrency=_CONCURRENCY)
        else:
            consumer.run(handle, concurrency=_CONCURRENCY)


if __name__ == "__main__":
    main()
