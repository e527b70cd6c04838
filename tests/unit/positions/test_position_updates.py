"""PositionUpdater: validation and reset of positions. No broker runs."""

from __future__ import annotations

import uuid

import pytest

from headrace._aio.positions.updater import PositionUpdater, _timestamp
from headrace._machines.cluster import Leader, Partition, Topic
from headrace._machines.commit.offset_set import LAST_OFFSET, OffsetSet
from headrace._machines.fetch.partition import Phase, Position
from headrace._machines.positions.positions import Positions
from headrace._machines.positions.truncation import EpochEnd
from headrace.types import Node
from support.brokers.fake_broker import run
from support.harness.buffer_in_memory import TP, batch, buffer

TOPIC_ID = uuid.UUID(int=1)


def test_the_end_of_an_epoch_is_requested_again_if_the_position_s_epoch_moved():
    """Otherwise the end of the older epoch, which is below the position, would look like a truncation."""
    shared = buffer()
    shared.cluster.brokers[1] = Node(1, "b", 1)
    partition = Partition(Leader(1, 3), (1,), (1,), ())
    shared.cluster.topics["t"] = Topic("t", TOPIC_ID, False, {0: partition})
    state = shared.assignment.state(TP)
    state.seek(Position(0))
    state.arrived(100, 100)
    state.decoded(0, 100, batch(0, 100, epoch=1), 100)
    state.arrived(100, 200)
    shared.assignment.follow(shared.cluster)
    assert state.phase is Phase.VALIDATE

    class Offsets:
        async def epoch_ends(self, epochs):
            assert epochs == {TP: 1}
            state.decoded(100, 100, batch(100, 200, epoch=2), 200)
            state.take(150)
            return {TP: EpochEnd(1, 100)}

    async def main():
        positions = PositionUpdater(None, shared, Offsets(), None)
        assert await positions._by_epoch({TP: state.position_version}) is None
        assert positions._wanted.is_set()

    run(main())
    assert state.position.offset == 150
    assert state.phase is Phase.VALIDATE


@pytest.mark.parametrize(
    ("known", "stop", "still"),
    [
        (OffsetSet(300, [(120, 130), (210, 220)]), LAST_OFFSET, OffsetSet(170, [(120, 130)])),
        (OffsetSet(LAST_OFFSET, [(0, 200)]), 200, OffsetSet(LAST_OFFSET, [(0, 200)])),
        (None, LAST_OFFSET, None),
    ],
    ids=["done beyond the position", "a range with an end", "nothing"],
)
def test_a_log_truncated_behind_the_position_keeps_done_offsets_before_it(known, stop, still):
    shared = buffer()
    state = shared.assignment.state(TP)
    state.seek(Position(100))
    state.already_done, state.stop = known, stop
    state.arrived(100, 180)
    Positions(shared.assignment, shared.cluster).validate(state, EpochEnd(1, 170), 2)
    assert (state.position, state.fetch_offset, state.already_done, state.stop) == (Position(100), 100, still, stop)


def test_a_reset_duration_from_before_1970_is_timestamp_zero():
    assert _timestamp("by_duration:p30000d") == 0
