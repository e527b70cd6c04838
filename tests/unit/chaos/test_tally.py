"""The tally of recorded chaos runs, its tables, and the picture of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chaos.picture import draw
from chaos.tally import BEGIN, END, add_run, read_runs, tables, write_tables

REPORT: dict[str, Any] = {
    "seed": 7,
    "planned_seconds": 240.0,
    "innocent": True,
    "faults": {"cut": 3, "kill_broker": 2, "kill_client": 4, "kill_driver": 1, "kill_worker": 1},
    "records": {"plain": {"written": 1000, "visible": 1000}, "tx": {"written": 500, "visible": 400}},
    "copies": {"copies": 400},
    "clients": {
        "idempotent": {"processes": 2, "killed": 1, "acknowledged": 1000},
        "eager": {"processes": 3, "killed": 1, "received": 1010},
        "spark_sink": {"processes": 2, "killed": 1, "rows": 1000, "batches": 9},
    },
    "verdicts": {},
    "throughput": [{"at": 0.0, "acknowledged": 10, "received": 20}, {"at": 10.0, "acknowledged": 5, "received": 9}],
    "timeline": [(1.5, "cut"), (3.0, "kill_client")],
    "details": [],
}
GUILTY = {**REPORT, "seed": 8, "innocent": False, "verdicts": {"stuck": 2}}


def test_runs_are_added_and_summed_up(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    add_run(path, REPORT)
    add_run(path, GUILTY)
    runs = read_runs(path)
    assert [run["seed"] for run in runs] == [7, 8]
    assert "throughput" not in runs[0]
    found = tables(runs)
    assert "| minutes of faults | 8 |" in found
    assert "| processes killed | 16 |" in found
    assert "| records written | 3,000 |" in found
    assert "| records received | 4,020 |" in found
    assert "| runs with a broken promise | 1 |" in found
    assert "| `kill_client` | 8 |" in found
    assert "| `eager` | 6 | 2 | 2,020 |" in found
    assert "| 7 | 4 | sink | 11 | 8 | 1,500 | 2,010 | innocent |" in found
    assert "| 8 | 4 | sink | 11 | 8 | 1,500 | 2,010 | stuck |" in found


def test_the_tables_are_between_their_markers_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    add_run(tmp_path / "runs.json", REPORT)
    for _ in range(2):
        write_tables(page, read_runs(tmp_path / "runs.json"))
        text = page.read_text()
        assert text.startswith(f"before\n\n{BEGIN}\n| all runs | |")
        assert text.endswith(f"|\n{END}\n\nafter\n")
        assert "old" not in text


def test_a_run_is_drawn(tmp_path: Path) -> None:
    draw(REPORT, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
