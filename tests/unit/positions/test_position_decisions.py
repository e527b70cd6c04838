"""Decisions about positions: the tables of `_machines/positions/`."""

from __future__ import annotations

import pytest

from headrace import TopicPartition
from headrace._machines.cluster import Cluster
from headrace._machines.commit.committed_offset import CommittedOffset
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.fetch.assignment import Assignment
from headrace._machines.fetch.partition import OutOfRange, PartitionState, Phase, Position
from headrace._machines.positions.positions import LostRange, Positions, refuse, resume_position
from headrace._machines.positions.truncation import EpochEnd, Verdict, judge
from headrace.errors import (
    AuthorizationError,
    HeadraceError,
    LogTruncationError,
    NetworkError,
    OffsetOutOfRangeError,
    OffsetResetError,
)

TP = TopicPartition("t", 0)
UNKNOWN = EpochEnd(-1, -1)


def machine(policy: str = "latest") -> tuple[Positions, PartitionState]:
    assignment = Assignment(policy, "fair", 1000)
    assignment.assign([TP])
    return Positions(assignment, Cluster()), assignment.state(TP)


@pytest.mark.parametrize(
    ("end", "may_reset", "verdict"),
    [
        (EpochEnd(3, 200), True, Verdict.VALID),
        (EpochEnd(3, 151), True, Verdict.VALID),
        (EpochEnd(3, 150), True, Verdict.VALID),
        (EpochEnd(3, 150), False, Verdict.VALID),
        (EpochEnd(3, 149), True, Verdict.DROP_AHEAD),
        (EpochEnd(3, 100), True, Verdict.DROP_AHEAD),
        (EpochEnd(3, 100), False, Verdict.DROP_AHEAD),
        (EpochEnd(3, 99), True, Verdict.GO_BACK),
        (EpochEnd(3, 99), False, Verdict.RAISE),
        (EpochEnd(3, 0), True, Verdict.GO_BACK),
        (UNKNOWN, True, Verdict.RESET),
        (UNKNOWN, False, Verdict.RAISE),
        (EpochEnd(3, -1), True, Verdict.RESET),
        (EpochEnd(-1, 200), True, Verdict.RESET),
    ],
)
def test_a_position_is_judged_by_the_end_of_its_epoch(end: EpochEnd, may_reset: bool, verdict: Verdict) -> None:
    assert judge(end, 100, 150, may_reset=may_reset) is verdict


@pytest.mark.parametrize(
    ("verdict", "policy", "end", "phase", "position", "fetch_offset"),
    [
        (Verdict.VALID, "latest", EpochEnd(3, 150), Phase.READY, 100, 150),
        (Verdict.DROP_AHEAD, "latest", EpochEnd(3, 120), Phase.READY, 100, 100),
        (Verdict.GO_BACK, "latest", EpochEnd(3, 90), Phase.READY, 90, 90),
        (Verdict.RESET, "latest", UNKNOWN, Phase.RESET, None, 150),
        (Verdict.RAISE, "none", EpochEnd(3, 90), Phase.VALIDATE, 100, 150),
    ],
)
def test_each_verdict_moves_resets_or_faults_the_partition(
    verdict: Verdict, policy: str, end: EpochEnd, phase: Phase, position: int | None, fetch_offset: int
) -> None:
    positions, state = machine(policy)
    state.seek(Position(100, 3))
    state.fetch_offset = 150
    assert positions.validate(state, end, 7) is verdict
    assert (state.phase, state.position and state.position.offset, state.fetch_offset) == (
        phase,
        position,
        fetch_offset,
    )
    assert state.leader_epoch == (7 if phase is Phase.READY else -1)
    assert state.reset_from == (100 if phase is Phase.RESET else None)
    assert isinstance(state.fault, LogTruncationError) == (verdict is Verdict.RAISE)


@pytest.mark.parametrize(
    ("committed", "position"),
    [
        (CommittedOffset(70, OffsetSet(70)), Position(70)),
        (CommittedOffset(70, OffsetSet(70), 3), Position(70, 3)),
        (CommittedOffset(70, OffsetSet(90, [(70, 80)]), 3), Position(70, 3)),
        (CommittedOffset(140, OffsetSet(140, [(70, 120)]), 3), Position(70)),
    ],
    ids=["plain", "with an epoch", "done beyond it", "open below it: its epoch does not apply to the lower offset"],
)
def test_a_commit_is_resumed_at_its_first_open_offset(committed: CommittedOffset, position: Position) -> None:
    assert resume_position(committed) == position


@pytest.mark.parametrize(
    ("committed", "even_plain", "is_compared"),
    [
        (CommittedOffset(70, OffsetSet(70), 3), False, False),
        (CommittedOffset(70, OffsetSet(70), 3), True, True),
        (CommittedOffset(70, OffsetSet(90, [(70, 80)]), 3), False, True),
        (CommittedOffset(70, OffsetSet(90, [(70, 80)])), True, False),
        (NetworkError("gone"), True, False),
    ],
)
def test_commits_with_an_epoch_and_ranges_are_compared_with_the_log(
    committed: CommittedOffset | HeadraceError, even_plain: bool, is_compared: bool
) -> None:
    positions, _ = machine()
    assert positions.epochs_to_check({TP: committed}, even_plain=even_plain) == ({TP: 3} if is_compared else {})


RANGES = CommittedOffset(140, OffsetSet(160, [(70, 120), (140, 150)]), 3)
GONE = NetworkError("gone")


