"""Consumers that own partitions: assigned, classic (eager, cooperative), KIP-848, and with two lanes."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from chaos.clients.process import CONSUMER, SESSION_MS, Process, runs_of, start
from headrace import Consumer, OffsetAndMetadata, RebalanceListener, Record, TopicPartition
from headrace.errors import HeadraceError

_POLL = 0.3
_WORK = 0.05
_CLASSIC: dict[str, Any] = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": 500}
_KINDS: dict[str, dict[str, Any]] = {
    "assigned": {"isolation_level": "read_committed"},
    "eager": {**_CLASSIC, "partition_assignment_strategy": "range"},
    "cooperative": {**_CLASSIC, "partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
    "spark_peer": {"group_protocol": "consumer"},
    "retained": {"group_protocol": "consumer"},
    "compacted": {"group_protocol": "consumer"},
    "unclean": {"group_protocol": "consumer"},
    "recreated": {"group_protocol": "consumer", "allow_auto_create_topics": False},
    "lanes": {"group_protocol": "consumer", "enable_parallel_rebalance": True},
}
_AUTO_COMMIT = ("cooperative", "lanes")


class Member(RebalanceListener):
    """Commits what each poll returned; some kinds leave that to auto-commit."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._ledger = process.ledger
        self._commits = process.kind not in _AUTO_COMMIT
        self._due: dict[int, OffsetAndMetadata] = {}
        self._consumer = Consumer(
            **process.settings,
            **CONSUMER,
            **_KINDS[process.kind],
            group_id=process.group,
            enable_auto_commit=not self._commits,
            auto_commit_interval_ms=300,
        )

    def run(self) -> None:
        if self._process.kind == "assigned":
            partitions = [
                TopicPartition(self._process.topic, info.partition)
                for info in self._consumer.partitions_for_topic(self._process.topic)
            ]
            self._ledger.write("assigned", partitions=[tp.partition for tp in partitions])
            self._consumer.assign(partitions)
        else:
            self._consumer.subscribe([self._process.topic], listener=self)
        while not self._process.stopping.is_set():
            self._poll()
        self._consumer.close()

    def _poll(self) -> None:
        try:
            records = self._consumer.poll(_POLL)
        except HeadraceError as error:
            self._ledger.write("error", error=f"{type(error).__name__}: {error}")
            if not error.retriable:
                raise
            return
        by_lane: dict[str | None, list[Record]] = {}
        for record in records:
            by_lane.setdefault(record.lane, []).append(record)
            # With its epoch, a successor notices that an unclean election has truncated the log (KIP-320).
            self._due[record.partition] = OffsetAndMetadata(record.offset + 1, "", record.leader_epoch)
        for lane, found in by_lane.items():
            self._ledger.write("received", runs=runs_of(found), lane=lane)
        if records:
            time.sleep(self._process.dice.random() * _WORK)  # simulated work, in which it may be killed
        if self._commits:
            self._commit(self._due)

    def _commit(self, due: dict[int, OffsetAndMetadata]) -> None:
        if not due:
            return
        offsets = {TopicPartition(self._process.topic, partition): offset for partition, offset in due.items()}
        try:
            self._consumer.commit(offsets)
        except HeadraceError as error:  # what is still owned is committed the next time
            self._ledger.write("refused", error=f"{type(error).__name__}: {error}")
        else:
            self._ledger.write("committed", offsets=[[tp.partition, each.offset] for tp, each in offsets.items()])
            for tp in offsets:
                self._due.pop(tp.partition, None)

    # Called inside poll() and close().

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._ledger.write("assigned", partitions=[tp.partition for tp in partitions])

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        if self._commits:
            numbers = [tp.partition for tp in partitions]
            self._commit({number: self._due[number] for number in numbers if number in self._due})
        self._give_up("revoked", partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._give_up("lost", partitions)

    def on_lost_range(self, partition: TopicPartition, start: int, end: int) -> None:
        self._ledger.write("lost_range", partition=partition.partition, start=start, end=end)

    def _give_up(self, name: str, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            self._due.pop(tp.partition, None)
        self._ledger.write(name, partitions=[tp.partition for tp in partitions])


def main() -> None:
    process = start()
    Member(process).run()
    process.closed()


if __name__ == "__main__":
    main()
