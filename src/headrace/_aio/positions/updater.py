"""Gives partitions a position: asks brokers, and tells the machine (`_machines/positions/`) what they say.

    UNKNOWN   -> the committed offsets of the group
    RESET     -> the offsets of the log (ListOffsets)
    VALIDATE  -> the end of the position's leader epoch in the leader's log

Runs while some partition is in one of these phases, and sleeps otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping

from ..._machines.commit.committed_offset import CommittedOffset
from ..._machines.fetch.partition import Phase
from ..._machines.positions.positions import Committed, ListedOffset, Positions, PositionVersions, refuse
from ..._machines.positions.truncation import EpochEnd, Verdict
from ...config.consumer import ConsumerConfig, reset_duration_ms
from ...errors import HeadraceError
from ...types import TopicPartition
from ..fetch.buffer import FetchBuffer
from ..network.client import Client
from .list_offsets import EARLIEST, LATEST, ListOffsets
from .partition_start import PartitionStart, Settled

log = logging.getLogger(__name__)


class PositionUpdater:
    """The task above. Belongs to the loop's thread."""

    def __init__(
        self, client: Client[ConsumerConfig], buffer: FetchBuffer, offsets: ListOffsets, start: PartitionStart
    ) -> None:
        self._client = client
        self._buffer = buffer
        self._positions = Positions(buffer.assignment, buffer.cluster)
        self._offsets = offsets
        self._start = start
        self._wanted = asyncio.Event()
        self._round_done = asyncio.Event()
        self.failure: HeadraceError | None = None

    def wake(self) -> None:
        self._wanted.set()

    async def next_round(self) -> None:
        """Waits until all partitions were looked at again."""
        self.wake()
        await self._round_done.wait()

    async def run(self) -> None:
        failures = 0
        while True:
            await self._woken()
            self._wanted.clear()
            error = await self._round()
            self.failure = error
            done, self._round_done = self._round_done, asyncio.Event()
            done.set()
            self._buffer.poll_signal.notify()
            if error is None:
                failures = 0
                continue
            failures += 1
            log.debug("positions are not settled yet (try %d): %s", failures, error)
            with contextlib.suppress(TimeoutError):  # unless something changes before that, such as metadata
                async with asyncio.timeout(self._client.retries.pause(failures)):
                    await self._wanted.wait()
            self._wanted.set()

    async def _woken(self) -> None:
        """Also when the backoff of a partition ends that a broker has refused."""
        with self._buffer.lock:
            until = self._buffer.assignment.next_retry
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._wanted.wait()

    async def _round(self) -> HeadraceError | None:
        """Looks at every partition once. Returns an error for which a question has to be repeated."""
        with self._buffer.lock:
            unsettled = self._positions.unsettled(asyncio.get_running_loop().time())
        errors = await asyncio.gather(
            self._from_commits(unsettled[Phase.UNKNOWN]),
            self._by_reset(unsettled[Phase.RESET]),
            self._by_epoch(unsettled[Phase.VALIDATE]),
        )
        return next((error for error in errors if error is not None), None)

    # -- committed -------------------------------------------------------------------------------------------

    async def _from_commits(self, versions: PositionVersions) -> HeadraceError | None:
        if not versions:
            return None
        read: Committed = {}
        kept: Committed = {}
        settled = Settled()
        if self._client.config.group_id is not None:
            try:
                read, ends = await self._start.ask(versions.keys())
                kept = await self._compare_with_log(read)
                settled = await self._start.settle(kept, ends, versions)
            except HeadraceError as error:
                return self._refuse_all(versions, error)
        again = settled.again
        with self._buffer.lock:
            for tp in versions.keys() - set(settled.partitions):
                state = self._positions.current(tp, versions, Phase.UNKNOWN)
                if state is None:
                    continue
                found = kept.get(tp)
                if isinstance(found, HeadraceError):
                    again = refuse(state, found, time.monotonic()) or again
                    continue
                before = read.get(tp)
                self._positions.start(state, found, before if isinstance(before, CommittedOffset) else None)
                self._wanted.set()  # RESET and VALIDATE come next; a commit without an epoch needs neither
        self._buffer.fetch_soon()
        return again

    async def _compare_with_log(self, committed: Committed) -> Committed:
        epochs = self._positions.epochs_to_check(committed, even_plain=self._start.checks_plain_commits)
        return self._positions.compare_with_log(committed, await self._offsets.epoch_ends(epochs) if epochs else {})

    def _refuse_all(self, versions: PositionVersions, error: HeadraceError) -> HeadraceError | None:
        with self._buffer.lock:
            for tp in versions:
                state = self._positions.current(tp, versions, Phase.UNKNOWN)
                if state is not None:
                    refuse(state, error, time.monotonic())
        return error if error.retriable else None

    # -- reset -----------------------------------------------------------------------------------------------

    async def _by_reset(self, versions: PositionVersions) -> HeadraceError | None:
        if not versions:
            return None
        with self._buffer.lock:
            policies, out_of_range = self._positions.resets(versions)
        found, starts = await asyncio.gather(
            self._offsets.by_time({tp: _timestamp(policy) for tp, policy in policies.items()}),
            self._offsets.by_time(dict.fromkeys(out_of_range, EARLIEST)),
        )
        too_young = [tp for tp, it in found.items() if isinstance(it, ListedOffset) and it.offset < 0]
        if too_young:
            # No record is as young as by_duration asks: the next one to be written will be.
            found.update(await self._offsets.by_time(dict.fromkeys(too_young, LATEST)))
        return self._reset(versions, found, starts)

    def _reset(
        self,
        versions: PositionVersions,
        found: Mapping[TopicPartition, ListedOffset | HeadraceError],
        starts: Mapping[TopicPartition, ListedOffset | HeadraceError],
    ) -> HeadraceError | None:
        again: HeadraceError | None = None
        with self._buffer.lock:
            for tp, result in found.items():
                state = self._positions.current(tp, versions, Phase.RESET)
                if state is None:
                    continue
                start = starts.get(tp)
                if isinstance(result, HeadraceError) or isinstance(start, HeadraceError):
                    error = result if isinstance(result, HeadraceError) else start
                    assert isinstance(error, HeadraceError)
                    again = refuse(state, error, time.monotonic()) or again
                    continue
                lost = self._positions.reset(state, result.offset, None if start is None else start.offset)
                if lost is not None:
                    self._buffer.skipped(lost, has_listener=self._start.is_member)
                self._buffer.source.cut(tp, result.offset)
        self._buffer.fetch_soon()
        return again

    # -- validation --------------------------------------------------------------------------------------------

    async def _by_epoch(self, versions: PositionVersions) -> HeadraceError | None:
        if not versions:
            return None
        with self._buffer.lock:
            asked = self._positions.epochs_to_validate(versions)
            leaders = {tp: self._buffer.cluster.leader(tp) for tp in asked}
        found = await self._offsets.epoch_ends(asked)
        again: HeadraceError | None = None
        with self._buffer.lock:
            for tp, result in found.items():
                state = self._positions.current(tp, versions, Phase.VALIDATE)
                if state is None:
                    continue
                if state.fetch_epoch != asked.get(tp):
                    # A batch of a newer epoch was decoded while the question about the older one was out.
                    self._wanted.set()
                    continue
                if isinstance(result, HeadraceError):
                    again = refuse(state, result, time.monotonic()) or again
                    continue
                leader = leaders[tp]
                verdict = self._positions.validate(state, result, leader.epoch if leader else -1)
                self._follow(tp, verdict, result)
        self._buffer.fetch_soon()
        return again

    def _follow(self, tp: TopicPartition, verdict: Verdict, end: EpochEnd) -> None:
        if verdict in (Verdict.DROP_AHEAD, Verdict.GO_BACK):
            self._buffer.source.cut(tp, end.end_offset)
        elif verdict is Verdict.RESET:
            self._wanted.set()


def _timestamp(policy: str) -> int:
    if policy == "earliest":
        return EARLIEST
    if policy == "latest":
        return LATEST
    return max(0, int(time.time() * 1000) - reset_duration_ms(policy))
