"""The parts of a producer that `Producer` and `AsyncProducer` have in common."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from ..._arguments import commits_in, short_repr, topic_of
from ..._machines.produce.open_transaction import OpenTransaction
from ..._machines.produce.transaction_states import TransactionState
from ..._record_batch import Delivery, OpenBatches
from ...config.producer import ProducerConfig
from ...errors import ClosedError, ConfigError, HeadraceError, RequestTimeoutError
from ...types import GroupMetadata, PartitionInfo, ProducerRecord
from .. import telemetry
from ..callbacks import Callbacks
from ..clients import add
from ..flag import Flag
from ..lifecycle import Lifecycle
from ..poll_signal import PollSignal
from .accumulator import Accumulator
from .arguments import headers_of, timestamp_of
from .runtime import ProducerRuntime
from .transactions import Transactions

log = logging.getLogger(__name__)

_LAST_ABORT = 3.0  # seconds
_DROPPED = 5.0  # seconds
_UNCLOSED = f"its records that are not delivered within {_DROPPED:.0f} s are lost"


class ProducerParts:
    def __init__(self, config: ProducerConfig) -> None:
        self.config = config
        self.accumulator = accumulator = Accumulator(config)
        self.callbacks = Callbacks(self._stats, config.on_stats, config.statistics_interval_ms / 1000)
        config.forget_functions()
        self.lifecycle: Lifecycle[ProducerRuntime] = Lifecycle(
            PollSignal(),
            lambda: ProducerRuntime(config, accumulator),
            role="producer",
            unclosed=_UNCLOSED,
            callbacks=self.callbacks,
        )
        self.lifecycle.end_dropped = self.end_dropped
        self.guard = self.lifecycle.guard
        # send() uses `open` without any check. In a forked child it is empty, and the guard rejects the call.
        forget_after_fork(accumulator)
        self.name = add(self, "producer")
        self.open: Mapping[str, OpenBatches] = accumulator.open
        """Where `send` appends records without any check."""
        self.telemetry: telemetry.ProducerTelemetry | None = None
        if telemetry.installed is not None:
            self.telemetry = found = telemetry.installed.for_producer(config)
            accumulator.watch = found.watch
            if found.traces_records:
                self.open = {}  # so that each record takes the path of `attempt`

    def attempt(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: list[tuple[str, Any]] | None,
        timestamp: int | None,
        partition: int | None,
        timeout: float | None = None,
    ) -> SendAttempt:
        """The slow path for a record that does not fit into an open batch. `timeout` replaces max.block.ms."""
        self.guard.check()
        topic_of(topic, "topic")
        self.lifecycle.start()
        if self.telemetry is None or not self.telemetry.traces_records:
            return SendAttempt(self, (topic, value, key, headers, timestamp, partition), timeout)
        sent = self.telemetry.send(topic, value, headers)
        return TracedSendAttempt(sent, self, (topic, value, key, sent.headers, timestamp, partition), timeout)

    def attempt_of(self, record: ProducerRecord, timeout: float) -> SendAttempt:
        headers = None if record.headers is None else headers_of(record.headers)
        timestamp = None if record.timestamp is None else timestamp_of(record.timestamp)
        return self.attempt(record.topic, record.value, record.key, headers, timestamp, record.partition, timeout)

    # -- transactions ----------------------------------------------------------------------------------------------

    def transaction_call(self, step: str, timeout: float | None) -> Callable[[], Coroutine[Any, Any, None]]:
        """One of `init_transactions`, `begin`, `commit`, `abort` and `settle`, for the producer's thread."""
        seconds = self.config.max_block_ms / 1000 if timeout is None else timeout
        method = getattr(self._transactions(f"{step}()"), step)
        return lambda: method(seconds)

    def send_offsets_call(
        self, offsets: Any, group: Any, timeout: float | None
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        if not isinstance(group, GroupMetadata):
            raise TypeError(f"group must be a consumer's group_metadata(), not {short_repr(group)}")
        seconds = self.config.max_block_ms / 1000 if timeout is None else timeout
        commits = commits_in(offsets) or {}
        transactions = self._transactions("send_offsets()")
        return lambda: transactions.send_offsets(commits, group, seconds)

    @property
    def has_stray_init(self) -> bool:
        """Whether a lost InitProducerId may still arrive, and abort the transaction."""
        return self._transactions("begin()").machine.has_stray_init

    def hand_over_call(self) -> Callable[[], Coroutine[Any, Any, OpenTransaction | None]]:
        return self._transactions("hand_over()").hand_over

    def _transactions(self, call: str) -> Transactions:
        self.guard.check_transaction(call)
        if self.config.transactional_id is None:
            raise ConfigError(f"{call} needs a transactional.id")
        transactions = self.lifecycle.start().sender.transactions
        assert transactions is not None
        return transactions

    def _state(self) -> TransactionState | None:
        runtime = self.lifecycle.runtime
        return None if runtime is None or not runtime.sender.transactions else runtime.sender.transactions.machine.state

    @property
    def is_committing(self) -> bool:
        return self._state() is TransactionState.COMMITTING

    @property
    def can_abort(self) -> bool:
        return self._state() in (TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR)

    @property
    def needs_abort(self) -> bool:
        """Whether close() must abort a transaction, since readers would wait for its timeout."""
        runtime = self.lifecycle.runtime
        return (
            runtime is not None
            and runtime.sender.transactions is not None
            and runtime.sender.transactions.machine.needs_abort
        )

    async def abort_open(self, timeout: float | None) -> None:
        runtime = self.lifecycle.runtime
        if runtime is not None and runtime.sender.transactions is not None:
            seconds = self.config.max_block_ms / 1000 if timeout is None else timeout
            await runtime.sender.transactions.abort_open(seconds)

    @property
    def is_aborting(self) -> bool:
        """Whether an abort() has timed out. Nobody will see the records of its transaction, so close() does not wait
        for their deliveries."""
        return self._state() is TransactionState.ABORTING

    async def end_abort(self, timeout: float | None) -> None:
        """Gives an abort() that has timed out a little more time."""
        runtime = self.lifecycle.runtime
        if runtime is not None and runtime.sender.transactions is not None:
            with contextlib.suppress(HeadraceError):
                await runtime.sender.transactions.settle(_LAST_ABORT if timeout is None else min(timeout, _LAST_ABORT))

    # -- flush and the end -----------------------------------------------------------------------------------------

    def raise_unseen(self) -> None:
        """Raises the error of records that were not delivered, unless their deliveries were checked already."""
        errors = self.accumulator.waiting.take_unseen()
        if errors:
            raise errors[0].with_traceback(None)

    def flush_timeout(self, seconds: float | None) -> RequestTimeoutError:
        count = sum(len(batch) for batch in self.accumulator.not_done())
        cause = self.last_error() or self.accumulator.silence()
        return RequestTimeoutError(
            f"{count} records are not delivered within {seconds} s ({cause}): the producer keeps trying"
        )

    def last_error(self) -> HeadraceError | None:
        """The last error of a partition whose records are not delivered yet: why a flush takes so long. From any
        thread."""
        runtime = self.lifecycle.runtime
        if runtime is None:
            return None
        waiting = {(batch.topic, batch.partition) for batch in self.accumulator.not_done()}
        return next((it.last_error for it in runtime.sender.queues if it.last_error and it.tp in waiting), None)

    def begin_close(self) -> None:
        self.accumulator.refuse(lambda: ClosedError("this producer is closed"))

    async def flush(self, seconds: float | None) -> None:
        """Raises TimeoutError. Records that have failed are no error."""
        accumulator = self.accumulator
        flush = object()
        try:
            batches = accumulator.begin_flush(flush)
            async with asyncio.timeout(seconds):
                await accumulator.waiting.wait_for_async(batches)
        finally:
            accumulator.end_flush(flush)

    async def end_dropped(self) -> None:
        """The producer was dropped without close(): its records are delivered nevertheless, if brokers accept them now,
        and its transaction is aborted, since readers would wait for its timeout. On the producer's thread."""
        self.begin_close()
        try:
            if self.needs_abort:
                await self.abort_open(_DROPPED)
            with contextlib.suppress(TimeoutError):
                await self.flush(_DROPPED)
            if count := sum(map(len, self.accumulator.not_done())):
                log.warning(
                    "an unclosed producer was dropped, and %d of its records were not delivered within %.0f s: they "
                    "are lost. Call flush() or close() before",
                    count,
                    _DROPPED,
                )
        finally:
            await self.end_tasks()

    async def end_tasks(self) -> None:
        """On the producer's thread."""
        runtime = self.lifecycle.detach_runtime()
        if runtime is not None:
            await runtime.close()

    # -- questions -------------------------------------------------------------------------------------------------

    async def partitions_for_topic(self, topic: str, timeout: float | None) -> list[PartitionInfo]:
        """On the producer's thread."""
        seconds = self.config.default_api_timeout_ms / 1000 if timeout is None else timeout
        client = self.lifecycle.start().client
        found = await client.retries.run(
            "partitions_for_topic", time.monotonic() + seconds, lambda: client.describe_topics([topic])
        )
        return list(found.get(topic, []))

    def _stats(self) -> dict[str, Any]:
        """For on_stats, which ends with close()."""
        self.guard.check()
        return self.metrics()

    def metrics(self) -> dict[str, Any]:
        accumulator, runtime = self.accumulator, self.lifecycle.runtime
        counts = accumulator.counts.read()
        return {
            "role": self.config.role,
            "client_id": self.config.client_id,
            "records_delivered": counts.records_delivered,
            "records_failed": accumulator.records_failed,
            "requests": counts.requests,
            "retries": counts.retries,
            "bytes_sent": counts.bytes_sent,
            "batches_pending": len(accumulator.not_done()),
            "buffered_bytes": accumulator.memory.used,
            "buffer_memory": accumulator.memory.limit,
            "connections": runtime.client.connection_count if runtime else 0,
        }


class SendAttempt:
    """One record that waits for metadata or memory, for at most `timeout` seconds (None: max.block.ms)."""

    def __init__(
        self,
        parts: ProducerParts,
        record: tuple[str, Any, Any, Any, int | None, int | None],
        timeout: float | None,
    ) -> None:
        self._accumulator = parts.accumulator
        self._record = record
        self._timeout = timeout
        self._since = self._accumulator.metadata_version
        self._deadline = time.monotonic() + (parts.config.max_block_ms / 1000 if timeout is None else timeout)

    def step(self) -> Delivery | Flag:
        """The delivery, or a flag to wait for before the next step."""
        return self._accumulator.append(*self._record, self._since)

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def check_time(self) -> None:
        if not self.seconds_left:
            topic, *_, partition = self._record
            raise self._accumulator.timeout_error(topic, partition, self._timeout)

    def failed(self, error: BaseException) -> None:
        """send() raises this: its time is up, the record is refused, or the caller was cancelled or interrupted."""


class TracedSendAttempt(SendAttempt):
    """Reports what becomes of the attempt."""

    def __init__(self, sent: telemetry.SentRecord, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sent = sent
        self._is_accepted = False

    def step(self) -> Delivery | Flag:
        found = super().step()
        if not isinstance(found, Flag):
            self._is_accepted = True
            self._sent.accepted(found)
        return found

    def failed(self, error: BaseException) -> None:
        if not self._is_accepted:  # an interrupt may come between the last step and the end of send()
            self._sent.rejected(error)


_forgetful: weakref.WeakSet[Accumulator] = weakref.WeakSet()


def forget_after_fork(accumulator: Accumulator) -> None:
    _forgetful.add(accumulator)


def _forget() -> None:
    for accumulator in list(_forgetful):
        accumulator.open.clear()


os.register_at_fork(after_in_child=_forget)
