"""A member of a classic group once it is in: heartbeats, giving up and losing, being away too long, leaving."""

from __future__ import annotations

import math

import pytest
from kio.schema.errors import ErrorCode as E

from headrace.errors import KafkaError
from headrace.machines.classic_member import State
from headrace.machines.membership import Identity, Lose, Revoke, Subscription, Take
from headrace.protocol.group_data import read_sticky_data, write_assignment
from headrace.protocol.messages import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from headrace.types import TopicPartition
from simulation.seat import PAUSE, T0, T1, T2, U0, Seat, leads, subscription_in

NOTHING: frozenset[TopicPartition] = frozenset()


def some(*partitions: TopicPartition) -> frozenset[TopicPartition]:
    return frozenset(partitions)


# -- heartbeats ------------------------------------------------------------------------------------------------------


def test_heartbeats_go_out_from_the_answer_to_the_join_on() -> None:
    seat = Seat()
    sync = seat.syncing()
    heartbeat = seat.request(HEARTBEAT, 3.0)
    assert dict(heartbeat.fields) == {
        "group_id": "g",
        "generation_id": 1,
        "member_id": "m",
        "group_instance_id": None,
    }
    assert seat.sent(3.0) == [], "one at a time"
    seat.answer(heartbeat)
    seat.answer(sync, assignment=write_assignment([T0]))
    assert seat.request(HEARTBEAT, 3.0)


def test_heartbeats_go_on_while_the_group_rebalances_until_the_poll_that_joins() -> None:
    seat = Seat()
    seat.stable(T0)
    for _ in range(3):
        seat.refused_heartbeat(E.rebalance_in_progress)
        assert seat.member.owned == some(T0)
    assert seat.poll() == [Revoke(some(T0))]
    request = seat.request(JOIN_GROUP)
    assert request.fields["reason"] == "the group is rebalancing"
    assert seat.sent(3.0) == [], "no heartbeats while the join is parked"


def test_a_heartbeat_that_says_so_while_the_assignment_is_on_its_way_or_not_taken_yet() -> None:
    seat = Seat("cooperative-sticky")
    seat.answer(seat.syncing(), assignment=write_assignment([T0]))
    seat.refused_heartbeat(E.rebalance_in_progress)
    assert seat.poll() == [Take(some(T0), some(T0))]
    assert seat.request(JOIN_GROUP)


@pytest.mark.parametrize("code", [E.coordinator_not_available, E.not_coordinator, E.coordinator_load_in_progress])
def test_a_coordinator_that_has_moved_costs_nothing(code: E) -> None:
    seat = Seat()
    seat.stable(T0)
    seat.refused_heartbeat(code)
    assert seat.sent() == []
    seat.fail(seat.request(HEARTBEAT, PAUSE))
    seat.answer(seat.request(HEARTBEAT, 0.2 + 1e-9))
    assert seat.poll() == []
    assert seat.member.identity == Identity(1, "m", None)
    seat.fail(seat.request(HEARTBEAT, 3.0))
    assert seat.member.next_tick() == pytest.approx(seat.now + PAUSE), "a success ends the growing of pauses"


@pytest.mark.parametrize(("code", "member_id"), [(E.unknown_member_id, ""), (E.illegal_generation, "m")])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_generation_that_is_lost_takes_everything_with_it(strategy: str, code: E, member_id: str) -> None:
    seat = Seat(strategy)
    seat.stable(T0, T1)
    seat.refused_heartbeat(code)
    assert seat.member.identity == Identity()
    assert seat.sent(10.0) == [], "only a poll can report the loss, and it comes first"
    assert seat.member.owned == some(T0, T1)
    assert seat.poll() == [Lose(some(T0, T1))]
    request = seat.request(JOIN_GROUP)
    assert request.fields["member_id"] == member_id
    assert (subscription_in(request).owned, subscription_in(request).generation) == (NOTHING, -1)


def test_a_refusal_of_an_older_generation_means_nothing() -> None:
    seat = Seat()
    seat.stable(T0)
    old = seat.request(HEARTBEAT, 3.0)
    seat.member.rejoin("wanted")
    seat.poll()
    seat.answer(old, error_code=E.illegal_generation)
    seat.joined(seat.request(JOIN_GROUP), generation=2)
    seat.answer(old, error_code=E.unknown_member_id)
    assert seat.member.identity == Identity(2, "m", None)
    assert seat.request(SYNC_GROUP)


