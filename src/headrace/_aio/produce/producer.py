"""AsyncProducer: the producer for asyncio programs. `Producer` has the same parts, for threads."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from ..._arguments import optional_seconds_of, topic_of
from ..._record_batch import Delivery
from ...config.producer import ProducerConfig
from ...errors import HeadraceError
from ...types import PartitionInfo
from ..flag import Flag
from ..lifecycle import THREAD_END
from .arguments import headers_of, timestamp_of
from .parts import ProducerParts

Bytes = bytes | bytearray | memoryview | str
Headers = Mapping[str, Bytes | None] | Iterable[tuple[str, Bytes | None]]


class AsyncProducer:
    """Writes records to topics.

    Settings are Kafka's, dotted in a mapping or with underscores as keywords. A record is bytes or text (which is sent
    as UTF-8). Records are collected into batches and sent in the background; the delivery that `send` returns tells
    where a record was written. With the defaults (acks=all, enable.idempotence=true) a record is written once, and the
    records of a partition in the order of `send`, whatever brokers and connections do.

    Any task may use a producer. Times are in seconds. Invalid arguments raise TypeError or ValueError before anything
    is done.

        async with AsyncProducer(bootstrap_servers="localhost:9092") as producer:
            delivery = await producer.send("orders", b"1 book", key="customer 7")
            print((await delivery).offset)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        self._parts = parts = ProducerParts(ProducerConfig.parse(config, **settings))
        self._open = parts.accumulator.open
        parts.lifecycle.watch(self)

    async def send(
        self,
        topic: str,
        value: Bytes | None,
        key: Bytes | None = None,
        *,
        headers: Headers | None = None,
        timestamp: int | datetime.datetime | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Adds a record to the next batch of its partition, and returns its delivery.

        The partition is the given one, or chosen by the key, or else (`partitioner`) one that changes from batch to
        batch. `timestamp` is in milliseconds since 1970, or a datetime; now, if not given. Waits up to `max.block.ms`
        for metadata of the topic, and for room if `buffer.memory` is full.

        Raises RequestTimeoutError after that time, RecordTooLargeError, AuthorizationError, ConfigError if there is no
        such partition, ClosedError. Then the record was not sent. What the brokers say comes with the delivery.
        """
        if headers is not None:
            headers = headers_of(headers)
        if timestamp is not None:
            timestamp = timestamp_of(timestamp)
        open_batches = self._open.get(topic)
        if open_batches is not None:
            delivery = open_batches.append(value, key, headers, timestamp, partition)
            if delivery is not None:
                return delivery
        attempt = self._parts.attempt(topic, value, key, headers, timestamp, partition)
        while isinstance(found := attempt.step(), Flag):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(attempt.seconds_left):
                    await found.wait_async()
            attempt.check_time()
        return found

    async def flush(self, *, timeout: float | None = None) -> None:
        """Sends all batches now, and waits until every record that was sent before is delivered or has failed.

        Raises RequestTimeoutError after `timeout` seconds (None: all deliveries end after delivery.timeout.ms), and the
        error of a record that was not delivered, unless its delivery was asked for already.
        """
        seconds = optional_seconds_of(timeout)
        self._parts.guard.check()
        await self._flush(seconds)
        self._parts.raise_unseen()

    async def _flush(self, seconds: float | None) -> None:
        accumulator = self._parts.accumulator
        batches = accumulator.begin_flush()
        try:
            async with asyncio.timeout(seconds):
                await accumulator.waiting.wait_for_async(batches)
        except TimeoutError:
            raise self._parts.flush_timeout(seconds) from None
        finally:
            accumulator.end_flush()

    async def partitions_for_topic(self, topic: str, *, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions of a topic, from a broker. Empty if there is no such topic."""
        parts = self._parts
        parts.guard.check()
        topic, seconds = topic_of(topic), optional_seconds_of(timeout)
        parts.lifecycle.start()
        return await parts.lifecycle.portal.wait(lambda: parts.partitions_for_topic(topic, seconds))

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, and the memory that waiting records take."""
        return self._parts.metrics()

    async def close(self, *, timeout: float | None = None) -> None:
        """Sends what is left, waits until it is delivered, for up to `timeout` seconds (None: delivery.timeout.ms), and
        ends the producer's thread. Records that are not delivered by then have failed.

        Raises the error of a record that was not delivered, unless its delivery was asked for already.
        """
        seconds = optional_seconds_of(timeout)
        parts, lifecycle = self._parts, self._parts.lifecycle
        if parts.guard.is_forked:
            lifecycle.shut()
            return
        parts.begin_close()
        try:
            with contextlib.suppress(TimeoutError):
                await self._flush(seconds)
        finally:
            try:
                if lifecycle.portal.is_open:
                    await lifecycle.portal.wait(lambda: lifecycle.close(parts.end_tasks))
            finally:
                await lifecycle.portal.close_async(THREAD_END, lifecycle.shut())
        parts.raise_unseen()

    async def __aenter__(self) -> Self:
        self._parts.guard.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except HeadraceError:  # it was logged, and must not hide the user's own error
            if error is None:
                raise


def parts_of(producer: AsyncProducer) -> ProducerParts:
    """The internal interface, for `Producer`."""
    return producer._parts
