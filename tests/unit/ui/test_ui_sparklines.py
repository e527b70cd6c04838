"""The lag of the last hour in a small drawing."""

from __future__ import annotations

import pytest

from headrace.monitor.history import History
from headrace.monitor.model import ClusterView, GroupKey, GroupView, LagPoint, PartitionView
from headrace.types import TopicPartition
from headrace.ui.patches import Points, PointsChange
from headrace.ui.sparklines import Sparkline, sparkline, width_for


def points(*found: tuple[float, int | None]) -> list[LagPoint]:
    return [LagPoint(at, lag, None) for at, lag in found]


@pytest.mark.parametrize(("span", "width"), [(0, 1), (60, 1), (61, 2), (600, 10), (1800, 30), (3600, 60), (9999, 60)])
def test_buckets_are_as_wide_as_the_observed_time_needs(span: float, width: int) -> None:
    assert width_for(span) == width


def test_a_bucket_has_its_largest_lag_and_unknown_lags_are_left_out() -> None:
    found = sparkline(points((1000.1, 3), (1000.9, 7), (1001.5, None), (1002.2, 5), (1003.4, 9)), 1003.9)
    assert found is not None
    assert found.points == Points(1, ((1000, 7), (1002, 5)))  # 1003 is not over yet


def test_the_drawing_changes_only_when_a_bucket_is_over() -> None:
    found = points((1000.1, 3), (1001.1, 4))
    first = sparkline(found, 1002.0)
    assert sparkline([*found, LagPoint(1002.3, 8, None)], 1002.9, first) is first
    later = sparkline([*found, LagPoint(1002.3, 8, None)], 1003.0, first)
    assert later is not None
    assert later.points.pairs == ((1000, 3), (1001, 4), (1002, 8))


def test_an_hour_has_at_most_61_points() -> None:
    found = sparkline(points(*((at, at % 7) for at in range(0, 3600, 2))), 3600.0)
    assert found is not None
    assert len(found.points.pairs) <= 61


def test_nothing_is_drawn_without_points() -> None:
    assert sparkline([], 1000.0) is None


def test_a_browser_gets_each_bucket_once() -> None:
    """Over an hour and a half with a pass every two seconds, whose older points are thinned out."""
    history, before = History(), None
    shown: list[tuple[int, int]] = []
    sent = resets = 0
    for at in range(0, 5400, 2):
        row = PartitionView(TopicPartition("t", 0), next=0, begin=0, end=at % 700, lag=at % 700)
        history.add(ClusterView(at, 0.1, "c", (), {}, (GroupView("g", "classic", "Stable", partitions=(row,)),)))
        found = sparkline(history.group(GroupKey(False, "g")).points, float(at), before)
        assert found is not None
        change = found.points if before is None else found.points.since(before.points)
        if isinstance(change, PointsChange):
            shown = [*shown[change.drop :], *change.add]
            sent += len(change.add)
        else:
            shown, resets = list(change.pairs), resets + 1
            sent += len(change.pairs)
        assert tuple(shown) == found.points.pairs
        before = found
    assert resets <= 9, "the first one, one for each width, and those without points"
    assert sent < 1000


def test_a_closed_bucket_keeps_its_largest_lag() -> None:
    """Only some of the points that it was made of are kept."""
    first = sparkline(points((1000.0, 3), (1000.5, 9), (1001.0, 4)), 1002.0)
    later = sparkline(points((1000.0, 3), (1001.0, 4), (1002.0, 5)), 1003.0, first)
    assert later is not None
    assert later.points.pairs == ((1000, 9), (1001, 4), (1002, 5))
    assert later.points.since(first.points) == PointsChange(0, ((1002, 5),))  # type: ignore[union-attr]


def test_a_clock_that_is_set_back_draws_everything_again() -> None:
    before = Sparkline(2000, Points(1, ((1999, 5),)))
    found = sparkline(points((1000.0, 3), (1001.0, 4)), 1001.5, before)
    assert found is not None
    assert found.points.since(before.points) == found.points
