"""Commits beside the user's work: auto-commit, asynchronous commits and their callbacks, and the last commits before
partitions are given up.

Auto-commit happens at the start of a poll: the records of the polls before it count as done. Callbacks run where the
user is (in poll, commit or close), never in the background.

Positions in deleted topics cannot be committed any more. Commits of all positions (automatic ones, those before a
revoke, commit() without offsets) log that once and leave them out; a commit of offsets that the user chose raises it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from kio.schema.errors import ErrorCode

from ..._machines.commit.offset_set import OffsetSet
from ..._protocol.codes import kafka_error
from ...config.consumer import ConsumerConfig
from ...errors import CommitFailedError, ConfigError, HeadraceError
from ...types import TopicPartition
from ..fetch.buffer import FetchBuffer
from ..network.client import Client
from ..telemetry import ConsumerTelemetry
from .plan import CommitPlan, CommitTarget, Entries, Offsets, OffsetStore
from .tracker import CompletionTracker

log = logging.getLogger(__name__)

CommitCallback = Callable[[Offsets, HeadraceError | None], Any]

_NO_FINAL_COMMIT = (
    "the final commit failed: headrace resumes correctly, but other clients may skip unprocessed records: %s"
)
_GIVEN_UP = "the partition was revoked or lost before this commit could be written. The next owner delivers its records"
_LONGEST_BEFORE_REVOKE = 15.0  # seconds: enough for a new coordinator. The group waits for it


def time_before_revoke(config: ConsumerConfig) -> float:
    """How long a poll waits for the commit before a revoke. If it fails, the records are delivered again; a commit that
    takes as long as max.poll.interval.ms would cost the membership."""
    limits = config.default_api_timeout_ms, config.max_poll_interval_ms / 4
    return min(_LONGEST_BEFORE_REVOKE, min(limits) / 1000)


class CommitRuntime(Protocol):
    """What commits need of the consumer's tasks."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def client(self) -> Client[ConsumerConfig]: ...
    @property
    def store(self) -> OffsetStore: ...


class CommitTurn:
    """A place in the order of commits. `comes` waits for the previous one. After `leave`, which may come early, the
    next one proceeds as soon as the previous ones have left, too. It belongs to the loop on which it is made."""

    def __init__(self, before: CommitTurn | None) -> None:
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


