"""Consumer: AsyncConsumer for threads. No logic of its own: it calls, and waits.

A poll that finds records in the buffer takes them on the calling thread, without a hop; one that does not waits for the
doorbell.
"""

from __future__ import annotations

import functools
import inspect
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from ..aio.commits import CommitCallback
from ..aio.consumer import AsyncConsumer
from ..aio.group import Background, Steps
from ..aio.life import SomePartitions
from ..aio.living import CLOSE_TIMEOUT, THREAD_END
from ..aio.run import Run
from ..aio.run_settings import DeadLetter, Handler, Progress, RunSettings
from ..arguments import commits_in, optional_seconds_of, seconds_of
from ..errors import ConcurrentUseError, ForkedError
from ..listener import RebalanceListener
from ..records import Record, Records
from ..types import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, PartitionInfo, TopicPartition, Watermarks
from .running import check_plain, run_threads
from .threaded import ITERATION_POLL, Threaded, documented_as


class Consumer(Threaded[AsyncConsumer]):
    """Reads Kafka topics, as a member of a group (`subscribe`) or by itself (`assign`).

    Settings are Kafka's, dotted in a mapping or with underscores as keywords. Times are in seconds, timestamps
    in milliseconds, as in Kafka. Only `wakeup()` may be called while another thread is inside of the consumer.

    A timeout of 0 or less does not wait, and `math.inf` has no limit; None, where it is the default, is
    default.api.timeout.ms. Impossible arguments raise TypeError or ValueError before anything is done.

        with Consumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
            consumer.subscribe(["orders"])
            records = consumer.poll(1.0)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        super().__init__(AsyncConsumer(config, **settings))

    # -- subscription and assignment -----------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        if any(map(inspect.iscoroutinefunction, _methods_of(listener))):
            raise TypeError("a listener of Consumer cannot be made of coroutines: AsyncConsumer awaits them")
        with self._alone():
            self._aio.subscribe(topics, pattern=pattern, listener=listener)

    def subscription(self) -> set[str]:
        return self._aio.subscription()

    def group_metadata(self) -> GroupMetadata:
        return self._aio.group_metadata()

    def enforce_rebalance(self, reason: str = "the user asked for it") -> None:
        with self._alone():
            self._aio.enforce_rebalance(reason)

    def assign(self, partitions: SomePartitions) -> None:
        with self._alone():
            self._aio.assign(partitions)

    def unsubscribe(self) -> None:
        aio = self._aio
        with self._alone():
            if aio._engine is None:  # nothing has begun, so there is no thread to be asked
                aio._forget()
                return
            self._perform(aio._part())
            self._portal.run(aio._rest)
            self._portal.close(THREAD_END)
            aio._commits.run_callbacks()

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
            if self._aio._group is not None:
                self._aio._group.told = records.to_be_revoked
            self._aio._intake.handover.is_confirmed = True  # see Handover: nothing may come between this and the return
            return records
        except (ConcurrentUseError, ForkedError):
            raise  # it has taken nothing: the records on their way are those of the poll that is under way
        except BaseException:
            self._aio._intake.recover()
            raise

    def _poll(self, timeout: float, max_records: int | None) -> Records:
        """The records are taken, and not confirmed."""
        aio = self._aio
        with self._alone():
            if self._inside.depth == 1:
                aio._polling = False  # an interrupt may have left it, and the next one
                if aio._group is not None:
                    aio._group.in_listener = False
            limit, deadline = aio._check_poll(timeout, max_records)
            try:
                aio._begin_poll()
                aio._start()
                intake, gate = aio._intake, aio._gate
                begins = True
                while True:
                    intake.doorbell.clear()
                    gate.consume_wakeup()
                    gate.check()
                    if (steps := aio._attend(begins)) is not None:
                        self._perform(steps)
                    begins = False
                    left = deadline - time.monotonic()
                    records = aio._take(limit, left <= 0)
                    if records is not None:
                        return records
                    intake.doorbell.wait(aio._patience(left))
            finally:
                aio._end_poll()

    def _perform(self, steps: Steps) -> None:
        """Does each step on the consumer's thread, and waits where the generator is: on the caller's."""
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
        while not self._aio._gate.is_closed:
            yield from self._aio._iterate(self._poll(ITERATION_POLL, None))

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
    ) -> Progress:
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
        )
        check_plain(self, handler, dead_letter)
        with self._alone():
            return run_threads(self, lambda launch: Run(self._aio, handler, settings, launch))

    # -- positions -----------------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition | tuple[str, int], *, timeout: float | None = None) -> int:
        with self._alone():
            timeout = optional_seconds_of(timeout)
            known = self._aio._position_at_once(partition)
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
        with self._alone():
            chosen, timeout = commits_in(offsets), optional_seconds_of(timeout)
            self._aio._commits.run_callbacks()
            delivered = self._aio._intake.last_delivery
            self._portal.run(lambda: self._aio._commit(chosen, timeout))
            self._aio._finished(chosen, delivered)

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
        return self._aio._wait_in_flight(partitions, timeout)

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

    # -- life ----------------------------------------------------------------------------------------------------

    def close(self, *, timeout: float = CLOSE_TIMEOUT, drain: float = 0.0) -> None:
        timeout, drain = seconds_of(timeout), seconds_of(drain, "drain")
        if self._aio._gate.is_forked:
            self._aio._shut()
            return
        with self._inside:
            if drain and not self._aio._gate.is_closed:
                self.in_flight(timeout=drain)
            deadline = time.monotonic() + timeout
            try:
                if not self._aio._gate.is_closed and self._portal.is_open:
                    self._perform(self._aio._part(timeout))
            finally:
                try:
                    if self._portal.is_open:
                        self._portal.run(lambda: self._aio._close(deadline))
                finally:
                    self._shut()
            self._aio._commits.run_callbacks()


def _methods_of(listener: RebalanceListener | None) -> list[Any]:
    names = [name for name in vars(RebalanceListener) if name.startswith("on_")]
    return [getattr(listener, name, None) for name in names]


async def _awaited(result: Awaitable[None]) -> None:
    await result


documented_as(AsyncConsumer, Consumer)
