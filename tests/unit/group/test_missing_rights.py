"""Authorization that is missing and later granted: members and partitions retry, and polls pace their errors."""

from __future__ import annotations

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode as E

from headrace._machines.backoff import Backoff
from headrace._machines.error_pacing import RETRIED, STAYS, ErrorPacing
from headrace._machines.fetch.assignment import Assignment
from headrace._machines.fetch.partition import Phase, Position
from headrace._machines.group.actions import Lose, Subscription
from headrace._machines.group.classic import ClassicState
from headrace._machines.share.member import ShareMember, ShareState
from headrace._protocol.codes import kafka_error, topics_denied
from headrace._protocol.messages import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SHARE_GROUP_HEARTBEAT, SYNC_GROUP, Api
from headrace.errors import AuthorizationError, CorruptRecordError, KafkaError, NetworkError, OffsetResetError
from headrace.types import TopicPartition
from simulation.classic_member import T0, ClassicMemberDriver
from support.brokers.kio_entities import build
from support.harness.consumer_protocol_member import INTERVAL, ConsumerProtocolDriver, T, some

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


# -- members ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", [JOIN_GROUP, SYNC_GROUP, HEARTBEAT])
def test_a_denied_classic_member_retries_to_join_with_its_id(api: Api) -> None:
    driver = ClassicMemberDriver("cooperative-sticky")
    member = driver.member
    if api is JOIN_GROUP:
        driver.answer(driver.joining(), error_code=DENIED)
    elif api is SYNC_GROUP:
        driver.answer(driver.syncing(), error_code=DENIED)
    else:
        driver.stable(T0)
        driver.refused_heartbeat(DENIED)
    assert isinstance(member.pending_error, AuthorizationError)
    assert member.failure is None
    assert driver.poll() == ([Lose(frozenset({T0}))] if api is HEARTBEAT else [])
    ids = set()
    for pause in (1.0, 2.0, 4.0) if api is JOIN_GROUP else (1.0, 2.0):
        member.pending_error = None
        request = driver.request(JOIN_GROUP, pause)
        ids.add(request.fields["member_id"])
        driver.answer(request, error_code=DENIED)
        assert isinstance(member.pending_error, AuthorizationError)
    assert len(ids) == 1, "it keeps its id, since the coordinator would wait for the old one"
    assert api is JOIN_GROUP or ids != {""}
    assert member.state is ClassicState.JOINING


def test_a_classic_member_that_could_not_leave_rejoins_with_its_id() -> None:
    driver = ClassicMemberDriver()
    driver.stable(T0)
    name = driver.member.identity.member_id
    leave_request = driver.member.leave("closed")
    assert leave_request is not None
    assert leave_request.api is LEAVE_GROUP
    driver.member.keep_member_id(leave_request)
    driver.member.subscribe(Subscription(frozenset({"t"})))
    driver.poll()
    assert driver.request(JOIN_GROUP).fields["member_id"] == name


def test_a_denied_coordinator_lookup_is_retried() -> None:
    driver = ConsumerProtocolDriver()
    driver.poll()
    driver.member.failed(driver.request(), kafka_error(DENIED, "FindCoordinator of group g"), driver.now)
    assert isinstance(driver.member.pending_error, AuthorizationError)
    assert driver.sent(0.49) == []
    driver.request(0.01)


def test_a_denied_kip_848_member_loses_its_partitions_and_retries_to_join() -> None:
    driver = ConsumerProtocolDriver()
    (take,) = driver.joined({T: (0,)})
    driver.answer(driver.request(INTERVAL), code=DENIED)
    assert isinstance(driver.member.pending_error, AuthorizationError)
    assert driver.member.failure is None
    assert driver.poll() == [Lose(some(TopicPartition("t", 0)))]
    for pause in (0.5, 1.0, 2.0, 4.0, 5.0, 5.0):
        assert driver.sent(0.99 * pause) == []
        request = driver.request(0.02 * pause)
        assert request.fields["member_epoch"] == 0
        driver.answer(request, code=DENIED)
    driver.answer(driver.request(5.1), 7, {T: (0,)})
    assert driver.poll() == [take]


def test_denied_topics_are_excluded_from_kip_848_heartbeats() -> None:
    """The coordinator rejects a whole heartbeat because of one denied topic."""
    driver = ConsumerProtocolDriver()
    driver.member.deny(frozenset({"u"}))
    driver.poll()
    request = driver.request()
    assert request.fields["subscribed_topic_names"] == ("t",)
    driver.answer(request, 2, {})
    assert driver.sent() == []
    driver.member.deny(frozenset())
    assert driver.request().fields["subscribed_topic_names"] == ("t", "u")


def test_if_all_topics_are_denied_the_heartbeat_has_all_of_them() -> None:
    driver = ConsumerProtocolDriver()
    driver.member.deny(frozenset({"u", "t"}))
    driver.poll()
    assert driver.request().fields["subscribed_topic_names"] == ("t", "u")


def test_a_denied_share_member_retries_to_join() -> None:
    member = ShareMember("g", "me", Backoff(100, 1000), lambda: 0.5)
    member.subscribe(frozenset({"t", "u"}))
    member.denied = frozenset({"u"})
    now = 100.0

    def heartbeat(code: int) -> None:
        (action,) = member.tick(now)
        assert action.fields["subscribed_topic_names"] == ("t",)
        fields = {"throttle_time": 0, "error_code": code, "member_epoch": 1, "heartbeat_interval": 5000}
        member.answered(action, build(load_response_schema(SHARE_GROUP_HEARTBEAT.key, 1), fields), now)

    for pause in (0.5, 1.0, 2.0, 4.0, 5.0):
        heartbeat(DENIED)
        assert isinstance(member.pending_error, AuthorizationError)
        assert (member.failure, member.state) == (None, ShareState.JOINING)
        assert member.next_tick() == pytest.approx(now + pause)
        now += pause
    heartbeat(0)
    assert member.state is ShareState.MEMBER
    member.denied = frozenset()
    (action,) = member.tick(now)
    assert action.fields["subscribed_topic_names"] == ("t", "u")


def test_a_share_member_without_a_connection_retries_without_an_error() -> None:
    member = ShareMember("g", "me", Backoff(100, 1000), lambda: 0.5)
    member.subscribe(frozenset({"t"}))
    (action,) = member.tick(100.0)
    member.failed(action, NetworkError("it broke"), 100.0)
    assert (member.pending_error, member.next_tick()) == (None, pytest.approx(100.1))
