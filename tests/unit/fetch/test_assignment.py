"""The assignment as a whole: polls over its partitions, faults, new metadata."""

from __future__ import annotations

import uuid
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._machines.error_pacing import ErrorPacing
from headrace._machines.fetch.assignment import Assignment
from headrace._machines.fetch.partition import OutOfRange, PartitionState, Phase, Position, PreferredReplica
from headrace._machines.fetch.standing_fetch import StandingFetch
from headrace.errors import CorruptRecordError, HeadraceError, OffsetOutOfRangeError, OffsetResetError, StateError
from headrace.types import TopicPartition
from support.harness.machine_inputs import FakeChunk, chunk, cluster_of, feed, metadata, offsets, partition, topic

A, B, C = (TopicPartition("t", number) for number in range(3))


def assigned(*partitions: TopicPartition, reset: str = "latest", strategy: str = "fair") -> Assignment:
    assignment = Assignment(reset, strategy, prefetch_bytes=1000)
    assignment.assign(partitions)
    for state in assignment:
        state.seek(Position(0))
    return assignment


def fill(assignment: Assignment, counts: dict[TopicPartition, int]) -> None:
    for tp, count in counts.items():
        state = assignment.state(tp)
        start = state.fetch_offset
        if count:
            feed(state, chunk(start, start + count))


def counts(assignment: Assignment, limit: int) -> dict[TopicPartition, int]:
    """Number of records that one poll takes from each partition."""
    before = {state.tp: state.available for state in assignment}
    taken = assignment.take(limit, [])
    assert sum(map(len, taken)) <= limit or limit < 0
    return {state.tp: before[state.tp] - state.available for state in assignment if before[state.tp] != state.available}


# -- assigned partitions -----------------------------------------------------------------------------------------


def test_partitions_that_stay_assigned_keep_their_state() -> None:
    assignment = assigned(A, B)
    fill(assignment, {A: 5})
    kept = assignment.state(A)
    assignment.assign([C, A])
    assert (assignment.partitions, len(assignment), assignment.topics) == ({A, C}, 2, {"t"})
    assert assignment.state(A) is kept
    assert (kept.available, assignment.state(C).phase) == (5, Phase.UNKNOWN)
    assert B not in assignment
    assert assignment.get(B) is None
    with pytest.raises(StateError, match="t-1 is not assigned"):
        assignment.state(B)


def test_a_reassigned_partition_has_a_new_position_version() -> None:
    assignment = assigned(A)
    position_version = assignment.state(A).position_version
    assignment.assign([])
    assignment.assign([A])
    assert assignment.state(A).position_version != position_version, "late responses must be recognizable"


def test_positions_contains_only_partitions_that_have_one() -> None:
    assignment = assigned(A, B)
    assignment.state(B).await_reset("latest")
    assert assignment.positions() == {A: Position(0)}
    assert assignment.in_phase(Phase.RESET) == [assignment.state(B)]


# -- polls (KIP-41) ----------------------------------------------------------------------------------------------


def test_a_fair_poll_takes_equal_numbers_as_in_kip_41() -> None:
    assignment = assigned(A, B, C)
    fill(assignment, {A: 500, B: 500, C: 500})
    assert counts(assignment, 300) == {A: 100, B: 100, C: 100}


def test_a_fair_poll_divides_the_quota_of_an_empty_partition_as_in_kip_41() -> None:
    assignment = assigned(A, B, C)
    fill(assignment, {A: 500, B: 500})
    assert counts(assignment, 300) == {A: 150, B: 150}


def test_the_next_fair_poll_starts_after_the_last_partition_served() -> None:
    assignment = assigned(A, B, C)
    fill(assignment, {A: 500, B: 500, C: 500})
    assert counts(assignment, 100) == {A: 34, B: 33, C: 33}
    assert counts(assignment, 100) == {A: 33, B: 34, C: 33}
    assert counts(assignment, 100) == {A: 33, B: 33, C: 34}
    assert counts(assignment, 2) == {A: 1, B: 1}
    assert counts(assignment, 2) == {A: 1, C: 1}
    assert counts(assignment, 1) == {B: 1}


