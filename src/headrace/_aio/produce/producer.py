"""AsyncProducer: the producer for asyncio programs. `Producer` has the same parts, for threads."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from ..._arguments import optional_seconds_of, partition_number_of, short_repr, topic_of
from ..._format import Format
from ..._record_batch import Delivery
from ...config.producer import ProducerConfig
from ...errors import ConfigError, HeadraceError, ProducerFencedError, RequestTimeoutError
from ...types import GroupMetadata, OffsetAndMetadata, PartitionInfo, ProducerRecord, TopicPartition
from ..call_guard import CallGuard
from ..flag import Flag
from ..lifecycle import THREAD_END
from .arguments import headers_of, timestamp_of
from .bulk import Deliveries, arguments_of
from .columns import BlockingCall, FlagWait, is_in_memory, send_columns
from .parts import ProducerParts, SendAttempt

Bytes = bytes | bytearray | memoryview | str
Headers = Mapping[str, Bytes | None] | Iterable[tuple[str, Bytes | None]]


class AsyncProducer:
    """Writes records to topics.

    Settings are Kafka's, dotted in a mapping or with underscores as keywords. A record is bytes or text (which is sent
    as UTF-8). Records are collected into batches and sent in the background; the delivery that `send` returns has the
    partition and offset of the record. With the defaults (acks=all, enable.idempotence=true), each record is written
    once and in the order of `send` within its partition, even if brokers or connections fail.

    Any task may use a producer. Times are in seconds. Invalid arguments raise TypeError or ValueError before anything
    is done.

        async with AsyncProducer(bootstrap_servers="localhost:9092") as producer:
            delivery = await producer.send("orders", b"1 book", key="customer 7")
            print((await delivery).offset)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        self._parts = parts = ProducerParts(ProducerConfig.parse(config, **settings))
        self._open = parts.open
        self._functions = parts.callbacks.hand_over()
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
        for metadata of the topic, and for memory if `buffer.memory` is full.

        Raises RequestTimeoutError after that time, RecordTooLargeError, AuthorizationError, ConfigError if there is no
        such partition, ClosedError. Then the record was not sent. Errors of brokers are raised by the delivery.
        """
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
        return await self._wait(self._parts.attempt(topic, value, key, headers, timestamp, partition))

    async def _send_within(self, record: ProducerRecord, *, timeout: float) -> Delivery:
        """`send`, with a timeout that replaces max.block.ms. After a RequestTimeoutError the record was not sent."""
        return await self._wait(self._parts.attempt_of(record, timeout))

    async def _wait(self, attempt: SendAttempt) -> Delivery:
        try:
            while isinstance(found := attempt.step(), Flag):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(attempt.seconds_left):
                        await found.wait_async()
                attempt.check_time()
        except BaseException as error:
            attempt.failed(error)
            raise
        return found

    async def send_all(self, topic: str, rows: Iterable[Bytes | dict[str, Any] | None]) -> Deliveries:
        """Sends many records. A row is a value, or a dictionary with the arguments of `send`: value, key, headers,
        timestamp, partition. If a row cannot be sent, its error is raised, and the rows before it were sent."""
        deliveries = Deliveries(self._parts.accumulator.waiting)
        for number, row in enumerate(rows):
            try:
                if isinstance(row, dict):
                    deliveries.add(await self.send(topic, **arguments_of(row)))
                else:
                    deliveries.add(await self.send(topic, row))
            except Exception as error:
                error.add_note(f"row {number} of send_all(); those before it were sent")
                raise
        return deliveries

    async def send_arrow(
        self, topic: str | None, data: object, *, value: Format | None = None, key: Format | None = None
    ) -> Deliveries:
        """Sends a table: anything with Arrow data (pyarrow, polars, DuckDB, `Records` of a poll).

        Columns are `value`, and any of `key`, `headers`, `timestamp`, `partition` and `topic`. The column `topic`
        counts if the argument is None, for tables with records of several topics. Batches are made of columns natively,
        without Python objects for records. A row that cannot be sent raises ValueError or RecordTooLargeError; the rows
        before it were sent.

        `value` and `key` are formats (`headrace.formats`) that encode the columns `value` and `key`. Without a column
        `value`, all columns that are not those of a record are the fields of the value. A row that cannot be encoded
        raises RecordEncodeError; rows of the Arrow batches before it were sent.
        """
        deliveries = Deliveries(self._parts.accumulator.waiting)
        is_short = is_in_memory(data, value, key)
        steps = send_columns(self._parts, topic, data, value, key, deliveries)
        with contextlib.suppress(StopIteration):
            step = next(steps)
            while True:
                try:
                    found = await _performed(step, is_short=is_short)
                except BaseException as error:  # noqa: BLE001 - throw() raises it, after the span of the call has got it
                    step = steps.throw(error)
                else:
                    step = steps.send(found)
        return deliveries

    async def flush(self, *, timeout: float | None = None) -> None:
        """Sends all batches now, and waits until every record that was sent before is delivered or has failed.

        Raises RequestTimeoutError after `timeout` seconds (None: all deliveries end after delivery.timeout.ms), and the
        error of a record that was not delivered, unless its delivery was checked already.
        """
        seconds = optional_seconds_of(timeout)
        self._parts.guard.check()
        await self._flush(seconds)
        self._parts.raise_unseen()

    async def _flush(self, seconds: float | None) -> None:
        try:
            await self._parts.flush(seconds)
        except TimeoutError:
            raise self._parts.flush_timeout(seconds) from self._parts.last_error()

    # -- transactions ------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Begins a transaction and commits it at the end of the `async with` block. Aborts it if the block raises, or
        if the commit fails with an error after which an abort is possible. Consumers with
        isolation.level=read_committed see all of its records, or none.

            async with producer.transaction():
                await producer.send("orders", b"1 book")
                await producer.send_offsets({("baskets", 0): 8}, consumer.group_metadata())
        """
        await self.begin()
        try:
            yield self
            await self.commit()
        except ProducerFencedError:
            raise
        except RequestTimeoutError as error:
            if not self._parts.is_committing:
                await self._abort_after(error)
            raise
        except BaseException as error:
            await self._abort_after(error)
            raise

    async def _abort_after(self, error: BaseException) -> None:
        try:
            if self._parts.can_abort:
                await self.abort()
        except HeadraceError as second:
            error.add_note(f"The transaction could not be aborted: {second}")

    async def init_transactions(self, *, timeout: float | None = None) -> None:
        """Fences every older producer with this `transactional.id`, and aborts its open transaction.

        The first `begin()` does this if it was not called. A program that begins transactions when it has received
        records calls it before it polls: if its predecessor was killed with offsets in an open transaction, a consumer
        gets no records of these partitions until the transaction is aborted, or has reached its timeout.
        """
        await self._in_transaction("init_transactions", timeout)

    async def begin(self, *, timeout: float | None = None) -> None:
        """Begins a transaction. Needs a `transactional.id`. The first transaction of a producer fences every older
        producer with that id, and aborts its open transaction, unless `init_transactions()` has done that.

        Each of `init_transactions`, `begin`, `commit` and `abort` raises RequestTimeoutError after `timeout` seconds
        (None: max.block.ms): then call the same again, because it may have succeeded. TransactionAbortableError: call
        abort(), then the transaction can be repeated. TransactionFatalError and ProducerFencedError: the producer can
        only be closed.
        """
        await self._in_transaction("begin", timeout)

    async def commit(self, *, timeout: float | None = None) -> None:
        """Sends the remaining records of the transaction, waits until they are delivered, and commits it."""
        await self._in_transaction("commit", timeout)

    async def abort(self, *, timeout: float | None = None) -> None:
        """Aborts the transaction. Unsent records are dropped, and their deliveries fail."""
        await self._in_transaction("abort", timeout)

    async def _settle(self, *, timeout: float | None = None) -> None:
        """For run(): waits for the end of a commit() or abort() that has not returned, because it timed out."""
        await self._in_transaction("settle", timeout)

    async def _in_transaction(self, step: str, timeout: float | None) -> None:
        call = self._parts.transaction_call(step, optional_seconds_of(timeout))
        await self._parts.lifecycle.portal.wait(call)

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group: GroupMetadata,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commits a consumer's offsets (the next ones to consume) with the transaction. `group` is the consumer's
        `group_metadata()`: if the consumer has lost its partitions to another member, the transaction fails."""
        call = self._parts.send_offsets_call(offsets, group, optional_seconds_of(timeout))
        await self._parts.lifecycle.portal.wait(call)

    # -- queries and close --------------------------------------------------------------------------------------

    async def partitions_for_topic(self, topic: str, *, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions of a topic, requested from a broker. Empty if the topic does not exist."""
        parts = self._parts
        parts.guard.check()
        topic, seconds = topic_of(topic), optional_seconds_of(timeout)
        parts.lifecycle.start()
        return await parts.lifecycle.portal.wait(lambda: parts.partitions_for_topic(topic, seconds))

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, and the memory of buffered records."""
        return self._parts.metrics()

    async def close(self, *, timeout: float | None = None) -> None:
        """Sends the remaining records, waits up to `timeout` seconds (None: delivery.timeout.ms) until they are
        delivered, and ends the producer's thread. Records that are not delivered by then fail. Aborts an open
        transaction; if abort() has timed out before, it waits for a few seconds at most.

        Raises the error of a record that was not delivered, unless its delivery was checked already.
        """
        seconds = optional_seconds_of(timeout)
        parts, lifecycle = self._parts, self._parts.lifecycle
        if parts.guard.is_forked:
            lifecycle.shut()
            return
        parts.guard.check_end_of_producer()
        parts.begin_close()
        try:
            if parts.needs_abort:
                await lifecycle.portal.wait(lambda: parts.abort_open(seconds))
            elif parts.is_aborting:
                await lifecycle.portal.wait(lambda: parts.end_abort(seconds))
            if not parts.is_aborting:
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


async def _performed(step: FlagWait | BlockingCall, *, is_short: bool) -> Any:
    """What blocks for long is done in a thread."""
    if isinstance(step, BlockingCall):
        return step.function() if is_short else await asyncio.to_thread(step.function)
    try:
        async with asyncio.timeout(max(0.0, step.deadline - time.monotonic())):
            await step.flag.wait_async()
    except TimeoutError:
        raise step.error() from None
    return None


def lent_to_run(producer: Any, consumer: CallGuard) -> contextlib.AbstractContextManager[None]:
    """Around the run() of a consumer with this producer, or None."""
    return contextlib.nullcontext() if producer is None else producer._parts.guard.lent_to(consumer)


def check_transactional(producer: object, kind: type[Any]) -> None:
    """For `run(producer=…)`. Raises TypeError, and ConfigError without a transactional.id."""
    if not isinstance(producer, kind):
        raise TypeError(f"producer must be a {kind.__name__}, not {short_repr(producer)}")
    if producer._parts.config.transactional_id is None:
        raise ConfigError("run(producer=…) needs a producer with a transactional.id")
