"""The lag of the last hour in a small drawing."""

from __future__ import annotations

import pytest

from headrace.monitor.model import LagPoint
from headrace.ui.sparklines import sparkline, width_for


def points(*found: tuple[float, int | None]) -> list[LagPoint]:
    return [LagPoint(at, lag, None) for at, lag in found]


@pytest.mark.parametrize(("span", "width"), [(0, 1), (60, 1), (61, 2), (600, 10), (1800, 30), (3600, 60), (9999, 60)])
def test_buckets_are_as_wide_as_the_observed_time_needs(span: float, width: int) -> None:
    assert width_for(span) == width


def test_a_bucket_has_its_largest_lag_and_unknown_lags_are_left_out() -> None:
    found = sparkline(points((1000.1, 3), (1000.9, 7), (1001.5, None), (1002.2, 5), (1003.4, 9)), 1003.9)
    assert found is not None
    assert found.document == {"width": 1, "points": [[1000, 7], [1002, 5]]}  # 1003 is not over yet


def test_the_drawing_changes_only_when_a_bucket_is_over() -> None:
    found = points((1000.1, 3), (1001.1, 4))
    first = sparkline(found, 1002.0)
    assert sparkline([*found, LagPoint(1002.3, 8, None)], 1002.9, first) is first
    later = sparkline([*found, LagPoint(1002.3, 8, None)], 1003.0, first)
    assert later is not None
    assert later.document["points"] == [[1000, 3], [1001, 4], [1002, 8]]


def test_an_hour_has_at_most_61_points() -> None:
    found = sparkline(points(*((at, at % 7) for at in range(0, 3600, 2))), 3600.0)
    assert found is not None
    assert len(found.document["points"]) <= 61


def test_nothing_is_drawn_without_points() -> None:
    assert sparkline([], 1000.0) is None
