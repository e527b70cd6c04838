"""Consumer: the consumer for programs without asyncio. A facade over the same parts as AsyncConsumer.

A poll that finds records in the buffer takes them on the calling thread, without switching threads; otherwise it waits
for the poll signal.
"""

from __future__ import annotations

import functools
import inspect
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .._aio.callbacks import call_to_the_end
from .._aio.commit.committer import CommitCallback
from .._aio.consumer import AsyncConsumer, parts_of
from .._aio.group.steps import Background, Steps
from .._aio.lifecycle import CLOSE_TIMEOUT, THREAD_END
from .._aio.poll_loop import Wait
from .._aio.poll_signal import ITERATION_POLL
from .._arguments import SomePartitions, commits_in, optional_seconds_of, seconds_of
from ..errors import CommitFailedError, ConcurrentUseError, ForkedError
from ..listener import RebalanceListener
from ..records import Record, Records
from ..types import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, PartitionInfo, TopicPartition, Watermarks
from .threaded import Threaded, documented_as

if TYPE_CHECKING:  # run() imports them
    from .._aio.run.options import DeadLetter, Handler, Progress
    from .producer import Producer


class Consumer(Threaded):
    """Reads Kafka topics, as a member of a group (`subscribe`) or by itself (`assign`).

    Settings are Kafka's, dotted in a mapping or with underscores as keywords. Times are in seconds, timestamps
    in milliseconds, as in Kafka. Only `wakeup()`, `done()` and `in_flight()` may be called while another thread
    uses the consumer.

    A timeout of 0 or less does not wait, and `math.inf` has no limit; None, where it is the default, is
    default.api.timeout.ms. Invalid arguments raise TypeError or ValueError before anything is done.

        with Consumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
            consumer.subscribe(["orders"])
            records = consumer.poll(1.0)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        self._aio = AsyncConsumer(config, **settings)
        self._parts = parts = parts_of(self._aio)
        super().__init__(parts.lifecycle)
        self._buffer, self._group, self._poll_loop = parts.buffer, parts.group, parts.poll_loop  # for poll()

    # -- subscription and assignment -----------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        if any(map(inspect.iscoroutinefunction, _methods_of(listener))):
            raise TypeError(
                "a listener of Consumer cannot have coroutine methods: use AsyncConsumer, which awaits them"
            )
        with self._alone():
            self._aio.subscribe(topics, pattern=pattern, listener=listener)

    def subscription(self) -> set[str]:
        return self._aio.subscription()

    def group_metadata(self) -> GroupMetadata:
        return self._aio.group_metadata()

    def enforce_rebalance(self, reason: str = "rebalance enforced by user") -> None:
        with self._alone():
            self._aio.enforce_rebalance(reason)

    def assign(self, partitions: SomePartitions) -> None:
        with self._alone():
            self._aio.assign(partitions)

    def unsubscribe(self) -> None:
        parts = self._parts
        self._guard.check_end("unsubscribe()")
        with self._alone():
            if parts.lifecycle.runtime is None:  # nothing was started, so there is no thread to ask
                parts.shutdown.forget()
                return
            self._perform(parts.shutdown.revoke_all())
            self._portal.run(parts.shutdown.unsubscribe)
            self._portal.close(THREAD_END)
            parts.committer.run_callbacks()

    def to_be_revoked_partitions(self) -> set[TopicPartition]:
        return self._aio.to_be_revoked_partitions()

    def lost_partitions(self) -> set[TopicPartition]:
        return self._aio.lost_partitions()

    def delay_revoke(self, partitions: SomePartitions) -> bool:
        with self._alone():
            return self._aio.delay_revoke(partitions)

    def assignment(self) -> set[TopicPartition]:
        return self._aio.assignment()

    def child_consumer_is_alive(self) -> bool:
        return self._aio.child_consumer_is_alive()

    # -- records -------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> Records:
        try:
            records = self._poll(timeout, max_records)
            if self._group is not None:
                self._group.reported, self._group.reported_lost = records.to_be_revoked, records.lost
            self._buffer.handover.is_confirmed = True  # see Handover: nothing may come between this and the return
            return records
        except (ConcurrentUseError, ForkedError):
            raise  # this poll has taken nothing: the records on their way are those of the poll that is under way
        except BaseException as error:
            self._poll_loop.failed(error)
            raise

    def _poll(self, timeout: float, max_records: int | None) -> Records:
        """The records are taken, but not confirmed."""
        loop = self._poll_loop
        with self._alone():
            self._forget_interrupt()
            limit, deadline = loop.check(timeout, max_records)
            try:
                found = loop.begin(limit, deadline)
                while not isinstance(found, Records):
                    if isinstance(found, Wait):
                        self._buffer.poll_receiving.wait(found.seconds)
                    else:
                        self._buffer.poll_receiving.leave()
                        self._perform(found)
                    found = loop.look()
                return found
            finally:
                loop.end()
                self._buffer.poll_receiving.leave()

    def _forget_interrupt(self) -> None:
        """What an interrupted poll may have left behind."""
        if self._inside.depth == 1:  # polls of a run are nested calls
            self._buffer.poll_receiving.recover()
            self._poll_loop.is_polling = False
            if self._group is not None:
                self._group.in_listener = False

    def _perform(self, steps: Steps) -> None:
        """Runs each step on the consumer's thread, and waits for it on the caller's, where the generator runs."""
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Background):
                        self._portal.run(step.work)
                    else:
                        self._portal.run(functools.partial(_awaited, step.result))
                except BaseException as error:  # noqa: BLE001  # the generator decides what it means
                    step = steps.throw(error)
                else:
                    step = next(steps)
        except StopIteration:
            pass

    def __iter__(self) -> Iterator[Record]:
        while not self._guard.is_closed:
            try:
                yield from self._poll_loop.iterate(self._poll(ITERATION_POLL, None))
            except (ConcurrentUseError, ForkedError):
                raise
            except BaseException as error:
                self._poll_loop.failed(error)
                raise

    def run(
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
        producer: Producer | None = None,
    ) -> Progress:
        from .._aio.produce.producer import check_transactional, lent_to_run
        from .._aio.run.options import RunSettings
        from .producer import Producer
        from .run import check_plain, run_threads

        if producer is not None:
            check_transactional(producer, Producer)
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
        check_plain("Consumer", handler, dead_letter)
        with self._alone():
            self._forget_interrupt()
            self._poll_loop.check_free("run()")
            with self._guard.running(), lent_to_run(producer, self._guard):
                return run_threads("Consumer", self, lambda launch: self._parts.new_run(handler, settings, launch))

    # -- positions -----------------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition | tuple[str, int], *, timeout: float | None = None) -> int:
        with self._alone():
            timeout = optional_seconds_of(timeout)
            known = self._parts.positions.known_position(partition)
            return self._portal.run(lambda: self._aio.position(partition, timeout=timeout)) if known is None else known

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        with self._alone():
            self._aio.seek(partition, offset)

    def seek_to_beginning(self, partitions: SomePartitions | None = None) -> None:
        with self._alone():
            self._aio.seek_to_beginning(partitions)

    def seek_to_end(self, partitions: SomePartitions | None = None) -> None:
        with self._alone():
            self._aio.seek_to_end(partitions)

    def pause(self, partitions: SomePartitions) -> None:
        with self._alone():
            self._aio.pause(partitions)

    def resume(self, partitions: SomePartitions) -> None:
        with self._alone():
            self._aio.resume(partitions)

    def paused(self) -> set[TopicPartition]:
        return self._aio.paused()

    # -- commits -------------------------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        self._guard.check_change("commit()")
        with self._alone():
            chosen, timeout = commits_in(offsets), optional_seconds_of(timeout)
            commits = self._parts.commits
            delivered = commits.begin()
            try:
                self._portal.run(lambda: commits.commit(chosen, timeout))
            except CommitFailedError as error:
                commits.finish_in_part(chosen, delivered, error)
                raise
            commits.finish(chosen, delivered)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        with self._alone():
            self._aio.commit_async(offsets, callback)

    def committed(
        self, partitions: SomePartitions, *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        with self._alone():
            return self._portal.run(lambda: self._aio.committed(partitions, timeout=timeout))

    # -- completion ----------------------------------------------------------------------------------------------

    def done(self, work: Record | Records) -> None:
        self._aio.done(work)

    def in_flight(
        self,
        partitions: SomePartitions | None = None,
        *,
        timeout: float = 0.0,
    ) -> dict[TopicPartition, int]:
        return self._parts.completed.wait(partitions, timeout)

    # -- questions about logs and topics -------------------------------------------------------------------------

    def beginning_offsets(
        self, partitions: SomePartitions, *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        with self._alone():
            return self._portal.run(lambda: self._aio.beginning_offsets(partitions, timeout=timeout))

    def end_offsets(self, partitions: SomePartitions, *, timeout: float | None = None) -> dict[TopicPartition, int]:
        with self._alone():
            return self._portal.run(lambda: self._aio.end_offsets(partitions, timeout=timeout))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        with self._alone():
            return self._portal.run(lambda: self._aio.offsets_for_times(timestamps, timeout=timeout))

    def watermarks(self, partition: TopicPartition | tuple[str, int], *, timeout: float | None = None) -> Watermarks:
        with self._alone():
            return self._portal.run(lambda: self._aio.watermarks(partition, timeout=timeout))

    def list_topics(self, *, timeout: float | None = None) -> dict[str, list[PartitionInfo]]:
        with self._alone():
            return self._portal.run(lambda: self._aio.list_topics(timeout=timeout))

    def partitions_for_topic(self, topic: str, *, timeout: float | None = None) -> list[PartitionInfo]:
        with self._alone():
            return self._portal.run(lambda: self._aio.partitions_for_topic(topic, timeout=timeout))

    def metrics(self) -> dict[str, Any]:
        return self._aio.metrics()

    # -- close ---------------------------------------------------------------------------------------------------

    def close(self, *, timeout: float = CLOSE_TIMEOUT, drain: float = 0.0) -> None:
        timeout, drain = seconds_of(timeout), seconds_of(drain, "drain")
        lifecycle, shutdown = self._lifecycle, self._parts.shutdown
        if self._guard.is_forked:
            lifecycle.shut()
            return
        self._guard.check_end("close()")
        with self._inside:
            if drain and not self._guard.is_closed:
                self.in_flight(timeout=drain)
            deadline = time.monotonic() + timeout
            try:
                if not self._guard.is_closed and self._portal.is_open:
                    self._perform(shutdown.revoke_all(timeout))
            finally:
                try:
                    if self._portal.is_open:
                        self._portal.run(lambda: lifecycle.close(lambda: shutdown.end_tasks(deadline)))
                finally:
                    self._shut()
            call_to_the_end(self._parts.committer.run_callbacks)

    def _on_error(self) -> None:
        self._parts.shutdown.take_back_unfinished()


def _methods_of(listener: RebalanceListener | None) -> list[Any]:
    names = [name for name in vars(RebalanceListener) if name.startswith("on_")]
    return [getattr(listener, name, None) for name in names]


async def _awaited(result: Awaitable[None]) -> None:
    await result


documented_as(AsyncConsumer, Consumer)
