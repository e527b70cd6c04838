"""Where partitions are read: from commits, by the reset policy (auto.offset.reset), and after a truncation (KIP-320).

    phase      answer                                             policy     the partition
    UNKNOWN    an error of the broker                             any        is retried, or has a fault (`refuse`)
    UNKNOWN    nothing is committed                               a policy   RESET
                                                                  none       raises OffsetResetError
    UNKNOWN    a commit, with the log as the commit knew it       any        resumes at the lowest offset not done
    UNKNOWN    a commit, and its log was truncated                any        follows the verdict of `truncation.py`
    RESET      an offset                                          any        starts there; the offsets between the old
                                                                             position and this one are skipped
    RESET      no record is as young as by_duration asks          any        starts at the end of the log
    VALIDATE   where the position's epoch ended                   any        follows the verdict of `truncation.py`
    VALIDATE   another epoch was decoded since the question       any        is validated again

A question is asked under a position version. Whatever the user does to the partition meanwhile (seek, assign) changes
that, and `current` drops the late answer.

Nothing here waits, sends or reads a clock. The caller holds the lock of the assignment.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from ...errors import HeadraceError, OffsetResetError
from ...types import OffsetAndMetadata, TopicPartition
from ..cluster import Cluster
from ..commit.committed_offset import CommittedOffset
from ..commit.offset_set import OffsetSet
from ..fetch.assignment import Assignment
from ..fetch.partition import PartitionState, Phase, Position
from .truncation import EpochEnd, Verdict, judge, truncation_error

log = logging.getLogger(__name__)

PositionVersions = Mapping[TopicPartition, int]
Committed = Mapping[TopicPartition, CommittedOffset | HeadraceError]

UNSETTLED = (Phase.UNKNOWN, Phase.RESET, Phase.VALIDATE)
"""The phases in which a partition waits for an answer."""


class ListedOffset(NamedTuple):
    """An offset of the log; -1 if no record is as young as was asked for."""

    offset: int
    timestamp: int
    leader_epoch: int


class LostRange(NamedTuple):
    """Offsets that this consumer will not read: retention deleted their records, or a reset skipped them."""

    partition: TopicPartition
    start: int
    end: int


def resume_position(committed: CommittedOffset) -> Position:
    """The epoch of a commit is that of its offset: it says nothing of a lower one."""
    low, epoch = committed.done.low, committed.leader_epoch
    return Position(low, -1 if epoch is None or low != committed.offset else epoch)


def position_commit(position: Position, already_done: OffsetSet | None, done: OffsetSet | None) -> OffsetAndMetadata:
    """The commit of a position, or of what is `done`. `already_done` is what was done when the reading began."""
    if done is None and (already_done is None or position.offset >= already_done.frontier):
        return OffsetAndMetadata(position.offset, "", None if position.epoch < 0 else position.epoch)
    if done is None:
        # What the last owner has done beyond its commit stays noted until the position has passed it.
        assert already_done is not None
        done = already_done | OffsetSet(position.offset)
    return OffsetAndMetadata(done.low, done.to_text())


def refuse(state: PartitionState, error: HeadraceError, now: float) -> HeadraceError | None:
    """Returns the error if the question is to be repeated. Otherwise it becomes the partition's fault: the question is
    repeated later, unless the user has to decide."""
    if error.retriable:
        state.end_refusal()
        return error
    if isinstance(error, OffsetResetError):
        state.fault = error
    else:
        state.refuse(error, now)
    return None


class Positions:
    """The decisions above, for one assignment."""

    def __init__(self, assignment: Assignment, cluster: Cluster) -> None:
        self._assignment = assignment
        self._cluster = cluster

    def unsettled(self, now: float) -> dict[Phase, dict[TopicPartition, int]]:
        """The partitions that wait for an answer and may be asked about, with their position versions."""
        self._assignment.resolve_out_of_range()
        return {
            phase: {
                state.tp: state.position_version
                for state in self._assignment.in_phase(phase)
                if state.may_be_asked_for(now)
            }
            for phase in UNSETTLED
        }

    def current(self, tp: TopicPartition, versions: PositionVersions, phase: Phase) -> PartitionState | None:
        """The partition, if the answer to a question of that version and phase is not too late."""
        state = self._assignment.get(tp)
        if state is None or state.position_version != versions[tp] or state.phase is not phase:
            return None
        return state

    def settle(self, state: PartitionState, position: Position) -> None:
        """Reads from a position that the leader itself has named: there is nothing to validate."""
        state.seek(position)
        leader = self._cluster.leader(state.tp)
        state.validated(leader.epoch if leader else -1)

    # -- UNKNOWN ---------------------------------------------------------------------------------------------------

    def epochs_to_check(self, committed: Committed, *, even_plain: bool) -> dict[TopicPartition, int]:
        """The epochs of commits that have to be compared with the log before a start. A plain commit is no more than a
        position and goes through VALIDATE as any other, unless it decides where something else starts."""
        return {
            tp: it.leader_epoch
            for tp, it in committed.items()
            if isinstance(it, CommittedOffset) and it.leader_epoch is not None and (even_plain or not it.is_plain)
        }

    def compare_with_log(
        self, committed: Committed, ends: Mapping[TopicPartition, EpochEnd | HeadraceError]
    ) -> Committed:
        """KIP-320: a commit of a log that was truncated since counts up to the truncation only. Commits of which
        nothing is left are missing in the result."""
        kept = dict(committed)
        for tp, end in ends.items():
            found = committed[tp]
            assert isinstance(found, CommittedOffset)
            if isinstance(end, HeadraceError):
                kept[tp] = end
                continue
            verdict = judge(end, found.end, found.end, may_reset=self._assignment.may_reset)
            if verdict is Verdict.RAISE:
                kept[tp] = truncation_error(tp, found.end, end)
            elif verdict is Verdict.GO_BACK:
                log.warning(
                    "%s was truncated: its commit is valid up to offset %d instead of %d", tp, end.end_offset, found.end
                )
                kept[tp] = found.below(end.end_offset)
            elif verdict is Verdict.RESET:
                log.warning("%s: the leader epoch of the committed offset %d is unknown: resetting", tp, found.end)
                del kept[tp]
        return kept

    def start(self, state: PartitionState, kept: CommittedOffset | None, read: CommittedOffset | None) -> None:
        """Of the commit as `read`, `kept` is valid in the present log."""
        if kept is not None:
            state.seek(resume_position(kept))
            state.already_done = kept.done
        elif read is not None:
            self._assignment.out_of_range(state, read.offset)
        else:
            self._assignment.no_committed_offset(state)

    # -- RESET -----------------------------------------------------------------------------------------------------

    def resets(self, versions: PositionVersions) -> tuple[dict[TopicPartition, str], list[TopicPartition]]:
        """The policy of each partition, and those whose log did not have their position: the start of their log says
        why."""
        found = (self.current(tp, versions, Phase.RESET) for tp in versions)
        states = [state for state in found if state is not None]
        policies = {state.tp: state.reset_to for state in states if state.reset_to is not None}
        return policies, [state.tp for state in states if state.reset_from is not None]

    def reset(self, state: PartitionState, offset: int, log_start: int | None) -> LostRange | None:
        """Starts at `offset`. Returns the range that is lost to this consumer by that, if there is one."""
        lost = None
        if log_start is None or state.reset_from is None:
            log.info("%s starts at offset %d (%s)", state.tp, offset, state.reset_to)
        else:
            lost = _note_reset(state, state.reset_from, log_start, offset)
        self.settle(state, Position(offset))
        return lost

    # -- VALIDATE --------------------------------------------------------------------------------------------------

    def epochs_to_validate(self, versions: PositionVersions) -> dict[TopicPartition, int]:
        return {
            tp: state.fetch_epoch
            for tp in versions
            if (state := self.current(tp, versions, Phase.VALIDATE)) is not None
        }

    def validate(self, state: PartitionState, end: EpochEnd, leader_epoch: int) -> Verdict:
        """Carries out the verdict. GO_BACK and DROP_AHEAD: nothing from `end.end_offset` on is in the log that was
        read. RESET: the partition is in that phase now."""
        assert state.position is not None
        position = state.position.offset
        verdict = judge(end, position, state.fetch_offset, may_reset=self._assignment.may_reset)
        if verdict is Verdict.DROP_AHEAD:
            log.info("%s was truncated to offset %d: fetching again from %d", state.tp, end.end_offset, position)
            state.cut_ahead(end.end_offset)
        elif verdict is Verdict.GO_BACK:
            log.warning("%s was truncated: resuming at offset %d instead of %d", state.tp, end.end_offset, position)
            state.cut_back(end.end_offset)
        elif verdict is Verdict.RESET:
            log.warning("%s: the leader epoch of position %d is unknown: resetting", state.tp, position)
            self._assignment.out_of_range(state, position)
            return verdict
        elif verdict is Verdict.RAISE:
            state.fault = truncation_error(state.tp, position, end)
            return verdict
        state.validated(leader_epoch)
        return verdict


def _note_reset(state: PartitionState, position: int, log_start: int, offset: int) -> LostRange | None:
    """The log does not have the position. The offsets between it and the new one are lost to this consumer."""
    if position < log_start:
        reason = f"is no longer in the log, whose first offset is {log_start} (retention, or deleted records)"
    else:
        reason = f"is not in the log, whose first offset is {log_start}"
    skipped = max(0, offset - position)
    log.warning(
        "%s: offset %d %s: resuming at %d (auto.offset.reset=%s), %d offsets skipped",
        *(state.tp, position, reason, offset, state.reset_to, skipped),
    )
    state.skipped += skipped
    return LostRange(state.tp, position, offset) if skipped else None