@pytest.mark.parametrize(
    ("end", "kept"),
    [
        (EpochEnd(3, 160), RANGES),
        (EpochEnd(3, 155), CommittedOffset(140, OffsetSet(155, [(70, 120), (140, 150)]), 3)),
        (EpochEnd(3, 130), CommittedOffset(130, OffsetSet(130, [(70, 120)]), 3)),
        (EpochEnd(3, 100), CommittedOffset(100, OffsetSet(70), 3)),
        (UNKNOWN, None),
        (GONE, GONE),
    ],
)
def test_a_commit_is_cut_at_the_end_of_its_epoch_in_a_truncated_log(
    end: EpochEnd | HeadraceError, kept: CommittedOffset | HeadraceError | None
) -> None:
    positions, _ = machine()
    assert positions.compare_with_log({TP: RANGES}, {TP: end}) == ({} if kept is None else {TP: kept})


@pytest.mark.parametrize(
    ("end", "divergence", "text"),
    [(EpochEnd(3, 130), 130, "below the position 160 to 130 and"), (UNKNOWN, None, "below the position 160 and")],
)
def test_without_a_reset_policy_a_truncated_log_is_an_error_with_the_divergence(
    end: EpochEnd, divergence: int | None, text: str
) -> None:
    positions, _ = machine("none")
    error = positions.compare_with_log({TP: RANGES}, {TP: end})[TP]
    assert isinstance(error, LogTruncationError)
    assert error.divergence == {TP: divergence}
    assert f"the log of t-0 was truncated {text} auto.offset.reset is none" in str(error)


@pytest.mark.parametrize(
    ("kept", "read", "policy", "phase", "reset_from", "fault"),
    [
        (RANGES, RANGES, "latest", Phase.READY, None, None),
        (None, None, "latest", Phase.RESET, None, None),
        (None, RANGES, "latest", Phase.RESET, 140, None),
        (None, None, "none", Phase.UNKNOWN, None, OffsetResetError),
        (None, RANGES, "none", Phase.UNKNOWN, None, OffsetOutOfRangeError),
    ],
    ids=["a commit", "no commit", "a void commit", "no commit, no policy", "a void commit, no policy"],
)
def test_a_partition_starts_at_its_commit_or_by_the_reset_policy(
    kept: CommittedOffset | None,
    read: CommittedOffset | None,
    policy: str,
    phase: Phase,
    reset_from: int | None,
    fault: type[HeadraceError] | None,
) -> None:
    positions, state = machine(policy)
    positions.start(state, kept, read)
    assert (state.phase, state.reset_from) == (phase, reset_from)
    assert type(state.fault) is (fault or type(None))
    assert state.already_done == (None if kept is None else kept.done)
    assert (state.position and state.position.offset) == (None if kept is None else 70)


@pytest.mark.parametrize(
    ("reset_from", "log_start", "offset", "lost"),
    [
        (None, None, 500, None),
        (100, 300, 300, LostRange(TP, 100, 300)),
        (100, 0, 500, LostRange(TP, 100, 500)),
        (100, 0, 50, None),
        (100, 0, 100, None),
    ],
    ids=["a first start", "retention", "a truncated log", "further back", "the same offset"],
)
def test_a_reset_reports_the_offsets_that_it_skips(
    reset_from: int | None, log_start: int | None, offset: int, lost: LostRange | None
) -> None:
    positions, state = machine()
    state.await_reset("latest")
    state.reset_from = reset_from
    assert positions.resets({TP: state.position_version}) == ({TP: "latest"}, [] if reset_from is None else [TP])
    assert positions.reset(state, offset, log_start) == lost
    assert (state.phase, state.position) == (Phase.READY, Position(offset))
    assert state.skipped == (0 if lost is None else lost.end - lost.start)


@pytest.mark.parametrize(
    ("error", "is_repeated", "is_refused", "has_fault"),
    [
        (NetworkError("gone"), True, False, False),
        (AuthorizationError(29, "TOPIC_AUTHORIZATION_FAILED", False, "denied"), False, True, True),
        (OffsetResetError("the user decides", {TP}), False, False, True),
    ],
)
def test_only_fatal_errors_of_position_requests_become_faults(
    error: HeadraceError, is_repeated: bool, is_refused: bool, has_fault: bool
) -> None:
    _, state = machine()
    assert refuse(state, error, 0.0) is (error if is_repeated else None)
    assert (state.is_refused, state.fault is error) == (is_refused, has_fault)


@pytest.mark.parametrize(
    ("change", "is_current"),
    [
        (lambda state: None, True),
        (lambda state: state.seek(Position(5)), False),
        (lambda state: state.await_reset("earliest"), False),
        (lambda state: state.await_position(), False),
    ],
    ids=["nothing", "seek", "seek to the beginning", "assigned again"],
)
def test_position_responses_from_before_a_move_are_dropped(change: object, is_current: bool) -> None:
    positions, state = machine()
    asked = positions.unsettled(0.0)
    assert asked == {Phase.UNKNOWN: {TP: state.position_version}, Phase.RESET: {}, Phase.VALIDATE: {}}
    change(state)  # type: ignore[operator]
    found = positions.current(TP, asked[Phase.UNKNOWN], Phase.UNKNOWN)
    assert found is (state if is_current else None)


def test_a_fetch_that_was_out_of_range_is_a_question_about_the_reset_policy() -> None:
    positions, state = machine("earliest")
    state.seek(Position(70))
    state.fault = OutOfRange(70)
    assert positions.unsettled(0.0)[Phase.RESET] == {TP: state.position_version}
    assert (state.reset_to, state.reset_from) == ("earliest", 70)


def test_a_refused_question_is_asked_again_after_its_backoff() -> None:
    positions, state = machine()
    state.refuse(NetworkError("no"), 10.0)
    assert positions.unsettled(10.4)[Phase.UNKNOWN] == {}
    assert positions.unsettled(10.5)[Phase.UNKNOWN] == {TP: state.position_version}
