"""Members of one group in one process tell each other when the group changes."""

from __future__ import annotations

import asyncio
import os

import pytest
from kio.schema.errors import ErrorCode as E

from headrace._aio.group import neighbours
from headrace._aio.group.neighbours import Neighbour
from headrace._machines.group.actions import Send
from headrace._machines.group.neighbours import News, hint_spacing, news_in
from headrace._protocol.messages import CONSUMER_GROUP_HEARTBEAT, HEARTBEAT, JOIN_GROUP
from simulation import wire
from simulation.classic_member import T0, ClassicMemberDriver
from support.harness.consumer_protocol_member import INTERVAL, ConsumerProtocolDriver, T

# -- when a member asks after a hint ---------------------------------------------------------------------------------


def test_after_a_hint_a_kip_848_member_sends_its_next_heartbeat_at_once() -> None:
    driver = settled()
    driver.now += 1.0
    assert driver.sent() == []
    driver.member.hint(driver.now)
    assert driver.request().fields["topic_partitions"] is None


def test_hints_that_follow_a_heartbeat_closely_are_combined_into_the_next() -> None:
    driver = settled()
    for _ in range(3):
        driver.member.hint(driver.now)
    assert driver.sent() == []
    spacing = hint_spacing(INTERVAL)
    assert driver.member.next_tick() == pytest.approx(driver.now + spacing)
    driver.answer(driver.request(spacing), 2)
    assert driver.member.next_tick() == pytest.approx(driver.now + INTERVAL), "one heartbeat for all hints"


def test_a_hint_during_a_heartbeat_is_followed_by_another_one() -> None:
    driver = settled()
    request = driver.request(INTERVAL)
    driver.member.hint(driver.now)
    driver.answer(request, 2)
    assert driver.member.next_tick() == pytest.approx(driver.now + hint_spacing(INTERVAL))


def test_a_hint_does_not_shorten_the_backoff_of_failed_heartbeats() -> None:
    driver = settled()
    driver.fail(driver.request(INTERVAL))
    driver.member.hint(driver.now)
    assert driver.sent() == []


def test_a_hint_does_not_shorten_the_backoff_of_failed_classic_heartbeats() -> None:
    driver = ClassicMemberDriver()
    driver.stable(T0)
    driver.fail(driver.request(HEARTBEAT, 3.0))
    driver.member.hint(driver.now)
    assert driver.sent() == []


def test_after_a_hint_a_classic_member_sends_its_next_heartbeat_at_once() -> None:
    driver = ClassicMemberDriver()
    driver.stable(T0)
    driver.now += 1.0
    assert driver.sent() == []
    driver.member.hint(driver.now)
    driver.answer(driver.request(HEARTBEAT))
    driver.member.hint(driver.now)
    assert driver.sent() == []
    driver.request(HEARTBEAT, hint_spacing(3.0))


def test_a_hint_makes_no_member_of_a_consumer_that_has_not_joined() -> None:
    for driver in (ClassicMemberDriver(), ConsumerProtocolDriver()):
        driver.member.hint(driver.now)
        assert driver.sent() == []


def settled() -> ConsumerProtocolDriver:
    """A member that has not changed for a while, just after a heartbeat."""
    driver = ConsumerProtocolDriver()
    driver.joined({T: (0,)})
    for _ in range(20):
        driver.answer(driver.request(driver.member.next_tick() - driver.now), 2)
    return driver


# -- which answers concern others ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "partitions", "assignment", "code", "expected"),
    [
        (0, [], None, 0, News("joined", 3, "me")),
        (2, None, {"topic_partitions": []}, 0, News("target", 3)),
        (2, [], None, 0, News("owned", 3, "me")),
        (2, None, None, 0, News("target", 3)),  # what it gets is still owned by others
        (3, None, None, 0, None),
        (0, [], None, E.coordinator_load_in_progress, None),
    ],
)
def test_a_kip_848_answer_is_news_when_it_follows_or_brings_a_change(
    epoch: int,
    partitions: list[object] | None,
    assignment: dict[str, object] | None,
    code: int,
    expected: News | None,
) -> None:
    fields = {"member_id": "me", "member_epoch": epoch, "topic_partitions": partitions}
    body = {"error_code": code, "member_epoch": 3, "assignment": assignment}
    answer = wire.answer(CONSUMER_GROUP_HEARTBEAT, body)
    assert news_in(Send(CONSUMER_GROUP_HEARTBEAT, fields, 1.0), answer) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, None), (E.rebalance_in_progress, News("rebalance", 7)), (E.illegal_generation, None)],
)
def test_a_classic_heartbeat_is_news_when_a_rebalance_has_begun(code: int, expected: News | None) -> None:
    answer = wire.answer(HEARTBEAT, {"error_code": code})
    assert news_in(Send(HEARTBEAT, {"generation_id": 7}, 1.0), answer) == expected


def test_the_answer_to_a_join_is_no_news_because_others_were_told_when_it_was_sent() -> None:
    assert news_in(Send(JOIN_GROUP, {}, 1.0), wire.answer(JOIN_GROUP, {})) is None


# -- who is told -----------------------------------------------------------------------------------------------------


def test_a_hint_reaches_the_others_of_the_same_group_and_cluster_until_they_leave() -> None:
    async def scene() -> list[str]:
        told: list[str] = []
        members = {
            name: Neighbour((servers, group), lambda name=name: told.append(name))  # type: ignore[misc]
            for name, servers, group in [("a", "s", "g"), ("b", "s", "g"), ("c", "s", "other"), ("d", "t", "g")]
        }
        gone = Neighbour(("s", "g"), lambda: told.append("gone"))
        for member in (*members.values(), gone):
            member.enter()
        gone.leave()
        members["a"].tell_others()
        await asyncio.sleep(0)
        for member in members.values():
            member.leave()
        members["a"].tell_others()
        await asyncio.sleep(0)
        return told

    assert asyncio.run(scene()) == ["b"]
    assert not neighbours._members


def test_others_are_told_once_of_a_change_that_several_members_see() -> None:
    async def scene() -> list[str]:
        told: list[str] = []
        members = [Neighbour(("s", "g"), lambda name=name: told.append(name)) for name in "abc"]  # type: ignore[misc]
        for member in members:
            member.enter()
        for member in members:
            member.tell_others(News("rebalance", 7))
        members[0].tell_others(News("rebalance", 8))
        await asyncio.sleep(0)
        for member in members:
            member.leave()
        return sorted(told)

    assert asyncio.run(scene()) == ["b", "b", "c", "c"]
    assert not neighbours._last_news


def test_a_forked_process_has_no_neighbours_of_its_parent() -> None:
    async def scene() -> int:
        member = Neighbour(("s", "g"), lambda: None)
        member.enter()
        try:
            with neighbours._lock:
                pid = os.fork()
                if pid == 0:
                    os._exit(0 if not neighbours._members and not neighbours._lock.locked() else 1)
            return pid
        finally:
            member.leave()

    assert os.waitstatus_to_exitcode(os.waitpid(asyncio.run(scene()), 0)[1]) == 0
