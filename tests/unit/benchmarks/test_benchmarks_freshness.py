"""The figures of the freshness benchmark, from made-up runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import freshness_picture
from benchmarks.freshness import CLIENTS, COMPARED, Results, Run, _recorded
from benchmarks.freshness_report import page, targets


def results(first_live: float, done: float) -> Results:
    """These times with two lanes; every other client needs four seconds for both."""
    series = [(0.1, 900.0), (1.0, 0.5), (4.0, 0.01)]
    runs = [Run(client, 1_000_000, 1_000_100, 4.0, 4.0, series) for client in CLIENTS if client != "headrace-lanes"]
    runs += [Run("headrace-lanes", 1_000_000, 1_000_200, first_live, done * late, series) for late in (1.0, 1.0, 2.0)]
    return Results(runs, {(1_000_000, client): 0.005 for client in CLIENTS}, 1.5)


@pytest.mark.parametrize(
    ("first_live", "done", "met"), [(0.2, 4.4, [True, True]), (1.1, 4.4, [False, True]), (0.2, 5.0, [True, False])]
)
def test_targets_of_freshness_use_the_slowest_live_run_and_the_median_backlog(
    first_live: float, done: float, met: list[bool]
) -> None:
    """The slowest run counts for the first live record, the median for the backlog."""
    found = targets(results(first_live, done))
    assert [target.met for target in found] == met
    assert [target.reached for target in found] == [first_live, pytest.approx(done / 4.0)]


def test_the_freshness_page_has_a_row_for_each_client() -> None:
    text = page(results(0.2, 4.4), "picture.png")
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    assert set(CLIENTS.values()) < set(rows)
    assert "0.200 s (0.20 to 0.20)" in rows["headrace, enable.parallel.rebalance"]
    assert "4.4 s (4.40 to 8.80)" in rows["headrace, enable.parallel.rebalance"]
    assert "](picture.png)" in text


def test_the_freshness_picture_is_a_png(tmp_path: Path) -> None:
    recorded = _recorded(results(0.2, 4.4))
    freshness_picture.write(recorded, tmp_path / "runs.json")
    assert freshness_picture.read(tmp_path / "runs.json") == recorded
    freshness_picture.draw(recorded, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_recorded_runs_of_the_freshness_picture_can_be_read() -> None:
    recorded = freshness_picture.read()
    assert set(recorded.runs) == set(COMPARED)
    for run in recorded.runs.values():
        assert [at for at, _ in run.series] == sorted(at for at, _ in run.series)
