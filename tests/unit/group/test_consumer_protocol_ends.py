"""Ends of a KIP-848 membership: leaving, missed polls, and an instance id that another member has."""

from __future__ import annotations

import math

import pytest
from kio.schema.errors import ErrorCode as E

from headrace._machines.group.actions import AssignPartitions, Lose, MemberIdentity, Revoke
from headrace._machines.group.consumer_protocol import ConsumerProtocolState
from headrace.errors import KafkaError
from support.harness.consumer_protocol_member import INTERVAL, PAUSE, T0, ConsumerProtocolDriver, T, some


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("i", -2)])
def test_a_kip_848_member_that_leaves_revokes_and_sends_a_last_heartbeat(instance_id: str | None, epoch: int) -> None:
    driver = ConsumerProtocolDriver(instance_id=instance_id)
    driver.joined({T: (0,)})
    assert driver.member.final_revoke() == Revoke(some(T0))
    leave_request = driver.member.leave("closed")
    assert leave_request is not None
    fields = leave_request.fields
    assert (fields["member_id"], fields["member_epoch"], fields["instance_id"]) == ("me", epoch, instance_id)
    assert fields["topic_partitions"] is None
    assert driver.sent(1e6) == []
    assert driver.member.next_tick() == math.inf


def test_a_fenced_kip_848_member_that_leaves_loses_its_partitions() -> None:
    """They may be another member's already: it cannot commit for them."""
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,)})
    driver.answer(driver.request(INTERVAL), code=E.fenced_member_epoch)
    assert driver.member.final_revoke() == Lose(some(T0))
    assert driver.member.leave("closed") is None


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("i", -2)])
def test_a_kip_848_member_past_max_poll_interval_leaves_and_rejoins(instance_id: str | None, epoch: int) -> None:
    driver = ConsumerProtocolDriver(instance_id=instance_id)
    driver.joined({T: (0,)})
    for _ in range(11):
        driver.answer(driver.request(INTERVAL), 2)
    leave_request = driver.request(INTERVAL)
    assert leave_request.fields["member_epoch"] == epoch
    assert driver.member.is_expired
    assert driver.member.identity.generation == -1
    assert driver.member.last_identity == MemberIdentity(2, "me", instance_id), "brokers reject what it sends"
    assert driver.sent(1e6) == []
    assert driver.member.state is ConsumerProtocolState.BEGINNING
    assert driver.poll() == [Lose(some(T0))]
    assert not driver.member.is_expired
    request = driver.request()
    assert (request.fields["member_id"], request.fields["member_epoch"]) == ("me", 0)


def test_a_static_member_releases_its_own_instance_id_before_it_rejoins() -> None:
    """The response to its join was lost: the coordinator holds the instance id for it and rejects every other join."""
    driver = ConsumerProtocolDriver(instance_id="i")
    driver.poll()
    driver.fail(driver.request())
    driver.answer(driver.request(PAUSE), code=E.unreleased_instance_id)
    release = driver.request(0.2)
    assert (release.fields["member_id"], release.fields["member_epoch"]) == ("me", -2)
    driver.fail(release)
    release = driver.request(0.4)
    assert release.fields["member_epoch"] == -2
    driver.answer(release, -2)
    request = driver.request()
    assert request.fields["member_epoch"] == 0
    driver.answer(request, 4, {T: (0,)})
    assert driver.poll() == [AssignPartitions(some(T0), some(T0))]


def test_an_instance_id_of_another_member_ends_the_membership() -> None:
    driver = ConsumerProtocolDriver(instance_id="i")
    driver.poll()
    driver.answer(driver.request(), code=E.unreleased_instance_id)
    driver.answer(driver.request(), code=E.fenced_instance_id)
    driver.answer(driver.request(), code=E.unreleased_instance_id)
    assert isinstance(driver.member.failure, KafkaError)
    assert driver.member.failure.code == E.unreleased_instance_id
