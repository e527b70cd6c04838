"""Resets of groups with two lanes (KIP-333): exactly the promised records are delivered afterwards."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Admin, OffsetAndMetadata, TopicPartition
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.lanes.commit_metadata import BACKLOG_SUFFIX, CommitMark
from headrace.errors import HeadraceError, StateError
from support.brokers.admin import Admin as Broker
from support.brokers.admin import unique
from support.harness.consumers import AnyConsumer, MakeConsumer, poll_until
from support.harness.two_lanes import behind, commit_plainly, crash, grow, laned, offsets

# [85, 120) is open, the live lane has processed [120, 130), and the log ends at 140.
OPEN, LIVE, END = (85, 120), 130, 140


@pytest.fixture
def ours(servers: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=servers) as admin:
        yield admin


def in_two_lanes(make: MakeConsumer, servers: str, tp: TopicPartition) -> tuple[str, AnyConsumer]:
    """The group, and its consumer, which has committed the state above."""
    group = behind(servers, tp, 70, 120)
    consumer = laned(make, servers, group, tp.topic)
    assert consumer.position(tp) == 120
    grow(servers, tp, LIVE, 120)
    seen: list[int] = []
    while not {84, LIVE - 1} <= set(seen):
        seen += offsets(consumer.poll(5, max_records=5))
    consumer.commit({tp: OffsetAndMetadata(OPEN[0])})
    consumer.commit({tp: OffsetAndMetadata(LIVE)})
    grow(servers, tp, END, LIVE)
    return group, consumer


def delivered(
    make: MakeConsumer, servers: str, group: str, tp: TopicPartition, count: int, **settings: object
) -> list[int]:
    """The offsets that the next consumer of the group gets, sorted: two lanes come in any order. Nothing follows."""
    consumer = laned(make, servers, group, tp.topic, **settings)
    found = offsets(poll_until(consumer, count))
    grow(servers, tp, END + 1, END)  # whatever comes before this record was delivered, too
    while END not in found:
        found += offsets(consumer.poll(1))
    assert not len(consumer.poll(0.2))
    consumer.close()
    return sorted(set(found) - {END}) if len(found) == len(set(found)) else found


BELOW = range(*OPEN)


RESETS = [
    ("latest", "keep", [*BELOW]),
    ("latest", "drop", []),
    (100, "keep", [*range(85, END)]),  # a range that reaches the new offset
    (126, "keep", [*BELOW, *range(126, END)]),
    (126, "drop", [*range(126, END)]),
    (80, None, [*range(80, END)]),  # below everything that is open: no decision
]
# How the group has ended, and whether the next consumer has two lanes. All pairs with all resets are for `make soak`.
PAIRS = [("crash", True), ("orderly", False), ("crash", True), ("crash", False), ("orderly", True), ("crash", False)]


def resets() -> Iterator[Any]:
    for row, pair in zip(RESETS, PAIRS, strict=True):
        for end, lanes in itertools.product(("crash", "orderly"), (True, False)):
            marks = [] if (end, lanes) == pair else [pytest.mark.soak]
            name = f"{row[0]}-{row[1]}-{end}-{'two-lanes' if lanes else 'one-lane'}"
            yield pytest.param(*row, end, lanes, marks=marks, id=name)


@pytest.mark.parametrize(("to", "backlog", "expected", "end", "lanes"), list(resets()))
def test_the_next_consumer_gets_the_kept_ranges_and_everything_from_the_new_offset_on(
    make_sync: MakeConsumer,
    servers: str,
    ours: Admin,
    tp: TopicPartition,
    to: str | int,
    backlog: str | None,
    expected: list[int],
    end: str,
    lanes: bool,
) -> None:
    group, consumer = in_two_lanes(make_sync, servers, tp)
    crash(consumer) if end == "crash" else consumer.close()
    assert ours.open_ranges(group) == {tp: (OPEN,)}
    plan = ours.plan_reset(group, to, backlog=backlog)
    ours.apply_reset(plan)
    if end == "crash":  # its progress is deleted, since no commit refers to it any more
        assert ours.committed(group + BACKLOG_SUFFIX) == {}
    got = delivered(make_sync, servers, group, tp, len(expected), enable_parallel_rebalance=lanes)
    assert got == expected


def test_a_reset_that_says_nothing_about_open_ranges_is_refused(
    make_sync: MakeConsumer, servers: str, ours: Admin, tp: TopicPartition
) -> None:
    group, consumer = in_two_lanes(make_sync, servers, tp)
    crash(consumer)
    before = ours.committed(group), ours.committed(group + BACKLOG_SUFFIX)
    plan = ours.plan_reset(group, "latest")
    (change,) = plan.changes
    assert (change.current, change.new, change.open_ranges, change.open_records) == (LIVE, END, (OPEN,), 35)
    with pytest.raises(StateError, match=rf"has 35 open records below the new offsets \({tp}\)"):
        ours.apply_reset(plan)
    assert (ours.committed(group), ours.committed(group + BACKLOG_SUFFIX)) == before


def test_a_plan_is_refused_if_the_backlog_has_progressed_since(
    make_sync: MakeConsumer, servers: str, ours: Admin, tp: TopicPartition
) -> None:
    """Kept ranges would be delivered that are processed meanwhile."""
    group, consumer = in_two_lanes(make_sync, servers, tp)
    crash(consumer)
    found = ours.committed(group)
    plan = ours.plan_reset(group, "latest", backlog="keep")
    before = CommitMark.read(ours.committed(group + BACKLOG_SUFFIX)[tp])
    progressed = dataclasses.replace(before, offset=90, done=OffsetSet(90))
    ours.alter_offsets(group + BACKLOG_SUFFIX, {tp: progressed.commit})
    with pytest.raises(StateError, match=rf"the progress of the backlog of {tp} .* has changed from 85 to 90"):
        ours.apply_reset(plan)
    assert ours.committed(group) == found
    assert ours.open_ranges(group) == {tp: ((90, 120),)}
    ours.apply_reset(ours.plan_reset(group, "latest", backlog="keep"))
    assert ours.open_ranges(group) == {tp: ((90, 120),)}


def test_open_ranges_that_cannot_be_parsed_can_only_be_dropped(ours: Admin, servers: str, tp: TopicPartition) -> None:
    """Consumers refuse such a commit, so a reset is the way out."""
    group = unique("damaged")
    grow(servers, tp, 10)
    ours.alter_offsets(group, {tp: OffsetAndMetadata(5, "headrace/2 5 a 2 nonsense")})
    with pytest.raises(HeadraceError, match="cannot be parsed"):
        ours.open_ranges(group)
    with pytest.raises(StateError, match="cannot be kept: only 'drop' is possible"):
        ours.plan_reset(group, "latest", backlog="keep")
    with pytest.raises(StateError, match="has 10 open records"):
        ours.apply_reset(ours.plan_reset(group, "latest"))
    ours.apply_reset(ours.plan_reset(group, "latest", backlog="drop"))
    assert ours.committed(group)[tp].offset == 10


def test_the_group_of_the_backlog_is_deleted_with_its_group(
    make_sync: MakeConsumer, servers: str, ours: Admin, tp: TopicPartition
) -> None:
    group, consumer = in_two_lanes(make_sync, servers, tp)
    crash(consumer)
    assert ours.delete_group(group) == (group, group + BACKLOG_SUFFIX)
    assert ours.describe_group(group + BACKLOG_SUFFIX) is None


def test_a_group_of_somebody_else_with_a_similar_name_is_not_deleted(servers: str, ours: Admin, admin: Broker) -> None:
    topic, group = admin.create("t"), unique("mine")
    for name in (group, group + BACKLOG_SUFFIX):
        commit_plainly(servers, name, TopicPartition(topic, 0), 0)
    assert ours.delete_group(group) == (group,)
    assert ours.describe_group(group + BACKLOG_SUFFIX) is not None
