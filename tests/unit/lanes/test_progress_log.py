"""The second commit log of two lanes (KIP-333) keeps no progress without a meaning, and commits of others. No broker
runs."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headrace import OffsetAndMetadata, TopicPartition
from headrace._aio.lanes.commit_logs import CommitLogs
from headrace._aio.lanes.one_lane_commits import OneLaneCommits
from headrace._aio.lanes.progress_log import ProgressLog
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.fetch.partition import Phase, Position
from headrace._machines.lanes.commit_metadata import CommitMark, is_foreign, is_progress_of, token_of
from headrace.errors import AuthorizationError, NetworkError
from support.brokers.fake_broker import run
from support.harness.two_lanes_in_memory import TP, CommitLog, Log, TwoLaneDriver, set_log, two_lane_consumer

OWN = CommitMark(85, OffsetSet(85), token_of("g", "earlier")).commit
OF_0_1_0 = CommitMark(85, OffsetSet(85), "k3Jx0Qab").commit
OF_A_GROUP_WITH_TWO_LANES = CommitMark(85, OffsetSet(80), token_of("g.backlog", "theirs")).commit
WITH_ANOTHER_OFFSET = OffsetAndMetadata(86, OWN.metadata)
PLAIN = OffsetAndMetadata(85)
DAMAGED = OffsetAndMetadata(85, OWN.metadata[:-3] + "!!!")
FOREIGN = [PLAIN, OffsetAndMetadata(85, "note"), OF_A_GROUP_WITH_TWO_LANES, WITH_ANOTHER_OFFSET]


@pytest.mark.parametrize("commit", [OWN, OF_0_1_0])
def test_progress_of_this_group_is_recognized(commit: OffsetAndMetadata) -> None:
    assert is_progress_of(commit, "g")
    assert not is_foreign(commit, "g")


@pytest.mark.parametrize("commit", FOREIGN, ids=str)
def test_commits_of_others_are_recognized(commit: OffsetAndMetadata) -> None:
    assert not is_progress_of(commit, "g")
    assert is_foreign(commit, "g")


def test_a_damaged_mark_may_be_overwritten_and_is_not_deleted() -> None:
    assert not is_progress_of(DAMAGED, "g")
    assert not is_foreign(DAMAGED, "g")


def progress_of(driver: TwoLaneDriver) -> ProgressLog:
    logs = driver.engine.store
    assert isinstance(logs, CommitLogs)
    return logs._second


def test_the_final_commit_deletes_the_progress_of_a_range_that_was_read_in_part() -> None:
    async def main() -> None:
        async with two_lane_consumer() as driver:
            driver.read(125, 85)
            await driver.consumer.commit()
            assert TP in driver.second.has
            await driver.consumer._parts.committer.after_revoke(frozenset({TP}))
            assert (driver.mark.offset, driver.mark.token) == (85, "")
            assert not driver.second.has

    run(main())


@pytest.mark.parametrize("is_closed", [False, True], ids=["while it runs", "by close"])
def test_progress_is_deleted_when_the_last_commit_ends_a_range(is_closed: bool) -> None:
    """The live lane was committed before, and nobody commits it again."""

    async def main() -> None:
        async with two_lane_consumer() as driver:
            driver.read(130, 85)
            await driver.consumer.commit({TP: 130})
            driver.read(130, 120)
            if is_closed:  # the commit of the end of the range times out, and succeeds later
                driver.lanes.progress = OffsetSet(120)
                driver.second.has[TP] = CommitMark(120, OffsetSet(120), driver.lanes.token).commit
                await driver.consumer._parts.committer.after_revoke(frozenset({TP}))
            else:
                await driver.consumer.commit({TP: 120})
            assert driver.first.has[TP] == OffsetAndMetadata(130)
            assert not driver.second.has

    run(main())


def test_nothing_is_written_to_the_second_log_when_its_token_is_gone() -> None:
    """Retention has closed the range, so the live lane's commit is plain. The backlog's position comes later."""

    async def main() -> None:
        async with two_lane_consumer() as driver:
            driver.read(130, 85)
            await driver.consumer.commit()
            with driver.buffer.lock:
                driver.lanes.log_begins(125, 85)
            await driver.consumer.commit({TP: 128})
            assert not driver.second.has
            driver.read(130, 120)
            await driver.consumer.commit()
            assert driver.first.has[TP] == OffsetAndMetadata(130)
            assert not driver.second.has

    run(main())


def test_progress_is_deleted_by_the_first_commit_after_a_seek() -> None:
    async def main() -> None:
        async with two_lane_consumer() as driver:
            driver.read(125, 85)
            await driver.consumer.commit()
            driver.consumer.seek(TP, 100)
            await driver.consumer.commit()
            assert driver.first.has[TP] == OffsetAndMetadata(100)
            assert not driver.second.has

    run(main())


@pytest.mark.parametrize("commit", [*FOREIGN, DAMAGED], ids=str)
def test_commits_of_others_are_not_deleted(commit: OffsetAndMetadata) -> None:
    async def main() -> None:
        async with two_lane_consumer() as driver:
            driver.read(125, 120)
            driver.lanes.progress = OffsetSet(120)  # so nothing is written there
            driver.second.has[TP] = commit
            await driver.consumer.commit()
            assert driver.first.has[TP] == OffsetAndMetadata(125)
            assert driver.second.has == {TP: commit}

    run(main())


def test_a_deletion_that_fails_for_now_is_repeated_and_one_without_the_right_is_not() -> None:
    async def main() -> None:
        requests = CommitLog()
        requests.group = "g.backlog"
        progress = ProgressLog(requests)  # type: ignore[arg-type]
        progress.note([TP])
        requests.has[TP] = OWN
        requests.refuses = NetworkError("gone")
        await progress.tidy([TP])
        requests.refuses = None
        await progress.tidy([TP])
        assert not requests.has
        requests.has[TP] = OWN
        progress.note([TP])
        requests.refuses = AuthorizationError(30, "GROUP_AUTHORIZATION_FAILED", False, "no right")
        await progress.tidy([TP])
        requests.refuses = None
        await progress.tidy([TP])
        assert requests.has == {TP: OWN}

    run(main())


# -- starts ------------------------------------------------------------------------------------------------------------


def _restart(driver: TwoLaneDriver, committed: OffsetAndMetadata, end: int) -> None:
    driver.first.has[TP] = committed
    set_log(driver, Log(end, NetworkError("not asked")))
    driver.buffer.assign([])
    driver.buffer.assign([TP])


async def _started(driver: TwoLaneDriver) -> int:
    """The position of the live lane."""
    async with asyncio.timeout(30):
        while (position := driver.buffer.assignment.state(TP).position) is None:
            await driver.engine.positions.next_round()
    return position.offset


@pytest.mark.parametrize("commit", FOREIGN, ids=str)
def test_a_partition_has_one_lane_if_its_progress_would_overwrite_the_commit_of_others(
    commit: OffsetAndMetadata, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with two_lane_consumer() as driver:
            driver.second.has[TP] = commit
            for _ in range(2):
                _restart(driver, OffsetAndMetadata(70), 120)
                assert (await _started(driver), driver.backlog.lanes) == (70, {})
            with driver.buffer.lock:
                driver.buffer.assignment.state(TP).seek(Position(90))
            await driver.consumer.commit()
            await driver.consumer._parts.committer.after_revoke(frozenset({TP}))
            assert driver.first.has[TP] == OffsetAndMetadata(90)
            assert driver.second.has == {TP: commit}

    with caplog.at_level(logging.WARNING):
        run(main())
    (message,) = [each for each in caplog.messages if "one lane" in each]
    assert message.startswith("t-0 is consumed in one lane, in order: the group g.backlog has a commit of it, at 8")
    assert "headrace groups delete -g g.backlog" in message


def test_a_start_in_two_lanes_replaces_progress_that_was_left_behind() -> None:
    async def main() -> None:
        async with two_lane_consumer() as driver:
            for left in (OWN, OF_0_1_0, DAMAGED):
                driver.second.has[TP] = left
                _restart(driver, OffsetAndMetadata(70), 120)
                assert await _started(driver) == 120
                assert list(driver.backlog.lanes) == [TP]

    run(main())


def test_a_start_in_one_lane_deletes_progress_that_was_left_behind() -> None:
    """By a crash between the last commit and the deletion."""

    async def main() -> None:
        async with two_lane_consumer() as driver:
            progress_of(driver)._noted.clear()
            driver.second.has[TP] = OWN
            _restart(driver, OffsetAndMetadata(120), 120)
            assert await _started(driver) == 120
            assert (driver.backlog.lanes, driver.second.has) == ({}, {})

    run(main())


def test_only_partitions_with_a_backlog_need_the_second_log_to_start() -> None:
    async def main() -> None:
        async with two_lane_consumer() as driver:
            driver.second.refuses = NetworkError("gone")
            _restart(driver, OffsetAndMetadata(120), 120)
            assert await _started(driver) == 120
            _restart(driver, OffsetAndMetadata(70), 120)
            await driver.engine.positions.next_round()
            assert driver.buffer.assignment.state(TP).phase is Phase.UNKNOWN
            driver.second.refuses = None
            assert await _started(driver) == 120
            assert list(driver.backlog.lanes) == [TP]

    run(main())


# -- without the setting -----------------------------------------------------------------------------------------------


def test_a_consumer_without_the_setting_deletes_progress_with_its_first_commit() -> None:
    class Plain:
        async def commit(self, plan: object) -> None:
            log.append("commit")

    class Plan:
        offsets = (TP, TopicPartition("t", 1))

    log: list[str] = []

    async def main() -> None:
        requests = CommitLog()
        requests.group = "g.backlog"
        requests.has[TP] = OWN
        progress = ProgressLog(requests)  # type: ignore[arg-type]
        store = OneLaneCommits(Plain(), progress)  # type: ignore[arg-type]
        await store.commit(Plan())  # type: ignore[arg-type]
        assert requests.has == {TP: OWN}, "nothing is known of a backlog"
        progress.note([TP])
        await store.commit(Plan())  # type: ignore[arg-type]
        assert not requests.has
        assert log == ["commit", "commit"]

    run(main())
