"""The history of groups: trend, points, rebalances."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.monitor.history import History, LagTrend
from headrace.monitor.model import ClusterView, GroupKey, GroupView, MemberView, PartitionView, Rebalance, Trend
from headrace.monitor.rebalances import RebalanceTimeline
from headrace.types import TopicPartition

TP = TopicPartition("t", 0)
Rows = list[PartitionView]


def row(lag: int, end: int, lane: str = "") -> PartitionView:
    return PartitionView(TP, lane, end - lag, end - lag, 0, end, lag)


def sample(lag: int, end: int, backlog: int = 0) -> Rows:
    if not backlog:
        return [row(lag, end)]
    return [row(lag, end, "live"), row(backlog, 50, "backlog")]


@pytest.mark.parametrize(
    ("before", "after", "written", "read", "caught_up"),
    [
        (sample(100, 100), sample(50, 150), 5.0, 10.0, 10.0),
        (sample(100, 100), sample(100, 150), 5.0, 5.0, None),
        (sample(100, 100), sample(150, 150), 5.0, 0.0, None),
        (sample(100, 100), sample(0, 100), 0.0, 10.0, 0.0),
        (sample(0, 100, 40), sample(0, 110, 20), 1.0, 3.0, 10.0),
        (sample(100, 100), sample(5, 5), 0.0, 9.5, 5 / 9.5),  # recreated: nothing was written
    ],
)
def test_a_trend_has_the_rates_and_the_time_to_catch_up(
    before: Rows, after: Rows, written: float, read: float, caught_up: float | None
) -> None:
    trends = LagTrend()
    assert trends.trend() is None
    trends.add(0, before)
    assert trends.trend() is None
    trends.add(10, after)
    found = trends.trend()
    assert found is not None
    assert (found.written, found.read, found.caught_up) == (written, read, caught_up)


@settings(max_examples=200, deadline=None)
@given(
    rate=st.integers(1, 20_000),
    commit_every=st.floats(0.5, 5.5),
    pass_every=st.sampled_from([0.5, 1.0, 2.0, 3.0]),
    behind=st.floats(0.0, 600.0),
    start=st.floats(0.0, 5.0),
)
def test_the_lag_of_a_group_that_reads_as_much_as_is_written_is_flat(
    rate: int, commit_every: float, pass_every: float, behind: float, start: float
) -> None:
    """It commits at intervals, and is any time behind: its forecast must not change with every pass."""
    trends = LagTrend()
    for number in range(80):
        at = start + number * pass_every
        committed = rate * (at // commit_every * commit_every)
        end = round(rate * (at + behind))
        trends.add(at, sample(end - round(committed), end))
        if (found := trends.trend()) is not None:
            assert abs(found.growth) <= 1.0  # single records are rounded


@pytest.mark.parametrize(("read", "growth"), [(0.0, 100.0), (80.0, 20.0), (150.0, -50.0)])
@pytest.mark.parametrize("commit_every", [1.0, 5.0])
def test_a_lag_that_grows_or_falls_is_seen_below_the_steps_of_commits(
    read: float, growth: float, commit_every: float
) -> None:
    trends = LagTrend()
    for number in range(60):
        at = 2.0 * number
        committed = round(read * (at // commit_every * commit_every))
        end = 100_000 + round(100 * at)
        trends.add(at, sample(end - committed, end))
    found = trends.trend()
    assert found is not None
    assert found.growth == pytest.approx(growth, abs=5)
    assert (found.caught_up is not None) == (growth < 0)


def test_neither_an_outage_nor_its_end_is_taken_for_progress() -> None:
    trends = LagTrend()
    away = dataclasses.replace(row(1000, 1000), stale_since=2.0, error="no leader")
    other = PartitionView(TopicPartition("t", 1), "", 0, 0, 0, 50, 50)
    for at, found in [(0, row(1000, 1000)), (2, row(1000, 1000)), (4, away), (6, away), (8, row(0, 5000))]:
        trends.add(at, [found, dataclasses.replace(other, end=50 + at, lag=50 + at)])
        if at == 6:
            assert trends.trend() == Trend(1.0, 0.0, None, trends.trend().growth, is_partial=True)  # type: ignore[union-attr]
    found_trend = trends.trend()
    assert found_trend is not None
    assert (found_trend.written, found_trend.read) == (1.0, 0.0)


def test_a_group_without_a_known_partition_has_no_trend() -> None:
    trends = LagTrend()
    for at in range(5):
        trends.add(at, [dataclasses.replace(row(10, 10), lag=None, error="no leader")])
        assert trends.trend() is None


def test_a_trend_forgets_what_is_older_than_its_window() -> None:
    trends = LagTrend(window=10)
    for at in range(100):
        trends.add(at, sample(lag=100 if at < 50 else 100 - at, end=1000))
    found = trends.trend()
    assert found is not None
    assert found.read == pytest.approx(1.0)


def test_a_partition_that_is_new_to_the_group_is_not_written_at_once() -> None:
    trends = LagTrend()
    trends.add(0, [row(0, 10)])
    other = PartitionView(TopicPartition("t", 1), "", 0, 0, 0, 5000, 5000)
    trends.add(10, [row(0, 20), other])
    found = trends.trend()
    assert found is not None
    assert found.written == 1.0


def view(at: float, *groups: GroupView) -> ClusterView:
    return ClusterView(at, 0.1, "c", (), {}, groups)


def test_points_are_fine_for_minutes_coarse_for_an_hour_and_bounded() -> None:
    history = History()
    for second in range(0, 2 * 3600, 2):
        history.add(view(second, GroupView("g", "classic", "Stable", partitions=(row(second, 10_000),))))
    points = history.group(GroupKey(False, "g")).points
    times = [point.at for point in points]
    assert times == sorted(times)
    assert times[-1] == 7198
    assert 3590 <= times[-1] - times[0] <= 3620
    assert [b - a for a, b in pairwise(times[-61:])] == [2.0] * 60
    assert all(b - a >= 15 for a, b in pairwise(times[:-61]))
    assert len(points) < 61 + 240
    assert points[-1].lag == 7198


def test_a_checkpoint_with_the_name_of_a_group_has_its_own_history() -> None:
    history = History()
    for at in (0, 10):
        group = GroupView("billing", "classic", "Stable", partitions=(row(100 + at, 1000),))
        history.add(view(at, group, GroupView("billing", "spark", "batch 3", partitions=(row(7, 1000),))))
    found = {is_checkpoint: history.group(GroupKey(is_checkpoint, "billing")) for is_checkpoint in (False, True)}
    assert [point.lag for point in found[False].points] == [100, 110]
    assert [point.lag for point in found[True].points] == [7, 7]
    trends = [found[is_checkpoint].trend for is_checkpoint in (False, True)]
    assert [trend and trend.growth for trend in trends] == [1.0, 0.0]


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
def test_a_clock_that_is_set_changes_no_interval(jump: float) -> None:
    """All passes are two seconds apart. Half-way, the time since 1970 jumps by two hours."""
    history = History()
    passes, wall = 200, 1_000_000.0
    first, second = MemberView("a", "a", "h", None, frozenset([TP])), MemberView("b", "b", "h", None, frozenset([TP]))
    for number in range(passes):
        steady = 2.0 * number
        if number == passes // 2:
            wall += jump
        rows = (row(2 * number, 10_000 + 2 * number),)
        member = {98: (), 99: (), 100: (), 101: ()}.get(number, (first if number < 98 else second,))
        group = GroupView("g", "classic", "Stable", member, rows)
        history.add(dataclasses.replace(view(wall + steady, group), steady=steady))
        found = history.group(GroupKey(False, "g"))
        assert found.points[-1].at == wall + steady
        assert found.trend is None or (found.trend.written, found.trend.read) == (1.0, 0.0)
    times = [point.at for point in found.points]
    assert times[0] == wall
    assert times == sorted(times)
    assert [b - a for a, b in pairwise(times[-61:])] == [2.0] * 60
    assert len(times) < 61 + 20
    (rebalance,) = found.rebalances
    assert (rebalance.at, rebalance.until, rebalance.unowned_seconds) == (wall + 196, wall + 204, 8.0)


def test_points_are_bounded_however_fast_the_passes_are() -> None:
    history = History()
    for number in range(20_000):
        history.add(view(number / 100, GroupView("g", "classic", "Stable", partitions=(row(number, 10**6),))))
    points = history.group(GroupKey(False, "g")).points
    assert len(points) < 120 / 0.25 + 10
    assert (points[-1].at, points[-1].lag) == (199.99, 19_999)


def test_points_and_trend_are_bounded_by_a_clock_that_stands_still_or_goes_back() -> None:
    history = History()
    for number in range(1000):
        history.add(view(5000.0 - number % 7, GroupView("g", "classic", "Stable", partitions=(row(5, 100),))))
    assert len(history.group(GroupKey(False, "g")).points) < 10


def test_a_group_that_is_gone_is_forgotten_after_an_hour() -> None:
    history = History()
    history.add(view(0, GroupView("gone", "classic", "Empty", partitions=(row(1, 10),))))
    history.add(view(3000, GroupView("g", "classic", "Empty")))
    assert len(history.group(GroupKey(False, "gone")).points) == 1
    history.add(view(3601, GroupView("g", "classic", "Empty")))
    assert history.group(GroupKey(False, "gone")).points == ()
    assert history.group(GroupKey(False, "never seen")).trend is None


def member(name: str, *partitions: int) -> MemberView:
    return MemberView(name, name, "h", None, frozenset(TopicPartition("t", n) for n in partitions))


def timeline(*passes: tuple[str, list[MemberView]]) -> tuple[Rebalance, ...]:
    """One pass every two seconds."""
    found = RebalanceTimeline()
    for number, (state, members) in enumerate(passes):
        found.add(2.0 * number, GroupView("g", "classic", state, tuple(members)))
    return found.entries()


A, B = member("a", 0, 1), member("b", 1)


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        ([("Stable", [A]), ("Stable", [A])], []),
        # Seen for the first time in the middle of a rebalance, and settled before the next pass.
        ([("PreparingRebalance", []), ("Stable", [A])], [Rebalance(2, 2, ("a@h",), (), 0, 0, 0.0)]),
        # A member joins: eager members give up everything meanwhile.
        (
            [
                ("Stable", [A]),
                ("PreparingRebalance", [member("a"), member("b")]),
                ("CompletingRebalance", [member("a"), member("b")]),
                ("Stable", [member("a", 0), B]),
            ],
            [Rebalance(2, 6, ("b@h",), (), 1, 2, 4.0)],
        ),
        # A rebalance between two passes: nobody saw a partition without an owner.
        ([("Stable", [A]), ("Stable", [member("a", 0), B])], [Rebalance(2, 2, ("b@h",), (), 1, 0, 0.0)]),
        # The last member leaves, and another one comes.
        (
            [("Stable", [B]), ("Empty", []), ("Empty", []), ("Empty", [])],
            [Rebalance(2, None, (), ("b@h",), 0, 1, 4.0)],
        ),
        (
            [("Stable", [B]), ("Empty", []), ("Empty", []), ("Stable", [member("c", 1)])],
            [Rebalance(2, 6, ("c@h",), ("b@h",), 1, 1, 4.0)],
        ),
        # A topic is no longer subscribed: its partitions stay without an owner, and the rebalance ends.
        (
            [("Stable", [A]), ("Stable", [member("a", 0)]), ("Stable", [member("a", 0)])],
            [Rebalance(2, 4, (), (), 0, 1, 2.0)],
        ),
        # A state that changes alone is not worth an entry.
        ([("Stable", [A]), ("PreparingRebalance", [A]), ("Stable", [A])], []),
    ],
)
def test_a_timeline_tells_who_came_and_how_long_partitions_had_no_owner(
    passes: list[tuple[str, list[MemberView]]], expected: list[Rebalance]
) -> None:
    assert list(timeline(*passes)) == expected


def test_partitions_of_share_groups_may_have_several_owners() -> None:
    both = [member("a", 0), member("b", 0)]
    (found,) = timeline(("Stable", both), ("Stable", [member("a", 0)]))
    assert (found.left, found.moved, found.unowned) == (("b@h",), 1, 0)


def test_a_timeline_keeps_the_latest_rebalances_only() -> None:
    passes = [("Stable", [member(f"m{n}", 0)]) for n in range(100)]
    found = timeline(*passes)
    assert len(found) == 50
    assert found[-1].joined == ("m99@h",)