def test_a_greedy_poll_takes_one_partition_after_the_other() -> None:
    assignment = assigned(A, B, C, strategy="greedy")
    fill(assignment, {A: 500, B: 500, C: 500})
    assert counts(assignment, 300) == {A: 300}
    assert counts(assignment, 300) == {B: 300}
    assert counts(assignment, 300) == {C: 300}
    assert counts(assignment, 300) == {A: 200, B: 100}


@pytest.mark.parametrize("limit", [-1, 1500, 9999])
def test_a_poll_with_a_large_or_no_limit_takes_all_buffered_records(limit: int) -> None:
    assignment = assigned(A, B, C)
    fill(assignment, {A: 500, B: 500, C: 500})
    assert counts(assignment, limit) == {A: 500, B: 500, C: 500}
    assert assignment.take(limit, []) == []


def test_a_paused_partition_keeps_its_records_and_does_not_block_others() -> None:
    assignment = assigned(A, B)
    fill(assignment, {A: 500, B: 500})
    assignment.state(A).paused = True
    assert counts(assignment, 100) == {B: 100}
    assert counts(assignment, -1) == {B: 400}
    assignment.state(A).paused = False
    assert counts(assignment, -1) == {A: 500}


def many(count: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in range(count)]


def test_with_more_partitions_than_records_a_poll_takes_from_the_next_few() -> None:
    partitions = many(100)
    assignment = assigned(*partitions)
    fill(assignment, dict.fromkeys(partitions, 9))
    assert counts(assignment, 24) == dict.fromkeys(partitions[:8], 3)
    assert counts(assignment, 24) == dict.fromkeys(partitions[8:16], 3)
    assert counts(assignment, 3) == dict.fromkeys(partitions[16:19], 1)
    assert counts(assignment, 18) == dict.fromkeys(partitions[19:28], 2)
    for _ in range(9):
        counts(assignment, 24)
    assert counts(assignment, 15) == dict.fromkeys(partitions[:15], 1), "wraps around to the first partition"


def test_a_poll_of_over_24_partitions_takes_from_the_next_few() -> None:
    few, partitions = many(24), many(25)
    assignment = assigned(*few)
    fill(assignment, dict.fromkeys(few, 90))
    assert counts(assignment, 48) == dict.fromkeys(few, 2)
    assignment = assigned(*partitions)
    fill(assignment, dict.fromkeys(partitions, 90))
    assert counts(assignment, 48) == dict.fromkeys(partitions[:8], 6)
    assert counts(assignment, 48) == dict.fromkeys(partitions[8:16], 6)
    assert sum(counts(assignment, 2000).values()) == 2000


def test_a_poll_of_many_partitions_fills_up_from_the_following_ones() -> None:
    partitions = many(100)
    assignment = assigned(*partitions)
    fill(assignment, dict(zip(partitions, [1, 9] * 50, strict=True)))
    assert counts(assignment, 24) == dict(zip(partitions[:12], [1, 3] * 6, strict=True))
    fill(assignment, {partitions[0]: 5})
    assert counts(assignment, 24) == dict(zip(partitions[12:24], [1, 3] * 6, strict=True)), (
        "partition 0 was served and waits for its turn"
    )


def test_a_greedy_poll_of_many_partitions_takes_one_after_the_other() -> None:
    partitions = many(100)
    assignment = assigned(*partitions, strategy="greedy")
    fill(assignment, dict.fromkeys(partitions, 30))
    assert counts(assignment, 24) == {partitions[0]: 24}
    assert counts(assignment, 48) == {partitions[1]: 30, partitions[2]: 18}
    assert counts(assignment, 24) == {partitions[3]: 24}


def test_a_poll_of_many_partitions_skips_paused_and_withheld_ones() -> None:
    partitions = many(100)
    assignment = assigned(*partitions)
    fill(assignment, dict.fromkeys(partitions, 90))
    for tp in partitions[:50]:
        assignment.state(tp).paused = True
    assert counts(assignment, 24) == dict.fromkeys(partitions[50:58], 3)
    for tp in partitions[:98]:
        assignment.state(tp).withheld = True
    assert assignment.available == 180
    assert counts(assignment, 25) == {partitions[98]: 13, partitions[99]: 12}
    assert counts(assignment, 25) == {partitions[98]: 12, partitions[99]: 13}, (
        "equal quotas, since only two partitions are left"
    )


