"""The final commit of a consumer with two lanes (KIP-333). No broker runs."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from headrace import OffsetAndMetadata, RebalanceListener, TopicPartition
from headrace._aio.group.steps import perform
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.group.actions import Revoke
from headrace.errors import (
    NetworkError,
)
from support.brokers.fake_broker import run
from support.harness.same_loop import SameLoop
from support.harness.two_lanes_in_memory import TP, Log, TwoLaneDriver, fill, set_log, two_lane_consumer


def _reassign(driver: TwoLaneDriver) -> None:
    """Assign the partition again, with 70 committed and the log end at 120."""
    driver.first.has[TP] = OffsetAndMetadata(70)
    set_log(driver, Log(120, NetworkError("not asked")))
    driver.buffer.assign([])
    driver.buffer.assign([TP])


class TestFinalCommit:
    def test_a_commit_under_way_at_the_final_commit_does_not_restore_the_token(self) -> None:
        """Only the final commit makes a revoke wait for asynchronous commits."""

        async def main() -> None:
            async with two_lane_consumer() as driver:
                driver.read(125, 85)
                driver.second.gate.clear()
                driver.consumer.commit_async()
                await driver.second.asked.wait()
                final_revoke = asyncio.create_task(driver.consumer._parts.committer.after_revoke(frozenset({TP})))
                await asyncio.sleep(0)  # let the task start
                driver.second.gate.set()
                await final_revoke
                assert (driver.mark.offset, driver.mark.token) == (85, "")
                assert driver.mark.done == OffsetSet(125, [(85, 120)]), "it includes the asynchronous commit"

        run(main())

    def test_records_that_could_not_be_taken_back_are_not_committed_as_a_gap(self) -> None:
        """The live lane was rewound between the poll and the error that ended the `with` block."""

        async def main() -> None:
            async with two_lane_consumer() as driver:
                with driver.buffer.lock:
                    fill(driver.backlog.assignment.state(TP), 70, 10)
                    fill(driver.state, 120, 5)
                assert len(driver.buffer.take(15) or ()) == 15
                with driver.buffer.lock:
                    driver.backlog.cut(TP, 100)
                driver.buffer.take_back()
                await driver.consumer._parts.committer.after_revoke(frozenset({TP}))
                assert driver.mark.offset == 70

        run(main())

    def test_a_commit_under_way_that_closes_the_range_is_the_final_commit(self) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                driver.read(125, 120)
                driver.consumer.commit_async()
                await driver.consumer._parts.committer.after_revoke(frozenset({TP}))
                assert driver.first.has[TP] == OffsetAndMetadata(125)

        run(main())

    def test_the_final_commit_replaces_a_token_that_is_under_way(self) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                _reassign(driver)
                driver.first.gate.clear()
                await driver.first.asked.wait()
                final_revoke = asyncio.create_task(driver.consumer._parts.committer.after_revoke(frozenset({TP})))
                await asyncio.sleep(0)  # let the task start
                driver.first.gate.set()
                await driver.first.taken.wait()
                assert driver.mark.token
                await final_revoke
                assert (driver.mark.offset, driver.mark.token) == (70, "")

        run(main())

    def test_no_token_is_committed_after_the_final_commit(self) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                _reassign(driver)
                await driver.consumer._parts.committer.after_revoke(frozenset({TP}))
                await driver.engine.positions.next_round()
                assert driver.first.has[TP] == OffsetAndMetadata(70)

        run(main())

    @pytest.mark.parametrize("is_raised", [False, True])
    def test_the_final_commit_is_sent_even_if_the_listener_raises(self, is_raised: bool) -> None:
        class Listener(RebalanceListener):
            def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
                if is_raised:
                    raise ZeroDivisionError

        async def main() -> None:
            async with two_lane_consumer() as driver:
                group = driver.consumer._parts.group
                assert group is not None
                listener = Listener()  # the consumer would hold it
                group.subscribe(["t"], None, listener)
                group.member.done = lambda poll_action: None  # type: ignore[method-assign,assignment]
                with pytest.raises(ZeroDivisionError) if is_raised else contextlib.nullcontext():
                    await perform(group._perform(Revoke(frozenset({TP}))), SameLoop())
                assert (driver.mark.offset, driver.mark.token) == (70, "")

        run(main())
