"""A topic for records that keep failing. A dead letter has the key, the value and the headers of its record.

These headers are added after the record's own, with text as values:

    headrace.dlt.topic, .partition, .offset     the place of the record
    headrace.dlt.timestamp                      the record's, in milliseconds: the dead letter itself has the time of
                                                its writing, so that retention does not delete it at once
    headrace.dlt.group                          the group that failed to handle it
    headrace.dlt.error.class, .error.message    the last failure
    headrace.dlt.attempts                       the number of attempts

confluent-kafka's producer writes them: idempotent, acks=all, partitioned by key as Java's producer does. It has the
security settings of the consumer. It is created for the first dead letter, and again after a fatal error.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ..._security.librdkafka import librdkafka_settings
from ...errors import KafkaError
from ...types import ProducerRecord

if TYPE_CHECKING:
    import confluent_kafka
    from confluent_kafka import Message, Producer

    from ..._security.settings import SecuritySettings
    from ...records import Record

log = logging.getLogger(__name__)

PREFIX = "headrace.dlt."
_LONGEST_MESSAGE = 4000  # characters of the error's message that are kept
_WRITE_TIMEOUT = 30.0  # seconds for one dead letter, with the producer's own retries
_TICK = 0.1


def letter_headers(
    record: Record, error: BaseException, attempts: int, group_id: str
) -> list[tuple[str, str | bytes | None]]:
    """The headers of a record's dead letter."""
    kind = type(error)
    added = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "group": group_id,
        "error.class": kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        "error.message": str(error)[:_LONGEST_MESSAGE],
        "attempts": attempts,
    }
    return [
        *record.headers,
        *((PREFIX + name, str(value).encode("utf-8", "backslashreplace")) for name, value in added.items()),
    ]


def dead_letter_of(record: Record, error: BaseException, attempts: int, group_id: str, topic: str) -> ProducerRecord:
    """A dead letter as an output of an exactly-once run(): it is written in the transaction that has its offset."""
    return ProducerRecord(topic, record.value, record.key, letter_headers(record, error, attempts, group_id))


class DeadLetterTopic:
    """Writes dead letters, from any thread.

    Raises ImportError if confluent-kafka is not installed, ConfigError for security settings that it does not support.
    """

    def __init__(self, topic: str, bootstrap_servers: str, group_id: str, security: SecuritySettings) -> None:
        try:
            import confluent_kafka
        except ImportError as e:
            raise ImportError("a dead-letter topic needs confluent-kafka: pip install 'headrace[dead-letter]'") from e
        self.topic = topic
        self._group_id = group_id
        self._kafka = confluent_kafka
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "client.id": "headrace-dead-letters",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "message.timeout.ms": int(_WRITE_TIMEOUT * 1000),
            "message.max.bytes": 1_000_000_000,  # the broker decides what is too large
            "linger.ms": 0,
            "logger": log,
            **librdkafka_settings(security),
        }
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def write(self, record: Record, error: BaseException, attempts: int) -> Future[None]:
        """Done when all in-sync replicas have it; fails with a KafkaError."""
        written: Future[None] = Future()
        where = f"the dead letter of {record.topic}-{record.partition}, offset {record.offset}, to {self.topic}"
        headers = letter_headers(record, error, attempts, self._group_id)
        with self._lock:
            producer = self._ready_producer()

        def delivered(failure: confluent_kafka.KafkaError | None, _: Message | None) -> None:
            if failure is None:
                written.set_result(None)
                return
            if failure.fatal() and producer is self._producer:
                self._producer = None  # it cannot be used any more; the next dead letter creates another one
            written.set_exception(
                KafkaError(failure.code(), failure.name(), failure.retriable(), f"{where}: {failure.str()}")
            )

        try:
            producer.produce(self.topic, record.value, record.key, headers=headers, on_delivery=delivered)
        except self._kafka.KafkaException as refusal:
            delivered(refusal.args[0], None)
        return written

    def _ready_producer(self) -> Producer:
        if self._producer is None:
            self._producer = self._kafka.Producer(self._settings)
            threading.Thread(
                target=self._serve, args=(self._producer,), name="headrace-dead-letters", daemon=True
            ).start()
        return self._producer

    def _serve(self, producer: Producer) -> None:
        """Runs the callbacks of a producer for as long as it is in use or has unfinished writes."""
        while producer is self._producer or len(producer):
            producer.poll(_TICK)

    def close(self) -> None:
        """No more dead letters will be written. Unfinished writes continue for as long as the process runs."""
        self._producer = None
