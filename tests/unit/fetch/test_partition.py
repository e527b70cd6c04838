"""PartitionState: its phases, its buffer, and random sequences of events against a model."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.fetch.partition import OutOfRange, PartitionState, Phase, Position
from headrace._machines.fetch.standing_fetch import StandingFetch
from headrace.errors import CorruptRecordError, HeadraceError
from support.harness.interrupts import Interrupter, interrupted_everywhere
from support.harness.machine_inputs import TP, FakeChunk, at, chunk, feed, offsets

# -- phases ------------------------------------------------------------------------------------------------------


def test_a_new_partition_has_no_position() -> None:
    state = PartitionState(TP)
    assert (state.phase, state.position, state.lag) == (Phase.UNKNOWN, None, None)
    assert state.is_drained


def test_a_reset_has_no_position_until_its_seek() -> None:
    state = at(5)
    state.await_reset("latest")
    assert (state.phase, state.reset_to, state.position) == (Phase.RESET, "latest", None)
    state.seek(Position(9))
    assert (state.phase, state.reset_to, state.position, state.fetch_offset) == (Phase.READY, None, (9, -1), 9)


def test_a_position_with_an_epoch_is_validated_before_it_is_used() -> None:
    state = at(5, epoch=2)
    assert (state.phase, state.position, state.fetch_epoch) == (Phase.VALIDATE, (5, 2), 2)
    state.validated(leader_epoch=4)
    assert (state.phase, state.leader_epoch) == (Phase.READY, 4)


def test_a_valid_position_ends_the_refusal_to_validate_it() -> None:
    state = at(5, epoch=2)
    state.refuse(CorruptRecordError("no", TP, 5), 0.0)
    state.validated(leader_epoch=4)
    assert state.fault is None
    assert state.may_be_asked_for(0.0)


def test_awaiting_a_position_makes_it_unknown() -> None:
    state = at(5)
    state.await_position()
    assert (state.phase, state.position) == (Phase.UNKNOWN, None)


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(lambda state: state.seek(Position(50)), id="seek"),
        pytest.param(lambda state: state.await_reset("earliest"), id="reset"),
        pytest.param(lambda state: state.await_position(), id="unknown"),
        pytest.param(lambda state: state.refetch(), id="refetch"),
    ],
)
def test_a_moved_position_drops_buffers_faults_and_backoffs(move) -> None:
    state = at(0)
    feed(state, chunk(0, 5))
    state.arrived(100, 9)
    state.take_off(StandingFetch(1, keeps=True))
    state.failures, state.backoff_until = 3, 12.0
    state.fault = OutOfRange(9)
    position_version = state.position_version
    move(state)
    assert state.position_version != position_version
    assert state.is_drained
    assert (state.available, state.retained, state.undecoded, state.in_flight) == (0, 0, 0, False)
    assert (state.fault, state.failures, state.backoff_until) == (None, 0, 0.0)


def test_a_refetch_restarts_at_the_position() -> None:
    state = at(0)
    feed(state, chunk(0, 5))
    state.take(2)
    state.refetch()
    assert (state.position, state.fetch_offset, state.phase) == ((2, 3), 2, Phase.READY)
    state.seek(Position(2, 3))
    state.refetch()
    assert state.phase is Phase.VALIDATE, "a refetch does not skip validation"


def test_position_versions_are_never_reused() -> None:
    one, other = at(0), at(0)
    assert len({one.position_version, other.position_version, at(0).position_version}) == 3


# -- the buffer --------------------------------------------------------------------------------------------------


def test_a_partition_buffer_returns_records_in_order() -> None:
    state = at(0)
    feed(state, chunk(0, 5), chunk(5, 8))
    assert (state.available, state.retained, state.fetch_offset) == (8, 80, 8)
    assert offsets(state.take(3)) == [0, 1, 2]
    assert (state.position, state.available, state.retained) == ((3, 3), 5, 50)
    assert offsets(state.take(3)) == [3, 4, 5]
    assert offsets(state.take(100)) == [6, 7]
    assert (state.position, state.available, state.retained, state.is_drained) == ((8, 3), 0, 0, True)


def test_the_position_moves_past_a_compacted_gap() -> None:
    state = at(0)
    feed(state, FakeChunk((1, 4), 10))
    state.take(1)
    assert state.position == (2, 3)
    state.take(1)
    assert state.position == (10, 3)


def test_markers_move_the_position_without_being_returned() -> None:
    state = at(0)
    feed(state, FakeChunk((), 2))
    assert (state.position, state.is_drained) == ((2, 3), True)


def test_markers_behind_records_move_the_position_with_the_last_record() -> None:
    state = at(0)
    feed(state, chunk(0, 2), FakeChunk((), 4, bytes_each=7))
    state.take(1)
    assert state.position == (1, 3)
    state.take(1)
    assert (state.position, state.is_drained, state.retained) == ((4, 3), True, 0)


def test_markers_do_not_move_the_position_during_an_iteration() -> None:
    """An iteration takes all records of a poll and sets the position back to the record it is at."""
    state = at(0)
    feed(state, chunk(0, 5))
    taken = state.take(5)
    state.position = Position(2, 3)
    feed(state, FakeChunk((), 7))
    assert state.position == (2, 3)
    state.give_back([taken[0].slice(2, 3)])
    assert offsets(state.take(10)) == [2, 3, 4]
    assert (state.position, state.is_drained) == ((7, 3), True)


def test_records_given_back_to_a_partition_are_returned_first() -> None:
    state = at(0)
    feed(state, chunk(0, 5), chunk(5, 9))
    taken = state.take(7)
    assert offsets(taken) == [0, 1, 2, 3, 4, 5, 6]
    state.position = Position(3, 3)
    state.give_back([taken[0].slice(3, 2), taken[1]])
    assert (state.available, state.retained) == (6, 60)
    assert offsets(state.take(1)) == [3]
    assert state.position == (4, 3)
    assert offsets(state.take(100)) == [4, 5, 6, 7, 8]
    assert (state.available, state.retained, state.position) == (0, 0, (9, 3))


def test_retained_bytes_add_up_despite_rounded_slices() -> None:
    state = at(0)
    feed(state, FakeChunk(tuple(range(6)), 6, bytes_each=3.3))
    taken = state.take(3)
    state.give_back(taken)
    assert state.retained == sum(each.nbytes for each in state.chunks)
    for _ in range(6):
        state.take(1)
    assert state.retained == 0


def test_records_decoded_early_wait_for_their_predecessors() -> None:
    state = at(0)
    state.arrived(100, 5)
    state.arrived(60, 8)
    state.decoded(5, 60, chunk(5, 8), 8)
    assert (state.available, state.undecoded, state.is_drained) == (0, 160, False)
    state.decoded(0, 100, chunk(0, 5), 5)
    assert (state.undecoded, offsets(state.take(100))) == (0, [0, 1, 2, 3, 4, 5, 6, 7])


# -- damage ------------------------------------------------------------------------------------------------------

DAMAGE = CorruptRecordError("bad CRC", TP, 5)


def test_a_damaged_batch_is_a_fault_behind_the_records_before_it() -> None:
    state = at(0)
    feed(state, chunk(0, 5))
    state.arrived(60, 8)
    state.damaged(5, DAMAGE)
    assert (state.fault, state.is_drained) == (DAMAGE, False)
    assert offsets(state.take(100)) == [0, 1, 2, 3, 4]
    assert (state.is_drained, state.position, state.fetch_offset) == (True, (5, 3), 5)


def test_damage_decoded_early_does_not_drop_the_records_before_it() -> None:
    """The damaged batch is decoded before its predecessor, on another thread."""
    state = at(0)
    position_version = state.position_version
    state.arrived(100, 5)
    state.arrived(60, 8)
    state.damaged(5, DAMAGE)
    assert state.position_version == position_version, "a new version would drop the predecessor as stale"
    assert (state.fault, state.is_drained) == (None, False)
    state.decoded(0, 100, chunk(0, 5), 5)
    assert (state.fault, state.position_version == position_version) == (DAMAGE, False)
    assert offsets(state.take(100)) == [0, 1, 2, 3, 4]
    assert (state.fetch_offset, state.undecoded, state.is_drained) == (5, 0, True)


def test_partly_decoded_records_drop_the_fetches_behind_them() -> None:
    state = at(0)
    position_version = state.position_version
    state.arrived(100, 8)
    state.arrived(60, 12)
    state.fault = OutOfRange(12)
    state.decoded(0, 100, chunk(0, 5), 8)  # the batch at 5 is bad
    assert state.position_version != position_version
    assert (state.fetch_offset, state.undecoded, state.fault) == (5, 0, None)
    assert offsets(state.take(100)) == [0, 1, 2, 3, 4]


def test_partly_decoded_records_do_not_drop_the_records_before_them() -> None:
    state = at(0)
    position_version = state.position_version
    for start, end in ((0, 5), (5, 10), (10, 15)):
        assert state.fetch_offset == start
        state.arrived(100, end)
    state.decoded(10, 100, chunk(10, 15), 15)
    state.decoded(5, 100, chunk(5, 7), 10)
    assert state.position_version == position_version
    state.decoded(0, 100, chunk(0, 5), 5)
    assert offsets(state.take(100)) == [0, 1, 2, 3, 4, 5, 6]
    assert (state.fetch_offset, state.position_version == position_version) == (7, False)


def test_postponed_records_are_fetched_again() -> None:
    state = at(0)
    position_version = state.position_version
    for end in (5, 10, 15):
        state.arrived(100, end)
    state.put_off(5)
    state.decoded(10, 100, chunk(10, 15), 15)
    assert state.position_version == position_version
    state.decoded(0, 100, chunk(0, 5), 5)
    assert offsets(state.take(100)) == [0, 1, 2, 3, 4]
    assert (state.fetch_offset, state.undecoded, state.fault, state.position_version == position_version) == (
        5,
        0,
        None,
        False,
    )


# -- lag ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("position", "end", "lag"), [(None, 9, None), (3, -1, None), (3, 9, 6), (9, 9, 0), (12, 9, 0)])
def test_lag_is_the_distance_from_position_to_end(position: int | None, end: int, lag: int | None) -> None:
    state = PartitionState(TP) if position is None else at(position)
    state.readable_end = end
    assert state.lag == lag


# -- random sequences --------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Arrived:
    position_version: int
    start: int
    end: int
    size: int
    good_until: int  # start of the first damaged batch, or `end`


class AnyOrder(RuleBasedStateMachine):
    """Fetches arrive, threads decode them in any order, some batches are damaged, and the user takes, seeks and
    abandons iterations. Offsets divisible by four are markers; all others are records."""

    def __init__(self) -> None:
        super().__init__()
        self.filled: dict[PartitionState, None] = {}
        self.state = PartitionState(TP, self.filled)
        self.state.seek(Position(0))
        self.decoding: list[Arrived] = []
        self.expected = 0
        self.bad: set[int] = set()

    @staticmethod
    def log(start: int, end: int) -> FakeChunk:
        return FakeChunk(tuple(offset for offset in range(start, end) if offset % 4), end, start // 50, 3.3)

    @precondition(lambda self: self.state.phase is Phase.READY and self.state.fault is None)
    @rule(length=st.integers(1, 9), damage=st.booleans(), where=st.integers(0, 8))
    def arrive(self, length: int, damage: bool, where: int) -> None:
        start = self.state.fetch_offset
        end = start + length
        known = sorted(offset for offset in self.bad if start <= offset < end)
        if not known and damage and len(self.bad) < 3 and where < length:
            self.bad.add(start + where)
            known = [start + where]
        self.decoding.append(Arrived(self.state.position_version, start, end, length, known[0] if known else end))
        self.state.arrived(length, end)

    @precondition(lambda self: self.decoding)
    @rule(data=st.data())
    def decode_one(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.decoding) - 1))
        it = self.decoding.pop(index)
        if it.position_version != self.state.position_version:
            return  # stale: the decoder drops it
        if it.good_until == it.start:
            self.state.damaged(it.start, CorruptRecordError("bad", TP, it.start))
        else:
            self.state.decoded(it.start, it.size, self.log(it.start, it.good_until), it.end)

    @rule(count=st.integers(1, 12))
    def take(self, count: int) -> None:
        taken = offsets(self.state.take(count))
        assert len(taken) <= count
        self.check(taken)

    @rule(count=st.integers(1, 12), seen=st.integers(0, 12))
    def leave_an_iteration(self, count: int, seen: int) -> None:
        chunks = self.state.take(count)
        if not chunks:
            return
        before = offsets(chunks)
        seen = min(seen, len(before))
        left, rest = [], seen
        for each in chunks:
            skipped = min(rest, len(each))
            rest -= skipped
            if skipped < len(each):
                left.append(each.slice(skipped, len(each) - skipped))
        if left:
            self.state.position = Position(left[0].offsets[0])
            self.state.give_back(left)
        self.check(before[:seen])
        if left:
            self.expected = left[0].offsets[0]

    def check(self, taken: list[int]) -> None:
        for offset in taken:
            while self.expected % 4 == 0:
                self.expected += 1
            assert offset == self.expected, "lost, duplicated or out of order"
            self.expected += 1

    @rule(offset=st.integers(0, 200))
    def seek(self, offset: int) -> None:
        self.state.seek(Position(offset))
        self.expected = offset

    @precondition(lambda self: isinstance(self.state.fault, HeadraceError) and self.state.is_drained)
    @rule()
    def meet_the_damage(self) -> None:
        fault = self.state.fault
        assert isinstance(fault, CorruptRecordError)
        assert fault.offset in self.bad
        assert self.state.position is not None
        assert self.state.position.offset == fault.offset, (
            "the damage is raised at its offset, after all records before it"
        )
        self.bad.discard(fault.offset)
        self.seek(fault.offset + 1)

    @invariant()
    def adds_up(self) -> None:
        state = self.state
        assert state.available == sum(map(len, state.chunks)) - state.first_taken
        assert (state in self.filled) == bool(state.chunks), "a poll looks only at `filled`"
        assert state.retained == sum(each.nbytes for each in state.chunks) - state.first_bytes_taken
        current = [it.size for it in self.decoding if it.position_version == state.position_version]
        parked = sum(it.room for it in state.parked.values())
        assert state.undecoded >= sum(current) + parked >= 0
        assert state.position is not None
        if not state.available and not state.undecoded:
            assert state.tail == state.fetch_offset

    @invariant()
    def the_position_is_behind_what_was_returned(self) -> None:
        position = self.state.position
        assert position is not None
        assert position.offset >= self.expected
        # Between the two there are only markers.
        assert all(offset % 4 == 0 for offset in range(self.expected, position.offset))


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(deadline=None, derandomize=True, max_examples=120, stateful_step_count=40)


def test_an_interrupted_refetch_keeps_the_offsets_that_are_already_done() -> None:
    known = OffsetSet(200, [(10, 20), (50, 60)])

    def is_interrupted(at: int) -> bool:
        state = PartitionState(TP)
        state.seek(Position(12, 3))
        state.validated(3)
        state.already_done = known
        with Interrupter(at) as interrupter, contextlib.suppress(KeyboardInterrupt):
            state.refetch()
        if interrupter.has_raised:
            assert (state.already_done, state.phase, state.fetch_offset) == (known, Phase.READY, 12)
        return interrupter.has_raised

    interrupted_everywhere(is_interrupted, more_than=3)
