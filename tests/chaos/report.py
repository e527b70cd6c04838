"""The report of a run: `report.json` with all figures, `report.md` with a summary."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .evidence import Evidence, Verdict
from .ledger import Life
from .plan import Plan

_BUCKET = 10_000.0
"""Milliseconds of a point of the throughput."""
_SHOWN = 40
_COUNTED = ("txn_committed", "txn_aborted", "refused", "error", "lost", "failed", "query_failed")


def make_report(plan: Plan, evidence: Evidence, verdicts: Sequence[Verdict], seconds: float) -> dict[str, Any]:
    start = min((event.at for life in evidence.lives for event in life.events), default=0.0)
    return {
        "seed": plan.seed,
        "planned_seconds": plan.seconds,
        "seconds": round(seconds, 1),
        "innocent": not verdicts,
        "faults": dict(sorted(Counter(fault.kind for fault in evidence.faults).items())),
        "records": {
            topic: {"written": len(log.records), "visible": len(log.visible)} for topic, log in evidence.logs.items()
        },
        "copies": {topic: len(found) for topic, found in evidence.copies.items()},
        "clients": _clients(evidence.lives),
        "throughput": _throughput(evidence.lives, start),
        "timeline": sorted((round((fault.begun - start) / 1000, 1), fault.kind) for fault in evidence.faults),
        "verdicts": dict(Counter(verdict.rule for verdict in verdicts)),
        "details": [str(verdict) for verdict in verdicts[:_SHOWN]],
    }


def _clients(lives: Sequence[Life]) -> dict[str, dict[str, int]]:
    """For each kind: processes, those that were killed, records written or received, commits that were refused."""
    found: dict[str, Counter[str]] = {}
    for life in lives:
        if kind := life.started.get("kind"):
            counts = found.setdefault(kind, Counter())
            counts.update(processes=1, killed=int(life.was_killed))
            for event in life.events:
                if event.name == "received":
                    counts["received"] += sum(run[2] for run in event.fields["runs"])
                elif event.name == "acked":
                    counts["acknowledged"] += len(event.fields["records"])
                elif event.name in _COUNTED:
                    counts[event.name] += 1
                elif event.name == "progress":
                    counts.update(batches=1, rows=event.fields["rows"])
    return {kind: dict(sorted(counts.items())) for kind, counts in sorted(found.items())}


def _throughput(lives: Sequence[Life], start: float) -> list[dict[str, float]]:
    """Records acknowledged and received in each ten seconds."""
    acked: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for life in lives:
        for event in life.events:
            bucket = int((event.at - start) // _BUCKET)
            if event.name == "acked":
                acked[bucket] += len(event.fields["records"])
            elif event.name == "received":
                received[bucket] += sum(run[2] for run in event.fields["runs"])
    last = max([*acked, *received], default=-1)
    return [
        {"at": number * _BUCKET / 1000, "acknowledged": acked[number], "received": received[number]}
        for number in range(last + 1)
    ]


def save_report(directory: Path, report: dict[str, Any]) -> None:
    (directory / "report.json").write_text(json.dumps(report, indent=1))
    (directory / "report.md").write_text(to_markdown(report))


def to_markdown(report: dict[str, Any]) -> str:
    outcome = "all promises were kept" if report["innocent"] else "promises were broken"
    lines = [f"# Chaos, seed {report['seed']}: {outcome}", ""]
    lines += [f"{report['planned_seconds']:g} s of faults, {report['seconds']:g} s in all.", ""]
    lines += ["| fault | count |", "|---|---|"]
    lines += [f"| {kind} | {count} |" for kind, count in report["faults"].items()]
    lines += ["", "| topic | written | visible |", "|---|---|---|"]
    lines += [f"| {topic} | {each['written']} | {each['visible']} |" for topic, each in report["records"].items()]
    lines += ["", "| clients | |", "|---|---|"]
    lines += [
        f"| {kind} | {', '.join(f'{name} {count}' for name, count in counts.items())} |"
        for kind, counts in report["clients"].items()
    ]
    if report["verdicts"]:
        lines += ["", "| broken promise | count |", "|---|---|"]
        lines += [f"| {rule} | {count} |" for rule, count in report["verdicts"].items()]
        lines += ["", *(f"- {detail}" for detail in report["details"])]
    lines += ["", "| seconds | acknowledged | received |", "|---|---|---|"]
    lines += [f"| {each['at']:g} | {each['acknowledged']} | {each['received']} |" for each in report["throughput"]]
    return "\n".join(lines) + "\n"