def test_a_poll_takes_nothing_from_before_a_seek_or_of_unassigned_partitions() -> None:
    assignment = assigned(A, B, C)
    fill(assignment, {A: 5, B: 5, C: 5})
    assignment.state(A).seek(Position(100))
    assignment.assign([A, C])
    assert assignment.available == 5
    assert counts(assignment, 2) == {C: 2}
    fill(assignment, {A: 1})
    assert counts(assignment, -1) == {A: 1, C: 3}


def test_records_given_back_to_the_assignment_are_taken_again() -> None:
    assignment = assigned(A)
    fill(assignment, {A: 5})
    state = assignment.state(A)
    chunks = assignment.take(-1, [])
    assert assignment.available == 0
    state.position = Position(0)
    state.give_back(chunks)
    assert offsets(assignment.take(-1, [])) == [0, 1, 2, 3, 4]
    state.give_back([])
    assert (assignment.available, assignment.take(-1, [])) == (0, [])


@pytest.mark.parametrize(("size", "limit"), [(60, 1), (60, 7), (60, 9), (60, 59), (60, 60), (60, 70), (3, 2), (23, 15)])
def test_no_partition_waits_longer_than_one_round_of_all_others(size: int, limit: int) -> None:
    """Every third partition is always full, the others get a record now and then."""
    dice = Random(size * limit)
    partitions = many(size)
    assignment = assigned(*partitions)
    waiting = dict.fromkeys(partitions, 0)
    for _ in range(100):
        for tp in partitions:
            if tp.partition % 3 == 0:
                fill(assignment, {tp: limit - assignment.state(tp).available})
            elif dice.random() < 0.3:
                fill(assignment, {tp: 1})
        served = counts(assignment, limit)
        for tp in partitions:
            waiting[tp] = waiting[tp] + 1 if assignment.state(tp).available and tp not in served else 0
        assert max(waiting.values()) <= -(-size // min(limit, 8))


@pytest.mark.parametrize("strategy", ["fair", "greedy"])
@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(st.lists(st.integers(0, 20), min_size=4, max_size=4), min_size=1, max_size=10), st.integers(1, 25))
def test_polls_take_every_record_once_and_in_order(strategy: str, refills: list[list[int]], limit: int) -> None:
    partitions = [TopicPartition("t", number) for number in range(4)]
    assignment = assigned(*partitions, strategy=strategy)
    seen: dict[TopicPartition, list[int]] = {tp: [] for tp in partitions}

    def poll() -> int:
        before = {state.tp: state.position for state in assignment}
        taken = assignment.take(limit, [])
        assert sum(map(len, taken)) <= limit
        for state in assignment:
            start, end = before[state.tp], state.position
            assert start is not None
            assert end is not None
            seen[state.tp] += range(start.offset, end.offset)
        assert sorted(offsets(taken)) == sorted(
            offset
            for tp, start in before.items()
            for offset in range(start.offset, assignment.state(tp).position.offset)
        )
        return sum(map(len, taken))

    for refill in refills:
        fill(assignment, dict(zip(partitions, refill, strict=True)))
        poll()
    while poll():
        pass
    for number, tp in enumerate(partitions):
        assert seen[tp] == list(range(sum(refill[number] for refill in refills)))


@pytest.mark.parametrize("strategy", ["fair", "greedy"])
def test_a_partition_that_is_always_full_starves_no_other(strategy: str) -> None:
    assignment = assigned(A, B, C, strategy=strategy)
    served = dict.fromkeys((A, B, C), 0)
    for _ in range(30):
        fill(assignment, {A: 100, B: 1, C: 1})
        for tp, count in counts(assignment, 10).items():
            served[tp] += count
    assert min(served.values()) >= 9


def test_a_poll_that_leaves_too_few_buffered_bytes_needs_a_fetch() -> None:
    assignment = assigned(A)
    fill(assignment, {A: 150})  # 1500 bytes
    counts(assignment, 40)
    assert not assignment.needs_fetch, "1100 bytes are buffered, 1000 are enough"
    counts(assignment, 20)
    assert assignment.needs_fetch


