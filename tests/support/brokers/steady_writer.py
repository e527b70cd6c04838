"""A background writer to all partitions of a topic."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, TopicPartition

from support.brokers.admin import bounds_of, client_settings
from support.brokers.produce import Outgoing, Writer
from support.members.events import TopicAndPartition

_PAUSE = 0.03


class SteadyWriter:
    """Writes to all partitions of a topic in turn, until finish() or `limit` records.

    A record's value is its number in the partition, starting at `first`. The writer pauses for `pause` seconds after
    each round. `settings` are those of the producer.

    with SteadyWriter(servers, topic, 12, limit=20_000) as writer:
        ...
        ends = writer.finish()
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        *,
        limit: int,
        each_time: int = 1,
        pause: float = _PAUSE,
        first: int = 0,
        **settings: object,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._partitions = [(topic, number) for number in range(partitions)]
        self._rounds = limit // (partitions * each_time)
        self._each_time = each_time
        self._pause = pause
        self._first = first
        self._topic = topic
        self._writer = Writer(bootstrap_servers, **settings)
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._write, name="steady writer", daemon=True)

    def _write(self) -> None:
        try:
            for written in range(self._rounds):
                if self._stop.wait(self._pause):
                    break
                first = self._first + written * self._each_time
                for number in range(first, first + self._each_time):
                    value = b"%d" % number
                    self._writer.send(self._topic, [Outgoing(value, partition=p) for _, p in self._partitions])
            self._writer.flush()
        except BaseException as problem:  # noqa: BLE001 - finish() raises it
            self._failure = problem

    def finish(self) -> dict[TopicAndPartition, int]:
        """Stop writing; return the end of each log.

        The ends come from the logs: on a busy machine, librdkafka's idempotent producer was seen to lose a record or
        two that it had reported as delivered (a log of 990 records with the last value 991).
        """
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        consumer = Consumer(client_settings(self._bootstrap_servers) | {"group.id": "ends"})
        try:
            return {tp: bounds_of(consumer, TopicPartition(*tp))[1] for tp in self._partitions}
        finally:
            consumer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
