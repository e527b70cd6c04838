"""AsyncConsumer: the consumer for asyncio programs. A facade: `parts.py` says what it consists of."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .._arguments import SomePartitions, callback_of, commits_in, optional_seconds_of, seconds_of
from ..config.consumer import ConsumerConfig
from ..errors import CommitFailedError, ConcurrentUseError, ForkedError
from ..listener import RebalanceListener
from ..records import Record, Records
from ..types import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, PartitionInfo, TopicPartition, Watermarks
from .callbacks import call_to_the_end
from .commit.committer import CommitCallback
from .group.steps import perform
from .lifecycle import CLOSE_TIMEOUT, THREAD_END
from .parts import ConsumerParts
from .poll_loop import Wait
from .poll_signal import ITERATION_POLL

if TYPE_CHECKING:  # run() imports them: a twentieth of the time that this module takes to import
    from .produce.producer import AsyncProducer
    from .run.options import DeadLetter, Handler, Progress


class AsyncConsumer:
    """Reads Kafka topics, as a member of a group (`subscribe`) or by itself (`assign`).

    Settings are Kafka's, dotted in a mapping or with underscores as keywords. Times are in seconds, timestamps
    in milliseconds, as in Kafka. Only `wakeup()` and `done()` may be called from another thread; only one task may be
    in `poll()`.

    A timeout of 0 or less does not wait, and `math.inf` has no limit; None, where it is the default, is
    default.api.timeout.ms. Invalid arguments raise TypeError or ValueError before anything is done.

        async with AsyncConsumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
            consumer.subscribe(["orders"])
            records = await consumer.poll(1.0)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        self._parts = parts = ConsumerParts(ConsumerConfig.parse(config, **settings))
        self._guard, self._buffer, self._group = parts.guard, parts.buffer, parts.group  # for poll(): fewer lookups
        self._poll_loop = parts.poll_loop
        self._listeners: tuple[RebalanceListener | None, ...] = ()
        self._functions = parts.callbacks.hand_over()
        parts.lifecycle.watch(self)

    # -- subscription and assignment -----------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Reads these topics together with the other members of the group, from the next poll() on.

        A pattern must match the whole name of a topic, and also matches topics that are created later. With
        group.protocol=consumer a pattern given as text is matched by the coordinator (in RE2's syntax), a compiled
        one, as always with group.protocol=classic, by this client. Replaces the previous subscription.
        """
        self._guard.check_change("subscribe()")
        # The parts do not hold it. Ctrl-C may come before or after they have replaced the last one.
        self._listeners = (*self._listeners, listener)
        self._parts.subscriptions.subscribe(topics, pattern, listener)
        self._listeners = (listener,)

    def subscription(self) -> set[str]:
        """The subscribed topics; for a pattern, those that match it now."""
        return self._parts.subscriptions.subscription()

    def assign(self, partitions: SomePartitions) -> None:
        """Reads exactly these partitions from now on. Partitions that were assigned before keep their position."""
        self._guard.check_change("assign()")
        self._parts.subscriptions.assign(partitions)

    async def unsubscribe(self) -> None:
        """Stops consuming, after a last auto-commit. A member leaves its group."""
        parts = self._parts
        lifecycle, shutdown = parts.lifecycle, parts.shutdown
        self._guard.check()
        self._guard.check_end("unsubscribe()")
        if lifecycle.runtime is None:  # nothing was started
            shutdown.forget()
            return
        await perform(shutdown.revoke_all(), lifecycle.portal)
        await lifecycle.portal.wait(shutdown.unsubscribe)
        await lifecycle.portal.close_async(THREAD_END)
        parts.committer.run_callbacks()

    def group_metadata(self) -> GroupMetadata:
        """The identity of this consumer in its group. Raises ConfigError without a group.id."""
        return self._parts.subscriptions.group_metadata()

    def enforce_rebalance(self, reason: str = "rebalance enforced by user") -> None:
        """Makes the next poll() start a rebalance of the group. With group.protocol=consumer it does nothing: there the
        coordinator decides about rebalances."""
        self._guard.check_change("enforce_rebalance()")
        self._parts.subscriptions.enforce_rebalance(reason)

    def to_be_revoked_partitions(self) -> set[TopicPartition]:
        """The partitions that the group revokes. The next poll() completes the revoke, unless it is delayed (KIP-983).
        poll() returns no more records of them."""
        return self._parts.subscriptions.to_be_revoked_partitions()

    def lost_partitions(self) -> set[TopicPartition]:
        """The partitions that were lost in the last poll(): other members may consume them, and commits fail. If that
        poll() raised an error, they are kept until one has returned."""
        return self._parts.subscriptions.lost_partitions()

    def delay_revoke(self, partitions: SomePartitions) -> bool:
        """Delays the revoke of these partitions until one poll() later, while they are still being processed. False if
        some of them are no longer assigned; the others are still delayed.

        It can be repeated until the group stops waiting (max.poll.interval.ms after it asked): then they are lost.
        """
        self._guard.check_change("delay_revoke()")
        return self._parts.subscriptions.delay_revoke(partitions)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer reads."""
        return self._parts.subscriptions.assignment()

    def child_consumer_is_alive(self) -> bool:
        """Whether the backlog lane was started (KIP-333). It keeps running when the backlog is empty."""
        self._guard.check()
        runtime = self._parts.lifecycle.runtime
        return runtime is not None and runtime.source_tasks.is_alive

    # -- records -------------------------------------------------------------------------------------------------

    async def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> Records:
        """The next records, at most `max.poll.records` (or `max_records`, for this call) of them.

        Waits up to `timeout` seconds for the first record, then returns what is available; empty Records if
        nothing arrived. Positions move past the returned records, and only those are ever committed.

        Raises OffsetResetError, CorruptRecordError and KafkaError for a partition that cannot be read: once before
        the records of other partitions, then again when there are no records, but never the same error in every poll.
        Also raises the error that ended the membership of a group, errors of a listener, and WakeupError after
        wakeup().
        """
        try:
            records = await self._poll(timeout, max_records)
            if self._group is not None:
                self._group.reported, self._group.reported_lost = records.to_be_revoked, records.lost
            self._buffer.handover.is_confirmed = True  # see Handover: nothing may come between this and the return
            return records
        except (ConcurrentUseError, ForkedError):
            raise  # this poll has taken nothing: the records on their way are those of the poll that is under way
        except BaseException as error:
            self._poll_loop.failed(error)
            raise

    async def _poll(self, timeout: float, max_records: int | None) -> Records:
        """The records are taken, but not confirmed."""
        loop = self._poll_loop
        limit, deadline = loop.check(timeout, max_records)
        try:
            found = loop.begin(limit, deadline)
            while not isinstance(found, Records):
                if isinstance(found, Wait):
                    await self._buffer.poll_signal.wait_async(found.seconds)
                else:
                    await perform(found, self._parts.lifecycle.portal)
                found = loop.look()
            return found
        finally:
            loop.end()

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Record after record, for as long as the consumer is open. The position moves with each of them."""
        while not self._guard.is_closed:
            try:
                for record in self._poll_loop.iterate(await self._poll(ITERATION_POLL, None)):
                    yield record
            except (ConcurrentUseError, ForkedError):
                raise
            except BaseException as error:
                self._poll_loop.failed(error)
                raise

    async def run(
        self,
        handler: Handler,
        *,
        order: str = "key",
        concurrency: int = 16,
        max_in_flight: int | None = None,
        retries: int | None = 3,
        retry_backoff: float = 0.1,
        retry_backoff_max: float = 10.0,
        dead_letter: DeadLetter | None = None,
        timeout: float | None = None,
        drain: float = 30.0,
        on_progress: Callable[[Progress], Any] | None = None,
        progress_interval: float = 5.0,
        producer: AsyncProducer | None = None,
    ) -> Progress:
        """Processes records until it is stopped: polls, calls `handler(record)`, retries, commits finished records.

        Consumer calls the handler on threads, AsyncConsumer awaits coroutines. When the group revokes a partition,
        run() completes the running calls for it first (KIP-983). wakeup(), SIGTERM and Ctrl-C (in the main thread, if
        the program does not handle them itself) and cancellation stop run(). It needs commit.mode=done.

        :param order: which records are handled one after the other: those of a "key" (within their partition; records
            without a key have no order), those of a "partition", or "none".
        :param concurrency: the maximum number of calls at the same time.
        :param max_in_flight: the maximum number of records that wait or are being handled. Default: 1,000, or four
            times `concurrency` if that is more.
        :param retries: how often a handler that raises is called again for the same record. None: without limit. Later
            records of the same key wait.
        :param retry_backoff: seconds before the first retry, doubled for each further one.
        :param retry_backoff_max: the maximum of these seconds.
        :param dead_letter: what gets a record that still fails: a topic, or a function of the record and its error.
            Without it, the error ends run().
        :param timeout: seconds after which a call fails with a TimeoutError. A coroutine is cancelled. A thread cannot
            be stopped: it is logged, its late result is ignored, it fails once more for each further `timeout`, and
            its record is not retried before it ends. More than `concurrency` such threads end run(). In any case,
            max.poll.interval.ms is the limit: then the member leaves its group for session.timeout.ms, so that other
            members take over its partitions.
        :param drain: seconds to wait for running calls when run() stops.
        :param on_progress: a function that receives a Progress, on the thread or in the event loop that called run().
        :param progress_interval: seconds between these calls.
        :param producer: a producer with a transactional.id, for exactly-once processing. The handler returns a
            ProducerRecord, a list of them, or None. They are written, as dead letters are, in transactions that also
            commit the offsets of their input records. It needs enable.auto.commit=false. The consumer reads with
            isolation.level=read_committed from then on, and readers of the output set it, too.
        :raises ConfigError: commit.mode is not "done"; or isolation.level=read_uncommitted is set, with a producer.
        :raises StateError: there is no subscription.
        :returns: the final progress. The last error of a handler, and errors of poll() and commit() that cannot be
            retried, are raised instead.
        """
        from .produce.producer import AsyncProducer, check_transactional, lent_to_run
        from .run.options import RunSettings
        from .run.tasks import check_coroutine, run_tasks

        if producer is not None:
            check_transactional(producer, AsyncProducer)
        settings = RunSettings(
            order=order,
            concurrency=concurrency,
            max_in_flight=max_in_flight,
            retries=retries,
            retry_backoff=retry_backoff,
            retry_backoff_max=retry_backoff_max,
            dead_letter=dead_letter,
            timeout=timeout,
            drain=drain,
            on_progress=on_progress,
            progress_interval=progress_interval,
            producer=producer,
        )
        check_coroutine("Consumer", handler)
        self._poll_loop.check_free("run()")
        with self._guard.running(asyncio.current_task()), lent_to_run(producer, self._guard):
            return await run_tasks("Consumer", self, lambda launch: self._parts.new_run(handler, settings, launch))

    # -- positions -----------------------------------------------------------------------------------------------

    async def position(self, partition: TopicPartition | tuple[str, int], *, timeout: float | None = None) -> int:
        """The offset of the next record that poll() returns of this partition."""
        return await self._parts.positions.position(partition, timeout)

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        """Resumes at this offset. For an OffsetAndMetadata with a leader epoch, the consumer first checks whether the
        log was truncated since."""
        self._guard.check_change("seek()")
        self._parts.positions.seek(partition, offset)

    def seek_to_beginning(self, partitions: SomePartitions | None = None) -> None:
        """Resumes at the first record of these partitions (default: all that are assigned)."""
        self._guard.check_change("seek_to_beginning()")
        self._parts.positions.seek_to("earliest", partitions)

    def seek_to_end(self, partitions: SomePartitions | None = None) -> None:
        """Skips to the end of these partitions (default: all that are assigned)."""
        self._guard.check_change("seek_to_end()")
        self._parts.positions.seek_to("latest", partitions)

    def pause(self, partitions: SomePartitions) -> None:
        """poll() returns no records of these partitions until resume(). Their buffered records are kept, unless other
        partitions need the memory: then they are fetched again."""
        self._parts.positions.set_paused(partitions, True)

    def resume(self, partitions: SomePartitions) -> None:
        """Ends a pause()."""
        self._parts.positions.set_paused(partitions, False)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return self._parts.positions.paused()

    # -- commits -------------------------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commits the given offsets, or the positions of all assigned partitions, to the group.

        Raises CommitFailedError when the group rejects the commit, RequestTimeoutError when the time is up. Offsets of
        topics that do not exist are rejected after half a second: the error's `partitions` are those, and all others
        are committed. Without `offsets`, positions in deleted topics are dropped, with one warning.
        """
        self._guard.check_change("commit()")
        chosen, timeout = commits_in(offsets), optional_seconds_of(timeout)
        commits = self._parts.commits
        delivered = commits.begin()
        try:
            await self._parts.lifecycle.portal.wait(lambda: commits.commit(chosen, timeout))
        except CommitFailedError as error:
            commits.finish_in_part(chosen, delivered, error)
            raise
        commits.finish(chosen, delivered)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Starts a commit and returns. `callback(offsets, error)` is called from a later poll(), commit() or
        close(); without one a failure is logged. A failed commit is not retried: it could overwrite a newer one."""
        self._guard.check_change("commit_async()")
        chosen, callback = commits_in(offsets), callback_of("callback", callback)
        self._parts.commits.commit_async(chosen, callback)

    async def committed(
        self, partitions: SomePartitions, *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The offsets that the group has committed for these partitions; None where it has none. While a backlog
        (KIP-333) is open, its committed offset: everything before it is done."""
        return await self._parts.commits.committed(partitions, timeout)

    def done(self, work: Record | Records) -> None:
        """Marks a record, or all of these records, as finished. From any thread, in any order.

        With commit.mode=done, commits cover the finished records up to the first unfinished one. Finished records
        beyond it are noted in the commit's metadata, and headrace does not deliver them again to the next owner of the
        partition. Records of partitions that are no longer assigned are ignored. Raises ConfigError with another
        commit.mode.
        """
        self._parts.completed.done(work)

    async def in_flight(
        self,
        partitions: SomePartitions | None = None,
        *,
        timeout: float = 0.0,
    ) -> dict[TopicPartition, int]:
        """How many records of these partitions (default: all) poll() has returned that are not done; partitions without
        any are left out. Waits up to `timeout` seconds until there are none. Needs commit.mode=done."""
        return await self._parts.completed.wait_async(partitions, timeout)

    # -- offsets of logs, and topics -----------------------------------------------------------------------------

    async def beginning_offsets(
        self, partitions: SomePartitions, *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the first record of each log. For a partition that is read in two lanes (KIP-333): the first
        offset that one of them has returned; `watermarks()` then gives the log's."""
        return await self._parts.queries.beginning_offsets(partitions, timeout)

    async def end_offsets(
        self, partitions: SomePartitions, *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record that can be read: with read_committed, of closed transactions. For a
        partition that is read in two lanes (KIP-333): the offset after the last one that was returned."""
        return await self._parts.queries.end_offsets(partitions, timeout)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record at or after the timestamp; None if there is none."""
        return await self._parts.queries.offsets_for_times(timestamps, timeout)

    async def watermarks(
        self, partition: TopicPartition | tuple[str, int], *, timeout: float | None = None
    ) -> Watermarks:
        """The first and the end offset of the log, open transactions included."""
        return await self._parts.queries.watermarks(partition, timeout)

    async def list_topics(self, *, timeout: float | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that this client may see, with their partitions."""
        return await self._parts.queries.list_topics(timeout)

    async def partitions_for_topic(self, topic: str, *, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions of a topic; an empty list if there is no such topic."""
        return await self._parts.queries.partitions_for_topic(topic, timeout)

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, and the state of every partition."""
        return self._parts.metrics()

    # -- wakeup and close ----------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """Makes the waiting call, or else the next poll(), raise WakeupError. May be called from any thread."""
        self._parts.lifecycle.wakeup()

    async def close(self, *, timeout: float = CLOSE_TIMEOUT, drain: float = 0.0) -> None:
        """Commits what auto-commit still has to commit, leaves the group, and releases everything, within `timeout`
        seconds (plus the time of listeners). A commit that fails until then is logged, and its records will be
        delivered again. A static member does not leave: it may rejoin within the session timeout.

        Does not wait for running work; with commit.mode=done, `drain` are seconds to wait first until all of it is
        done.
        """
        timeout, drain = seconds_of(timeout), seconds_of(drain, "drain")
        parts = self._parts
        lifecycle, shutdown = parts.lifecycle, parts.shutdown
        if self._guard.is_forked:
            lifecycle.shut()
            return
        self._guard.check_end("close()")
        if not self._guard.is_closed:
            if drain:
                await parts.completed.tracker().wait_async(None, drain)
            deadline = time.monotonic() + timeout
            try:
                await perform(shutdown.revoke_all(timeout), lifecycle.portal)
            finally:
                try:
                    if lifecycle.portal.is_open:
                        await lifecycle.portal.wait(lambda: lifecycle.close(lambda: shutdown.end_tasks(deadline)))
                finally:
                    await lifecycle.portal.close_async(THREAD_END, lifecycle.shut())
        call_to_the_end(parts.committer.run_callbacks)

    async def __aenter__(self) -> Self:
        self._guard.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._parts.shutdown.take_back_unfinished()
        await self.close()


def parts_of(consumer: AsyncConsumer) -> ConsumerParts:
    """The internal interface, for `Consumer`."""
    return consumer._parts
