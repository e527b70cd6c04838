"""Records of an interrupted poll return to the buffer."""

from __future__ import annotations

import pytest

from headrace._machines.fetch.partition import Position
from headrace._machines.positions.positions import Positions
from headrace._machines.positions.truncation import EpochEnd
from support.harness.buffer_in_memory import TP, batch, buffer, delivered, position_of


def test_records_of_an_interrupted_poll_can_be_taken_back_after_a_refetch():
    """The buffer of a paused partition is refetched if others need the space."""
    made = buffer()
    delivered(made, 0, 10)
    made.assignment.state(TP).refetch()
    made.take_back()
    assert position_of(made) == 0


def test_the_last_record_of_an_iteration_can_be_taken_back_after_a_refetch():
    made = buffer()
    state = made.assignment.state(TP)
    state.seek(Position(0))
    state.arrived(100, 10)
    state.decoded(0, 100, batch(0, 10, 0), 10)
    made.poll_begins()
    walk = made.one_by_one(made.take(500))
    assert [next(walk).offset for _ in range(3)] == [0, 1, 2]
    state.refetch()
    made.take_back()
    assert position_of(made) == 2


@pytest.mark.parametrize("end", [15, 7])
def test_records_of_an_interrupted_poll_are_taken_back_up_to_a_truncation(end):
    """Truncated records are not taken back: their offsets now belong to other records."""
    made = buffer()
    positions = Positions(made.assignment, made.cluster)
    delivered(made, 0, 10)
    delivered(made, 10, 20)
    positions.validate(made.assignment.state(TP), EpochEnd(1, end), 2)
    assert position_of(made) == end
    made.take_back()
    assert position_of(made) == min(end, 10)


@pytest.mark.parametrize("end", [3, 1])
def test_taking_back_an_iteration_stops_at_a_truncation(end):
    made = buffer()
    positions = Positions(made.assignment, made.cluster)
    state = made.assignment.state(TP)
    state.seek(Position(0))
    state.arrived(100, 10)
    state.decoded(0, 100, batch(0, 10, 0), 10)
    made.poll_begins()
    walk = made.one_by_one(made.take(500))
    assert [next(walk).offset for _ in range(5)] == [0, 1, 2, 3, 4]
    positions.validate(state, EpochEnd(1, end), 2)
    made.take_back()
    assert position_of(made) == end


def test_records_of_an_interrupted_poll_are_not_taken_back_after_a_seek():
    made = buffer()
    delivered(made, 0, 10)
    made.move([TP], lambda state: state.seek(Position(50)))
    made.take_back()
    assert position_of(made) == 50
