"""Gives partitions a position: from the group's commits, by the reset policy, or by checking the old one.

    UNKNOWN   -> what the group has committed; nothing there, or no group: RESET. With enable.parallel.rebalance the
                 end of the log, if what was committed lies behind it: the rest is the backlog's (KIP-333)
    RESET     -> the log's first or next offset, or the first one after a time
    VALIDATE  -> where the leader says that the position's epoch ended. Before the position: the log was
                 truncated, and what was read of it is gone

Works while some partition is in one of these phases, and sleeps otherwise. Whatever a user does meanwhile to
a partition (seek, assign) changes its continuity, and the answer that comes late is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Collection, Mapping

from ..config import reset_duration_ms
from ..errors import CommitFailedError, HeadraceError, LogTruncationError, OffsetResetError
from ..lane_marks import Mark, standing
from ..machines.lanes import Lanes, beginning
from ..machines.partition import PartitionState, Phase, Position
from ..offsets import OffsetSet
from ..types import TopicPartition
from .backlog import LostRange
from .client import Client
from .intake import Intake
from .log_offsets import EARLIEST, LATEST, EpochEnd, Found, LogOffsets
from .two_logs import TwoLogs

log = logging.getLogger(__name__)

Continuities = Mapping[TopicPartition, int]
Both = tuple[Mark, Mark | None]
Committed = Mapping[TopicPartition, Both | HeadraceError]
Ends = Mapping[TopicPartition, Found | HeadraceError]


class Positions:
    """The task above. `on_settled` is called on the loop after each round."""

    def __init__(self, client: Client, intake: Intake, offsets: LogOffsets, logs: TwoLogs) -> None:
        self._client = client
        self._intake = intake
        self._offsets = offsets
        self._logs = logs
        self._wanted = asyncio.Event()
        self._round_done = asyncio.Event()
        self._leaving: dict[TopicPartition, int] = {}  # given up while under these continuities: they get no token
        self._tokens: set[TopicPartition] = set()  # those whose tokens are on their way ...
        self._arrived = asyncio.Event()  # ... and when some of them are there, or failed
        self.failure: HeadraceError | None = None

    def wake(self) -> None:
        self._wanted.set()

    async def next_round(self) -> None:
        """Waits until partitions were looked at again."""
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
            self._intake.doorbell.ring()
            if error is None:
                failures = 0
                continue
            failures += 1
            log.debug("positions are not settled yet (try %d): %s", failures, error)
            with contextlib.suppress(TimeoutError):  # unless something new is known before, such as metadata
                async with asyncio.timeout(self._client.retry_pause(failures)):
                    await self._wanted.wait()
            self._wanted.set()

    async def _woken(self) -> None:
        """Also when it is time to ask again about what was refused."""
        with self._intake.lock:
            until = self._intake.assignment.next_retry
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._wanted.wait()

    async def _round(self) -> HeadraceError | None:
        """Looks at every partition once. The error is what has to be tried again."""
        with self._intake.lock:
            assignment = self._intake.assignment
            assignment.resolve_out_of_range()
            now = self._client.loop.time()
            waiting = {
                phase: {
                    state.tp: state.continuity for state in assignment.in_phase(phase) if state.may_be_asked_for(now)
                }
                for phase in (Phase.UNKNOWN, Phase.RESET, Phase.VALIDATE)
            }
        errors = await asyncio.gather(
            self._from_commits(waiting[Phase.UNKNOWN]),
            self._by_reset(waiting[Phase.RESET]),
            self._by_epoch(waiting[Phase.VALIDATE]),
        )
        return next((error for error in errors if error is not None), None)

    def _current(self, tp: TopicPartition, continuities: Continuities, phase: Phase) -> PartitionState | None:
        state = self._intake.assignment.get(tp)
        if state is None or state.continuity != continuities[tp] or state.phase is not phase:
            return None
        return state

    # -- committed -------------------------------------------------------------------------------------------

    async def _from_commits(self, continuities: Continuities) -> HeadraceError | None:
        if not continuities:
            return None
        committed: Committed = {}
        read: Committed = {}
        settled: set[TopicPartition] = set()
        again: HeadraceError | None = None
        if self._client.config.group_id is not None:
            try:
                ends: Ends = {}
                if self._intake.backlog is None:
                    committed = await self._logs.read(continuities)
                else:
                    # The ends before what is said of epochs: a truncation in between is then found out by that, or by
                    # the live lane.
                    committed, ends = await asyncio.gather(
                        self._logs.read(continuities), self._offsets.by_time(dict.fromkeys(continuities, LATEST))
                    )
                read = committed
                committed = await self._of_the_same_log(read)
                if self._intake.backlog is not None:
                    settled, again = await self._in_two_lanes(committed, ends, continuities)
            except HeadraceError as error:
                return self._retry_or_raise(error, continuities, Phase.UNKNOWN)
        with self._intake.lock:
            for tp in continuities.keys() - settled:
                state = self._current(tp, continuities, Phase.UNKNOWN)
                if state is None:
                    continue
                found = committed.get(tp)
                if isinstance(found, HeadraceError):
                    again = _refused(state, found) or again
                    continue
                if found is not None:
                    self._go_on(state, *found)
                elif isinstance(void := read.get(tp), tuple):
                    self._intake.assignment.out_of_range(state, void[0].offset)
                else:
                    self._intake.assignment.no_committed_offset(state)
                self._wanted.set()  # RESET and VALIDATE come next; a commit without an epoch needs neither
        self._intake.fetch_soon()
        return again

    def _go_on(self, state: PartitionState, first: Mark, second: Mark | None) -> None:
        done = standing(first, second)
        epoch = -1 if first.leader_epoch is None or done.low != first.offset else first.leader_epoch
        state.seek(Position(done.low, epoch))
        state.known = done

    async def _of_the_same_log(self, committed: Committed) -> Committed:
        """KIP-320: of a log that was truncated since, a commit counts up to there only. Without lanes and ranges it is
        but a position, and validated as any other (VALIDATE)."""
        has_lanes = self._intake.backlog is not None
        read = {tp: it for tp, it in committed.items() if isinstance(it, tuple)}
        asked = {
            tp: first.leader_epoch
            for tp, (first, second) in read.items()
            if first.leader_epoch is not None and (has_lanes or standing(first, second) != OffsetSet(first.offset))
        }
        kept = dict(committed)
        for tp, end in (await self._offsets.epoch_ends(asked)).items() if asked else ():
            if isinstance(end, HeadraceError):
                kept[tp] = end
                continue
            first, second = read[tp]
            reached = max(first.offset, first.done.frontier)
            if end.is_known and end.end_offset >= reached:
                continue
            if not self._intake.assignment.may_reset:
                kept[tp] = _truncated(tp, reached, end)
            elif end.is_known:
                log.warning("%s was truncated: its commit counts up to %d instead of %d", tp, end.end_offset, reached)
                kept[tp] = first.below(end.end_offset), second
            else:
                log.warning("%s: the epoch of the committed %d is unknown: resetting", tp, reached)
                del kept[tp]
        return kept

    async def _in_two_lanes(
        self, committed: Committed, ends: Ends, continuities: Continuities
    ) -> tuple[set[TopicPartition], HeadraceError | None]:
        """Starts the partitions that lie behind the end of their log, in two lanes: none of their records is handed out
        before their token is committed. Returns those that need nothing else now, and what has to be tried again."""
        settled: set[TopicPartition] = set()
        lanes: dict[TopicPartition, Lanes] = {}
        again: HeadraceError | None = None
        for tp, end in ends.items():
            found = committed.get(tp)
            if not isinstance(found, tuple):
                continue
            if isinstance(end, HeadraceError):
                again = self._retry_or_raise(end, {tp: continuities[tp]}, Phase.UNKNOWN) or again
                settled.add(tp)
                continue
            start = beginning(*found, end.offset, self._client.config.parallel_rebalance_min_lag)
            if start.holes:
                is_there = end.leader_epoch >= 0 and start.live <= end.offset
                epoch = end.leader_epoch if is_there else found[0].leader_epoch
                lanes[tp] = Lanes(secrets.token_urlsafe(6), start, epoch)
        settled |= lanes.keys()
        with self._intake.lock:
            lanes = {tp: it for tp, it in lanes.items() if self._may_begin(tp, continuities)}
        if lanes:
            assert self._intake.backlog is not None
            self._intake.backlog.get_ready(lanes.keys())
            begun = lanes.keys()
            self._tokens |= begun
            try:
                await self._logs.begin(lanes)
            except CommitFailedError as error:
                if error.partitions:  # their topics were deleted; the others have their tokens
                    again = error
                    lanes = {tp: it for tp, it in lanes.items() if tp not in error.partitions}
                elif self._logs.is_member:
                    # Fenced: the member's machine knows by now, and these partitions are about to go, or to come again.
                    return settled, error
                else:
                    raise
            finally:
                self._tokens -= begun
                self._arrived.set()
            self._split(lanes, continuities)
        return settled, again

    def _may_begin(self, tp: TopicPartition, continuities: Continuities) -> bool:
        is_leaving = self._leaving.get(tp) == continuities[tp]
        return not is_leaving and self._current(tp, continuities, Phase.UNKNOWN) is not None

    async def no_more_tokens(self, partitions: Collection[TopicPartition] | None) -> None:
        """These (None: all) are about to be given up, with a last commit that must not come before a token, nor a token
        after it. Waits for those that are on their way: then their lanes are known."""
        with self._intake.lock:
            leaving = {
                state.tp: state.continuity
                for state in self._intake.assignment
                if partitions is None or state.tp in partitions
            }
        self._leaving = leaving if partitions is None else {**self._leaving, **leaving}
        while not self._tokens.isdisjoint(leaving):
            self._arrived.clear()
            await self._arrived.wait()

    def _split(self, lanes: Mapping[TopicPartition, Lanes], continuities: Continuities) -> None:
        backlog = self._intake.backlog
        assert backlog is not None
        with self._intake.lock:
            for tp, two in lanes.items():
                state = self._current(tp, continuities, Phase.UNKNOWN)
                if state is not None:
                    epoch = two.first.leader_epoch
                    self._settle(state, Position(two.live_start, -1 if epoch is None else epoch))
                    state.known = two.beyond
                    backlog.open(state, two)
        backlog.wake_all()

    def _retry_or_raise(self, error: HeadraceError, continuities: Continuities, phase: Phase) -> HeadraceError | None:
        with self._intake.lock:
            for tp in continuities:
                state = self._current(tp, continuities, phase)
                if state is not None:
                    _refused(state, error)
        return error if error.retriable else None

    # -- reset -----------------------------------------------------------------------------------------------

    async def _by_reset(self, continuities: Continuities) -> HeadraceError | None:
        if not continuities:
            return None
        with self._intake.lock:
            asked = {
                tp: _timestamp(state.reset_to)
                for tp in continuities
                if (state := self._current(tp, continuities, Phase.RESET)) and state.reset_to
            }
            passed = [tp for tp in asked if self._intake.assignment.state(tp).reset_from is not None]
        found, starts = await asyncio.gather(
            self._offsets.by_time(asked), self._offsets.by_time(dict.fromkeys(passed, EARLIEST))
        )
        too_young = [tp for tp, it in found.items() if isinstance(it, Found) and it.offset < 0]
        if too_young:
            # No record is as young as by_duration asks: the next one to be written will be.
            found.update(await self._offsets.by_time(dict.fromkeys(too_young, LATEST)))
        again: HeadraceError | None = None
        with self._intake.lock:
            for tp, result in found.items():
                state = self._current(tp, continuities, Phase.RESET)
                if state is None:
                    continue
                if isinstance(result, HeadraceError):
                    again = _refused(state, result) or again
                    continue
                if isinstance(start := starts.get(tp), HeadraceError):
                    again = _refused(state, start) or again
                    continue
                if start is None or state.reset_from is None:
                    log.info("%s starts at offset %d (%s)", tp, result.offset, state.reset_to)
                else:
                    self._tell_of_reset(state, state.reset_from, start.offset, result.offset)
                self._settle(state, Position(result.offset))
                self._cut_backlog(tp, result.offset)
        self._intake.fetch_soon()
        return again

    def _tell_of_reset(self, state: PartitionState, position: int, start: int, offset: int) -> None:
        """The log did not have the position. What was not read up to the new one is lost to this consumer."""
        if position < start:
            reason = f"is no longer in the log, whose first offset is {start} (retention, or deleted records)"
        else:
            reason = f"is not in the log, whose first offset is {start}"
        skipped = max(0, offset - position)
        log.warning(
            "%s: offset %d %s: resuming at %d (auto.offset.reset=%s), %d offsets skipped",
            *(state.tp, position, reason, offset, state.reset_to, skipped),
        )
        if skipped:
            state.skipped += skipped
            self._intake.skipped(LostRange(state.tp, position, offset), is_heard=self._logs.is_member)

    def _settle(self, state: PartitionState, position: Position) -> None:
        state.seek(position)
        leader = self._intake.cluster.leader(state.tp)
        state.validated(leader.epoch if leader else -1)

    def _cut_backlog(self, tp: TopicPartition, offset: int) -> None:
        """The live lane is somewhere else. The lanes do not overlap."""
        if self._intake.backlog is not None:
            self._intake.backlog.cut(tp, offset)

    # -- validation --------------------------------------------------------------------------------------------

    async def _by_epoch(self, continuities: Continuities) -> HeadraceError | None:
        if not continuities:
            return None
        with self._intake.lock:
            asked = {
                tp: state.fetch_epoch
                for tp in continuities
                if (state := self._current(tp, continuities, Phase.VALIDATE))
            }
            leaders = {tp: self._intake.cluster.leader(tp) for tp in asked}
        found = await self._offsets.epoch_ends(asked)
        again: HeadraceError | None = None
        with self._intake.lock:
            for tp, result in found.items():
                state = self._current(tp, continuities, Phase.VALIDATE)
                if state is None:
                    continue
                if state.fetch_epoch != asked.get(tp):
                    # A batch of a newer epoch was decoded while the question about the older one was out.
                    self._wanted.set()
                    continue
                if isinstance(result, HeadraceError):
                    again = _refused(state, result) or again
                    continue
                leader = leaders[tp]
                self._judge(state, result, leader.epoch if leader else -1)
        self._intake.fetch_soon()
        return again

    def _judge(self, state: PartitionState, end: EpochEnd, leader_epoch: int) -> None:
        known = end.is_known
        if known and end.end_offset >= state.fetch_offset:
            state.validated(leader_epoch)
            return
        assert state.position is not None
        if known and end.end_offset >= state.position.offset:
            # Only what was fetched ahead is gone; nobody has seen it.
            log.info("%s was truncated to %d: fetching again from %d", state.tp, end.end_offset, state.position.offset)
            state.cut_ahead(end.end_offset)
            state.validated(leader_epoch)
            self._cut_backlog(state.tp, end.end_offset)
            return
        if not self._intake.assignment.may_reset:
            state.fault = _truncated(state.tp, state.position.offset, end)
        elif known:
            log.warning(
                "%s was truncated: going on at %d instead of %d", state.tp, end.end_offset, state.position.offset
            )
            state.seek(Position(end.end_offset))
            state.validated(leader_epoch)
            self._cut_backlog(state.tp, end.end_offset)
        else:
            log.warning("%s: the epoch of position %d is unknown: resetting", state.tp, state.position.offset)
            self._intake.assignment.out_of_range(state, state.position.offset)
            self._wanted.set()


def _truncated(tp: TopicPartition, position: int, end: EpochEnd) -> LogTruncationError:
    text = (
        f"the log of {tp} was truncated below the position {position}"
        f"{f' to {end.end_offset}' if end.is_known else ''} and auto.offset.reset is none: seek() to where to go on"
    )
    return LogTruncationError(text, {tp: end.end_offset if end.is_known else None})


def _refused(state: PartitionState, error: HeadraceError) -> HeadraceError | None:
    """The error, if it is to be tried again. Else it is the partition's, which is asked for again later, unless the
    user has to decide."""
    if error.retriable:
        state.answered()
        return error
    if isinstance(error, OffsetResetError):
        state.fault = error
    else:
        state.refuse(error, time.monotonic())
    return None


def _timestamp(reset_to: str | None) -> int:
    if reset_to == "earliest":
        return EARLIEST
    if reset_to == "latest" or reset_to is None:
        return LATEST
    return max(0, int(time.time() * 1000) - reset_duration_ms(reset_to))
