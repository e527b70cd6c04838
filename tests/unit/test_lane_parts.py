"""KIP-333's commits, backlog and positions, without a broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Mapping
from typing import Any

import pytest

from headrace import OffsetAndMetadata, RebalanceListener, TopicPartition, Watermarks
from headrace.aio import backlog, two_logs
from headrace.aio.group import perform
from headrace.aio.log_offsets import EpochEnd, Found
from headrace.errors import (
    CommitFailedError,
    CorruptRecordError,
    HeadraceError,
    LogTruncationError,
    NetworkError,
    RequestTimeoutError,
)
from headrace.lane_marks import Mark
from headrace.machines.membership import Revoke
from headrace.machines.partition import Phase, Position
from headrace.offsets import OffsetSet
from support.fake_broker import run
from support.lane_scene import TP, Scene, fill, scene
from support.same_loop import SameLoop


def _begin_anew(at: Scene) -> None:
    """The partition is assigned again: 70 is committed, and the log ends at 120."""
    at.first.has[TP] = OffsetAndMetadata(70)
    at.engine.positions._offsets = Log(120, NetworkError("not asked"))  # type: ignore[assignment]
    at.intake.assign([])
    at.intake.assign([TP])


class TestFarewell:
    def test_a_commit_that_is_under_way_does_not_bring_the_token_back(self) -> None:
        """A member that gives a partition up does not wait for asynchronous commits, unless this does."""

        async def main() -> None:
            async with scene() as at:
                at.read(125, 85)
                at.second.gate.clear()
                at.consumer.commit_async()
                await at.second.asked.wait()
                parting = asyncio.create_task(at.consumer._commits.after_revoke(frozenset({TP})))
                await asyncio.sleep(0)
                at.second.gate.set()
                await parting
                assert (at.mark.offset, at.mark.token) == (85, "")
                assert at.mark.done == OffsetSet(125, [(85, 120)]), "what that commit said is in it"

        run(main())

    def test_records_that_could_not_be_taken_back_do_not_pass_for_a_gap(self) -> None:
        """The live lane went back between the poll and the error that ended its `with` statement."""

        async def main() -> None:
            async with scene() as at:
                with at.intake.lock:
                    fill(at.backlog.assignment.state(TP), 70, 10)
                    fill(at.state, 120, 5)
                assert len(at.intake.take(15) or ()) == 15
                with at.intake.lock:
                    at.backlog.cut(TP, 100)
                at.intake.take_back()
                await at.consumer._commits.after_revoke(frozenset({TP}))
                assert at.mark.offset == 70

        run(main())

    def test_nothing_is_left_to_say_when_that_commit_closes_the_range(self) -> None:
        async def main() -> None:
            async with scene() as at:
                at.read(125, 120)
                at.consumer.commit_async()
                await at.consumer._commits.after_revoke(frozenset({TP}))
                assert at.first.has[TP] == OffsetAndMetadata(125)

        run(main())

    def test_a_token_that_is_on_its_way_is_taken_back(self) -> None:
        async def main() -> None:
            async with scene() as at:
                _begin_anew(at)
                at.first.gate.clear()
                await at.first.asked.wait()
                parting = asyncio.create_task(at.consumer._commits.after_revoke(frozenset({TP})))
                await asyncio.sleep(0)
                at.first.gate.set()
                await at.first.taken.wait()
                assert at.mark.token
                await parting
                assert (at.mark.offset, at.mark.token) == (70, "")

        run(main())

    def test_none_comes_after_it(self) -> None:
        async def main() -> None:
            async with scene() as at:
                _begin_anew(at)
                await at.consumer._commits.after_revoke(frozenset({TP}))
                await at.engine.positions.next_round()
                assert at.first.has[TP] == OffsetAndMetadata(70)

        run(main())

    @pytest.mark.parametrize("is_raised", [False, True])
    def test_it_is_said_also_when_the_listener_fails(self, is_raised: bool) -> None:
        class Listener(RebalanceListener):
            def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
                if is_raised:
                    raise ZeroDivisionError

        async def main() -> None:
            async with scene() as at:
                group = at.consumer._group
                assert group is not None
                group._listener = Listener()
                group.member.done = lambda duty: None  # type: ignore[method-assign,assignment]
                with pytest.raises(ZeroDivisionError) if is_raised else contextlib.nullcontext():
                    await perform(group._perform(Revoke(frozenset({TP}))), SameLoop())
                assert (at.mark.offset, at.mark.token) == (70, "")

        run(main())


class TestCommits:
    def test_the_live_lane_does_not_wait_for_a_second_log_that_does_not_answer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            async with scene() as at:
                at.second.gate.clear()
                told: list[HeadraceError | None] = []
                for live, beside in ((125, 85), (130, 120)):
                    at.read(live, beside)
                    at.consumer.commit_async(None, lambda _, error: told.append(error))
                    await at.first.taken.wait()
                    at.first.taken.clear()
                    assert at.mark.offset == live
                assert at.mark.token == "token", "nobody knows what became of the other one"
                monkeypatch.setattr(two_logs, "_PATIENCE", 30.0)
                monkeypatch.setattr(two_logs, "_LAST_PATIENCE", 30.0)
                at.second.gate.set()
                await at.consumer.commit()
                assert at.lanes.is_closed
                assert at.first.has[TP] == OffsetAndMetadata(130)
                assert [type(error) for error in told] == [RequestTimeoutError, RequestTimeoutError]

        monkeypatch.setattr(two_logs, "_PATIENCE", 0.05)
        monkeypatch.setattr(two_logs, "_LAST_PATIENCE", 0.01)
        run(main())

    def test_an_offset_in_a_range_that_is_worked_off_is_a_plain_one(self) -> None:
        async def main() -> None:
            async with scene() as at:
                at.read(125, 120)
                await at.consumer.commit()
                assert at.lanes.is_closed
                await at.consumer.commit({TP: 100})
                assert at.first.has[TP] == OffsetAndMetadata(100)
                assert at.lanes.is_closed

        run(main())

    def test_metadata_that_leaves_no_room_for_the_ranges(self) -> None:
        async def main() -> None:
            async with scene() as at:
                at.read(125, 85)
                long = OffsetAndMetadata(122, "x" * 4090)
                with pytest.raises(CommitFailedError, match="leaves no room"):
                    await at.consumer.commit({TP: long})
                told: list[HeadraceError | None] = []
                at.consumer.commit_async({TP: long}, lambda _, error: told.append(error))
                at.consumer.commit_async({TP: 123}, lambda _, error: told.append(error))
                await at.first.taken.wait()
                at.consumer._commits.run_callbacks()
                assert isinstance(told[0], CommitFailedError)

        run(main())

    @pytest.mark.parametrize(
        "text",
        [
            "headrace/1 7 Q(?;G0{{",
            "headrace/1 9 damaged",
            "headrace/3 9 what comes later",
            Mark(7, OffsetSet(9, [(7, 8)]), "t").commit.metadata,
        ],
    )
    def test_texts_that_say_nothing_of_their_commit_are_reported(
        self, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with scene() as at:
                at.first.has[TP] = OffsetAndMetadata(9, text)
                (first, _) = (await at.engine.logs.read([TP]))[TP]  # type: ignore[misc]
                assert (first.offset, first.done, first.token) == (9, OffsetSet(9), "")
                at.backlog.drop([TP])

        run(main())
        (said,) = [each for each in caplog.messages if "read as a plain one" in each]
        assert "t-0 at 9" in said

    @pytest.mark.parametrize("mark", [Mark(9, OffsetSet(9), "", "mine"), Mark(9, OffsetSet(12, [(9, 10)]))])
    def test_and_others_are_not(self, mark: Mark, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            async with scene() as at:
                at.first.has[TP] = mark.commit
                assert await at.engine.logs.read([TP]) == {TP: (mark, None)}
                at.backlog.drop([TP])

        run(main())
        assert not [each for each in caplog.messages if "read as a plain one" in each]

    def test_partitions_without_ranges_do_not_wait_for_the_second_log(self) -> None:
        async def main() -> None:
            async with scene() as at:
                plain = TopicPartition("t", 1)
                at.first.has[plain] = OffsetAndMetadata(7)
                at.second.refuses = NetworkError("gone")
                found = await at.engine.logs.read([TP, plain])
                assert found[TP] is at.second.refuses
                assert found[plain] == (Mark(7, OffsetSet(7)), None)
                with pytest.raises(NetworkError):
                    await at.engine.logs.committed([TP, plain])

        run(main())


class TestBacklog:
    def test_what_the_log_tells(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backlog, "_TELL_EVERY", 0.0)
        caplog.set_level(logging.INFO, backlog.__name__)

        async def main() -> None:
            async with scene((70, 80), (90, 120)) as at:
                at.read(125, 78)
                at.state.readable_end = 131
                at.intake.take(10)
                at.backlog.log_begins(TP, 95)
                at.read(125, 120)
                await at.consumer.commit()

        run(main())
        begun, told, *lost, done = caplog.messages
        assert begun == "t-0: live from 120 on, 40 offsets of backlog in [70, 80), [90, 120) beside it"
        assert re.fullmatch(
            r"backlog: 32 of 40 offsets are open, done in about \d+ s; the live lane is 6 behind", told
        ), told
        assert [each.split(" is ")[0] for each in lost] == [
            "t-0: [78, 80) of the backlog",
            "t-0: [90, 95) of the backlog",
        ]
        assert done == "the backlog of t-0 is done"

    def test_what_was_handed_out_is_told_while_something_is_open(self) -> None:
        async def main() -> None:
            async with scene() as at:
                at.read(125, 85)
                assert at.intake.handed_out() == {TP: Watermarks(70, 125)}
                at.read(125, 120)
                await at.consumer.commit()
                assert at.intake.handed_out() == {}

        run(main())

    def test_a_log_that_was_cut_off_before_the_lane(self) -> None:
        """What is lost is what was not handed out; from there on come others, until the live lane takes it over."""

        async def main() -> None:
            async with scene() as at:
                at.read(125, 95)
                at.backlog.log_ends(TP, 90)
                assert list(at.backlog.lost) == [(TP, 95, 120)]
                assert at.backlog.position(TP) == 90
                at.backlog.cut(TP, 90)
                at.state.seek(Position(90))
                at.read(92, at.backlog.position(TP))
                await at.consumer.commit()
                assert at.first.has[TP] == OffsetAndMetadata(92)

        run(main())

    def test_a_share_that_could_not_be_used_is_not_owed(self) -> None:
        async def main() -> None:
            async with scene(parallel_rebalance_backlog_share=0.25) as at:
                beside = at.backlog.assignment.state(TP)
                fill(at.state, 120, 40)
                for _ in range(7):
                    taken = at.intake.take(1)  # nothing of the backlog is there yet
                    assert taken is not None
                fill(beside, 70, 40)
                taken = at.intake.take(16)
                assert taken is not None
                assert [record.lane for record in taken].count("backlog") == 4

        run(main())

    def test_damage_in_it_is_told_once_although_the_live_lane_has_records(self) -> None:
        async def main() -> None:
            async with scene() as at:
                at.backlog.assignment.state(TP).fault = CorruptRecordError("damaged", TP, 80)
                fill(at.state, 120, 3)
                with pytest.raises(CorruptRecordError):
                    at.intake.take(2)
                for count in (2, 1):
                    records = at.intake.take(2)
                    assert records is not None
                    assert len(records) == count
                assert at.intake.take(2) is None, "not again at once"
                at.intake.pace.forget()
                with pytest.raises(CorruptRecordError):
                    at.intake.take(2)

        run(main())

    def test_a_lane_that_cannot_even_be_stopped_comes_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def main() -> None:
            async with scene() as at:
                lane = at.engine.second_lane
                assert lane is not None
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


class Log:
    """Its end, and where epochs end in it."""

    def __init__(self, end: int, epoch_end: EpochEnd | HeadraceError) -> None:
        self.end = end
        self.epoch_end = epoch_end

    async def by_time(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, Found]:
        return dict.fromkeys(timestamps, Found(self.end, -1, 7))

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, object]:
        assert epochs == {TP: 5}
        return dict.fromkeys(epochs, self.epoch_end)


class TestTruncation:
    """Of a log that was cut off and has grown again while nobody was there (KIP-320)."""

    def start(self, first: Mark, second: Mark | None, log: Log, **settings: Any) -> tuple[Scene, HeadraceError | None]:
        """The consumer and its partition after their start, and what has to be tried again."""

        async def main() -> tuple[Scene, HeadraceError | None]:
            async with scene(**settings) as at:
                at.intake.assign([])
                at.intake.assign([TP])
                at.state = at.intake.assignment.state(TP)
                at.first.has[TP] = first.commit
                at.engine.positions._offsets = log  # type: ignore[assignment]

                async def read(_: object) -> dict[TopicPartition, object]:
                    return {TP: (first, second)}

                at.engine.positions._logs.read = read  # type: ignore[assignment,method-assign]
                again = await at.engine.positions._from_commits({TP: at.state.continuity})
                if TP in at.backlog.lanes:
                    at.lanes = at.backlog.lanes[TP]
                    assert at.mark == at.lanes.first
                return at, again

        return run(main())  # type: ignore[no-any-return]

    @pytest.mark.parametrize(
        ("first", "second", "holes"),
        [
            pytest.param(Mark(140, OffsetSet(140), "", "", 5), None, [(100, 190)], id="a plain commit"),
            pytest.param(
                Mark(140, OffsetSet(140, [(70, 120)]), "t", "", 5),
                Mark(110, OffsetSet(110), "t"),
                [(100, 190)],
                id="a range, and progress beyond the cut",
            ),
            pytest.param(
                Mark(140, OffsetSet(140, [(70, 80)]), "t", "", 5), None, [(70, 80), (100, 190)], id="a range before it"
            ),
        ],
    )
    def test_what_has_taken_the_place_of_the_old_records_is_read(
        self, first: Mark, second: Mark | None, holes: list[tuple[int, int]]
    ) -> None:
        at, again = self.start(first, second, Log(190, EpochEnd(5, 100)))
        assert (again, at.lanes.open) == (None, holes)
        assert at.state.position == Position(190, 7)
        assert (at.lanes.first.leader_epoch, at.mark.leader_epoch) == (7, 7), (
            "its epoch is in the token, and the farewell"
        )

    def test_a_log_that_is_whole(self) -> None:
        at, _ = self.start(Mark(140, OffsetSet(140), "", "", 5), None, Log(190, EpochEnd(5, 150)))
        assert at.lanes.open == [(140, 190)]

    def test_an_epoch_that_nobody_knows_leaves_it_to_the_reset_policy(self) -> None:
        at, _ = self.start(Mark(140, OffsetSet(140), "", "", 5), None, Log(190, EpochEnd(-1, -1)))
        assert (at.state.phase, at.state.reset_to) == (Phase.RESET, "latest")

    def test_without_such_a_policy_the_user_decides(self) -> None:
        log = Log(190, EpochEnd(5, 100))
        at, _ = self.start(Mark(140, OffsetSet(140), "", "", 5), None, log, auto_offset_reset="none")
        assert isinstance(at.state.fault, LogTruncationError)
        assert at.state.fault.divergence == {TP: 100}

    def test_a_leader_that_does_not_answer_is_asked_again(self) -> None:
        gone = NetworkError("gone")
        at, again = self.start(Mark(140, OffsetSet(140), "", "", 5), None, Log(190, gone))
        assert again is gone
        assert at.state.phase is Phase.UNKNOWN
