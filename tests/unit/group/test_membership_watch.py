"""MembershipWatch: when a member warns that it is about to lose its membership, and when that is over."""

from __future__ import annotations

import dataclasses
import math

import pytest

from headrace._machines.group.membership_watch import EVERY, MembershipWatch
from headrace.errors import HeadraceError
from headrace.events import (
    Event,
    HeartbeatsFailing,
    HeartbeatsRecovered,
    MembershipAtRisk,
    MembershipLost,
    MembershipSafe,
)

GROUP = "billing"


@dataclasses.dataclass
class Member:
    is_member: bool = True
    is_expired: bool = False
    poll_deadline: float = math.inf
    failure: HeadraceError | None = None


def watch_of(session_timeout: float | None = 40.0, poll_limit: float = 100.0) -> MembershipWatch:
    return MembershipWatch(GROUP, session_timeout=session_timeout, heartbeat_interval=3.0, poll_limit=poll_limit)


def look(watch: MembershipWatch, member: Member, first: float, last: float) -> list[tuple[float, Event]]:
    """The events, with their times, of a caller that looks when it is asked to."""
    found, now = [], first
    while now <= last:
        found += [(now, event) for event in watch.look(member, now)]
        assert watch.next_look > now, "it would be asked again and again"
        now = watch.next_look
    return found


# Each heartbeat is sent at a time, and rejected (text), accepted ("") or unanswered (None).
@pytest.mark.parametrize(
    ("session_timeout", "heartbeats", "expected"),
    [
        pytest.param(40.0, [(0, ""), (3, ""), (6, "")], [], id="accepted"),
        pytest.param(40.0, [(0, ""), (3, "gone"), (4, "")], [], id="one failure"),
        pytest.param(
            40.0,
            [(0, ""), (3, "gone"), (9, "away"), (12, "")],
            [(6, HeartbeatsFailing(GROUP, 3.0, "gone")), (12, HeartbeatsRecovered(GROUP, 9.0))],
            id="some failures",
        ),
        pytest.param(
            40.0,
            [(0, ""), (3, None), (90, "")],
            [
                (6, HeartbeatsFailing(GROUP, 3.0, None)),
                (30, MembershipAtRisk(GROUP, "heartbeats", 10.0)),
                (66, HeartbeatsFailing(GROUP, 3.0 + EVERY, None)),
                (90, HeartbeatsRecovered(GROUP, 87.0)),
                (90, MembershipSafe(GROUP, "heartbeats")),
            ],
            id="no answer for long",
        ),
        pytest.param(
            None,
            [(0, ""), (3, None), (20, "")],
            [
                (6, HeartbeatsFailing(GROUP, 3.0, None)),
                (12, MembershipAtRisk(GROUP, "heartbeats", None)),
                (20, HeartbeatsRecovered(GROUP, 17.0)),
                (20, MembershipSafe(GROUP, "heartbeats")),
            ],
            id="unknown session timeout",
        ),
        pytest.param(
            2.0,
            [(0, ""), (0.5, None), (1.8, "")],
            [
                (1.0, HeartbeatsFailing(GROUP, 0.5, None)),
                (1.5, MembershipAtRisk(GROUP, "heartbeats", 0.5)),
                (1.8, HeartbeatsRecovered(GROUP, 1.3)),
                (1.8, MembershipSafe(GROUP, "heartbeats")),
            ],
            id="a short session",
        ),
    ],
)
def test_failing_heartbeats_are_reported_in_time_and_not_again_and_again(
    session_timeout: float | None, heartbeats: list[tuple[float, str | None]], expected: list[tuple[float, Event]]
) -> None:
    watch, member = watch_of(session_timeout), Member()
    found: list[tuple[float, Event]] = []
    ends = [at for at, _ in heartbeats[1:]] + [heartbeats[-1][0] + 0.01]
    for (at, answer), end in zip(heartbeats, ends, strict=True):
        watch.sent(at)
        if answer == "":
            watch.accepted(at)
        elif answer is not None:
            watch.failed(at, answer)
        found += look(watch, member, at, end - 0.001)
    assert [(at, type(event)) for at, event in found] == [(pytest.approx(at), type(event)) for at, event in expected]
    for (_, event), (_, wanted) in zip(found, expected, strict=True):
        assert dataclasses.asdict(event) == pytest.approx(dataclasses.asdict(wanted))


def test_a_coordinator_that_asks_for_many_heartbeats_has_seconds_for_each() -> None:
    watch, member = watch_of(None), Member()
    watch.accepted(0.0, interval=0.1)
    watch.sent(0.1)
    assert look(watch, member, 0.1, 3.0) == []
    assert [type(event) for _, event in look(watch, member, 3.1, 4.0)] == [HeartbeatsFailing, MembershipAtRisk]


