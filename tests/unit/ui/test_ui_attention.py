"""What needs attention on the page, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import TopicPartition
from headrace.monitor.model import GroupView, LogView, MemberView, PartitionView, TopicView, Trend
from headrace.ui.attention import (
    CATCHING_UP,
    CAUGHT_UP,
    FALLING_BEHIND,
    FINE,
    KEEPING_UP,
    NOTICE,
    PROBLEM,
    UNKNOWN,
    WAITING,
    WARNING,
    group_attention,
    is_fresh,
    outlook,
    topic_attention,
)

TP = TopicPartition("orders", 0)
MEMBER = MemberView("m-1", "billing", "10.0.0.1", None, frozenset({TP}))
GROWING, FALLING = Trend(100.0, 50.0, None, 50.0), Trend(100.0, 200.0, 30.0, -100.0)
FLAT = Trend(1000.0, 990.0, None, 0.0)


def group(
    lag: int | None = 10, *, kind: str = "consumer", state: str = "Stable", members: int = 1, **row: Any
) -> GroupView:
    part = PartitionView(TP, committed=5, next=5, begin=0, end=15, lag=lag, **({"owner": "billing"} | row))
    return GroupView("billing", kind, state, (MEMBER,) * members, (part,))


@pytest.mark.parametrize(
    ("found", "trend", "level", "text"),
    [
        (group(0), FALLING, FINE, ""),
        (group(10), FALLING, FINE, ""),
        (group(10), None, FINE, ""),
        (group(10), GROWING, WARNING, "falling behind by 50 records/s"),
        (group(10), FLAT, FINE, ""),  # commits come in steps
        (group(10, seconds=4.0), GROWING, FINE, ""),  # what the next polls return
        (group(10, seconds=61.0), FALLING, NOTICE, "records wait for more than a minute"),
        (group(10, lane="backlog"), FALLING, NOTICE, "working off a backlog"),
        (group(10, state="PreparingRebalance"), FALLING, NOTICE, "PreparingRebalance"),
        (group(10, state="Empty", members=0), GROWING, WARNING, "no members, and records are waiting"),
        (group(10, state="Empty", members=0), None, NOTICE, "no members, and records are waiting"),
        (group(0, state="Empty", members=0), GROWING, FINE, ""),
        (group(10, kind="spark", state="", members=0), FALLING, FINE, ""),
        (group(10, kind="spark", state="", members=0), GROWING, WARNING, "falling behind by 50 records/s"),
        (group(10, owner=None), FALLING, WARNING, "1 partition with records and no owner"),
        (group(10, owner=None, kind="share"), FALLING, FINE, ""),
        (group(0, lost=1200), FALLING, WARNING, "1,200 records deleted by retention before processing"),
        (group(None, is_leaderless=True, error="no leader"), None, PROBLEM, "1 partition without a leader"),
        (group(None, error="denied"), None, WARNING, "orders-0: denied"),
        (group(0, lane="live"), FALLING, FINE, ""),
    ],
)
def test_the_first_reason_of_a_group(found: GroupView, trend: Trend | None, level: int, text: str) -> None:
    reasons = group_attention(found, trend)
    assert (reasons[0].level if reasons else FINE, reasons[0].text if reasons else "") == (level, text)


def test_a_group_that_cannot_be_read_says_why() -> None:
    (reason,) = group_attention(GroupView("g", "classic", "", error="not authorized"), None)
    assert (reason.level, reason.text) == (WARNING, "not authorized")


def test_a_group_that_has_nothing_to_show_says_so_without_a_warning() -> None:
    (reason,) = group_attention(GroupView("g", "classic", "Empty", error="no offsets", has_nothing=True), None)
    assert (reason.level, reason.text) == (FINE, "no offsets")


@pytest.mark.parametrize(
    ("found", "is_it"),
    [
        (group(0, members=0), True),
        (group(10, seconds=4.9), True),
        (group(10, seconds=5.1), False),
        (group(10), False),  # its age is unknown
        (group(10, seconds=1.0, members=0, state="Empty"), False),  # nobody reads
        (group(10, seconds=1.0, members=0, state="", kind="spark"), True),
    ],
)
def test_a_group_is_fresh_if_somebody_reads_records_soon(found: GroupView, is_it: bool) -> None:
    assert is_fresh(found) is is_it


@pytest.mark.parametrize(
    ("found", "trend", "expected"),
    [
        (group(0), None, CAUGHT_UP),
        (group(10, seconds=1.0), GROWING, KEEPING_UP),
        (group(10, seconds=5.1), FLAT, KEEPING_UP),  # the age of a healthy group goes up and down around 5 s
        (group(10, seconds=5.1), FALLING, CATCHING_UP),
        (group(10, seconds=5.1), GROWING, FALLING_BEHIND),
        (group(10, seconds=20.0), Trend(0.0, 0.0, None), KEEPING_UP),  # one record, whose commit comes soon
        (group(10, seconds=90.0), Trend(0.0, 0.0, None), WAITING),
        (group(10, seconds=90.0, members=0), FALLING, WAITING),
        (group(10, seconds=90.0), None, UNKNOWN),
        (group(10, seconds=90.0), Trend(5.0, 9.0, None, -4.0, is_partial=True), UNKNOWN),
        (group(None, error="no leader"), FALLING, UNKNOWN),
        (group(0, error="no leader", stale_since=5.0), FALLING, UNKNOWN),
    ],
)
def test_the_outlook_of_a_group(found: GroupView, trend: Trend | None, expected: str) -> None:
    assert outlook(found, trend) == expected


def test_a_group_whose_members_are_unknown_is_not_without_members() -> None:
    part = PartitionView(TP, committed=5, next=5, begin=0, end=15, lag=10, owner=None)
    found = GroupView("g", "consumer", "Stable", (), (part,), error="no answer")
    assert [it.text for it in group_attention(found, GROWING)] == ["no answer"]
    assert outlook(found, FALLING) == UNKNOWN


def test_a_missing_broker_is_named() -> None:
    error = "the partition has no leader: broker 3 (h:9092) is down"
    (reason,) = group_attention(group(10, is_leaderless=True, error=error, stale_since=5.0), None)
    assert reason.text == "1 partition without a leader: broker 3 (h:9092) is down"
    (reason,) = topic_attention(TopicView("orders", (LogView(0, None, (3,), (3,), error=error),)))
    assert reason.text == "1 partition without a leader: broker 3 (h:9092) is down"


def test_offsets_beyond_the_end_are_a_problem() -> None:
    part = PartitionView(TP, committed=50, next=50, begin=0, end=15, lag=0, owner="billing")
    (reason,) = group_attention(GroupView("g", "classic", "Stable", (MEMBER,), (part,)), None)
    assert reason.level == PROBLEM
    assert "beyond the end" in reason.text


def test_worse_reasons_come_first() -> None:
    found = group(10, owner=None, lost=1, is_leaderless=True)
    levels = [it.level for it in group_attention(found, GROWING)]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] == PROBLEM


@pytest.mark.parametrize(
    ("log", "level"),
    [
        (LogView(0, 1, (1, 2), (1, 2)), FINE),
        (LogView(0, 1, (1, 2), (1,)), NOTICE),
        (LogView(0, None, (1, 2), (1, 2)), PROBLEM),
        (LogView(0, 1, (1,), (1,), error="denied"), WARNING),
    ],
)
def test_topics_by_their_partitions(log: LogView, level: int) -> None:
    reasons = topic_attention(TopicView("orders", (log,)))
    assert (reasons[0].level if reasons else FINE) == level