@pytest.mark.parametrize(("instance_id", "generation"), [("i", 2), (None, 3)])
def test_a_join_that_is_answered_by_the_next_generation_or_whose_answer_was_lost(
    instance_id: str | None, generation: int
) -> None:
    seat = Seat("cooperative-sticky", instance_id=instance_id)
    seat.stable(T0)
    seat.member.rejoin("wanted")
    seat.poll()
    seat.joined(seat.request(JOIN_GROUP), generation)
    assert seat.member.identity.generation == generation
    assert seat.poll() == []
    assert seat.member.owned == some(T0)


def test_a_static_member_loses_everything_when_a_generation_has_passed_without_it() -> None:
    """Kafka keeps its place, but not what it owns."""
    seat = Seat("cooperative-sticky", instance_id="i")
    seat.stable(T0)
    seat.member.rejoin("wanted")
    seat.poll()
    seat.joined(seat.request(JOIN_GROUP), generation=3)
    assert seat.member.identity.generation == -1
    assert seat.sent(3.0) == []
    assert seat.poll() == [Lose(some(T0))]
    request = seat.request(JOIN_GROUP)
    assert (request.fields["member_id"], subscription_in(request).owned) == ("m", NOTHING)


# -- what others shall have ------------------------------------------------------------------------------------------


def test_an_eager_member_gives_everything_up_before_it_joins() -> None:
    seat = Seat("sticky")
    seat.stable(T0, U0)
    seat.member.rejoin("wanted")
    assert seat.poll() == [Revoke(some(T0, U0))]
    request = seat.request(JOIN_GROUP)
    assert subscription_in(request).owned == NOTHING
    assert read_sticky_data(subscription_in(request).user_data) == (some(T0, U0), 1)
    seat.joined(request, generation=2)
    seat.answer(seat.request(SYNC_GROUP), assignment=write_assignment([T0, T1]))
    assert seat.poll() == [Take(some(T0, T1), some(T0, T1))]
    assert seat.sent() == []


def test_a_cooperative_member_keeps_what_it_has_and_joins_again_if_it_gave_something_up() -> None:
    seat = Seat("cooperative-sticky")
    seat.stable(T0, T1, U0)
    seat.member.rejoin("wanted")
    assert seat.poll() == []
    request = seat.request(JOIN_GROUP)
    assert (subscription_in(request).owned, subscription_in(request).generation) == (some(T0, T1, U0), 1)
    seat.joined(request, generation=2)
    seat.answer(seat.request(SYNC_GROUP), assignment=write_assignment([T0, T2]))
    assert seat.poll() == [Revoke(some(T1, U0)), Take(some(T0, T2), some(T2))]
    request = seat.request(JOIN_GROUP)
    assert (subscription_in(request).owned, subscription_in(request).generation) == (some(T0, T2), 2)
    seat.joined(request, generation=3)
    seat.answer(seat.request(SYNC_GROUP), assignment=write_assignment([T0, T2]))
    assert seat.poll() == [Take(some(T0, T2), NOTHING)]
    assert seat.sent() == [], "nothing was given up"


def test_a_cooperative_member_gives_up_what_it_no_longer_subscribes_before_it_joins() -> None:
    seat = Seat("cooperative-sticky")
    seat.stable(T0, U0)
    seat.member.subscribe(Subscription(frozenset({"t"})))
    assert seat.poll() == [Revoke(some(U0))]
    request = seat.request(JOIN_GROUP)
    assert (subscription_in(request).topics, subscription_in(request).owned) == ({"t"}, some(T0))


def test_a_list_with_a_strategy_that_is_not_cooperative_is_eager() -> None:
    seat = Seat("cooperative-sticky,range")
    seat.stable(T0)
    seat.member.rejoin("wanted")
    assert seat.poll() == [Revoke(some(T0))]


def test_a_subscription_that_changes_while_the_join_is_out_is_followed_after_it() -> None:
    seat = Seat()
    request = seat.joining()
    seat.member.subscribe(Subscription(frozenset({"t"})))
    seat.joined(request)
    seat.answer(seat.request(SYNC_GROUP), assignment=write_assignment([T0, U0]))
    assert seat.poll() == [Take(some(T0), some(T0)), Revoke(some(T0))], "what is not subscribed any more is not taken"
    assert subscription_in(seat.request(JOIN_GROUP)).topics == {"t"}


