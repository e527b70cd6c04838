"""AsyncConsumer: the consumer for asyncio programs, and the logic behind the one for threads.

Its parts: `life.py` from start to end, `seeking.py` positions, `committing.py` commits and completion, `asking.py`
questions about logs and topics. Here: who reads what, and polls.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from ..arguments import limit_of, seconds_of, text_of
from ..errors import ConcurrentUseError, ConfigError, ForkedError, StateError
from ..listener import RebalanceListener
from ..records import Record, Records
from ..types import GroupMetadata, TopicPartition
from .asking import Asking
from .committing import Committing
from .group import Steps, perform
from .life import SomePartitions, partitions_in
from .living import THREAD_END
from .run import Run
from .run_settings import DeadLetter, Handler, Progress, RunSettings
from .running import run_tasks

_ITERATION_POLL = 1.0


class AsyncConsumer(Asking, Committing):
    """Reads Kafka topics, as a member of a group (`subscribe`) or by itself (`assign`).

    Settings are Kafka's, dotted in a mapping or with underscores as keywords. Times are in seconds, timestamps
    in milliseconds, as in Kafka. Only `wakeup()` and `done()` may be called from another thread; only one task may be
    in `poll()`.

    A timeout of 0 or less does not wait, and `math.inf` has no limit; None, where it is the default, is
    default.api.timeout.ms. Impossible arguments raise TypeError or ValueError before anything is done.

        async with AsyncConsumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
            consumer.subscribe(["orders"])
            records = await consumer.poll(1.0)
    """

    # -- subscription and assignment -----------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Reads these topics together with the other members of the group, from the next poll() on.

        A pattern must match the whole name of a topic, and topics that are made later are found, too. With
        group.protocol=consumer a pattern given as text is matched by the coordinator (in RE2's syntax), a compiled
        one, as with group.protocol=classic always, by this client. Takes the place of what was subscribed before.
        """
        self._gate.check()
        if self._group is None:
            raise ConfigError("subscribe() needs a group.id; without a group, assign() partitions")
        if not self._group.is_subscribed and self._intake.assignment:
            raise StateError("partitions are assigned by assign(): call unsubscribe() before subscribe()")
        self._group.subscribe(topics, pattern, listener)

    def subscription(self) -> set[str]:
        """The topics that are subscribed; of a pattern, those that match it now."""
        self._gate.check()
        return set() if self._group is None else self._group.subscription()

    def assign(self, partitions: SomePartitions) -> None:
        """Reads exactly these partitions from now on. Those that were assigned before keep their position."""
        self._gate.check()
        if self._is_subscribed:
            raise StateError("topics are subscribed: call unsubscribe() before assign()")
        self._assign(partitions_in(partitions))

    async def unsubscribe(self) -> None:
        """Reads nothing any more, and commits what auto-commit has to. A member leaves its group."""
        self._gate.check()
        if self._engine is None:  # nothing has begun
            self._forget()
            return
        await perform(self._part(), self._portal)
        await self._portal.wait(self._rest)
        await self._portal.close_async(THREAD_END)
        self._commits.run_callbacks()

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group. Raises ConfigError without a group.id."""
        self._gate.check()
        if self._group is None:
            raise ConfigError("group_metadata() needs a group.id")
        return self._group.metadata()

    def enforce_rebalance(self, reason: str = "the user asked for it") -> None:
        """Makes the next poll() start a rebalance of the group. With group.protocol=consumer, where the coordinator
        decides, it does nothing."""
        self._gate.check()
        if self._group is None or not self._group.is_subscribed:
            raise StateError("only a subscribed consumer has a group to rebalance")
        self._group.rejoin(text_of("reason", reason))

    def to_be_revoked_partitions(self) -> set[TopicPartition]:
        """The partitions that the group asks back and that the next poll() gives up, unless that is delayed (KIP-983).
        Nothing more of them is returned."""
        self._gate.check()
        return set() if self._group is None else set(self._group.revocations.next)

    def lost_partitions(self) -> set[TopicPartition]:
        """The partitions that were lost in the last poll(): others may read them already, and commits of them fail."""
        self._gate.check()
        return set() if self._group is None else set(self._group.revocations.lost)

    def delay_revoke(self, partitions: SomePartitions) -> bool:
        """Puts the revoke of these partitions off by one more poll(), while work on them is under way. False if some of
        them are not here any more; the others are delayed all the same.

        It can be done again and again, until the group waits no longer (max.poll.interval.ms after it asked): then
        they are lost.
        """
        self._gate.check()
        chosen = partitions_in(partitions)
        return not chosen if self._group is None else self._group.delay(chosen)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are being read."""
        self._gate.check()
        return self._intake.partitions()

    def child_consumer_is_alive(self) -> bool:
        """Whether the lane for the backlog was started (KIP-333). It then stays, on standby when all is worked off."""
        self._gate.check()
        return self._engine is not None and self._engine.second_lane is not None and self._engine.second_lane.is_alive

    # -- records -------------------------------------------------------------------------------------------------

    async def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> Records:
        """The next records, at most `max.poll.records` (or `max_records`, for this call) of them.

        Waits up to `timeout` seconds for the first of them, then returns what is there; empty Records if
        nothing came. Positions move behind what is returned, and only that is ever committed.

        Raises OffsetResetError, CorruptRecordError and KafkaError for what keeps a partition from being read,
        when there is nothing else to return; what ended the membership of a group, or a listener raised;
        WakeupError after wakeup().
        """
        try:
            records = await self._poll(timeout, max_records)
            if self._group is not None:
                self._group.told = records.to_be_revoked
            self._intake.handover.is_confirmed = True  # see Handover: nothing may come between this and the return
            return records
        except (ConcurrentUseError, ForkedError):
            raise  # it has taken nothing: the records on their way are those of the poll that is under way
        except BaseException:
            self._intake.recover()
            raise

    async def _poll(self, timeout: float, max_records: int | None) -> Records:
        """The records are taken, and not confirmed."""
        limit, deadline = self._check_poll(timeout, max_records)
        try:
            self._begin_poll()
            self._start()
            begins = True
            while True:
                self._intake.doorbell.clear()
                self._gate.consume_wakeup()
                self._gate.check()
                if (steps := self._attend(begins)) is not None:
                    await perform(steps, self._portal)
                begins = False
                left = deadline - time.monotonic()
                records = self._take(limit, left <= 0)
                if records is not None:
                    return records
                await self._intake.doorbell.wait_async(self._patience(left))
        finally:
            self._end_poll()

    def _check_poll(self, timeout: float, max_records: int | None) -> tuple[int, float]:
        """The limit and the deadline of a poll. Raises what is wrong with the call, before anything is done."""
        self._gate.check()
        if self._group is not None and self._group.in_listener:
            raise StateError("a listener cannot call poll(): it runs inside of poll(), unsubscribe() or close()")
        if self._polling:
            raise ConcurrentUseError("another task is inside of poll()")
        limit = self._config.max_poll_records if max_records is None else limit_of(max_records)
        deadline = time.monotonic() + seconds_of(timeout)
        if not self._is_subscribed and not self._intake.assignment:
            raise StateError("nothing is subscribed or assigned: call subscribe() or assign() before poll()")
        return limit, deadline

    def _begin_poll(self) -> None:
        """What a poll does before it looks for records."""
        self._polling = True
        self._intake.poll_begins()
        self._intake.polls += 1
        self._commits.run_callbacks()  # the user's: KIP-62's clock runs on
        if (group := self._group) is not None and group.is_subscribed:
            group.poll_begins()
        self._commits.auto_commit_if_due()

    def _end_poll(self) -> None:
        self._polling = False
        group = self._group
        if group is not None and group.is_subscribed:
            group.poll_ends()

    def _attend(self, begins: bool) -> Steps | None:
        """What a poll does for the group, if anything: before its first look for records, and again before each further
        one."""
        group = self._group
        return None if group is None or not group.is_subscribed else group.attend(begins=begins)

    def _take(self, limit: int, is_late: bool) -> Records | None:
        """What the poll returns, or None if it is to wait. It does not wait when there is news of revocations, and
        takes no records when partitions are asked back."""
        group = self._group
        is_asked = group is not None and group.has_requests
        records = None if is_asked else self._intake.take(limit, is_late=is_late)
        if records is not None and self._completions is not None:
            self._completions.delivered(records, self._intake.begun)
        if group is None or not group.is_subscribed:
            return Records() if records is None and is_late else records
        if records is None:
            if not is_late and not group.has_news:
                return None
            group.raise_failure(is_late=is_late)
            records = Records()
        records.to_be_revoked = group.revocations.next
        records.lost = group.revocations.lost
        return records

    def _patience(self, left: float) -> float:
        """How long a poll may wait for the bell: it does not ring for a deadline of a revoke, nor for an error that may
        be raised again."""
        group, now = self._group, time.monotonic()
        left = min(left, self._intake.pace.next_due(now) - now)
        return left if group is None or not group.is_subscribed else min(left, group.poll_waits())

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Record after record, for as long as the consumer is open. The position moves with each of them."""
        while not self._gate.is_closed:
            for record in self._iterate(await self._poll(_ITERATION_POLL, None)):
                yield record

    def _iterate(self, records: Records) -> Iterator[Record]:
        """The records of a poll one by one. Not confirmed by the poll, they are by the iteration, when it has begun."""
        if self._group is not None:
            self._group.told = records.to_be_revoked
        return self._intake.one_by_one(records)

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
    ) -> Progress:
        """Works on records until it is told to end: polls, calls `handler(record)`, commits what is done (KIP-983).

        Consumer calls it on up to `concurrency` threads, AsyncConsumer awaits as many coroutines. One after the other
        are those of a key (in its partition; records without one have no order), with order="partition" those of a
        partition, with order="none" none. At most `max_in_flight` records (1,000, or four for each of `concurrency`)
        wait or are worked on. A partition that the group asks back is given up when what was begun of it has ended.

        A handler that raises is called again, up to `retries` times (None: without end) and after growing pauses
        (`retry_backoff`, doubled up to `retry_backoff_max` seconds); its key waits. What still fails goes to
        `dead_letter`: a topic, or a function of the record and its error. Without one it ends run().

        A call of the handler that takes longer than `timeout` seconds has failed with a TimeoutError. A coroutine is
        cancelled. A thread cannot be stopped: it is reported, its late result is ignored, it fails once more for each
        further `timeout`, and its record is not tried again before it ends. More than `concurrency` such threads end
        run(). Without a timeout, and in any case, max.poll.interval.ms is the limit: then the member leaves its group
        for session.timeout.ms, so that others take over its partitions.

        Ends by wakeup(), SIGTERM and Ctrl-C (in the main thread, if the program does not handle them itself), or
        cancellation: what was begun may end, for `drain` seconds, and is committed. `on_progress` is called every
        `progress_interval` seconds, where run() was called.

        Raises ConfigError (it needs commit.mode=done), StateError (and subscribe()), what the handler raised at last,
        and what poll() and commit() raise and cannot be tried again.
        """
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
        return await run_tasks(self, lambda launch: Run(self, handler, settings, launch))
