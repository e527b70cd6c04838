"""A classic member after it has joined: heartbeats, revoked and lost partitions, missed polls, leaving."""

from __future__ import annotations

import math

import pytest
from kio.schema.errors import ErrorCode as E

from headrace._machines.group.actions import AssignPartitions, Lose, MemberIdentity, Revoke, Subscription
from headrace._machines.group.classic import ClassicState
from headrace._protocol.group_data import read_sticky_data, write_assignment
from headrace._protocol.messages import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from headrace.errors import KafkaError
from headrace.types import TopicPartition
from simulation.classic_member import PAUSE, T0, T1, T2, U0, ClassicMemberDriver, leads, subscription_in

NOTHING: frozenset[TopicPartition] = frozenset()


def some(*partitions: TopicPartition) -> frozenset[TopicPartition]:
    return frozenset(partitions)


# -- heartbeats ------------------------------------------------------------------------------------------------------


def test_a_classic_member_sends_heartbeats_once_it_has_joined() -> None:
    driver = ClassicMemberDriver()
    sync = driver.syncing()
    heartbeat = driver.request(HEARTBEAT, 3.0)
    assert dict(heartbeat.fields) == {
        "group_id": "g",
        "generation_id": 1,
        "member_id": "m",
        "group_instance_id": None,
    }
    assert driver.sent(3.0) == [], "one at a time"
    driver.answer(heartbeat)
    driver.answer(sync, assignment=write_assignment([T0]))
    assert driver.request(HEARTBEAT, 3.0)


def test_a_classic_member_sends_heartbeats_until_the_poll_that_rejoins() -> None:
    driver = ClassicMemberDriver()
    driver.stable(T0)
    for _ in range(3):
        driver.refused_heartbeat(E.rebalance_in_progress)
        assert driver.member.owned == some(T0)
    assert driver.poll() == [Revoke(some(T0))]
    request = driver.request(JOIN_GROUP)
    assert request.fields["reason"] == "the group is rebalancing"
    assert driver.sent(3.0) == [], "no heartbeats while the join is parked"


def test_a_rebalance_reported_before_the_assignment_is_taken_is_joined_after_it() -> None:
    driver = ClassicMemberDriver("cooperative-sticky")
    driver.answer(driver.syncing(), assignment=write_assignment([T0]))
    driver.refused_heartbeat(E.rebalance_in_progress)
    assert driver.poll() == [AssignPartitions(some(T0), some(T0))]
    assert driver.request(JOIN_GROUP)


@pytest.mark.parametrize("code", [E.coordinator_not_available, E.not_coordinator, E.coordinator_load_in_progress])
def test_a_moved_coordinator_costs_a_classic_member_nothing(code: E) -> None:
    driver = ClassicMemberDriver()
    driver.stable(T0)
    driver.refused_heartbeat(code)
    assert driver.sent() == []
    driver.fail(driver.request(HEARTBEAT, PAUSE))
    driver.answer(driver.request(HEARTBEAT, 0.2 + 1e-9))
    assert driver.poll() == []
    assert driver.member.identity == MemberIdentity(1, "m", None)
    driver.fail(driver.request(HEARTBEAT, 3.0))
    assert driver.member.next_tick() == pytest.approx(driver.now + PAUSE), "a success resets the backoff"


@pytest.mark.parametrize(("code", "member_id"), [(E.unknown_member_id, ""), (E.illegal_generation, "m")])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_lost_generation_loses_all_partitions_before_the_rejoin(strategy: str, code: E, member_id: str) -> None:
    driver = ClassicMemberDriver(strategy)
    driver.stable(T0, T1)
    driver.refused_heartbeat(code)
    assert driver.member.identity == MemberIdentity()
    assert driver.member.last_identity == MemberIdentity(1, "m", None), "brokers reject what it sends"
    assert driver.sent(10.0) == [], "a poll must report the loss before the member rejoins"
    assert driver.member.owned == some(T0, T1)
    assert driver.poll() == [Lose(some(T0, T1))]
    request = driver.request(JOIN_GROUP)
    assert request.fields["member_id"] == member_id
    assert (subscription_in(request).owned, subscription_in(request).generation) == (NOTHING, -1)


def test_a_rejection_of_an_older_generation_s_heartbeat_is_ignored() -> None:
    driver = ClassicMemberDriver()
    driver.stable(T0)
    old = driver.request(HEARTBEAT, 3.0)
    driver.member.rejoin("wanted")
    driver.poll()
    driver.answer(old, error_code=E.illegal_generation)
    driver.joined(driver.request(JOIN_GROUP), generation=2)
    driver.answer(old, error_code=E.unknown_member_id)
    assert driver.member.identity == MemberIdentity(2, "m", None)
    assert driver.request(SYNC_GROUP)


