"""Backlog ranges (KIP-333) in a truncated log. No broker runs."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import TopicPartition
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.fetch.partition import Phase, Position
from headrace._machines.lanes.commit_metadata import CommitMark, committed_offset
from headrace._machines.positions.truncation import EpochEnd
from headrace.errors import (
    HeadraceError,
    LogTruncationError,
    NetworkError,
)
from support.brokers.fake_broker import run
from support.harness.two_lanes_in_memory import TP, Log, Scene, scene, set_log


class TestTruncation:
    """The log was truncated and has grown again while no member was running (KIP-320)."""

    def start(
        self, first: CommitMark, second: CommitMark | None, log: Log, **settings: Any
    ) -> tuple[Scene, HeadraceError | None]:
        """The consumer and its partition after the start, and the error that requires a retry."""

        async def main() -> tuple[Scene, HeadraceError | None]:
            async with scene(**settings) as at:
                at.buffer.assign([])
                at.buffer.assign([TP])
                at.state = at.buffer.assignment.state(TP)
                at.first.has[TP] = first.commit
                set_log(at, log)

                async def read(_: object) -> dict[TopicPartition, object]:
                    return {TP: committed_offset(first, second)}

                at.reader.read = read  # type: ignore[assignment,method-assign]
                again = await at.engine.positions._from_commits({TP: at.state.position_version})
                if TP in at.backlog.lanes:
                    at.lanes = at.backlog.lanes[TP]
                    assert at.mark == at.lanes.first
                return at, again

        return run(main())  # type: ignore[no-any-return]

    @pytest.mark.parametrize(
        ("first", "second", "holes"),
        [
            pytest.param(CommitMark(140, OffsetSet(140), "", "", 5), None, [(100, 190)], id="a plain commit"),
            pytest.param(
                CommitMark(140, OffsetSet(140, [(70, 120)]), "t", "", 5),
                CommitMark(110, OffsetSet(110), "t"),
                [(100, 190)],
                id="a range with progress beyond the truncation",
            ),
            pytest.param(
                CommitMark(140, OffsetSet(140, [(70, 80)]), "t", "", 5),
                None,
                [(70, 80), (100, 190)],
                id="a range before the truncation",
            ),
        ],
    )
    def test_records_written_after_a_truncation_are_part_of_the_backlog(
        self, first: CommitMark, second: CommitMark | None, holes: list[tuple[int, int]]
    ) -> None:
        at, again = self.start(first, second, Log(190, EpochEnd(5, 100)))
        assert (again, at.lanes.open) == (None, holes)
        assert at.state.position == Position(190, 7)
        assert (at.lanes.first.leader_epoch, at.mark.leader_epoch) == (7, 7), (
            "both the token and the final commit have the new epoch"
        )

    def test_a_log_that_was_not_truncated_keeps_its_backlog_range(self) -> None:
        at, _ = self.start(CommitMark(140, OffsetSet(140), "", "", 5), None, Log(190, EpochEnd(5, 150)))
        assert at.lanes.open == [(140, 190)]

    def test_a_commit_with_an_unknown_epoch_applies_the_reset_policy(self) -> None:
        at, _ = self.start(CommitMark(140, OffsetSet(140), "", "", 5), None, Log(190, EpochEnd(-1, -1)))
        assert (at.state.phase, at.state.reset_to) == (Phase.RESET, "latest")

    def test_a_truncated_log_without_a_reset_policy_is_a_fault_with_the_divergence(self) -> None:
        log = Log(190, EpochEnd(5, 100))
        at, _ = self.start(CommitMark(140, OffsetSet(140), "", "", 5), None, log, auto_offset_reset="none")
        assert isinstance(at.state.fault, LogTruncationError)
        assert at.state.fault.divergence == {TP: 100}

    def test_a_failed_lookup_of_an_epoch_s_end_is_retried(self) -> None:
        gone = NetworkError("gone")
        at, again = self.start(CommitMark(140, OffsetSet(140), "", "", 5), None, Log(190, gone))
        assert again is gone
        assert at.state.phase is Phase.UNKNOWN
