"""A topic for records that keep failing. A dead letter has the key, the value and the headers of its record.

These headers are added after the record's own, with text as values:

    headrace.dlt.topic, .partition, .offset     those of the record
    headrace.dlt.timestamp                      the record's, in milliseconds: the dead letter itself has the time of
                                                its writing, so that retention does not delete it at once
    headrace.dlt.group                          the group that failed to handle it
    headrace.dlt.error.class, .error.message    the last failure
    headrace.dlt.attempts                       the number of attempts

A producer writes them: idempotent, acks=all, partitioned by key as Java's producer does. It connects like the consumer.
It is created for the first dead letter. Writes run on the event loop of its thread, so that jobs on threads and jobs in
event loops can wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ...errors import HeadraceError
from ...types import ProducerRecord
from ..produce.producer import AsyncProducer, parts_of

if TYPE_CHECKING:
    from ...config.client import ClientConfig
    from ...records import Record

PREFIX = "headrace.dlt."
_LONGEST_MESSAGE = 4000  # characters of the error's message that are kept
_WRITE_TIMEOUT_MS = 30_000  # for one dead letter, with the producer's own retries; and for the metadata of the topic
_NO_LIMIT = 1_000_000_000


def letter_headers(
    record: Record, error: BaseException, attempts: int, group_id: str
) -> list[tuple[str, bytes | None]]:
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
    return ProducerRecord(topic, record.raw_value, record.raw_key, letter_headers(record, error, attempts, group_id))


class DeadLetterTopic:
    """Writes dead letters, from any thread. `config` is the consumer's."""

    def __init__(self, topic: str, group_id: str, config: ClientConfig) -> None:
        self.topic = topic
        self._group_id = group_id
        self._settings: dict[str, Any] = {
            **config.connection_settings(),
            "client.id": "headrace-dead-letters",
            "linger.ms": 0,
            "delivery.timeout.ms": _WRITE_TIMEOUT_MS,
            "max.block.ms": _WRITE_TIMEOUT_MS,
            "request.timeout.ms": min(config.request_timeout_ms, _WRITE_TIMEOUT_MS),
            "max.request.size": _NO_LIMIT,  # the broker decides what is too large
            "buffer.memory": _NO_LIMIT,  # run() limits how many records are in flight
        }
        self._lock = threading.Lock()
        self._producer: AsyncProducer | None = None
        self._unfinished = 0
        self._is_closed = False

    def write(self, record: Record, error: BaseException, attempts: int) -> Future[None]:
        """Done when all in-sync replicas have the dead letter. Fails with a HeadraceError."""
        headers = letter_headers(record, error, attempts, self._group_id)
        with self._lock:
            if self._producer is None:
                self._producer = AsyncProducer(self._settings)
            producer = self._producer
            self._unfinished += 1
        try:
            loop = parts_of(producer).lifecycle.portal.loop()
            written = asyncio.run_coroutine_threadsafe(self._write(producer, record, headers), loop)
        except BaseException:
            self._ended()
            raise
        written.add_done_callback(self._ended)
        return written

    async def _write(self, producer: AsyncProducer, record: Record, headers: list[tuple[str, bytes | None]]) -> None:
        try:
            await (await producer.send(self.topic, record.raw_value, record.raw_key, headers=headers))
        except HeadraceError as failure:
            named = copy.copy(failure)  # the dead letters of a batch have the same error
            where = f"{record.topic}-{record.partition}, offset {record.offset}"
            named.args = (f"the dead letter of {where}, to {self.topic}: {failure}",)
            raise named from failure

    def _ended(self, _: Future[None] | None = None) -> None:
        with self._lock:
            self._unfinished -= 1
        self._close_if_unused()

    def close(self) -> None:
        """Does not wait. Unfinished writes continue for as long as the process runs. A handler that run() no longer
        waits for may still write a dead letter."""
        self._is_closed = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        with self._lock:
            if not self._is_closed or self._unfinished or self._producer is None:
                return
            producer, self._producer = self._producer, None
        threading.Thread(target=_close, args=(producer,), name="headrace-dead-letters", daemon=True).start()


def _close(producer: AsyncProducer) -> None:
    with contextlib.suppress(HeadraceError):  # of a write that was cancelled
        asyncio.run(producer.close())
