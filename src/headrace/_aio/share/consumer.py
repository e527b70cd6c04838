"""AsyncShareConsumer: the share consumer for asyncio programs. `ShareConsumer` has the same parts, for threads."""

from __future__ import annotations

import asyncio
import functools
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from ..._arguments import callback_of, optional_seconds_of, seconds_of, topics_in
from ..._machines.share.buffer import ShareHandover
from ...config.share import ShareConsumerConfig
from ...errors import WakeupError
from ...records import Record, Records
from ...types import AcknowledgeType
from ..lifecycle import CLOSE_TIMEOUT, THREAD_END, Held
from ..poll_signal import ITERATION_POLL
from ..run.options import Handler
from ..run.share_run import ShareProgress, ShareRunSettings
from ..run.tasks import check_coroutine, run_tasks
from .parts import AcknowledgementCallback, ShareParts
from .results import Results


class AsyncShareConsumer:
    """Processes records together with the other members of a share group (KIP-932), as from a queue.

    Members share partitions: a record is locked for the member that receives it, for `acquisition_lock_timeout()`
    seconds, and is delivered to another one unless it is acknowledged by then. Settings are Kafka's, dotted in a
    mapping or with underscores as keywords. Times are in seconds. Only `wakeup()` and `acknowledge()` may be called
    from another thread.

    A timeout of 0 or less does not wait, and `math.inf` has no limit; None, where it is the default, is
    default.api.timeout.ms. Invalid arguments raise TypeError or ValueError before anything is done.

        async with AsyncShareConsumer(bootstrap_servers="localhost:9092", group_id="mails") as consumer:
            consumer.subscribe(["mails"])
            records = await consumer.poll(1.0)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        self._parts = parts = ShareParts(ShareConsumerConfig.parse(config, **settings))
        self._guard, self._buffer = parts.guard, parts.buffer
        self._callback: Held[AcknowledgementCallback] | None = None
        self._functions = parts.callbacks.hand_over()
        parts.lifecycle.watch(self)

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribes to these topics, and to no others. The next poll() returns their records."""
        self._guard.check_change("subscribe()")
        self._buffer.subscribe(topics_in(topics))

    def subscription(self) -> set[str]:
        """The subscribed topics."""
        self._guard.check()
        return set(self._buffer.member.topics)

    async def unsubscribe(self) -> None:
        """Sends pending acknowledgements, releases all other locked records, and leaves the group."""
        self._guard.check()
        self._guard.check_end("unsubscribe()")
        parts, portal = self._parts, self._parts.lifecycle.portal
        parts.is_leaving = True
        try:
            if portal.is_open:
                await portal.wait(parts.stop_background)
                await portal.close_async(THREAD_END)
            parts.forget()
        finally:
            parts.is_leaving = False
        parts.run_callbacks()

    async def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> Records:
        """Returns the next records, at most `max.poll.records` of them, or `max_records` if given.

        Waits up to `timeout` seconds for the first record. Returns empty Records if none arrived. In implicit mode, it
        accepts the records of the previous poll. `record.delivery_count` is the number of deliveries of a record. Gaps
        in the offsets are records that other members have.

        Raises StateError in explicit mode if records of the last poll are not acknowledged (unless renew=auto);
        UnsupportedVersionError, KafkaError and other errors that ended the membership; CorruptRecordError for damaged
        records, which are rejected; WakeupError after wakeup().
        """
        return await self._poll(timeout, max_records)

    async def _poll(self, timeout: float, max_records: int | None = None, *, iterates: bool = False) -> Records:
        parts, buffer, handover = self._parts, self._buffer, ShareHandover()
        try:
            limit, deadline = parts.begin_poll(timeout, max_records, handover)
            while isinstance(records := parts.look(limit, deadline, handover), float):
                await buffer.poll_signal.wait_async(records)
            # From here to the caller nothing can interrupt it: see _machines/share/buffer.py.
            if iterates:
                parts.iterated, parts.seen = records, 0
            buffer.records_returned = handover.total or buffer.records_returned
            handover.batches, handover.is_open = (), False
            return records
        except BaseException as error:
            handover.is_open, handover.is_broken = False, True
            parts.break_off(handover)
            if isinstance(error, WakeupError):  # perhaps of a call in the callback
                self._guard.forget_wakeup()
            raise

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Yields one record after the other until the consumer is closed. In implicit mode, the records of a poll are
        accepted when the loop has processed all of them. Records that the loop did not reach are returned by the next
        poll."""
        while not self._guard.is_closed:
            await self._poll(ITERATION_POLL, iterates=True)
            for record in self._parts.one_by_one():
                yield record

    def acknowledge(self, work: Record | Records, kind: AcknowledgeType | str = AcknowledgeType.ACCEPT) -> None:
        """Acknowledges a record, or all records of a poll or of a slice of it: ACCEPT, RELEASE, REJECT or RENEW.

        The next poll() or commit() sends the acknowledgement. Until then it can be changed. May be called from any
        thread. Raises StateError in implicit mode, and for records that poll() did not return or that are already
        acknowledged; UnsupportedVersionError for RENEW with brokers before Kafka 4.2.
        """
        self._parts.acknowledge(work, kind)

    async def commit(self, *, timeout: float | None = None) -> Results:
        """Sends all acknowledgements and waits for the responses. In implicit mode, it accepts the records of the last
        poll.

        Returns for each partition None, or the error if records of it were not acknowledged and will be delivered
        again. That includes acknowledgements that were sent before this call (by polls, in the background or by run()),
        since the last commit() returned. Raises WakeupError after wakeup(); the requests continue in the background.
        """
        self._guard.check_change("commit()")
        timeout = optional_seconds_of(timeout)
        is_users = not self._guard.is_in_run
        parts, portal = self._parts, self._parts.lifecycle.portal
        parts.put_back_unseen()
        parts.run_callbacks()
        unsettled = await portal.wait(lambda: parts.commit(timeout)) if portal.is_open else set()
        results, returning = parts.results(unsettled)
        returning.is_returned = is_users  # nothing may come between this and the return
        return results

    def commit_async(self) -> None:
        """Sends all acknowledgements like commit(), but does not wait. The callback receives the results."""
        self._guard.check_change("commit_async()")
        self._parts.put_back_unseen()
        self._buffer.flush()

    def set_acknowledgement_commit_callback(self, callback: AcknowledgementCallback | None) -> None:
        """Sets the callback for results of acknowledgements: `callback(offsets, error)`, with the offsets by partition
        as ranges, and None or the broker's error. poll(), commit() and close() call it."""
        self._guard.check_change("set_acknowledgement_commit_callback()")
        chosen = callback_of("callback", callback)
        self._callback = None if chosen is None else Held(chosen)
        self._parts.callback = None if self._callback is None else weakref.ref(self._callback)

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 16,
        max_in_flight: int | None = None,
        retry_backoff: float = 0.1,
        retry_backoff_max: float = 10.0,
        timeout: float | None = None,
        drain: float = 30.0,
        on_progress: Callable[[ShareProgress], Any] | None = None,
        progress_interval: float = 5.0,
    ) -> ShareProgress:
        """Processes records until it is stopped: polls, calls `handler(record)`, acknowledges.

        ShareConsumer calls the handler on up to `concurrency` threads, AsyncShareConsumer awaits as many coroutines, in
        no particular order. At most `max_in_flight` records (default: twice `concurrency`) are waiting or in process.
        Their locks are renewed meanwhile, each for max.poll.interval.ms at most. share.acknowledgement.mode has no
        effect.

        A record is accepted when its handler returns, unless the handler returns another AcknowledgeType: REJECT for a
        record that can never be processed, or RELEASE. If the handler raises, its record is released after a pause that
        grows with the delivery count (`retry_backoff`, doubled up to `retry_backoff_max` seconds). So is the record of
        a handler that takes longer than `timeout` seconds, and at the latest max.poll.interval.ms after the poll: a
        coroutine is cancelled; a thread keeps running, but its result is ignored and another thread replaces it. More
        than `concurrency` such threads end run().

        wakeup(), SIGTERM and Ctrl-C (in the main thread, if the program does not handle them itself) and cancellation
        end it: running handlers have `drain` seconds to finish, and all other records are released. `on_progress` is
        called every `progress_interval` seconds, on the thread or in the event loop that called run().

        Raises ConfigError, StateError without subscribe(), TimeoutError for too many handlers that do not end, and
        errors of poll() that cannot be retried.
        """
        self._parts.check_free("run()")
        settings = ShareRunSettings(
            concurrency=concurrency,
            max_in_flight=max_in_flight,
            retry_backoff=retry_backoff,
            retry_backoff_max=retry_backoff_max,
            timeout=timeout,
            drain=drain,
            on_progress=on_progress,
            progress_interval=progress_interval,
        )
        check_coroutine("ShareConsumer", handler)
        self._parts.put_back_unseen()
        began = time.monotonic()
        try:
            with self._guard.running(asyncio.current_task()):
                loop_with = functools.partial(self._parts.new_run, handler, settings)
                return await run_tasks("ShareConsumer", self, loop_with)
        except BaseException:
            self._parts.broken_run_since = began
            self._parts.put_back_unseen()
            raise

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, and the records that are locked now."""
        return self._parts.metrics()

    def acquisition_lock_timeout(self) -> float | None:
        """The seconds for which a record is locked for this consumer after it was acquired or renewed. None before the
        first response of a broker."""
        self._guard.check()
        return self._buffer.planner.lock_timeout

    def wakeup(self) -> None:
        """Makes the waiting call, or else the next poll(), raise WakeupError. May be called from any thread."""
        self._parts.lifecycle.wakeup()

    async def close(self, *, timeout: float = CLOSE_TIMEOUT) -> None:
        """Sends pending acknowledgements, releases all other locked records, leaves the group and ends the consumer's
        thread, within `timeout` seconds. In implicit mode, the records of the last poll are released, too: call
        commit() before, to accept them."""
        timeout = seconds_of(timeout)
        parts, lifecycle = self._parts, self._parts.lifecycle
        if self._guard.is_forked:
            lifecycle.shut()
            return
        self._guard.check_end("close()")
        deadline = time.monotonic() + timeout
        try:
            if lifecycle.portal.is_open:
                await lifecycle.portal.wait(lambda: lifecycle.close(lambda: parts.end_tasks(deadline)))
        finally:
            await lifecycle.portal.close_async(THREAD_END, lifecycle.shut())
        parts.run_last_callbacks()

    async def __aenter__(self) -> Self:
        self._guard.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def parts_of(consumer: AsyncShareConsumer) -> ShareParts:
    """The internal interface, for `ShareConsumer`."""
    return consumer._parts