@pytest.mark.parametrize(("instance_id", "generation"), [("i", 2), (None, 3)])
def test_a_cooperative_member_keeps_its_partitions_in_the_next_generation(
    instance_id: str | None, generation: int
) -> None:
    driver = ClassicMemberDriver("cooperative-sticky", instance_id=instance_id)
    driver.stable(T0)
    driver.member.rejoin("wanted")
    driver.poll()
    driver.joined(driver.request(JOIN_GROUP), generation)
    assert driver.member.identity.generation == generation
    assert driver.poll() == []
    assert driver.member.owned == some(T0)


def test_a_static_member_that_missed_a_generation_loses_its_partitions() -> None:
    """The coordinator keeps its membership, but not its partitions."""
    driver = ClassicMemberDriver("cooperative-sticky", instance_id="i")
    driver.stable(T0)
    driver.member.rejoin("wanted")
    driver.poll()
    driver.joined(driver.request(JOIN_GROUP), generation=3)
    assert driver.member.identity.generation == -1
    assert driver.sent(3.0) == []
    assert driver.poll() == [Lose(some(T0))]
    request = driver.request(JOIN_GROUP)
    assert (request.fields["member_id"], subscription_in(request).owned) == ("m", NOTHING)


# -- revokes ---------------------------------------------------------------------------------------------------------


def test_an_eager_member_revokes_everything_before_it_rejoins() -> None:
    driver = ClassicMemberDriver("sticky")
    driver.stable(T0, U0)
    driver.member.rejoin("wanted")
    assert driver.poll() == [Revoke(some(T0, U0))]
    request = driver.request(JOIN_GROUP)
    assert subscription_in(request).owned == NOTHING
    assert read_sticky_data(subscription_in(request).user_data) == (some(T0, U0), 1)
    driver.joined(request, generation=2)
    driver.answer(driver.request(SYNC_GROUP), assignment=write_assignment([T0, T1]))
    assert driver.poll() == [AssignPartitions(some(T0, T1), some(T0, T1))]
    assert driver.sent() == []


def test_a_cooperative_member_rejoins_only_after_it_revoked_something() -> None:
    driver = ClassicMemberDriver("cooperative-sticky")
    driver.stable(T0, T1, U0)
    driver.member.rejoin("wanted")
    assert driver.poll() == []
    request = driver.request(JOIN_GROUP)
    assert (subscription_in(request).owned, subscription_in(request).generation) == (some(T0, T1, U0), 1)
    driver.joined(request, generation=2)
    driver.answer(driver.request(SYNC_GROUP), assignment=write_assignment([T0, T2]))
    assert driver.poll() == [Revoke(some(T1, U0)), AssignPartitions(some(T0, T2), some(T2))]
    request = driver.request(JOIN_GROUP)
    assert (subscription_in(request).owned, subscription_in(request).generation) == (some(T0, T2), 2)
    driver.joined(request, generation=3)
    driver.answer(driver.request(SYNC_GROUP), assignment=write_assignment([T0, T2]))
    assert driver.poll() == [AssignPartitions(some(T0, T2), NOTHING)]
    assert driver.sent() == [], "no rejoin without a revoke"


def test_a_cooperative_member_revokes_unsubscribed_topics_before_it_rejoins() -> None:
    driver = ClassicMemberDriver("cooperative-sticky")
    driver.stable(T0, U0)
    driver.member.subscribe(Subscription(frozenset({"t"})))
    assert driver.poll() == [Revoke(some(U0))]
    request = driver.request(JOIN_GROUP)
    assert (subscription_in(request).topics, subscription_in(request).owned) == ({"t"}, some(T0))


def test_a_member_with_one_eager_strategy_revokes_everything() -> None:
    driver = ClassicMemberDriver("cooperative-sticky,range")
    driver.stable(T0)
    driver.member.rejoin("wanted")
    assert driver.poll() == [Revoke(some(T0))]


def test_a_subscription_changed_during_a_join_rejoins_after_it() -> None:
    driver = ClassicMemberDriver()
    request = driver.joining()
    driver.member.subscribe(Subscription(frozenset({"t"})))
    driver.joined(request)
    driver.answer(driver.request(SYNC_GROUP), assignment=write_assignment([T0, U0]))
    assert driver.poll() == [AssignPartitions(some(T0), some(T0)), Revoke(some(T0))], (
        "partitions of unsubscribed topics are not assigned"
    )
    assert subscription_in(driver.request(JOIN_GROUP)).topics == {"t"}


def test_a_returning_static_member_with_another_subscription_rejoins() -> None:
    """The coordinator starts no rebalance for it, but returns the assignment of its predecessor."""
    driver = ClassicMemberDriver("cooperative-sticky", instance_id="i", topics=frozenset({"t"}))
    assert driver.stable(T0, U0, generation=7) == [AssignPartitions(some(T0), some(T0))]
    request = driver.request(JOIN_GROUP)
    assert request.fields["reason"] == "the assignment is not for the current subscription"


