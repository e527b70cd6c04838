"""How often polls raise the same error, and when a partition that a broker refused is retried."""

from __future__ import annotations

import math

from kio.schema.errors import ErrorCode as E

from headrace._machines.error_pacing import RETRIED, STAYS, ErrorPacing
from headrace._machines.fetch.assignment import Assignment
from headrace._machines.fetch.partition import PartitionState, Phase, Position
from headrace._protocol.codes import kafka_error, topics_denied
from headrace.errors import CorruptRecordError, KafkaError, OffsetResetError
from headrace.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
DENIED = E.group_authorization_failed


def assigned(*partitions: TopicPartition) -> Assignment:
    assignment = Assignment("latest", "fair", prefetch_bytes=1000)
    assignment.assign(partitions)
    for state in assignment:
        state.seek(Position(0))
    return assignment


# -- error pacing ------------------------------------------------------------------------------------------------


def test_the_same_error_is_raised_after_an_interval_and_another_one_at_once() -> None:
    pacing = ErrorPacing()
    first, second = (kafka_error(DENIED, f"Heartbeat of group {name}") for name in "gh")
    assert [pacing.admits(first, now, RETRIED) for now in (50.0, 50.0, 59.9, 60.0)] == [True, False, False, True]
    assert pacing.admits(second, 60.0, STAYS)
    assert pacing.next_due(60.0) == 61.0
    assert pacing.next_due(61.0) == 70.0
    assert pacing.next_due(70.0) == math.inf, "all are due"
    pacing.forget()
    assert pacing.admits(first, 60.1, RETRIED)


def test_a_lasting_error_is_raised_at_the_end_of_polls_of_a_tenth_of_a_second() -> None:
    pacing, error = ErrorPacing(), OffsetResetError("none", {A})
    assert pacing.admits(error, 5.0, STAYS, is_late=True)
    assert not pacing.admits(error, 5.09, STAYS, is_late=True)
    assert not pacing.admits(error, 5.2, STAYS)
    assert pacing.admits(error, 5.2, STAYS, is_late=True)
    assert pacing.next_due(5.2) == 6.2


def test_an_error_with_another_denied_topic_is_raised_at_once() -> None:
    pacing = ErrorPacing()
    assert pacing.admits(topics_denied("ab"), 0.0, RETRIED)
    assert not pacing.admits(topics_denied("a"), 1.0, RETRIED)
    assert pacing.admits(topics_denied("abc"), 2.0, RETRIED)
    assert not pacing.admits(topics_denied("bc"), 10.0, RETRIED)


def refusal() -> KafkaError:
    return KafkaError(-1, "UNKNOWN_SERVER_ERROR", False, "no")


def test_a_repeated_rejection_is_raised_every_ten_seconds() -> None:
    assignment, pacing = assigned(A), ErrorPacing()
    for now, is_raised in [(10.0, True), (10.1, False), (19.9, False), (20.0, True), (20.1, False)]:
        assignment.state(A).refuse(error := refusal(), now)  # each attempt fails with a new error
        assert assignment.pending_error(pacing, now, news=True) is (error if is_raised else None), now


def test_an_error_of_several_partitions_is_raised_once() -> None:
    assignment, pacing, error = assigned(A, B), ErrorPacing(), refusal()
    for tp in (A, B):
        assignment.state(tp).refuse(error, 0.0)
    assert assignment.pending_error(pacing, 1.0) is error
    assert assignment.pending_error(pacing, 1.0) is None


def test_a_denied_partition_is_reported_with_its_topic_and_not_alone() -> None:
    assignment = assigned(A, B)
    assignment.state(A).refuse(kafka_error(29, "Fetch of t-0 at offset 0"), 0.0)
    assert assignment.pending_error(ErrorPacing(), 1.0) is None
    assert assignment.denied_topics() == {"t"}


def test_lasting_faults_of_partitions_are_raised_in_turn_once_a_second() -> None:
    assignment, pacing = assigned(A, B), ErrorPacing()
    for tp in (A, B):
        assignment.state(tp).fault = CorruptRecordError("bad", tp, 0)

    def raised(now: float) -> TopicPartition | None:
        error = assignment.pending_error(pacing, now)
        assert error is None or isinstance(error, CorruptRecordError)
        return error and error.partition

    assert [raised(now) for now in (5.0, 5.0, 5.0, 5.9, 6.0, 6.5, 7.0, 7.1)] == [A, B, None, None, A, None, B, None]


# -- partitions ---------------------------------------------------------------------------------------------------


def test_a_rejected_partition_is_retried_with_growing_backoffs() -> None:
    state = assigned(A).state(A)
    now = 0.0
    for pause in (0.5, 1.0, 2.0, 4.0, 5.0, 5.0):
        state.refuse(refusal(), now)
        assert not state.may_be_asked_for(now + 0.99 * pause)
        now += pause
        assert state.may_be_asked_for(now)
    state.end_refusal()
    assert state.fault is None


def test_the_first_backoff_of_a_partition_that_never_had_a_position_is_as_short() -> None:
    state = PartitionState(A)
    state.refuse(refusal(), 0.0)
    assert state.backoff_until == 0.5


def test_a_fault_that_needs_a_seek_is_not_retried() -> None:
    state = assigned(A).state(A)
    state.fault = OffsetResetError("none", {A})
    state.end_refusal()
    assert not state.may_be_asked_for(1e9)


def test_only_partitions_without_a_position_set_the_next_retry() -> None:
    assignment = assigned(A, B)
    assert assignment.next_retry is None
    assignment.state(A).refuse(refusal(), 7.0)
    assert assignment.next_retry is None, "fetching schedules its own retries"
    assignment.state(B).await_reset("latest")
    assignment.state(B).refuse(refusal(), 7.0)
    assert (assignment.state(B).phase, assignment.next_retry) == (Phase.RESET, 7.5)
