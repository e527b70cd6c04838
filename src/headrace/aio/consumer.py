"""AsyncConsumer: the consumer for asyncio programs, and the logic behind the one for threads."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from ..config import ConsumerConfig
from ..errors import (
    ConcurrentUseError,
    ConfigError,
    HeadraceError,
    RequestTimeoutError,
    StateError,
)
from ..listener import RebalanceListener
from ..machines.partition import PartitionState, Position
from ..records import Record, Records
from ..types import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, PartitionInfo, TopicPartition, Watermarks
from .calls import Gate
from .commits import CommitCallback, Commits
from .completions import Completions
from .engine import Engine
from .group import Group, Steps, perform
from .intake import Intake
from .log_offsets import EARLIEST, LATEST, Found
from .metrics import metrics_of

T = TypeVar("T")

_ITERATION_POLL = 1.0
# A program that is told to end should do so within a second, be the brokers there or not.
CLOSE_TIMEOUT = 0.8
_LAST_TRY = 0.05  # seconds that leaving the group gets, although the time is up


class AsyncConsumer:
    """Reads Kafka topics, as a member of a group (`subscribe`) or by itself (`assign`).

    Settings are Kafka's, dotted in a mapping or with underscores as keywords. Times are in seconds, timestamps
    in milliseconds, as in Kafka. Only `wakeup()` may be called from another thread; only one task may be in
    `poll()`.

        async with AsyncConsumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
            consumer.subscribe(["orders"])
            records = await consumer.poll(1.0)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        self._config = ConsumerConfig.parse(config, **settings)
        self._intake = Intake(self._config)
        self._gate = Gate()
        self._engine: Engine | None = None
        self._completions = Completions() if self._config.commit_mode == "done" else None
        self._commits = Commits(self._config, self._intake, self._completions)
        self._group: Group | None = None
        if self._config.group_id is not None:
            forget = _nothing if self._completions is None else self._completions.forget
            self._group = Group(self._config, self._intake, self._commit_before_revoke, forget)
        self._polling = False
        self._parting_timeout = CLOSE_TIMEOUT

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

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Reads exactly these partitions from now on. Those that were assigned before keep their position."""
        self._gate.check()
        if self._is_subscribed:
            raise StateError("topics are subscribed: call unsubscribe() before assign()")
        self._intake.assign(_partitions(partitions))

    async def unsubscribe(self) -> None:
        """Reads nothing any more. A member commits what auto-commit has to, and leaves its group."""
        self._gate.check()
        if self._is_subscribed:
            await perform(self._part())
            await self._leave("the consumer unsubscribed", CLOSE_TIMEOUT)
        self._intake.assign(())

    async def _rest(self) -> None:
        """Leaves nothing running, until something is subscribed or assigned again."""
        engine = self._engine
        assert engine is not None
        await self._commits.settle(engine, CLOSE_TIMEOUT)
        if self._is_subscribed:
            await self._leave("the consumer unsubscribed", CLOSE_TIMEOUT)
        self._intake.assign(())
        self._engine = None
        await engine.close()

    def _forget(self) -> None:
        """unsubscribe() before anything has begun."""
        if self._group is not None:
            with self._intake.lock:
                self._group.member.leave("")
                self._group.unsubscribed()
        self._intake.assign(())

    @property
    def _is_subscribed(self) -> bool:
        return self._group is not None and self._group.is_subscribed

    def _part(self, timeout: float = CLOSE_TIMEOUT) -> Steps:
        """What has to be done on the user's side before `_leave`."""
        self._parting_timeout = timeout
        if self._group is not None and self._engine is not None:
            yield from self._group.part()

    async def _leave(self, reason: str, timeout: float) -> None:
        group, engine = self._group, self._engine
        assert group is not None
        with self._intake.lock:
            farewell = group.member.leave(reason)
            group.unsubscribed()
        if farewell is not None and engine is not None and engine.errands is not None:
            await engine.errands.leave(farewell, timeout)

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
        self._group.rejoin(reason)

    def to_be_revoked_partitions(self) -> set[TopicPartition]:
        """The partitions that the group asks back and that the next poll() gives up, unless that is delayed (KIP-983).
        Nothing more of them is returned."""
        self._gate.check()
        return set() if self._group is None else set(self._group.revocations.next)

    def lost_partitions(self) -> set[TopicPartition]:
        """The partitions that were lost in the last poll(): others may read them already, and commits of them fail."""
        self._gate.check()
        return set() if self._group is None else set(self._group.revocations.lost)

    def delay_revoke(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> bool:
        """Puts the revoke of these partitions off by one more poll(), while work on them is under way. False if some of
        them are not here any more; the others are delayed all the same.

        It can be done again and again, until the group waits no longer (max.poll.interval.ms after it asked): then
        they are lost.
        """
        self._gate.check()
        chosen = _partitions(partitions)
        return not chosen if self._group is None else self._group.delay(chosen)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are being read."""
        self._gate.check()
        return self._intake.partitions()

    # -- records -------------------------------------------------------------------------------------------------

    async def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> Records:
        """The next records, at most `max.poll.records` (or `max_records`, for this call) of them.

        Waits up to `timeout` seconds for the first of them, then returns what is there; empty Records if
        nothing came. Positions move behind what is returned, and only that is ever committed.

        Raises OffsetResetError, CorruptRecordError and KafkaError for what keeps a partition from being read,
        when there is nothing else to return; what ended the membership of a group, or a listener raised;
        WakeupError after wakeup().
        """
        limit = self._begin_poll(max_records)
        self._start()
        deadline = time.monotonic() + max(0.0, timeout)
        begins = True
        try:
            while True:
                self._intake.doorbell.clear()
                self._gate.consume_wakeup()
                self._gate.check()
                if self._is_subscribed:
                    await perform(self._attend(begins))
                    begins = False
                left = deadline - time.monotonic()
                records = self._take(limit, left <= 0)
                if records is not None:
                    return records
                await self._intake.doorbell.wait_async(left)
        finally:
            self._end_poll()

    def _begin_poll(self, max_records: int | None) -> int:
        """What a poll does before it looks for records. Returns its limit."""
        self._gate.check()
        if self._polling:
            if self._group is not None and self._group.in_listener:
                raise StateError("a listener cannot call poll(): it runs inside of one")
            raise ConcurrentUseError("another task is inside of poll()")
        limit = self._config.max_poll_records if max_records is None else max_records
        if limit == 0 or limit < -1:
            raise ValueError("max_records must be at least 1, or -1 for no limit")
        if self._is_subscribed:
            assert self._group is not None
            self._group.poll_begins()
        elif not self._intake.assignment:
            raise StateError("nothing is subscribed or assigned: call subscribe() or assign() before poll()")
        self._polling = True
        self._intake.polls += 1
        try:
            self._intake.end_iteration()
            self._commits.run_callbacks()
            self._commits.auto_commit_if_due()
        except BaseException:
            self._end_poll()
            raise
        return limit

    def _end_poll(self) -> None:
        self._polling = False
        if self._is_subscribed:
            assert self._group is not None
            self._group.poll_ends()

    def _attend(self, begins: bool) -> Steps:
        """What a poll does for the group: before its first look for records, and again before each further one."""
        assert self._group is not None
        if begins:
            yield from self._group.begin()
        yield from self._group.attend()

    def _take(self, limit: int, is_late: bool) -> Records | None:
        """What the poll returns, or None if it is to wait. It does not wait when there is news of revocations."""
        records = self._intake.take(limit)
        if records is not None and self._completions is not None:
            self._completions.delivered(records, self._intake.known)
        group = self._group
        if group is None or not group.is_subscribed:
            return Records() if records is None and is_late else records
        if records is None:
            if not is_late and not group.has_news:
                return None
            records = Records()
        records.to_be_revoked = group.revocations.next
        records.lost = group.revocations.lost
        return records

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Record after record, for as long as the consumer is open. The position moves with each of them."""
        while not self._gate.is_closed:
            for record in self._intake.one_by_one(await self.poll(_ITERATION_POLL)):
                yield record

    # -- positions -----------------------------------------------------------------------------------------------

    async def position(self, partition: TopicPartition | tuple[str, int], *, timeout: float | None = None) -> int:
        """The offset of the next record that poll() returns of this partition."""
        self._gate.check()
        tp = TopicPartition(*partition)
        known = self._known_position(tp)
        if known is not None:
            return known
        engine = self._start()

        async def settle() -> int:
            while True:
                if (offset := self._known_position(tp)) is not None:
                    return offset
                await engine.positions.next_round()

        return await self._timed(f"position of {tp}", timeout, settle, lambda: engine.positions.failure)

    def _known_position(self, tp: TopicPartition) -> int | None:
        with self._intake.lock:
            state = self._intake.assignment.state(tp)
            if state.position is not None:
                return state.position.offset
            if isinstance(state.fault, HeadraceError):
                raise state.fault
        return None

    def seek(
        self,
        partition: TopicPartition | tuple[str, int],
        offset: int | OffsetAndMetadata,
    ) -> None:
        """Reads on at this offset. Given an OffsetAndMetadata with a leader epoch, the log is checked first for
        having been truncated since."""
        self._gate.check()
        target = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        if target.offset < 0:
            raise ValueError("an offset cannot be negative")
        epoch = -1 if target.leader_epoch is None else target.leader_epoch
        self._move([partition], lambda state: state.seek(Position(target.offset, epoch)))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None) -> None:
        """Reads these partitions (all that are assigned) from the log's first record."""
        self._gate.check()
        self._move(partitions, lambda state: state.await_reset("earliest"))

    def seek_to_end(self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None) -> None:
        """Skips to the end of these partitions (all that are assigned)."""
        self._gate.check()
        self._move(partitions, lambda state: state.await_reset("latest"))

    def pause(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """poll() returns nothing of these partitions until resume(). What was fetched ahead is kept."""
        self._gate.check()
        self._change(partitions, lambda state: setattr(state, "paused", True))

    def resume(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Ends a pause()."""
        self._gate.check()
        self._change(partitions, lambda state: setattr(state, "paused", False))

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        self._gate.check()
        with self._intake.lock:
            return {state.tp for state in self._intake.assignment if state.paused}

    def _change(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]] | None,
        change: Callable[[PartitionState], None],
    ) -> None:
        chosen = self._intake.partitions() if partitions is None else _partitions(partitions)
        self._intake.change(chosen, change)

    def _move(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]] | None,
        change: Callable[[PartitionState], None],
    ) -> None:
        chosen = self._intake.partitions() if partitions is None else _partitions(partitions)
        self._change(chosen, change)
        if self._completions is not None:
            self._completions.forget(chosen)

    # -- commits -------------------------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commits the given offsets, or the positions of all assigned partitions, to the group.

        Raises CommitFailedError when the group does not take it, RequestTimeoutError when time is up.
        """
        self._gate.check()
        self._commits.run_callbacks()
        await self._commit(offsets, timeout)

    async def _commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None, timeout: float | None
    ) -> None:
        self._gate.check()
        engine = self._start()
        chosen = self._commits.offsets_or_positions(offsets)
        if not chosen:
            return
        turn = self._commits.turn()

        async def commit() -> None:
            await turn.comes()
            await engine.coordinator.commit(chosen)

        try:
            await self._timed("commit", timeout, commit)
        finally:
            turn.leave()

    # -- completion ----------------------------------------------------------------------------------------------

    def done(self, work: Record | Records) -> None:
        """Work on a record, or on all of these records, is complete. From any thread, in any order.

        With commit.mode=done, commits cover what is done without a gap. What is done beyond it is noted beside
        the commit, and not delivered again to whoever reads the partition next with headrace. Records of partitions
        that are not here any more are passed over. Raises ConfigError with another commit.mode.
        """
        self._gate.check_fork()
        self._tracked().done(work)

    async def in_flight(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]] | None = None,
        *,
        timeout: float = 0.0,
    ) -> dict[TopicPartition, int]:
        """How many records of these partitions (of all) poll() has returned that are not done; partitions without any
        are left out. Waits up to `timeout` seconds until there are none. Needs commit.mode=done."""
        self._gate.check_fork()
        tracked = self._tracked()
        chosen = None if partitions is None else set(_partitions(partitions))
        loop, quiet = asyncio.get_running_loop(), asyncio.Event()
        unwatch = tracked.watch(lambda: loop.call_soon_threadsafe(quiet.set))
        try:
            async with asyncio.timeout(timeout):
                while tracked.in_flight(chosen):
                    quiet.clear()
                    await quiet.wait()
        except TimeoutError:
            pass
        finally:
            unwatch()
        return tracked.in_flight(chosen)

    def _wait_in_flight(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] | None, timeout: float
    ) -> dict[TopicPartition, int]:
        """The same, on a thread that may wait."""
        self._gate.check_fork()
        return self._tracked().wait(None if partitions is None else set(_partitions(partitions)), timeout)

    def _tracked(self) -> Completions:
        if self._completions is None:
            raise ConfigError("done() and in_flight() need commit.mode=done")
        return self._completions

    async def _commit_before_revoke(self, partitions: frozenset[TopicPartition]) -> None:
        engine = self._engine
        assert engine is not None
        timeout = self._config.default_api_timeout_ms / 1000 if self._polling else self._parting_timeout
        await self._commits.settle(engine, timeout, partitions)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Starts a commit and returns. `callback(offsets, error)` is called from a later poll(), commit() or
        close(); without one a failure is logged. It is not tried again: a newer commit may have passed it."""
        self._gate.check()
        self._start()
        self._commits.commit_async(self._commits.offsets_or_positions(offsets), callback)

    async def committed(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for these partitions; None where it has nothing."""
        self._gate.check()
        engine = self._start()
        chosen = _partitions(partitions)
        found = await self._timed("committed", timeout, lambda: engine.coordinator.committed(chosen))
        return {tp: found.get(tp) for tp in chosen}

    # -- questions about logs and topics -------------------------------------------------------------------------

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the first record of each log."""
        found = await self._list_offsets(dict.fromkeys(_partitions(partitions), EARLIEST), timeout)
        return {tp: it.offset for tp, it in found.items()}

    async def end_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record that can be read: with read_committed, of closed transactions."""
        found = await self._list_offsets(dict.fromkeys(_partitions(partitions), LATEST), timeout)
        return {tp: it.offset for tp, it in found.items()}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record at or after the time; None if there is none."""
        asked = {TopicPartition(*tp): timestamp for tp, timestamp in timestamps.items()}
        if any(timestamp < 0 for timestamp in asked.values()):
            raise ValueError("a timestamp cannot be negative: use beginning_offsets() or end_offsets()")
        found = await self._list_offsets(asked, timeout)
        return {
            tp: None
            if it.offset < 0
            else OffsetAndTimestamp(it.offset, it.timestamp, None if it.leader_epoch < 0 else it.leader_epoch)
            for tp, it in found.items()
        }

    async def watermarks(
        self, partition: TopicPartition | tuple[str, int], *, timeout: float | None = None
    ) -> Watermarks:
        """The log's own bounds, open transactions included."""
        tp = TopicPartition(*partition)
        low = await self._list_offsets({tp: EARLIEST}, timeout)
        high = await self._list_offsets({tp: LATEST}, timeout, isolation=0)
        return Watermarks(low[tp].offset, high[tp].offset)

    async def _list_offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout: float | None, isolation: int | None = None
    ) -> dict[TopicPartition, Found]:
        self._gate.check()
        engine = self._start()
        found: dict[TopicPartition, Found] = {}

        async def ask() -> dict[TopicPartition, Found]:
            left = {tp: at for tp, at in timestamps.items() if tp not in found}
            await engine.client.know_topics({tp.topic for tp in left})
            last: HeadraceError | None = None
            for tp, result in (await engine.offsets.by_time(left, isolation=isolation)).items():
                if isinstance(result, HeadraceError):
                    last = result
                else:
                    found[tp] = result
            if last is not None:
                raise last
            return {tp: found[tp] for tp in timestamps}

        return await self._timed("ListOffsets", timeout, ask)

    async def list_topics(self, *, timeout: float | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that this client may see, with their partitions."""
        self._gate.check()
        engine = self._start()
        return await self._timed("list_topics", timeout, lambda: engine.describe_topics(None))

    async def partitions_for_topic(self, topic: str, *, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions of a topic; an empty list if there is no such topic."""
        self._gate.check()
        engine = self._start()
        found = await self._timed("partitions_for_topic", timeout, lambda: engine.describe_topics([topic]))
        return found.get(topic, [])

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, and the state of every partition."""
        self._gate.check()
        return metrics_of(self._intake, self._engine, self._group)

    # -- life ----------------------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """Makes the call that is waiting, or else the next poll(), raise WakeupError. From any thread."""
        self._gate.check_fork()
        self._gate.wakeup()
        self._intake.doorbell.ring()

    async def close(self, *, timeout: float = CLOSE_TIMEOUT) -> None:
        """Commits what auto-commit still has to, leaves the group, and lets go of everything, within `timeout` seconds
        (and what a listener takes). A commit that does not get through by then is logged, and its records will be read
        again. A static member does not leave: it may come back within the session timeout."""
        if not self._gate.is_closed and not self._gate.is_forked:
            self._check_loop()
            deadline = time.monotonic() + timeout
            try:
                await perform(self._part(timeout))
            finally:
                await self._close(deadline)
        self._commits.run_callbacks()

    async def _close(self, deadline: float) -> None:
        if self._gate.is_closed or self._gate.is_forked:
            return
        engine = self._engine
        self._check_loop()
        self._gate.close()
        if engine is None:
            return
        try:
            await self._commits.settle(engine, max(_LAST_TRY, deadline - time.monotonic()))
            if self._is_subscribed:
                await self._leave("the consumer is being closed", max(_LAST_TRY, deadline - time.monotonic()))
        finally:
            self._engine = None
            await engine.close()
            self._intake.doorbell.ring()

    def _abandon(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.abandon()

    async def __aenter__(self) -> Self:
        self._gate.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _start(self) -> Engine:
        """The tasks are made by the first call that needs one of them, on the loop that it comes from."""
        self._check_loop()
        if self._engine is None:
            self._engine = Engine(self._config, self._intake, self._group)
            self._commits.attach(self._engine)
        return self._engine

    def _check_loop(self) -> None:
        if self._engine is not None and self._engine.loop is not asyncio.get_running_loop():
            raise StateError("this consumer belongs to another event loop")

    async def _timed(
        self,
        what: str,
        timeout: float | None,
        attempt: Callable[[], Awaitable[T]],
        cause: Callable[[], HeadraceError | None] = lambda: None,
    ) -> T:
        engine = self._start()
        seconds = self._config.default_api_timeout_ms / 1000 if timeout is None else timeout
        async with self._gate.interruptible():
            try:
                result: T = await engine.client.with_retries(what, engine.loop.time() + seconds, attempt)
            except RequestTimeoutError as error:
                if error.__cause__ is None and (last := cause()) is not None:
                    raise RequestTimeoutError(f"{error}. Last error: {last}") from last
                raise
        return result


def _nothing(partitions: Iterable[TopicPartition]) -> None:
    """Nothing is tracked of these."""


def _partitions(partitions: Iterable[TopicPartition | tuple[str, int]]) -> list[TopicPartition]:
    if isinstance(partitions, (str, TopicPartition)):
        raise TypeError("a list of partitions is needed, not a single one")
    found = [TopicPartition(*each) for each in partitions]
    for tp in found:
        if not isinstance(tp.topic, str) or not tp.topic or not isinstance(tp.partition, int) or tp.partition < 0:
            raise ConfigError(f"{tp!r} is not a partition: a topic's name and a number from 0 on are needed")
    return list(dict.fromkeys(found))