# -- events while a listener runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("assigned", [some(T0), NOTHING], ids=["something", "nothing"])
def test_a_generation_lost_during_an_assignment_loses_its_partitions(assigned: frozenset[TopicPartition]) -> None:
    driver = ClassicMemberDriver()
    driver.answer(driver.syncing(), assignment=write_assignment(assigned))
    driver.member.poll_begins()
    take = driver.member.poll_action()
    assert take == AssignPartitions(assigned, assigned)
    driver.refused_heartbeat(E.unknown_member_id)
    driver.member.done(take)
    assert driver.poll() == ([Lose(assigned)] if assigned else [])
    assert driver.stable(T1, generation=2) == [AssignPartitions(some(T1), some(T1))]
    assert driver.poll() == [], "partitions of the new generation are not lost"


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_generation_lost_during_a_revoke_loses_the_other_partitions(strategy: str) -> None:
    driver = ClassicMemberDriver(strategy)
    driver.stable(T0, U0)
    driver.member.subscribe(Subscription(frozenset({"t"})))
    driver.member.poll_begins()
    revoke = driver.member.poll_action()
    assert isinstance(revoke, Revoke)
    driver.refused_heartbeat(E.unknown_member_id)
    driver.member.done(revoke)
    assert driver.poll() == ([] if strategy == "range" else [Lose(some(T0))])
    assert driver.stable(T1, generation=2) == [AssignPartitions(some(T1), some(T1))]
    assert driver.poll() == [], "partitions of the new generation are not lost"


# -- KIP-62 ----------------------------------------------------------------------------------------------------------


def test_a_classic_member_past_max_poll_interval_leaves_and_loses_its_partitions() -> None:
    driver = ClassicMemberDriver()
    driver.stable(T0)
    for _ in range(6):
        driver.answer(driver.request(HEARTBEAT, 3.0))
    assert not driver.member.is_expired
    leave_request = driver.request(LEAVE_GROUP, 2.0)
    (who,) = leave_request.fields["members"]
    assert (who["member_id"], who["group_instance_id"]) == ("m", None)
    assert "max.poll.interval.ms" in who["reason"]
    assert driver.member.is_expired
    assert driver.member.identity == MemberIdentity()
    assert driver.member.owned == some(T0), "no poll has reported the loss yet"
    driver.answer(leave_request)
    assert driver.sent(1e6) == []
    assert driver.member.next_tick() == math.inf
    assert driver.poll() == [Lose(some(T0))]
    assert not driver.member.is_expired
    assert driver.request(JOIN_GROUP).fields["member_id"] == ""


def test_a_static_member_past_max_poll_interval_stops_heartbeats_without_leaving() -> None:
    driver = ClassicMemberDriver(instance_id="i")
    driver.stable(T0)
    driver.member.tick(driver.now + 3.0)
    assert driver.sent(20.0) == []
    assert driver.member.is_expired
    assert driver.poll() == [Lose(some(T0))]
    request = driver.request(JOIN_GROUP)
    assert (request.fields["member_id"], request.fields["group_instance_id"]) == ("", "i")


def test_max_poll_interval_does_not_expire_inside_of_poll() -> None:
    driver = ClassicMemberDriver()
    driver.stable(T0)
    driver.member.poll_begins()
    assert [each.api for each in driver.sent(1000.0)] == [HEARTBEAT]
    assert not driver.member.is_expired


def test_a_classic_member_past_max_poll_interval_leaves_while_joining() -> None:
    driver = ClassicMemberDriver()
    join = driver.joining()
    assert driver.request(LEAVE_GROUP, 20.0)
    driver.joined(join)
    assert driver.member.identity == MemberIdentity(), "the late response is ignored"
    assert driver.sent() == []


def test_a_classic_member_does_not_expire_before_its_session_timeout() -> None:
    driver = ClassicMemberDriver(max_poll_interval=5.0)
    driver.stable(T0)
    driver.answer(driver.request(HEARTBEAT, 9.9))
    assert not driver.member.is_expired
    driver.request(LEAVE_GROUP, 0.2)
    assert driver.member.is_expired


# -- topics ----------------------------------------------------------------------------------------------------------


def led(driver: ClassicMemberDriver, layout: dict[str, int]) -> None:
    (assign,) = leads(driver)
    driver.member.assigned(assign, {"m": write_assignment([T0]), "n": b""}, layout)
    driver.answer(driver.request(SYNC_GROUP), assignment=write_assignment([T0]))
    driver.poll()


