"""A group member with confluent-kafka, as a program: `python -m support.programs.confluent_member TOPIC CONFIG`.

It behaves like VerifiableConsumer (see `members/commands.py`).
"""

from __future__ import annotations

import json
import signal
import sys
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from support.members.event_writer import EventWriter
from support.members.events import TopicAndPartition

_POLL = 0.1
_BATCH = 500


class Member:
    def __init__(self, topic: str, config: dict[str, Any]) -> None:
        self._consumer = Consumer(config)
        self._events = EventWriter(self._commit, KafkaException)
        # An assignment adds to the previous one, or replaces it.
        self._incremental = (
            config.get("group.protocol") == "consumer"
            or config.get("partition.assignment.strategy") == "cooperative-sticky"
        )
        self._running = True
        self._offsets: dict[TopicAndPartition, list[int]] = defaultdict(list)
        self._events.started()
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def stop(self, *_: object) -> None:
        self._running = False

    def run(self) -> None:
        while self._running:
            message = self._consumer.poll(_POLL)
            while message is not None and self._take(message) < _BATCH:
                message = self._consumer.poll(0)
            self._tell()
            self._events.settle()
        self._consumer.close()
        self._events.closed()

    def _take(self, message: Message) -> int:
        if error := message.error():
            raise KafkaException(error)
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        self._offsets[topic, partition].append(offset)
        return sum(map(len, self._offsets.values()))

    def _tell(self) -> None:
        self._events.read(self._offsets)
        self._offsets.clear()

    def _commit(self, offsets: Mapping[TopicAndPartition, int]) -> None:
        asked = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        for each in self._consumer.commit(offsets=asked, asynchronous=False) or ():
            if each.error:
                raise KafkaException(each.error)

    # Called inside poll(), when records were taken but not reported yet, and inside close().

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._events.assigned(_partitions_in(partitions))
        if self._incremental:
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._tell()
        self._events.revoked(_partitions_in(partitions))
        self._give_up(partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._tell()
        self._events.lost(_partitions_in(partitions))
        self._give_up(partitions)

    def _give_up(self, partitions: list[TopicPartition]) -> None:
        if self._incremental:
            self._consumer.incremental_unassign(partitions)
        else:
            self._consumer.unassign()


def _partitions_in(partitions: list[TopicPartition]) -> list[TopicAndPartition]:
    return [(each.topic, each.partition) for each in partitions]


if __name__ == "__main__":
    member = Member(sys.argv[1], json.loads(sys.argv[2]))
    signal.signal(signal.SIGTERM, member.stop)
    member.run()