def test_a_static_member_that_returns_with_another_subscription_asks_for_a_rebalance() -> None:
    """Kafka makes none of its own accord: it hands out what the predecessor had."""
    seat = Seat("cooperative-sticky", instance_id="i", topics=frozenset({"t"}))
    assert seat.stable(T0, U0, generation=7) == [Take(some(T0), some(T0))]
    request = seat.request(JOIN_GROUP)
    assert request.fields["reason"] == "the assignment is not for the current subscription"


# -- a listener that runs while things happen ------------------------------------------------------------------------


@pytest.mark.parametrize("assigned", [some(T0), NOTHING], ids=["something", "nothing"])
def test_the_generation_is_lost_while_the_assignment_is_taken(assigned: frozenset[TopicPartition]) -> None:
    seat = Seat()
    seat.answer(seat.syncing(), assignment=write_assignment(assigned))
    seat.member.poll_begins()
    take = seat.member.duty()
    assert take == Take(assigned, assigned)
    seat.refused_heartbeat(E.unknown_member_id)
    seat.member.done(take)
    assert seat.poll() == ([Lose(assigned)] if assigned else [])
    assert seat.stable(T1, generation=2) == [Take(some(T1), some(T1))]
    assert seat.poll() == [], "what the new generation gives is not lost"


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_the_generation_is_lost_while_something_is_given_up(strategy: str) -> None:
    seat = Seat(strategy)
    seat.stable(T0, U0)
    seat.member.subscribe(Subscription(frozenset({"t"})))
    seat.member.poll_begins()
    revoke = seat.member.duty()
    assert isinstance(revoke, Revoke)
    seat.refused_heartbeat(E.unknown_member_id)
    seat.member.done(revoke)
    assert seat.poll() == ([] if strategy == "range" else [Lose(some(T0))])
    assert seat.stable(T1, generation=2) == [Take(some(T1), some(T1))]
    assert seat.poll() == [], "what the new generation gives is not lost"


# -- KIP-62 ----------------------------------------------------------------------------------------------------------


def test_away_for_too_long() -> None:
    seat = Seat()
    seat.stable(T0)
    for _ in range(6):
        seat.answer(seat.request(HEARTBEAT, 3.0))
    assert not seat.member.is_expired
    farewell = seat.request(LEAVE_GROUP, 2.0)
    (who,) = farewell.fields["members"]
    assert (who["member_id"], who["group_instance_id"]) == ("m", None)
    assert "max.poll.interval.ms" in who["reason"]
    assert seat.member.is_expired
    assert seat.member.identity == Identity()
    assert seat.member.owned == some(T0), "the user does not know yet"
    seat.answer(farewell)
    assert seat.sent(1e6) == []
    assert seat.member.next_tick() == math.inf
    assert seat.poll() == [Lose(some(T0))]
    assert not seat.member.is_expired
    assert seat.request(JOIN_GROUP).fields["member_id"] == ""


def test_a_static_member_that_is_away_for_too_long_just_falls_silent() -> None:
    seat = Seat(instance_id="i")
    seat.stable(T0)
    seat.member.tick(seat.now + 3.0)
    assert seat.sent(20.0) == []
    assert seat.member.is_expired
    assert seat.poll() == [Lose(some(T0))]
    request = seat.request(JOIN_GROUP)
    assert (request.fields["member_id"], request.fields["group_instance_id"]) == ("", "i")


def test_inside_of_poll_no_time_passes() -> None:
    seat = Seat()
    seat.stable(T0)
    seat.member.poll_begins()
    assert [each.api for each in seat.sent(1000.0)] == [HEARTBEAT]
    assert not seat.member.is_expired


def test_away_for_too_long_while_joining() -> None:
    seat = Seat()
    join = seat.joining()
    assert seat.request(LEAVE_GROUP, 20.0)
    seat.joined(join)
    assert seat.member.identity == Identity(), "nobody waits for that answer"
    assert seat.sent() == []


def test_who_is_not_away_for_longer_than_the_session_is_not_away_for_too_long() -> None:
    seat = Seat(max_poll_interval=5.0)
    seat.stable(T0)
    seat.answer(seat.request(HEARTBEAT, 9.9))
    assert not seat.member.is_expired
    seat.request(LEAVE_GROUP, 0.2)
    assert seat.member.is_expired


# -- topics ----------------------------------------------------------------------------------------------------------


def led(seat: Seat, layout: dict[str, int]) -> None:
    (assign,) = leads(seat)
    seat.member.assigned(assign, {"m": write_assignment([T0]), "n": b""}, layout)
    seat.answer(seat.request(SYNC_GROUP), assignment=write_assignment([T0]))
    seat.poll()


