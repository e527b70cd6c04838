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
from support.harness.two_lanes_in_memory import TP, fill, scene


class TestBacklog:
    def test_log_lines_report_the_begin_progress_losses_and_end_of_a_backlog(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backlog, "_LOG_EVERY", 0.0)
        caplog.set_level(logging.INFO, backlog.__name__)

        async def main() -> None:
            async with scene((70, 80), (90, 120)) as at:
                at.read(125, 78)
                at.state.readable_end = 131
                at.buffer.take(10)
                at.backlog.log_begins(TP, 95)
                at.read(125, 120)
                await at.consumer.commit()

        run(main())
        started, progress, *lost, done = caplog.messages
        assert started == "t-0: live from 120 on, 40 offsets of backlog in [70, 80), [90, 120) beside it"
        assert re.fullmatch(
            r"backlog: 32 of 40 offsets are open, done in about \d+ s; the live lane is 6 behind", progress
        ), progress
        assert [each.split(" is ")[0] for each in lost] == [
            "t-0: [78, 80) of the backlog",
            "t-0: [90, 95) of the backlog",
        ]
        assert done == "the backlog of t-0 is done"

    def test_handed_out_has_the_delivered_offsets_while_a_backlog_is_open(self) -> None:
        async def main() -> None:
            async with scene() as at:
                at.read(125, 85)
                assert at.buffer.handed_out() == {TP: Watermarks(70, 125)}
                at.read(125, 120)
                await at.consumer.commit()
                assert at.buffer.handed_out() == {}

        run(main())

    def test_a_log_truncated_before_the_backlog_lane_loses_its_undelivered_offsets(self) -> None:
        """New records follow at the truncation point, and the live lane takes them over."""

        async def main() -> None:
            async with scene() as at:
                at.read(125, 95)
                at.backlog.log_ends(TP, 90)
                assert list(at.buffer.lost) == [(TP, 95, 120)]
                assert at.backlog.position(TP) == 90
                at.backlog.cut(TP, 90)
                at.state.seek(Position(90))
                at.read(92, at.backlog.position(TP))
                await at.consumer.commit()
                assert at.first.has[TP] == OffsetAndMetadata(92)

        run(main())

    def test_an_unused_backlog_portion_is_not_made_up_for(self) -> None:
        async def main() -> None:
            async with scene(parallel_rebalance_backlog_share=0.25) as at:
                beside = at.backlog.assignment.state(TP)
                fill(at.state, 120, 40)
                for _ in range(7):
                    taken = at.buffer.take(1)  # no backlog records are buffered yet
                    assert taken is not None
                fill(beside, 70, 40)
                taken = at.buffer.take(16)
                assert taken is not None
                assert [record.lane for record in taken].count("backlog") == 4

        run(main())

    def test_damage_in_the_backlog_is_raised_although_the_live_lane_has_records(self) -> None:
        async def main() -> None:
            async with scene() as at:
                at.backlog.assignment.state(TP).fault = CorruptRecordError("damaged", TP, 80)
                fill(at.state, 120, 3)
                with pytest.raises(CorruptRecordError):
                    at.buffer.take(2)
                for count in (2, 1):
                    records = at.buffer.take(2)
                    assert records is not None
                    assert len(records) == count
                assert at.buffer.take(2) is None, "the error is not raised again at once"
                at.buffer.pace.forget()
                with pytest.raises(CorruptRecordError):
                    at.buffer.take(2)

        run(main())

    def test_a_backlog_lane_whose_stop_fails_is_restarted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def main() -> None:
            async with scene() as at:
                lane = at.engine.source_tasks
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
