"""The ends of a membership in a KIP-848 group: leaving, being away for too long, a place that somebody else has."""

from __future__ import annotations

import math

import pytest
from kio.schema.errors import ErrorCode as E

from headrace.errors import KafkaError
from headrace.machines.epoch_member import State
from headrace.machines.membership import Lose, Revoke, Take
from support.epoch_seat import INTERVAL, PAUSE, T0, Seat, T, some


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("i", -2)])
def test_leaving(instance_id: str | None, epoch: int) -> None:
    seat = Seat(instance_id=instance_id)
    seat.joined({T: (0,)})
    assert seat.member.parting() == Revoke(some(T0))
    farewell = seat.member.leave("closed")
    assert farewell is not None
    fields = farewell.fields
    assert (fields["member_id"], fields["member_epoch"], fields["instance_id"]) == ("me", epoch, instance_id)
    assert fields["topic_partitions"] is None
    assert seat.sent(1e6) == []
    assert seat.member.next_tick() == math.inf


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("i", -2)])
def test_away_for_too_long(instance_id: str | None, epoch: int) -> None:
    seat = Seat(instance_id=instance_id)
    seat.joined({T: (0,)})
    for _ in range(11):
        seat.answer(seat.request(INTERVAL), 2)
    farewell = seat.request(INTERVAL)
    assert farewell.fields["member_epoch"] == epoch
    assert seat.member.is_expired
    assert seat.member.identity.generation == -1
    assert seat.sent(1e6) == []
    assert seat.member.state is State.BEGINNING
    assert seat.poll() == [Lose(some(T0))]
    assert not seat.member.is_expired
    request = seat.request()
    assert (request.fields["member_id"], request.fields["member_epoch"]) == ("me", 0)


def test_a_place_that_is_still_its_own_is_released_first() -> None:
    """The answer to a join was lost: the coordinator has this member in, and lets nobody in with its instance id."""
    seat = Seat(instance_id="i")
    seat.poll()
    seat.fail(seat.request())
    seat.answer(seat.request(PAUSE), code=E.unreleased_instance_id)
    release = seat.request(0.2)
    assert (release.fields["member_id"], release.fields["member_epoch"]) == ("me", -2)
    seat.fail(release)
    release = seat.request(0.4)
    assert release.fields["member_epoch"] == -2
    seat.answer(release, -2)
    request = seat.request()
    assert request.fields["member_epoch"] == 0
    seat.answer(request, 4, {T: (0,)})
    assert seat.poll() == [Take(some(T0), some(T0))]


def test_a_place_that_is_anothers_ends_the_membership() -> None:
    seat = Seat(instance_id="i")
    seat.poll()
    seat.answer(seat.request(), code=E.unreleased_instance_id)
    seat.answer(seat.request(), code=E.fenced_instance_id)
    seat.answer(seat.request(), code=E.unreleased_instance_id)
    assert isinstance(seat.member.failure, KafkaError)
    assert seat.member.failure.code == E.unreleased_instance_id