@pytest.mark.parametrize(
    ("now", "joins"),
    [
        ({"t": 2, "u": 1}, False),
        ({"t": 2, "u": 1, "w": 5}, False),
        ({"t": 3, "u": 1}, True),
        ({"t": 2, "u": 1, "v": 1}, True),
        ({"t": 2}, True),
    ],
    ids=["the same", "an unsubscribed topic", "more partitions", "a topic of another member", "a topic less"],
)
def test_a_leader_rejoins_when_topics_of_its_group_change(now: dict[str, int], joins: bool) -> None:
    driver = ClassicMemberDriver("cooperative-sticky")
    led(driver, {"t": 2, "u": 1, "x": 9})
    driver.member.update_partition_counts(now)
    driver.poll()
    assert [each.api for each in driver.sent()] == ([JOIN_GROUP] if joins else [])


def test_topics_that_change_during_the_assignment_make_the_leader_rejoin() -> None:
    driver = ClassicMemberDriver("cooperative-sticky")
    (assign,) = leads(driver)
    driver.member.update_partition_counts({"t": 3})
    driver.member.assigned(assign, {"m": write_assignment([T0])}, {"t": 2})
    driver.answer(driver.request(SYNC_GROUP), assignment=write_assignment([T0]))
    driver.poll()
    assert driver.request(JOIN_GROUP).fields["reason"] == "the topics have changed"


def test_a_follower_does_not_rejoin_when_topics_change() -> None:
    driver = ClassicMemberDriver()
    driver.stable(T0)
    driver.member.update_partition_counts({"t": 3})
    assert driver.poll() == []


# -- commits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "poll_actions"),
    [
        (E.unknown_member_id, [Lose(some(T0))]),
        (E.illegal_generation, [Lose(some(T0))]),
        (E.rebalance_in_progress, [Revoke(some(T0))]),
        (E.offset_metadata_too_large, []),
        (E.not_coordinator, []),
    ],
)
def test_a_rejected_commit_loses_or_revokes_by_its_error_code(code: E, poll_actions: list[Lose | Revoke]) -> None:
    driver = ClassicMemberDriver()
    driver.stable(T0)
    driver.member.commit_refused(code, MemberIdentity(0, "m", None))
    assert driver.poll() == [], "it was rejected for another generation"
    driver.member.commit_refused(code, driver.member.identity)
    assert driver.poll() == poll_actions


def test_a_commit_rejected_as_fenced_ends_the_membership() -> None:
    driver = ClassicMemberDriver(instance_id="i")
    driver.stable(T0)
    driver.member.commit_refused(E.fenced_instance_id, driver.member.identity)
    assert isinstance(driver.member.failure, KafkaError)


def test_a_commit_rejected_during_a_join_does_not_lose_the_next_generation() -> None:
    """A commit can overtake the JoinGroup response, which arrives on another connection."""
    driver = ClassicMemberDriver("cooperative-sticky")
    driver.stable(T0)
    driver.member.rejoin("wanted")
    driver.poll()
    join = driver.request(JOIN_GROUP)
    driver.member.commit_refused(E.illegal_generation, driver.member.identity)
    driver.joined(join, generation=2)
    assert driver.poll() == []
    assert driver.member.identity == MemberIdentity(2, "m", None)


# -- leaving ---------------------------------------------------------------------------------------------------------


def test_a_classic_member_that_leaves_revokes_and_sends_a_leave_request() -> None:
    driver = ClassicMemberDriver()
    driver.stable(T0)
    revoke = driver.member.final_revoke()
    assert revoke == Revoke(some(T0))
    driver.member.done(revoke)
    assert driver.member.final_revoke() is None
    leave_request = driver.member.leave("x" * 300)
    assert leave_request is not None
    assert leave_request.fields["members"] == [{"member_id": "m", "group_instance_id": None, "reason": "x" * 255}]
    assert driver.member.state is ClassicState.OUT
    assert driver.sent(1e6) == []
    assert driver.member.next_tick() == math.inf


def test_leaving_after_a_lost_generation_loses_and_sends_no_request() -> None:
    driver = ClassicMemberDriver()
    driver.stable(T0)
    driver.refused_heartbeat(E.unknown_member_id)
    assert driver.member.final_revoke() == Lose(some(T0))
    assert driver.member.leave("closed") is None, "it is not a member any more"


def test_a_static_classic_member_leaves_without_a_request() -> None:
    driver = ClassicMemberDriver(instance_id="i")
    driver.stable(T0)
    assert driver.member.leave("closed") is None


def test_a_classic_member_that_left_can_subscribe_again() -> None:
    driver = ClassicMemberDriver("sticky")
    driver.stable(T0)
    driver.member.leave("unsubscribed")
    driver.member.subscribe(Subscription(frozenset({"t"})))
    driver.poll()
    request = driver.request(JOIN_GROUP)
    assert request.fields["member_id"] == ""
    assert subscription_in(request).user_data is None, "its old partitions belong to others now"