class Committer:
    """`_done` is filled on the loop's thread and emptied on the user's: a deque, whose ends are atomic. `_running` and
    turns belong to the loop's thread. The rest belongs to the user's, and to the loop's while the user waits for it."""

    def __init__(
        self,
        config: ConsumerConfig,
        buffer: FetchBuffer,
        target: CommitTarget,
        completions: CompletionTracker | None,
    ) -> None:
        self._buffer = buffer
        self.target = target
        self._has_group = config.group_id is not None
        self._completions = completions
        self._auto = config.enable_auto_commit
        self._revoke_timeout = time_before_revoke(config)
        self.shutdown_timeout: float | None = None  # seconds for what close() and unsubscribe() commit
        self._interval = config.auto_commit_interval_ms / 1000
        self._due = time.monotonic() + self._interval
        # What auto-commit has sent last, unless the assignment has changed since.
        self._last: Entries = {}
        self._last_assignment = 0
        self._runtime: CommitRuntime | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._last_turn: CommitTurn | None = None
        self._plans = 0
        self._given_up: dict[TopicPartition, int] = {}  # the number of the last plan before a partition was given up
        self._deleted: set[TopicPartition] = set()  # their positions cannot be committed; behind the buffer's lock
        self.telemetry: ConsumerTelemetry | None = None
        self._done: collections.deque[tuple[CommitCallback, Offsets, HeadraceError | None]] = collections.deque()

    def attach(self, runtime: CommitRuntime) -> None:
        self._runtime = runtime
        self._last_turn = None  # that of a previous runtime belongs to another loop

    def detach(self) -> None:
        """The runtime is about to be closed, and its loop may be, too."""
        self._runtime = None

    def plan(self, offsets: Offsets | None) -> CommitPlan:
        """A commit of these offsets, or of the positions (or of what is done) of all partitions."""
        if not self._has_group:
            raise ConfigError("commits need a group.id")
        self._plans += 1
        if offsets is None:
            return self._plan_of_positions()
        return self.target.plan(offsets)

    def _plan_of_positions(self) -> CommitPlan:
        done: Mapping[TopicPartition, OffsetSet | None] = {}
        if self._completions is not None:  # behind a lock of its own
            done = {tp: self._completions.committable(tp) for tp in self._buffer.partitions()}
        return self.target.plan_positions(done, self._is_deleted)

    def _is_deleted(self, tp: TopicPartition) -> bool:
        """The lock is held. A topic that was recreated is another one."""
        if tp in self._deleted and not self._buffer.cluster.is_unknown(tp.topic):
            self._deleted.discard(tp)
        return tp in self._deleted

    async def write(self, runtime: CommitRuntime, plan: CommitPlan) -> None:
        """One try. On the loop's thread."""
        began = time.monotonic()
        failure: HeadraceError | None = None
        try:
            await runtime.store.commit(plan)
        except CommitFailedError as error:
            if not plan.is_of_positions or not error.partitions:
                failure = error
                raise
            self._drop(error)
        except HeadraceError as error:
            failure = error
            raise
        finally:
            if self.telemetry is not None:
                self.telemetry.committed(time.monotonic() - began, failure)

    def _drop(self, error: CommitFailedError) -> None:
        """The records of these partitions are gone: nobody can read them again."""
        with self._buffer.lock:
            is_news = not error.partitions <= self._deleted
            self._deleted |= error.partitions
        if is_news:
            log.warning("offsets of deleted topics are dropped: %s", error)

    # -- asynchronous --------------------------------------------------------------------------------------------

    @property
    def next_plan(self) -> int:
        """The number of the next plan. To be read before `plan`: another task may plan a commit on another thread. A
        number that is too low refuses a commit of a partition that was given up just before it, which is right, too."""
        return self._plans + 1

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions are revoked or lost, and not in the assignment any more. Commits of them that were planned
        before, and wait for an earlier one or are retried, must not be written: the coordinator would take them for
        those of a member that owns the partitions. On the user's thread."""
        self._given_up.update(dict.fromkeys(partitions, self._plans))

    def commit_async(self, plan: CommitPlan, number: int, callback: CommitCallback | None) -> None:
        """Starts a commit. `number` is that of the plan. On the loop's thread."""
        runtime = self._runtime
        assert runtime is not None
        task = runtime.loop.create_task(self._run(runtime, plan, number, callback, self.turn()), name="commit")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(
        self, runtime: CommitRuntime, plan: CommitPlan, number: int, callback: CommitCallback | None, turn: CommitTurn
    ) -> None:
        error: HeadraceError | None = None
        try:
            await turn.comes()
            await self.write_owned(runtime, plan, number)
        except HeadraceError as failure:
            error = failure
        finally:
            turn.leave()
        if callback is not None:
            self._done.append((callback, plan.offsets, error))
            self._buffer.poll_signal.notify()
        elif error is not None:
            log.warning("an asynchronous commit failed: %s", error)

    async def write_owned(self, runtime: CommitRuntime, plan: CommitPlan, number: int) -> None:
        """One try to write what has not been given up since the plan of this number. On the loop's thread, where the
        member's generation changes: it is still one in which nobody else got these partitions."""
        if owned := self._still_owned(plan, number):
            await self.write(runtime, owned)

    def _still_owned(self, plan: CommitPlan, number: int) -> CommitPlan:
        """Raises CommitFailedError if the user chose the offset of a partition that was given up meanwhile."""
        gone = [tp for tp in plan.offsets if self._given_up.get(tp, -1) >= number]
        if not gone:
            return plan
        if not plan.is_of_positions:
            raise kafka_error(ErrorCode.unknown_member_id, f"OffsetCommit of {gone[0]}", _GIVEN_UP, CommitFailedError)
        return plan.of(lambda tp: tp not in gone)

    def turn(self) -> CommitTurn:
        """A place behind all commits that were requested before: they must not overwrite this one."""
        self._last_turn = CommitTurn(self._last_turn)
        return self._last_turn

    def run_callbacks(self) -> None:
        while self._done:
            callback, offsets, error = self._done.popleft()
            callback(offsets, error)

    # -- auto-commit, and last commits ---------------------------------------------------------------------------

    def auto_commit_if_due(self) -> None:
        now = time.monotonic()
        if not self._auto or self._runtime is None or now < self._due:
            return
        self._due = now + self._interval
        number, plan = self.next_plan, self.plan(None)
        entries = plan.entries()
        if entries != self._last_sent():
            self._last = entries
            self._runtime.loop.call_soon_threadsafe(self.commit_async, plan, number, self._auto_committed)

    def _last_sent(self) -> Entries:
        # A partition that was given up and assigned again may have been committed by others in between, at any offset.
        if self._last_assignment != self._buffer.assignments:
            self._last, self._last_assignment = {}, self._buffer.assignments
        return self._last

    def _auto_committed(self, offsets: Offsets, error: HeadraceError | None) -> None:
        if error is not None:
            self._last = {}
            level = logging.INFO if error.retriable else logging.WARNING
            log.log(level, "auto-commit failed, the next one includes it: %s", error)

    async def before_revoke(self, partitions: Collection[TopicPartition]) -> None:
        """Before the listener is called. On the loop's thread."""
        if self._runtime is not None:  # otherwise another task has closed the consumer meanwhile
            await self.commit_outstanding(self._runtime, self._time_for_revoke, partitions)

    async def after_revoke(self, partitions: Collection[TopicPartition]) -> None:
        """After the listener was called, and before the group knows. On the loop's thread."""
        if self._runtime is not None:
            await self.final_commit(self._runtime, self._time_for_revoke, partitions)

    @property
    def _time_for_revoke(self) -> float:
        return self._revoke_timeout if self.shutdown_timeout is None else self.shutdown_timeout

    async def commit_outstanding(
        self, runtime: CommitRuntime, timeout: float, partitions: Collection[TopicPartition] | None = None
    ) -> None:
        """Commits what auto-commit has not committed yet of these partitions (None: of all), after all commits that are
        under way. A failure is logged: the records will be delivered again. On the loop's thread."""
        deadline = runtime.loop.time() + timeout
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(*self._running, return_exceptions=True)
        if not self._auto:
            return
        # `_auto_committed` does not know yet of one that failed since the last poll.
        ended = tuple(self._done)  # a copy: the user's thread may empty it meanwhile
        failed = any(error is not None and callback == self._auto_committed for callback, _, error in ended)
        plan = self.plan(None)
        entries, last = plan.entries(), self._last_sent()
        plan = plan.of(lambda tp: (partitions is None or tp in partitions) and (failed or last.get(tp) != entries[tp]))
        if not plan:
            return
        try:
            await runtime.client.retries.run("auto-commit", deadline, lambda: self.write(runtime, plan))
        except HeadraceError as error:
            log.warning(
                "the last auto-commit failed, records since the commit before will be delivered again: %s", error
            )

    async def final_commit(
        self, runtime: CommitRuntime, timeout: float, partitions: Collection[TopicPartition] | None = None
    ) -> None:
        """Leaves a commit of these partitions (None: of all) that any client can resume from, after all commits that
        are under way: a late one would overwrite it with one that only headrace understands. On the loop's thread."""
        store, deadline = runtime.store, runtime.loop.time() + timeout
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await store.stop_starts(partitions)
        if not store.needs_final_commit(partitions, self._is_deleted):
            return
        turn = self.turn()

        async def commit() -> None:
            await turn.comes()
            await store.final_commit(partitions, self._is_deleted)

        try:
            await runtime.client.retries.run("the final commit", deadline, commit)
        except CommitFailedError as error:
            if error.partitions:
                self._drop(error)
            else:
                log.warning(_NO_FINAL_COMMIT, error)
        except HeadraceError as error:
            log.warning(_NO_FINAL_COMMIT, error)
        finally:
            turn.leave()
