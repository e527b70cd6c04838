"""Commits beside the user's work: auto-commit, asynchronous commits and their callbacks.

Auto-commit happens at the start of a poll: what the polls before it returned counts as done. Callbacks run
where the user is (in poll, commit or close), never in the background.

Positions in topics that were deleted cannot be committed any more. Commits of all positions (automatic ones, those
before a revoke, commit() without offsets) log that once and leave them out; a commit of offsets that the user chose
raises it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..config import ConsumerConfig
from ..errors import CommitFailedError, ConfigError, HeadraceError, StateError
from ..machines.lanes import Lanes
from ..machines.partition import Position
from ..offsets import OffsetSet
from ..types import OffsetAndMetadata, TopicPartition
from .backlog import Backlog
from .completions import Completions
from .intake import Intake
from .two_logs import Plan, Share

if TYPE_CHECKING:
    from .engine import Engine

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback = Callable[[Offsets, HeadraceError | None], Any]

_LONGEST_BEFORE_REVOKE = 15.0  # seconds: enough for a new coordinator. The group waits for it


def time_before_revoke(config: ConsumerConfig) -> float:
    """How long a poll waits for the commit before a revoke. The records of one that fails are read again; a commit that
    takes as long as max.poll.interval.ms would cost the membership."""
    limits = config.default_api_timeout_ms, config.max_poll_interval_ms / 4
    return min(_LONGEST_BEFORE_REVOKE, min(limits) / 1000)


class Turn:
    """A place in the order of commits. `comes` waits for the one before; `leave`, also an early one, lets the next
    go when both are through. It belongs to the loop on which it is made."""

    def __init__(self, before: Turn | None) -> None:
        self._before = before
        self._over = asyncio.get_running_loop().create_future()

    async def comes(self) -> None:
        if self._before is not None:
            await asyncio.shield(self._before._over)

    def leave(self) -> None:
        before, self._before = self._before, None
        if before is None or before._over.done():
            self._over.set_result(None)
        else:
            before._over.add_done_callback(lambda _: self._over.set_result(None))


class Commits:
    """`_done` is filled on the loop's thread and emptied on the user's: a deque, whose ends are atomic. `_running` and
    turns belong to the loop's thread. The rest belongs to the user's, and to the loop's while the user waits for it."""

    def __init__(self, config: ConsumerConfig, intake: Intake, completions: Completions | None) -> None:
        self._intake = intake
        self._has_group = config.group_id is not None
        self._completions = completions
        self._auto = config.enable_auto_commit
        self._revoke_timeout = time_before_revoke(config)
        self.parting_timeout: float | None = None  # seconds for what close() and unsubscribe() commit
        self._interval = config.auto_commit_interval_ms / 1000
        self._due = time.monotonic() + self._interval
        # What auto-commit has sent last, unless partitions came or went since.
        self._last: Mapping[TopicPartition, tuple[object, ...]] = {}
        self._last_assignment = 0
        self._engine: Engine | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._last_turn: Turn | None = None
        self._deleted: set[TopicPartition] = set()  # their positions cannot be committed; behind the intake's lock
        self._done: collections.deque[tuple[CommitCallback, Offsets, HeadraceError | None]] = collections.deque()

    def attach(self, engine: Engine) -> None:
        self._engine = engine
        self._last_turn = None  # that of an engine before belongs to another loop

    def detach(self) -> None:
        """The engine is about to be closed, and its loop may be, too."""
        self._engine = None

    def plan(self, offsets: Offsets | None) -> Plan:
        """What is to be committed: these offsets, or what was returned (or is done) of all partitions."""
        if not self._has_group:
            raise ConfigError("commits need a group.id")
        if offsets is None:
            return self._plan_of_positions()
        if self._intake.backlog is not None:
            return self._split(offsets)
        with self._intake.lock:
            return Plan(dict(offsets), topic_ids=self._topic_ids(offsets))

    def _topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, uuid.UUID | None]:
        """Of the topics that were read, which may be others than those of the same names now. The lock is held."""
        ids: dict[str, uuid.UUID | None] = {}
        for tp in partitions:
            state = self._intake.assignment.get(tp)
            ids[tp.topic] = (state and state.topic_id) or self._intake.cluster.topic_id(tp.topic)
        return ids

    def _plan_of_positions(self) -> Plan:
        plain: dict[TopicPartition, OffsetAndMetadata] = {}
        live: dict[TopicPartition, Share] = {}
        beside: dict[TopicPartition, Share] = {}
        done: dict[TopicPartition, OffsetSet | None] = {}
        if self._completions is not None:  # behind a lock of its own
            done = {tp: self._completions.committable(tp) for tp in self._intake.partitions()}
        backlog = self._intake.backlog
        with self._intake.lock:
            for state in self._intake.assignment:
                tp, position = state.tp, state.position
                if position is None or self._is_deleted(tp):
                    continue
                if backlog is None or tp not in backlog.lanes:
                    plain[tp] = _plain(position, state.known, done.get(tp))
                else:
                    live[tp], beside[tp] = _shares(backlog, tp, position, done.get(tp))
            ids = self._topic_ids([*plain, *live])
        return Plan(plain, live, beside, ids, is_of_positions=True)

    def _is_deleted(self, tp: TopicPartition) -> bool:
        """With the lock held. A topic that was created again is another one."""
        if tp in self._deleted and not self._intake.cluster.is_unknown(tp.topic):
            self._deleted.discard(tp)
        return tp in self._deleted

    def _split(self, chosen: Offsets) -> Plan:
        """By the lane that each offset speaks of."""
        backlog = self._intake.backlog
        assert backlog is not None
        plain: dict[TopicPartition, OffsetAndMetadata] = {}
        live: dict[TopicPartition, Share] = {}
        beside: dict[TopicPartition, Share] = {}
        with self._intake.lock:
            for tp, (offset, note, epoch) in chosen.items():
                if tp not in self._intake.assignment:
                    raise StateError(
                        f"{tp} is not assigned to this consumer: with enable.parallel.rebalance only its owner knows "
                        f"which ranges of it are open, and may commit it"
                    )
                state = self._intake.assignment.state(tp)
                if state.position is None and state.fault is None:
                    raise StateError(f"{tp} cannot be committed yet: what is open of it is not known before poll()")
                lanes = backlog.lanes.get(tp)
                if lanes is None:
                    plain[tp] = chosen[tp]
                elif lanes.is_backlog(offset, backlog.position(tp)):
                    beside[tp] = Share(lanes, backlog.done(tp, OffsetSet(offset)), note)
                else:
                    live[tp] = Share(lanes, OffsetSet(offset), note, epoch)
                    # The backlog lane may have passed the end of a range since its last record was committed, or a
                    # range without any record: nobody commits that.
                    if (done := backlog.done(tp, lanes.progress)) != lanes.progress:
                        beside[tp] = Share(lanes, done)
            return Plan(plain, live, beside, self._topic_ids(chosen))

    async def write(self, engine: Engine, plan: Plan) -> None:
        """One try. On the loop's thread."""
        try:
            await engine.logs.commit(plan)
        except CommitFailedError as error:
            if not plan.is_of_positions or not error.partitions:
                raise
            self._drop(error)

    def _drop(self, error: CommitFailedError) -> None:
        """Nothing of these partitions is left to be read again, by anybody."""
        with self._intake.lock:
            is_news = not error.partitions <= self._deleted
            self._deleted |= error.partitions
        if is_news:
            log.warning("offsets of deleted topics are dropped: %s", error)

    # -- asynchronous --------------------------------------------------------------------------------------------

    def commit_async(self, plan: Plan, callback: CommitCallback | None) -> None:
        """Starts a commit. On the loop's thread."""
        engine = self._engine
        assert engine is not None
        task = engine.loop.create_task(self._run(engine, plan, callback, self.turn()), name="commit")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, engine: Engine, plan: Plan, callback: CommitCallback | None, turn: Turn) -> None:
        error: HeadraceError | None = None
        try:
            await turn.comes()
            if plan:
                await self.write(engine, plan)
        except HeadraceError as failure:
            error = failure
        finally:
            turn.leave()
        if callback is not None:
            self._done.append((callback, plan.offsets, error))
            self._intake.doorbell.ring()
        elif error is not None:
            log.warning("an asynchronous commit failed: %s", error)

    def turn(self) -> Turn:
        """A place behind all commits that were asked for before: they must not overwrite this one."""
        self._last_turn = Turn(self._last_turn)
        return self._last_turn

    def run_callbacks(self) -> None:
        while self._done:
            callback, offsets, error = self._done.popleft()
            callback(offsets, error)

    # -- by itself -----------------------------------------------------------------------------------------------

    def auto_commit_if_due(self) -> None:
        now = time.monotonic()
        if not self._auto or self._engine is None or now < self._due:
            return
        self._due = now + self._interval
        plan = self.plan(None)
        entries = plan.entries()
        if entries != self._last_sent():
            self._last = entries
            self._engine.loop.call_soon_threadsafe(self.commit_async, plan, self._auto_committed)

    def _last_sent(self) -> Mapping[TopicPartition, tuple[object, ...]]:
        # A partition that went and came back may have been committed by others in between, at any offset.
        if self._last_assignment != self._intake.assignments:
            self._last, self._last_assignment = {}, self._intake.assignments
        return self._last

    def _auto_committed(self, offsets: Offsets, error: HeadraceError | None) -> None:
        if error is not None:
            self._last = {}
            level = logging.INFO if error.retriable else logging.WARNING
            log.log(level, "auto-commit failed, the next one includes it: %s", error)

    async def before_revoke(self, partitions: Collection[TopicPartition]) -> None:
        """Before the listener is told of it. On the loop's thread."""
        if self._engine is not None:  # else another task has closed the consumer meanwhile
            await self.settle(self._engine, self._time_for_revoke, partitions)

    async def after_revoke(self, partitions: Collection[TopicPartition]) -> None:
        """When the listener was told of it, and before the group is. On the loop's thread."""
        if self._engine is not None:
            await self.farewell(self._engine, self._time_for_revoke, partitions)

    @property
    def _time_for_revoke(self) -> float:
        return self._revoke_timeout if self.parting_timeout is None else self.parting_timeout

    async def settle(
        self, engine: Engine, timeout: float, partitions: Collection[TopicPartition] | None = None
    ) -> None:
        """Commits what auto-commit has not yet, of these partitions (None: of all), after all that is under way. A
        failure is logged: the records will be read again. On the loop's thread."""
        deadline = engine.loop.time() + timeout
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(*self._running, return_exceptions=True)
        if not self._auto:
            return
        # One that failed since the last poll has not been told to `_auto_committed` yet.
        told = tuple(self._done)  # a copy: the user's thread may empty it meanwhile
        failed = any(error is not None and callback == self._auto_committed for callback, _, error in told)
        plan = self.plan(None)
        entries, last = plan.entries(), self._last_sent()
        plan = plan.of(lambda tp: (partitions is None or tp in partitions) and (failed or last.get(tp) != entries[tp]))
        if not plan:
            return
        try:
            await engine.client.with_retries("auto-commit", deadline, lambda: self.write(engine, plan))
        except HeadraceError as error:
            log.warning("the last auto-commit failed, these records will be read again: %s", error)

    async def farewell(
        self, engine: Engine, timeout: float, partitions: Collection[TopicPartition] | None = None
    ) -> None:
        """Leaves, of these partitions (None: of all), a commit that any client can go on from, after all that is under
        way: a late one would bring back the token, of which other clients know nothing. On the loop's thread."""
        if self._intake.backlog is None:
            return
        deadline = engine.loop.time() + timeout
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await engine.positions.no_more_tokens(partitions)
        if not self._open_lanes(partitions):
            return
        turn = self.turn()

        async def leave() -> None:
            await turn.comes()
            lanes = self._open_lanes(partitions)
            with self._intake.lock:
                topic_ids = self._topic_ids(lanes)
            await engine.logs.farewell(lanes, topic_ids)

        try:
            await engine.client.with_retries("the last commit", deadline, leave)
        except CommitFailedError as error:
            if error.partitions:
                self._drop(error)
            else:
                log.warning("the open ranges of a backlog are known to headrace only: %s", error)
        except HeadraceError as error:
            log.warning("the open ranges of a backlog are known to headrace only: %s", error)
        finally:
            turn.leave()

    def _open_lanes(self, partitions: Collection[TopicPartition] | None) -> dict[TopicPartition, Lanes]:
        if self._intake.backlog is None:
            return {}
        with self._intake.lock:
            return {
                tp: lanes
                for tp, lanes in self._intake.backlog.lanes.items()
                if (partitions is None or tp in partitions) and not lanes.is_closed and not self._is_deleted(tp)
            }


def _shares(backlog: Backlog, tp: TopicPartition, position: Position, done: OffsetSet | None) -> tuple[Share, Share]:
    lanes = backlog.lanes[tp]
    epoch = None if position.epoch < 0 else position.epoch
    if done is not None:
        return Share(lanes, done | OffsetSet(lanes.live_start), "", epoch), Share(lanes, backlog.done(tp, done))
    live = lanes.beyond | OffsetSet(position.offset)
    return Share(lanes, live, "", epoch), Share(lanes, OffsetSet(backlog.position(tp)))


def _plain(position: Position, known: OffsetSet | None, done: OffsetSet | None) -> OffsetAndMetadata:
    if done is None and (known is None or position.offset >= known.frontier):
        return OffsetAndMetadata(position.offset, "", None if position.epoch < 0 else position.epoch)
    if done is None:
        # What the last owner has done beyond its commit stays noted until it is passed.
        assert known is not None
        done = known | OffsetSet(position.offset)
    return OffsetAndMetadata(done.low, done.to_text())
