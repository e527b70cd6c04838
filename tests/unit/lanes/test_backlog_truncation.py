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
from support.harness.two_lanes_in_memory import TP, Log, TwoLaneDriver, set_log, two_lane_consumer


class TestTruncation:
    """The log was truncated and has grown again while no member was running (KIP-320)."""

    def start(
        self, first: CommitMark, second: CommitMark | None, log: Log, **settings: Any
    ) -> tuple[TwoLaneDriver, HeadraceError | None]:
        """The consumer and its partition after the start, and the error that requires a retry."""

        async def main() -> tuple[TwoLaneDriver, HeadraceError | None]:
            async with two_lane_consumer(**settings) as driver:
                driver.buffer.assign([])
                driver.buffer.assign([TP])
                driver.state = driver.buffer.assignment.state(TP)
                driver.first.has[TP] = first.commit
                set_log(driver, log)

                async def read(_: object) -> dict[TopicPartition, object]:
                    return {TP: committed_offset(first, second)}

                driver.reader.read = read  # type: ignore[assignment,method-assign]
                again = await driver.engine.positions._from_commits({TP: driver.state.position_version})
                if TP in driver.backlog.lanes:
                    driver.lanes = driver.backlog.lanes[TP]
                    assert driver.mark == driver.lanes.first
                return driver, again

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
        driver, again = self.start(first, second, Log(190, EpochEnd(5, 100)))
        assert (again, driver.lanes.open) == (None, holes)
        assert driver.state.position == Position(190, 7)
        assert (driver.lanes.first.leader_epoch, driver.mark.leader_epoch) == (7, 7), (
            "both the token and the final commit have the new epoch"
        )

    def test_a_log_that_was_not_truncated_keeps_its_backlog_range(self) -> None:
        driver, _ = self.start(CommitMark(140, OffsetSet(140), "", "", 5), None, Log(190, EpochEnd(5, 150)))
        assert driver.lanes.open == [(140, 190)]

    def test_a_commit_with_an_unknown_epoch_applies_the_reset_policy(self) -> None:
        driver, _ = self.start(CommitMark(140, OffsetSet(140), "", "", 5), None, Log(190, EpochEnd(-1, -1)))
        assert (driver.state.phase, driver.state.reset_to) == (Phase.RESET, "latest")

    def test_a_truncated_log_without_a_reset_policy_is_a_fault_with_the_divergence(self) -> None:
        log = Log(190, EpochEnd(5, 100))
        driver, _ = self.start(CommitMark(140, OffsetSet(140), "", "", 5), None, log, auto_offset_reset="none")
        assert isinstance(driver.state.fault, LogTruncationError)
        assert driver.state.fault.divergence == {TP: 100}

    def test_a_failed_lookup_of_an_epoch_s_end_is_retried(self) -> None:
        gone = NetworkError("gone")
        driver, again = self.start(CommitMark(140, OffsetSet(140), "", "", 5), None, Log(190, gone))
        assert again is gone
        assert driver.state.phase is Phase.UNKNOWN