@pytest.mark.parametrize(
    ("now", "joins"),
    [
        ({"t": 2, "u": 1}, False),
        ({"t": 2, "u": 1, "w": 5}, False),
        ({"t": 3, "u": 1}, True),
        ({"t": 2, "u": 1, "v": 1}, True),
        ({"t": 2}, True),
    ],
    ids=["the same", "a topic of nobody", "more partitions", "a topic of another member", "a topic less"],
)
def test_a_leader_joins_again_when_topics_change(now: dict[str, int], joins: bool) -> None:
    seat = Seat("cooperative-sticky")
    led(seat, {"t": 2, "u": 1, "x": 9})
    seat.member.topics_changed(now)
    seat.poll()
    assert [each.api for each in seat.sent()] == ([JOIN_GROUP] if joins else [])


def test_topics_that_change_while_the_assignor_is_at_work_are_noticed() -> None:
    seat = Seat("cooperative-sticky")
    (assign,) = leads(seat)
    seat.member.topics_changed({"t": 3})
    seat.member.assigned(assign, {"m": write_assignment([T0])}, {"t": 2})
    seat.answer(seat.request(SYNC_GROUP), assignment=write_assignment([T0]))
    seat.poll()
    assert seat.request(JOIN_GROUP).fields["reason"] == "the topics have changed"


def test_a_follower_does_not_care() -> None:
    seat = Seat()
    seat.stable(T0)
    seat.member.topics_changed({"t": 3})
    assert seat.poll() == []


# -- commits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "duties"),
    [
        (E.unknown_member_id, [Lose(some(T0))]),
        (E.illegal_generation, [Lose(some(T0))]),
        (E.rebalance_in_progress, [Revoke(some(T0))]),
        (E.offset_metadata_too_large, []),
        (E.not_coordinator, []),
    ],
)
def test_what_a_refused_commit_says_of_the_membership(code: E, duties: list[Lose | Revoke]) -> None:
    seat = Seat()
    seat.stable(T0)
    seat.member.commit_refused(code, Identity(0, "m", None))
    assert seat.poll() == [], "that was another generation"
    seat.member.commit_refused(code, seat.member.identity)
    assert seat.poll() == duties


def test_a_refused_commit_that_ends_the_membership() -> None:
    seat = Seat(instance_id="i")
    seat.stable(T0)
    seat.member.commit_refused(E.fenced_instance_id, seat.member.identity)
    assert isinstance(seat.member.failure, KafkaError)


def test_a_commit_refused_by_the_next_generation_that_this_member_has_joined() -> None:
    """A commit can overtake the answer to JoinGroup, which is on another connection."""
    seat = Seat("cooperative-sticky")
    seat.stable(T0)
    seat.member.rejoin("wanted")
    seat.poll()
    join = seat.request(JOIN_GROUP)
    seat.member.commit_refused(E.illegal_generation, seat.member.identity)
    seat.joined(join, generation=2)
    assert seat.poll() == []
    assert seat.member.identity == Identity(2, "m", None)


# -- the end ---------------------------------------------------------------------------------------------------------


def test_leaving() -> None:
    seat = Seat()
    seat.stable(T0)
    revoke = seat.member.parting()
    assert revoke == Revoke(some(T0))
    seat.member.done(revoke)
    assert seat.member.parting() is None
    farewell = seat.member.leave("x" * 300)
    assert farewell is not None
    assert farewell.fields["members"] == [{"member_id": "m", "group_instance_id": None, "reason": "x" * 255}]
    assert seat.member.state is State.OUT
    assert seat.sent(1e6) == []
    assert seat.member.next_tick() == math.inf


def test_leaving_after_the_generation_was_lost() -> None:
    seat = Seat()
    seat.stable(T0)
    seat.refused_heartbeat(E.unknown_member_id)
    assert seat.member.parting() == Lose(some(T0))
    assert seat.member.leave("closed") is None, "the group does not know it any more"


def test_a_static_member_leaves_without_a_word() -> None:
    seat = Seat(instance_id="i")
    seat.stable(T0)
    assert seat.member.leave("closed") is None


def test_after_leaving_it_can_subscribe_again() -> None:
    seat = Seat("sticky")
    seat.stable(T0)
    seat.member.leave("unsubscribed")
    seat.member.subscribe(Subscription(frozenset({"t"})))
    seat.poll()
    request = seat.request(JOIN_GROUP)
    assert request.fields["member_id"] == ""
    assert subscription_in(request).user_data is None, "what it had then is long gone"
