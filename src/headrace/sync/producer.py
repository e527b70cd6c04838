"""Producer: the producer for programs without asyncio. It has the same parts as AsyncProducer."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from .._aio.flag import SHORT_SLEEP, Flag
from .._aio.lifecycle import THREAD_END
from .._aio.produce.arguments import headers_of, timestamp_of
from .._aio.produce.bulk import Deliveries, arguments_of
from .._aio.produce.columns import BlockingCall, FlagWait, send_columns
from .._aio.produce.parts import SendAttempt
from .._aio.produce.producer import AsyncProducer, Bytes, Headers, parts_of
from .._arguments import optional_seconds_of, partition_number_of, topic_of
from .._format import Format
from .._record_batch import Delivery
from ..errors import HeadraceError, ProducerFencedError, RequestTimeoutError
from ..types import GroupMetadata, OffsetAndMetadata, PartitionInfo, ProducerRecord, TopicPartition
from .threaded import documented_as


class Producer:
    """Writes records to topics.

    Settings are Kafka's, dotted in a mapping or with underscores as keywords. A record is bytes or text (which is sent
    as UTF-8). Records are collected into batches and sent in the background; the delivery that `send` returns has the
    partition and offset of the record. With the defaults (acks=all, enable.idempotence=true), each record is written
    once and in the order of `send` within its partition, even if brokers or connections fail.

    Any thread may use a producer. Times are in seconds. Invalid arguments raise TypeError or ValueError before anything
    is done.

        with Producer(bootstrap_servers="localhost:9092") as producer:
            delivery = producer.send("orders", b"1 book", key="customer 7")
            print(delivery.result().offset)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        self._aio = AsyncProducer(config, **settings)
        self._parts = parts_of(self._aio)
        self._open = self._parts.open
        self._parts.lifecycle.owner_name = type(self).__name__

    def send(
        self,
        topic: str,
        value: Bytes | None,
        key: Bytes | None = None,
        *,
        headers: Headers | None = None,
        timestamp: int | datetime.datetime | None = None,
        partition: int | None = None,
    ) -> Delivery:
        if headers is not None:
            headers = headers_of(headers)
        if timestamp is not None:
            timestamp = timestamp_of(timestamp)
        if partition is not None:
            partition = partition_number_of(partition)
        open_batches = self._open.get(topic)
        if open_batches is not None:
            delivery = open_batches.append(value, key, headers, timestamp, partition)
            if delivery is not None:
                return delivery
        return self._wait(self._parts.attempt(topic, value, key, headers, timestamp, partition))

    def _send_within(self, record: ProducerRecord, *, timeout: float) -> Delivery:
        return self._wait(self._parts.attempt_of(record, timeout))

    def _wait(self, attempt: SendAttempt) -> Delivery:
        try:
            while isinstance(found := attempt.step(), Flag):
                while not found.wait(min(SHORT_SLEEP, attempt.seconds_left)):
                    attempt.check_time()
        except BaseException as error:
            attempt.failed(error)
            raise
        return found

    def send_all(self, topic: str, rows: Iterable[Bytes | dict[str, Any] | None]) -> Deliveries:
        deliveries = Deliveries(self._parts.accumulator.waiting)
        for number, row in enumerate(rows):
            try:
                if isinstance(row, dict):
                    deliveries.add(self.send(topic, **arguments_of(row)))
                else:
                    deliveries.add(self.send(topic, row))
            except Exception as error:
                error.add_note(f"row {number} of send_all(); those before it were sent")
                raise
        return deliveries

    def send_arrow(
        self, topic: str | None, data: object, *, value: Format | None = None, key: Format | None = None
    ) -> Deliveries:
        deliveries = Deliveries(self._parts.accumulator.waiting)
        steps = send_columns(self._parts, topic, data, value, key, deliveries)
        with contextlib.suppress(StopIteration):
            step = next(steps)
            while True:
                try:
                    found = _performed(step)
                except BaseException as error:  # noqa: BLE001 - throw() raises it, after the span of the call has got it
                    step = steps.throw(error)
                else:
                    step = steps.send(found)
        return deliveries

    def flush(self, *, timeout: float | None = None) -> None:
        seconds = optional_seconds_of(timeout)
        self._parts.guard.check()
        self._flush(seconds)
        self._parts.raise_unseen()

    def _flush(self, seconds: float | None) -> None:
        accumulator = self._parts.accumulator
        flush = object()
        try:
            batches = accumulator.begin_flush(flush)
            accumulator.waiting.wait_for(batches, seconds)
        except TimeoutError:
            raise self._parts.flush_timeout(seconds) from self._parts.last_error()
        finally:
            accumulator.end_flush(flush)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Self]:
        """Begins a transaction and commits it at the end of the `with` block. Aborts it if the block raises, or if the
        commit fails with an error after which an abort is possible. Consumers with isolation.level=read_committed see
        all of its records, or none.

            with producer.transaction():
                producer.send("orders", b"1 book")
                producer.send_offsets({("baskets", 0): 8}, consumer.group_metadata())
        """
        self.begin()
        try:
            yield self
            self.commit()
        except ProducerFencedError:
            raise
        except RequestTimeoutError as error:
            if not self._parts.is_committing:
                self._abort_after(error)
            raise
        except BaseException as error:
            self._abort_after(error)
            raise

    def _abort_after(self, error: BaseException) -> None:
        try:
            if self._parts.can_abort:
                self.abort()
        except HeadraceError as second:
            error.add_note(f"The transaction could not be aborted: {second}")

    def init_transactions(self, *, timeout: float | None = None) -> None:
        self._in_transaction("init_transactions", timeout)

    def begin(self, *, timeout: float | None = None) -> None:
        self._in_transaction("begin", timeout)

    def commit(self, *, timeout: float | None = None) -> None:
        self._in_transaction("commit", timeout)

    def abort(self, *, timeout: float | None = None) -> None:
        self._in_transaction("abort", timeout)

    def _settle(self, *, timeout: float | None = None) -> None:
        self._in_transaction("settle", timeout)

    def _in_transaction(self, step: str, timeout: float | None) -> None:
        call = self._parts.transaction_call(step, optional_seconds_of(timeout))
        self._parts.lifecycle.portal.run(call)

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group: GroupMetadata,
        *,
        timeout: float | None = None,
    ) -> None:
        call = self._parts.send_offsets_call(offsets, group, optional_seconds_of(timeout))
        self._parts.lifecycle.portal.run(call)

    def partitions_for_topic(self, topic: str, *, timeout: float | None = None) -> list[PartitionInfo]:
        parts = self._parts
        parts.guard.check()
        topic, seconds = topic_of(topic), optional_seconds_of(timeout)
        return parts.lifecycle.portal.run(lambda: parts.partitions_for_topic(topic, seconds))

    def metrics(self) -> dict[str, Any]:
        return self._parts.metrics()

    def close(self, *, timeout: float | None = None) -> None:
        seconds = optional_seconds_of(timeout)
        parts, lifecycle = self._parts, self._parts.lifecycle
        if parts.guard.is_forked:
            lifecycle.shut()
            return
        parts.guard.check_end_of_producer()
        parts.begin_close()
        try:
            if parts.needs_abort:
                lifecycle.portal.run(lambda: parts.abort_open(seconds))
            elif parts.is_aborting:
                lifecycle.portal.run(lambda: parts.end_abort(seconds))
            if not parts.is_aborting:
                with contextlib.suppress(TimeoutError):
                    self._flush(seconds)
        finally:
            try:
                if lifecycle.portal.is_open:
                    lifecycle.portal.run(lambda: lifecycle.close(parts.end_tasks))
            finally:
                lifecycle.portal.close(THREAD_END, lifecycle.shut())
        parts.raise_unseen()

    def __enter__(self) -> Self:
        self._parts.guard.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except HeadraceError:  # it was logged, and must not hide the user's own error
            if error is None:
                raise


def _performed(step: FlagWait | BlockingCall) -> Any:
    if isinstance(step, BlockingCall):
        return step.function()
    while not step.flag.wait(max(0.0, min(SHORT_SLEEP, step.deadline - time.monotonic()))):
        if time.monotonic() >= step.deadline:
            raise step.error()
    return None


documented_as(AsyncProducer, Producer)
