"""A consumer with two lanes commits to two logs (KIP-333). No broker runs."""

from __future__ import annotations

import pytest

from headrace import OffsetAndMetadata, TopicPartition
from headrace._aio.lanes import commit_logs as two_logs
from headrace._machines.commit.committed_offset import CommittedOffset
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.lanes.commit_metadata import CommitMark, committed_offset
from headrace.errors import (
    CommitFailedError,
    HeadraceError,
    NetworkError,
    RequestTimeoutError,
)
from support.brokers.fake_broker import run
from support.harness.two_lanes_in_memory import TP, two_lane_consumer


class TestCommits:
    def test_commits_of_the_live_lane_do_not_wait_for_a_stalled_backlog_group(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                driver.second.gate.clear()
                results: list[HeadraceError | None] = []
                for live, beside in ((125, 85), (130, 120)):
                    driver.read(live, beside)
                    driver.consumer.commit_async(None, lambda _, error: results.append(error))
                    await driver.first.taken.wait()
                    driver.first.taken.clear()
                    assert driver.mark.offset == live
                assert driver.mark.token == "token", "the result of the backlog commit is unknown"
                monkeypatch.setattr(two_logs, "_PATIENCE", 30.0)
                monkeypatch.setattr(two_logs, "_LAST_PATIENCE", 30.0)
                driver.second.gate.set()
                await driver.consumer.commit()
                assert driver.lanes.is_closed
                assert driver.first.has[TP] == OffsetAndMetadata(130)
                assert [type(error) for error in results] == [RequestTimeoutError, RequestTimeoutError]

        monkeypatch.setattr(two_logs, "_PATIENCE", 0.05)
        monkeypatch.setattr(two_logs, "_LAST_PATIENCE", 0.01)
        run(main())

    def test_a_commit_inside_of_a_closed_range_is_a_plain_one(self) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                driver.read(125, 120)
                await driver.consumer.commit()
                assert driver.lanes.is_closed
                await driver.consumer.commit({TP: 100})
                assert driver.first.has[TP] == OffsetAndMetadata(100)
                assert driver.lanes.is_closed

        run(main())

    def test_metadata_that_leaves_no_room_for_the_ranges_fails_its_commit(self) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                driver.read(125, 85)
                long = OffsetAndMetadata(122, "x" * 4090)
                with pytest.raises(CommitFailedError, match="leaves no room"):
                    await driver.consumer.commit({TP: long})
                results: list[HeadraceError | None] = []
                driver.consumer.commit_async({TP: long}, lambda _, error: results.append(error))
                driver.consumer.commit_async({TP: 123}, lambda _, error: results.append(error))
                await driver.first.taken.wait()
                driver.consumer._parts.committer.run_callbacks()
                assert isinstance(results[0], CommitFailedError)

        run(main())

    @pytest.mark.parametrize(
        "text",
        [
            "headrace/1 7 Q(?;G0{{",
            "headrace/1 9 damaged",
            "headrace/3 9 what comes later",
            CommitMark(7, OffsetSet(9, [(7, 8)]), "t").commit.metadata,
        ],
    )
    def test_commit_metadata_that_does_not_fit_its_offset_is_logged_and_read_as_plain(
        self, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                driver.first.has[TP] = OffsetAndMetadata(9, text)
                assert await driver.reader.read([TP]) == {TP: CommittedOffset(9, OffsetSet(9))}
                driver.backlog.drop([TP])

        run(main())
        (message,) = [each for each in caplog.messages if "is used without its metadata" in each]
        assert "t-0 at 9" in message

    @pytest.mark.parametrize("mark", [CommitMark(9, OffsetSet(9), "", "mine"), CommitMark(9, OffsetSet(12, [(9, 10)]))])
    def test_commit_metadata_that_fits_its_offset_is_not_logged_as_plain(
        self, mark: CommitMark, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                driver.first.has[TP] = mark.commit
                assert await driver.reader.read([TP]) == {TP: committed_offset(mark, None)}
                driver.backlog.drop([TP])

        run(main())
        assert not [each for each in caplog.messages if "is used without its metadata" in each]

    def test_partitions_without_ranges_are_read_although_the_backlog_group_fails(self) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                plain = TopicPartition("t", 1)
                driver.first.has[plain] = OffsetAndMetadata(7)
                driver.second.refuses = NetworkError("gone")
                found = await driver.reader.read([TP, plain])
                assert found[TP] is driver.second.refuses
                assert found[plain] == CommittedOffset(7, OffsetSet(7))
                with pytest.raises(NetworkError):
                    await driver.reader.committed([TP, plain])

        run(main())