def test_no_fetch_is_needed_while_one_is_in_flight() -> None:
    assignment = assigned(A)
    fill(assignment, {A: 10})
    assignment.state(A).take_off(StandingFetch(1, keeps=True))
    counts(assignment, 10)
    assert not assignment.needs_fetch


def test_the_next_poll_moves_the_position_past_pending_markers() -> None:
    """The markers arrived during an iteration, so the position could not move past them."""
    assignment = assigned(A)
    state = assignment.state(A)
    feed(state, chunk(0, 5))
    (taken,) = assignment.take(5, [])
    state.position = Position(3, 3)
    feed(state, FakeChunk((), 6))
    state.position = Position(taken.next_offset, 3)
    assert assignment.take(5, []) == []
    assert (state.position, state.is_drained) == ((6, 3), True)


# -- faults ------------------------------------------------------------------------------------------------------


def pending(assignment: Assignment, *, news: bool = False) -> HeadraceError | None:
    """The error that a poll raises when it is long after the last one."""
    return assignment.pending_error(ErrorPacing(), 0.0, news=news)


def test_a_new_fault_is_raised_once_and_later_when_there_is_nothing_else() -> None:
    assignment = assigned(A, B)
    assignment.state(A).fault = stays = CorruptRecordError("bad", A, 0)
    assert pending(assignment, news=True) is stays
    assert pending(assignment, news=True) is None
    assignment.state(B).fault = news = CorruptRecordError("bad", B, 0)
    assert pending(assignment, news=True) is news
    assert pending(assignment, news=True) is None
    assert pending(assignment) is stays


@pytest.mark.parametrize(
    "error", [CorruptRecordError("bad", A, 0), OffsetResetError("none", {A})], ids=["corrupt", "reset"]
)
def test_a_fault_stays_until_the_user_seeks(error: Exception) -> None:
    assignment = assigned(A)
    assignment.state(A).fault = error
    assert pending(assignment) is error
    assert pending(assignment) is error
    assignment.state(A).seek(Position(7))
    assert pending(assignment) is None


def test_a_fault_waits_for_the_records_before_it_and_for_the_end_of_a_pause() -> None:
    assignment = assigned(A, B)
    fill(assignment, {A: 3})
    assignment.state(A).fault = error = CorruptRecordError("bad", A, 3)
    assert pending(assignment) is None
    assignment.take(-1, [])
    assignment.state(A).paused = True
    assert pending(assignment) is None
    assignment.state(A).paused = False
    assert pending(assignment) is error


def test_a_fault_waits_for_records_that_are_being_decoded() -> None:
    assignment = assigned(A)
    assignment.state(A).arrived(100, 5)
    assignment.state(A).fault = OutOfRange(5)
    assert not assignment.resolve_out_of_range()
    assert pending(assignment) is None


def test_out_of_range_resets_after_all_records_before_it_are_taken() -> None:
    assignment = assigned(A, reset="earliest")
    fill(assignment, {A: 3})
    assignment.state(A).fault = OutOfRange(3)
    assert not assignment.resolve_out_of_range()
    assignment.take(-1, [])
    assert assignment.resolve_out_of_range()
    assert (assignment.state(A).phase, assignment.state(A).reset_to) == (Phase.RESET, "earliest")
    assert pending(assignment) is None


def test_out_of_range_without_a_reset_policy_is_a_fault() -> None:
    assignment = assigned(A, reset="none")
    assignment.state(A).fault = OutOfRange(0)
    assert assignment.resolve_out_of_range()
    error = pending(assignment)
    assert isinstance(error, OffsetOutOfRangeError)
    assert (error.offsets, error.partitions, error.retriable) == ({A: 0}, {A}, False)
    assert "offset 0 of t-0" in str(error)
    assert assignment.state(A).position == (0, -1), "the user can see where it was"


@pytest.mark.parametrize(("reset", "phase"), [("earliest", Phase.RESET), ("by_duration:p1d", Phase.RESET)])
def test_without_a_committed_offset_the_reset_policy_decides(reset: str, phase: Phase) -> None:
    assignment = Assignment(reset, "fair", 1000)
    assignment.assign([A])
    assignment.no_committed_offset(assignment.state(A))
    assert (assignment.state(A).phase, assignment.state(A).reset_to) == (phase, reset)


