"""Authorization that is missing and later granted: members retry."""

from __future__ import annotations

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode as E

from headrace._machines.backoff import Backoff
from headrace._machines.group.actions import Lose, Subscription
from headrace._machines.group.classic import ClassicState
from headrace._machines.share.member import ShareMember, ShareState
from headrace._protocol.codes import kafka_error
from headrace._protocol.messages import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SHARE_GROUP_HEARTBEAT, SYNC_GROUP, Api
from headrace.errors import AuthorizationError, NetworkError
from simulation.classic_member import T0, ClassicMemberDriver
from support.brokers.kio_entities import build
from support.harness.consumer_protocol_member import INTERVAL, ConsumerProtocolDriver, T, some

DENIED = E.group_authorization_failed


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
    assert driver.poll() == [Lose(some(T0))]
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
