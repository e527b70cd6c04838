"""The report of a chaos run counts faults, records and broken promises."""

from __future__ import annotations

import json
from pathlib import Path

from chaos.evidence import Evidence, Happened, Verdict, log_of
from chaos.ledger import Event, Life
from chaos.plan import Plan
from chaos.report import make_report, save_report

RUN = [0, 0, 10, "p.0", 0, 0, -1]
PRODUCER = Life(
    "p",
    0,
    [
        Event(1_000, "started", {"kind": "idempotent", "topic": "plain"}),
        Event(2_000, "acked", {"records": [[0, 0, 0]]}),
        Event(25_000, "acked", {"records": [[0, number, number] for number in range(1, 10)]}),
    ],
    was_killed=True,
)
MEMBER = Life(
    "m", 0, [Event(1_500, "started", {"kind": "eager", "topic": "plain"}), Event(3_000, "received", {"runs": [RUN]})]
)
FAULTS = [Happened("cut", "proxy-1", 0, 0), Happened("cut", "proxy-2", 0, 0), Happened("kill_client", "p", 0, 9)]
EVIDENCE = Evidence([PRODUCER, MEMBER], {"plain": log_of([RUN])}, faults=FAULTS)


def test_a_report_has_the_figures_of_its_run(tmp_path: Path) -> None:
    verdicts = [Verdict("stuck", "m.0", "for an hour"), Verdict("stuck", "m.0", "for a day")]
    save_report(tmp_path, make_report(Plan(7, 60.0, (), ()), EVIDENCE, verdicts, 75.0))
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["seed"], report["innocent"]) == (7, False)
    assert report["faults"] == {"cut": 2, "kill_client": 1}
    assert report["records"] == {"plain": {"written": 10, "visible": 10}}
    assert report["clients"]["idempotent"] == {"acknowledged": 10, "killed": 1, "processes": 1}
    assert [each["acknowledged"] for each in report["throughput"]] == [1, 0, 9]
    assert [each["received"] for each in report["throughput"]] == [10, 0, 0]
    assert report["verdicts"] == {"stuck": 2}
    summary = (tmp_path / "report.md").read_text()
    assert summary.startswith("# Chaos, seed 7: promises were broken")
    assert "| cut | 2 |" in summary
    assert "- stuck: m.0: for a day" in summary


def test_a_report_without_verdicts_says_so(tmp_path: Path) -> None:
    save_report(tmp_path, make_report(Plan(7, 60.0, (), ()), EVIDENCE, [], 75.0))
    assert (tmp_path / "report.md").read_text().startswith("# Chaos, seed 7: all promises were kept")
