"""librdkafka's idempotent producer, which writes as `clients/producer.py` does."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer

from chaos.clients.process import Process, start
from chaos.identity import NO_TRANSACTION, Identity, key_of, written_fields
from chaos.ledger import UNKNOWN_OFFSET

_PAUSE = 1.0
_AT_ONCE = 3
_TIMEOUT = 30.0
_MOST_PENDING = 2_000


class Writer:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._producer = Producer(
            {
                "bootstrap.servers": process.servers,
                "enable.idempotence": True,
                # With more of them, an OUT_OF_ORDER_SEQUENCE_NUMBER of one partition makes it write records of others
                # twice: https://github.com/confluentinc/librdkafka/issues/4953
                "max.in.flight": 1,
                "topic.metadata.refresh.interval.ms": 3_000,
                "linger.ms": 5,
            }
        )
        self._next: dict[int, int] = {}
        self._acked: list[tuple[int, int, int]] = []

    def run(self) -> None:
        partitions: list[int] = []
        turn = 0
        while not self._process.stopping.wait(_PAUSE):
            if turn % 10 == 0:
                found = self._producer.list_topics(self._process.topic, timeout=_TIMEOUT).topics[self._process.topic]
                partitions = sorted(found.partitions)
            turn += 1
            if len(self._producer) < _MOST_PENDING:
                self._send(partitions)
            self._producer.poll(0)
            self._report()
        self._producer.flush(_TIMEOUT)
        self._report()

    def _send(self, partitions: list[int]) -> None:
        runs = [(partition, self._next.get(partition, 0), _AT_ONCE, NO_TRANSACTION) for partition in partitions]
        self._process.ledger.write("sent", runs=runs)
        for partition, first, count, _ in runs:
            self._next[partition] = first + count
            for number in range(first, first + count):
                identity = Identity(self._process.name, partition, number)
                self._producer.produce(
                    self._process.topic,
                    str(identity),
                    key_of(identity),
                    partition=partition,
                    on_delivery=self._delivered(number),
                    **written_fields(identity),
                )

    def _delivered(self, number: int) -> Any:
        def callback(error: Any, message: Any) -> None:
            if error is None:
                # If the broker had the record already, its response has no offset.
                offset = UNKNOWN_OFFSET if message.offset() is None else message.offset()
                self._acked.append((message.partition(), number, offset))

        return callback

    def _report(self) -> None:
        if self._acked:
            self._process.ledger.write("acked", records=self._acked)
            self._acked = []


def main() -> None:
    process = start()
    Writer(process).run()
    process.closed()


if __name__ == "__main__":
    main()
