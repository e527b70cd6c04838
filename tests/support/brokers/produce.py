"""Records written by confluent-kafka's producer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from support.brokers.admin import client_settings

_TIMEOUT = 60.0
_LONG = 5000  # does not delay flush()

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to write."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    timestamp: int = 0
    headers: Headers = field(default_factory=tuple)


class Writer:
    """A producer that raises delivery failures."""

    def __init__(self, bootstrap_servers: str, **settings: object) -> None:
        config: dict[str, Any] = client_settings(bootstrap_servers) | {"linger.ms": 5}
        config |= {key.replace("_", "."): value for key, value in settings.items()}
        # Idempotent: otherwise a retried batch (the leader was not known yet) could come after its successor.
        config["enable.idempotence"] = config.get("acks", "all") == "all"
        self.producer = Producer(config)
        self._failure: KafkaError | None = None
        if "transactional.id" in config:
            self.producer.init_transactions(_TIMEOUT)

    def send(self, topic: str, records: Iterable[Outgoing]) -> None:
        for record in records:
            arguments: dict[str, Any] = {"partition": record.partition, "on_delivery": self._delivered}
            if record.timestamp:
                arguments["timestamp"] = record.timestamp
            if record.headers:
                arguments["headers"] = list(record.headers)
            while True:
                try:
                    self.producer.produce(topic, record.value, record.key, **arguments)
                    break
                except BufferError:
                    self.producer.poll(0.05)
            self.producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._failure = self._failure or error

    def flush(self) -> None:
        left = self.producer.flush(_TIMEOUT)
        assert left == 0, f"{left} records were not written in time"
        assert self._failure is None, self._failure


def write(bootstrap_servers: str, topic: str, records: Iterable[Outgoing], **settings: object) -> None:
    """Write the records, in order within each partition, and wait until the broker has them.

    The records of a partition are in one batch if they fit, however busy the machine is.
    """
    writer = Writer(bootstrap_servers, **({"linger_ms": _LONG} | settings))
    writer.send(topic, records)
    writer.flush()


def numbered(count: int, partition: int = 0, start: int = 0, size: int = 0) -> Iterable[Outgoing]:
    """Records whose value is their number, padded to `size` bytes."""
    for number in range(start, start + count):
        yield Outgoing(b"%d" % number if not size else b"%0*d" % (size, number), partition=partition)


def numbered_topic(servers: str, topic: str, partitions: int, records: int) -> str:
    """Fill each partition with `records` numbered records; return the topic."""
    for partition in range(partitions):
        write(servers, topic, numbered(records, partition))
    return topic