def test_without_committed_offset_and_reset_policy_there_is_a_fault() -> None:
    assignment = Assignment("none", "fair", 1000)
    assignment.assign([A])
    assignment.no_committed_offset(assignment.state(A))
    error = pending(assignment)
    assert isinstance(error, OffsetResetError)
    assert "t-0 has no committed offset" in str(error)


# -- new metadata ------------------------------------------------------------------------------------------------


def ready(epoch: int = -1, leader_epoch: int = -1) -> tuple[Assignment, PartitionState]:
    assignment = assigned(A)
    state = assignment.state(A)
    state.fetch_epoch, state.leader_epoch = epoch, leader_epoch
    return assignment, state


@pytest.mark.parametrize(
    ("fetched", "known", "now", "phase", "leader_epoch"),
    [
        pytest.param(-1, -1, 5, Phase.READY, 5, id="nothing fetched yet: no validation"),
        pytest.param(3, 4, 5, Phase.VALIDATE, 4, id="fetched under an older epoch: validate"),
        pytest.param(5, 4, 5, Phase.READY, 5, id="fetched under the current epoch"),
        pytest.param(3, 5, 5, Phase.READY, 5, id="validated already"),
    ],
)
def test_a_new_leader_epoch_validates_positions_of_records_read_under_an_older_one(
    fetched: int, known: int, now: int, phase: Phase, leader_epoch: int
) -> None:
    assignment, state = ready(fetched, known)
    assert assignment.follow(cluster_of(topic(partition(epoch=now)))) == []
    assert (state.phase, state.leader_epoch) == (phase, leader_epoch)
    assert state.topic_id == uuid.UUID(int=1)


@pytest.mark.parametrize("phase", [Phase.UNKNOWN, Phase.RESET, Phase.VALIDATE])
def test_a_new_leader_epoch_does_not_change_the_phase_of_unready_partitions(phase: Phase) -> None:
    assignment, state = ready(3)
    state.phase = phase
    assignment.follow(cluster_of(topic(partition(epoch=5))))
    assert state.phase is phase


def test_a_preferred_replica_is_dropped_with_a_new_leader_epoch() -> None:
    assignment, state = ready(-1, 4)
    state.preferred = PreferredReplica(2, 100.0)
    assignment.follow(cluster_of(topic(partition(epoch=4))))
    assert state.preferred is not None
    assignment.follow(cluster_of(topic(partition(epoch=5))))
    assert state.preferred is None


def test_metadata_without_a_leader_or_without_the_topic_changes_nothing() -> None:
    assignment, state = ready(3, 4)
    assignment.follow(cluster_of(topic(partition(leader=-1, epoch=9))))
    assert (state.phase, state.leader_epoch) == (Phase.READY, 4)
    assignment.follow(cluster_of(topic(partition(), name="another")))
    assert state.phase is Phase.READY


@pytest.mark.parametrize(
    ("reset", "phase", "fails"),
    [("latest", Phase.RESET, False), ("earliest", Phase.RESET, False), ("none", Phase.UNKNOWN, True)],
)
def test_a_recreated_topic_is_reset_to_its_beginning_or_faults(reset: str, phase: Phase, fails: bool) -> None:
    assignment = assigned(A, B, reset=reset)
    cluster = cluster_of(topic(partition(0, epoch=9), partition(1, epoch=9)))
    assert assignment.follow(cluster) == []
    fill(assignment, {A: 5})
    cluster.apply(metadata(topic(partition(0, epoch=0), partition(1, epoch=0), id=uuid.UUID(int=2))))
    assert assignment.follow(cluster) == [A, B]
    state = assignment.state(A)
    assert (state.phase, state.available, state.position, state.topic_id) == (phase, 0, None, uuid.UUID(int=2))
    assert state.reset_to == (None if fails else "earliest"), "every record of the new topic is unread"
    assert isinstance(pending(assignment), OffsetResetError) is fails
    assert assignment.follow(cluster) == []
