"""The backlog lane (KIP-333): open offsets, log messages and faults. No broker runs."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from headrace import OffsetAndMetadata, Watermarks
from headrace._aio.lanes import backlog
from headrace._aio.lanes.backlog_task import BacklogTask
from headrace._machines.fetch.partition import Position
from headrace.errors import (
    CorruptRecordError,
)
from support.brokers.fake_broker import run
from support.harness.two_lanes_in_memory import TP, fill, two_lane_consumer


class TestBacklog:
    def test_log_lines_report_the_begin_progress_losses_and_end_of_a_backlog(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backlog, "_LOG_EVERY", 0.0)
        caplog.set_level(logging.INFO, backlog.__name__)

        async def main() -> None:
            async with two_lane_consumer((70, 80), (90, 120)) as driver:
                driver.read(125, 78)
                driver.state.readable_end = 131
                driver.buffer.take(10)
                driver.backlog.log_begins(TP, 95)
                driver.read(125, 120)
                await driver.consumer.commit()

        run(main())
        started, progress, *lost, done = caplog.messages
        assert (
            started == "t-0: the live lane starts at offset 120; the backlog lane has 40 offsets in [70, 80), [90, 120)"
        )
        assert re.fullmatch(
            r"backlog: 32 of 40 offsets are open; complete in about \d+ s; the lag of the live lane is 6", progress
        ), progress
        assert [each.split(" are ")[0] for each in lost] == [
            "t-0: offsets [78, 80) of the backlog",
            "t-0: offsets [90, 95) of the backlog",
        ]
        assert done == "the backlog of t-0 is complete"

    def test_handed_out_has_the_delivered_offsets_while_a_backlog_is_open(self) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                driver.read(125, 85)
                assert driver.buffer.handed_out() == {TP: Watermarks(70, 125)}
                driver.read(125, 120)
                await driver.consumer.commit()
                assert driver.buffer.handed_out() == {}

        run(main())

    def test_a_log_truncated_before_the_backlog_lane_loses_its_undelivered_offsets(self) -> None:
        """New records follow at the truncation point, and the live lane takes them over."""

        async def main() -> None:
            async with two_lane_consumer() as driver:
                driver.read(125, 95)
                driver.backlog.log_ends(TP, 90)
                assert list(driver.buffer.lost) == [(TP, 95, 120)]
                assert driver.backlog.position(TP) == 90
                driver.backlog.cut(TP, 90)
                driver.state.seek(Position(90))
                driver.read(92, driver.backlog.position(TP))
                await driver.consumer.commit()
                assert driver.first.has[TP] == OffsetAndMetadata(92)

        run(main())

    def test_an_unused_backlog_portion_is_not_made_up_for(self) -> None:
        async def main() -> None:
            async with two_lane_consumer(parallel_rebalance_backlog_share=0.25) as driver:
                beside = driver.backlog.assignment.state(TP)
                fill(driver.state, 120, 40)
                for _ in range(7):
                    taken = driver.buffer.take(1)  # no backlog records are buffered yet
                    assert taken is not None
                fill(beside, 70, 40)
                taken = driver.buffer.take(16)
                assert taken is not None
                assert [record.lane for record in taken].count("backlog") == 4

        run(main())

    def test_damage_in_the_backlog_is_raised_although_the_live_lane_has_records(self) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                driver.backlog.assignment.state(TP).fault = CorruptRecordError("damaged", TP, 80)
                fill(driver.state, 120, 3)
                with pytest.raises(CorruptRecordError):
                    driver.buffer.take(2)
                for count in (2, 1):
                    records = driver.buffer.take(2)
                    assert records is not None
                    assert len(records) == count
                assert driver.buffer.take(2) is None, "the error is not raised again at once"
                driver.buffer.pace.forget()
                with pytest.raises(CorruptRecordError):
                    driver.buffer.take(2)

        run(main())

    def test_a_backlog_lane_whose_stop_fails_is_restarted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                lane = driver.engine.source_tasks
                assert isinstance(lane, BacklogTask)
                stop, start, back = lane._stop, lane._start, asyncio.Event()

                async def broken() -> None:
                    monkeypatch.setattr(lane, "_stop", stop)
                    raise RuntimeError("a bug")

                def started() -> None:
                    start()
                    back.set()

                monkeypatch.setattr(lane, "_stop", broken)
                monkeypatch.setattr(lane, "_start", started)
                lane._failed(RuntimeError("another"))
                await back.wait()
                assert lane._failures == 2

        run(main())
