"""Commits that the user asks for, and the records that the user has finished (`commit.mode=done`)."""

from __future__ import annotations

import contextlib

from .._arguments import SomePartitions, optional_seconds_of, partitions_in, seconds_of, short_repr
from ..errors import CommitFailedError, ConfigError, OffsetResetError
from ..records import Record, Records
from ..types import OffsetAndMetadata, TopicPartition
from .commit.committer import CommitCallback, Committer
from .commit.plan import Offsets
from .commit.tracker import CompletionTracker
from .fetch.buffer import FetchBuffer
from .fetch.handover import Delivered
from .lifecycle import Lifecycle
from .retried_calls import RetriedCalls
from .runtime import ConsumerRuntime
from .seeking import Seeking


class Commits:
    """Commits to the group of `group.id`. `AsyncConsumer` documents the calls."""

    def __init__(
        self,
        lifecycle: Lifecycle[ConsumerRuntime],
        calls: RetriedCalls,
        buffer: FetchBuffer,
        committer: Committer,
        positions: Seeking,
    ) -> None:
        self._lifecycle = lifecycle
        self._calls = calls
        self._buffer = buffer
        self._committer = committer
        self._positions = positions

    def begin(self) -> Delivered:
        """On the user's thread, before `commit`. Returns what `finish` needs to know."""
        self._committer.run_callbacks()
        return self._buffer.last_delivery

    async def commit(self, offsets: Offsets | None, timeout: float | None) -> None:
        """On the consumer's thread."""
        self._lifecycle.guard.check()
        runtime = self._calls.start()
        await self._know_positions(offsets, timeout)
        number, plan = self._committer.next_plan, self._committer.plan(offsets)
        if not plan:
            return
        turn = self._committer.turn()

        async def attempt() -> None:
            await turn.comes()
            # In AsyncConsumer, another task may have polled, and given up partitions, since the last attempt.
            await self._committer.write_owned(runtime, plan, number)

        try:
            await self._calls.call("commit", timeout, attempt)
        finally:
            turn.leave()

    async def _know_positions(self, offsets: Offsets | None, timeout: float | None) -> None:
        """Some partitions need a position before an offset can be committed for them."""
        for tp in self._committer.target.needs_position(offsets or {}):
            with contextlib.suppress(OffsetResetError):  # the user repairs it with this commit
                await self._positions.position(tp, timeout)

    def finish(self, offsets: Offsets | None, delivered: Delivered) -> None:
        """On the user's thread, after `commit`: the user has finished the records of the last poll, all of them or
        those below these offsets."""
        chosen = None if offsets is None else {tp: each.offset for tp, each in offsets.items()}
        self._buffer.finished(chosen, delivered)

    def finish_in_part(self, offsets: Offsets | None, delivered: Delivered, error: CommitFailedError) -> None:
        """The same for a commit that failed: all partitions that the error does not name are committed, if it names
        any."""
        if offsets is not None and error.partitions:
            self.finish({tp: each for tp, each in offsets.items() if tp not in error.partitions}, delivered)

    def commit_async(self, offsets: Offsets | None, callback: CommitCallback | None) -> None:
        self._calls.start()
        number, plan = self._committer.next_plan, self._committer.plan(offsets)
        self._lifecycle.portal.call_soon(lambda: self._committer.commit_async(plan, number, callback))
        self.finish(offsets, self._buffer.last_delivery)

    async def committed(
        self, partitions: SomePartitions, timeout: float | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        self._lifecycle.guard.check()
        chosen, timeout = partitions_in(partitions), optional_seconds_of(timeout)
        reader = self._calls.start().committed_reader
        found = await self._calls.call("committed", timeout, lambda: reader.committed(chosen))
        return {tp: found.get(tp) for tp in chosen}


class CompletedWork:
    """`done()` and `in_flight()`. From any thread, also while another one is inside of the consumer."""

    def __init__(self, lifecycle: Lifecycle[ConsumerRuntime], completions: CompletionTracker | None) -> None:
        self._guard = lifecycle.guard
        self._completions = completions

    def done(self, work: Record | Records) -> None:
        self._guard.check_fork()
        if not isinstance(work, (Record, Records)):
            raise TypeError(f"done() takes a Record, or Records, not {short_repr(work)}")
        self.tracker().done(work)

    async def wait_async(self, partitions: SomePartitions | None, timeout: float) -> dict[TopicPartition, int]:
        """What is in flight, as soon as that is nothing or the time is up."""
        chosen = self._choose(partitions)
        return await self.tracker().wait_async(chosen, seconds_of(timeout))

    def wait(self, partitions: SomePartitions | None, timeout: float) -> dict[TopicPartition, int]:
        """The same on a thread that may block."""
        chosen = self._choose(partitions)
        return self.tracker().wait(chosen, seconds_of(timeout))

    def _choose(self, partitions: SomePartitions | None) -> set[TopicPartition] | None:
        self._guard.check_fork()
        return None if partitions is None else set(partitions_in(partitions))

    def tracker(self) -> CompletionTracker:
        if self._completions is None:
            raise ConfigError("done(), in_flight() and close(drain=…) need commit.mode=done")
        return self._completions
