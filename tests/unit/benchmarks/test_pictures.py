"""The charts in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.pictures import draw_heartbeats
from benchmarks.scenes import Look, SlowMemberTimeline, spans


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ([], []),
        ([2], [(0, 0, 2)]),
        ([2, 2, 2], [(0, 2, 2)]),
        ([2, None, None, 0, 4], [(0, 1, 2), (1, 3, None), (3, 4, 0), (4, 4, 4)]),
        ([2, 2, "out", "out", 2, 2], [(0, 2, 2), (4, 5, 2)]),
        (["out", None, "out"], [(1, 2, None)]),
    ],
)
def test_spans_of_a_member_end_when_an_observation_differs(counts: list[int | str | None], found: object) -> None:
    looks = [
        Look(at, {"other": 4} if isinstance(count, str) else {"slow": count, "other": 4})
        for at, count in enumerate(counts)
    ]
    assert spans(looks, "slow") == found


def test_drawing_the_same_picture_twice_makes_the_same_file(tmp_path: Path) -> None:
    life = SlowMemberTimeline(
        [(0.0, 0.1), (4.1, 4.2)], [(0.1, 4.1), (4.2, 5.0)], [Look(0.0, {"slow": 2}), Look(5.0, {"slow": 2})]
    )
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    draw_heartbeats(life, first)
    draw_heartbeats(life, second)
    assert first.read_bytes() == second.read_bytes()
    assert "works for 4 s" in first.read_text()
    assert "<dc:date>" not in first.read_text()