def test_heartbeats_and_their_failures_are_counted() -> None:
    watch = watch_of()
    for _ in range(3):
        watch.sent(1.0)
    watch.sent(1.0, parks=True)
    watch.accepted(1.0)
    watch.failed(2.0, "gone")
    watch.failed(2.0, "gone", parks=True)
    assert watch.describe(4.0) == {"heartbeats": 3, "heartbeat_failures": 1, "seconds_since_heartbeat": 3.0}
    watch.forget()
    assert watch.describe(4.0)["seconds_since_heartbeat"] is None


def test_a_member_that_waits_for_others_to_join_is_not_at_risk() -> None:
    watch, member = watch_of(), Member()
    watch.accepted(0.0)
    watch.sent(3.0)  # its answer may get lost when the member rejoins
    watch.sent(3.1, parks=True)
    assert look(watch, member, 3.1, 200.0) == []
    watch.accepted(200.0)
    assert look(watch, member, 200.0, 400.0) == []


def test_a_join_that_fails_puts_a_member_at_risk() -> None:
    watch, member = watch_of(), Member()
    watch.accepted(0.0)
    watch.sent(1.0, parks=True)
    watch.failed(100.0, "gone", parks=True)
    assert look(watch, member, 100.0, 135.0) == [
        (103.0, HeartbeatsFailing(GROUP, 3.0, "gone")),
        (130.0, MembershipAtRisk(GROUP, "heartbeats", 10.0)),
    ]


def test_a_missing_poll_is_reported_when_a_quarter_of_its_time_is_left() -> None:
    watch, member = watch_of(poll_limit=100.0), Member(poll_deadline=110.0)
    assert look(watch, member, 10.0, 84.9) == []
    assert watch.next_look == 85.0
    assert look(watch, member, 85.0, 109.0) == [(85.0, MembershipAtRisk(GROUP, "poll", 25.0))]
    member.poll_deadline = math.inf  # poll() is called
    assert look(watch, member, 109.0, 300.0) == [(109.0, MembershipSafe(GROUP, "poll"))]
    member.poll_deadline = 400.0
    assert look(watch, member, 300.0, 400.0) == [(375.0, MembershipAtRisk(GROUP, "poll", 25.0))]


@pytest.mark.parametrize(
    ("member", "event"),
    [
        (Member(is_member=False, is_expired=True), MembershipLost(GROUP, "poll", None)),
        (Member(is_member=False), MembershipLost(GROUP, "coordinator", None)),
        (
            Member(is_member=False, failure=HeadraceError("fenced for good")),
            MembershipLost(GROUP, "coordinator", "fenced for good"),
        ),
    ],
)
def test_a_lost_membership_is_reported_once_and_ends_all_warnings(member: Member, event: Event) -> None:
    watch = watch_of()
    watch.accepted(0.0)
    watch.sent(3.0)
    late = Member(poll_deadline=20.0)
    assert [type(each) for _, each in look(watch, late, 10.0, 10.0)] == [HeartbeatsFailing, MembershipAtRisk]
    assert look(watch, member, 20.0, 1000.0) == [(20.0, event)]
    watch.accepted(1000.0)
    assert look(watch, Member(), 1000.0, 2000.0) == [], "it has joined again"


def test_a_member_that_leaves_by_itself_reports_nothing() -> None:
    watch = watch_of()
    watch.accepted(0.0)
    watch.sent(1.0)
    watch.look(Member(), 2.0)
    watch.forget()
    assert look(watch, Member(is_member=False), 3.0, 1000.0) == []


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (HeartbeatsFailing(GROUP, 3.04, "refused"), "group billing: heartbeats have failed for 3.0 s: refused"),
        (HeartbeatsFailing(GROUP, 3.0, None), "the coordinator does not respond"),
        (MembershipAtRisk(GROUP, "poll", 75.0), "leaves the group in 75.0 s unless poll() is called"),
        (MembershipAtRisk(GROUP, "heartbeats", 9.0), "removes this member in 9.0 s"),
        (MembershipAtRisk(GROUP, "heartbeats", None), "removes this member soon"),
        (MembershipLost(GROUP, "poll", None), "left, because poll() was not called for max.poll.interval.ms"),
        (MembershipLost(GROUP, "coordinator", "fenced"), "has removed this member: fenced"),
    ],
)
def test_the_text_of_an_event_says_what_happened_to_which_group(event: Event, text: str) -> None:
    assert GROUP in str(event)
    assert text in str(event)
