"""The part of a consumer that commits, and keeps track of what is done."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from ..arguments import callback_of, commits_in, optional_seconds_of, seconds_of, shown
from ..errors import OffsetResetError
from ..records import Record, Records
from ..types import OffsetAndMetadata, TopicPartition
from .commits import CommitCallback, Offsets
from .intake import Delivered
from .life import SomePartitions, partitions_in
from .seeking import Seeking


class Committing(Seeking):
    """Commits go to the group of `group.id`."""

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commits the given offsets, or the positions of all assigned partitions, to the group.

        Raises CommitFailedError when the group rejects it, RequestTimeoutError when time is up. Offsets of topics that
        do not exist are rejected after half a second: the error's `partitions` are those, and all others are committed.
        Without `offsets`, positions in deleted topics are dropped, with one warning.
        """
        self._gate.check()
        chosen, timeout = commits_in(offsets), optional_seconds_of(timeout)
        self._commits.run_callbacks()
        delivered = self._intake.last_delivery
        await self._portal.wait(lambda: self._commit(chosen, timeout))
        self._finished(chosen, delivered)

    async def _commit(self, offsets: Offsets | None, timeout: float | None) -> None:
        """On the consumer's thread."""
        self._gate.check()
        engine = self._start()
        await self._know_lanes(offsets, timeout)
        plan = self._commits.plan(offsets)
        if not plan:
            return
        turn = self._commits.turn()

        async def commit() -> None:
            await turn.comes()
            await self._commits.write(engine, plan)

        try:
            await self._timed("commit", timeout, commit)
        finally:
            turn.leave()

    async def _know_lanes(self, offsets: Offsets | None, timeout: float | None) -> None:
        """With enable.parallel.rebalance an offset can only be committed when it is known which ranges are open."""
        if offsets and self._intake.backlog is not None:
            for tp in offsets:
                if tp in self._intake.assignment:
                    with contextlib.suppress(OffsetResetError):  # the commit is how the user mends it
                        await self.position(tp, timeout=timeout)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Starts a commit and returns. `callback(offsets, error)` is called from a later poll(), commit() or
        close(); without one a failure is logged. It is not tried again: a newer commit may have passed it."""
        self._gate.check()
        chosen, callback = commits_in(offsets), callback_of("callback", callback)
        self._start()
        plan = self._commits.plan(chosen)
        self._portal.call_soon(lambda: self._commits.commit_async(plan, callback))
        self._finished(chosen, self._intake.last_delivery)

    def _finished(self, offsets: Offsets | None, delivered: Delivered) -> None:
        """The user has said so by a commit."""
        chosen = None if offsets is None else {tp: each.offset for tp, each in offsets.items()}
        self._intake.finished(chosen, delivered)

    async def committed(
        self, partitions: SomePartitions, *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for these partitions; None where it has nothing. While a backlog (KIP-333) is
        open, what is committed of that: everything before the offset is done."""
        self._gate.check()
        chosen, timeout = partitions_in(partitions), optional_seconds_of(timeout)
        engine = self._start()
        found = await self._timed("committed", timeout, lambda: engine.logs.committed(chosen))
        return {tp: found.get(tp) for tp in chosen}

    # -- completion ----------------------------------------------------------------------------------------------

    def done(self, work: Record | Records) -> None:
        """Work on a record, or on all of these records, is complete. From any thread, in any order.

        With commit.mode=done, commits cover what is done without a gap. What is done beyond it is noted beside
        the commit, and not delivered again to whoever reads the partition next with headrace. Records of partitions
        that are not here any more are passed over. Raises ConfigError with another commit.mode.
        """
        self._gate.check_fork()
        if not isinstance(work, (Record, Records)):
            raise TypeError(f"done() takes a Record, or Records, not {shown(work)}")
        self._tracked().done(work)

    async def in_flight(
        self,
        partitions: SomePartitions | None = None,
        *,
        timeout: float = 0.0,
    ) -> dict[TopicPartition, int]:
        """How many records of these partitions (of all) poll() has returned that are not done; partitions without any
        are left out. Waits up to `timeout` seconds until there are none. Needs commit.mode=done."""
        self._gate.check_fork()
        chosen = None if partitions is None else set(partitions_in(partitions))
        return await self._tracked().wait_async(chosen, seconds_of(timeout))

    def _wait_in_flight(self, partitions: SomePartitions | None, timeout: float) -> dict[TopicPartition, int]:
        """The same, on a thread that may wait."""
        self._gate.check_fork()
        chosen = None if partitions is None else set(partitions_in(partitions))
        return self._tracked().wait(chosen, seconds_of(timeout))
