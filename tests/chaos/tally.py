"""The tally of all recorded runs: `runs.json`, to which `python -m chaos --tally FILE` adds one.

    PYTHONPATH=tests python -m chaos.tally docs/reliability.md

writes its tables between the markers of the page.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RUNS = Path(__file__).parent / "runs.json"
BEGIN, END = "<!-- tally: begin -->", "<!-- tally: end -->"
_KILLS = ("kill_client", "kill_broker", "kill_driver", "kill_worker")
_KEPT = ("seed", "planned_seconds", "innocent", "faults", "records", "copies", "clients", "verdicts")
_SPARK = "spark_"

Run = dict[str, Any]


def add_run(path: Path, report: Run) -> None:
    """Add the figures of a report. One line a run keeps differences short."""
    runs = [*read_runs(path), {"date": time.strftime("%Y-%m-%d"), **{name: report[name] for name in _KEPT}}]
    draft = path.with_suffix(".draft")
    draft.write_text("[\n" + ",\n".join(json.dumps(each, separators=(",", ":")) for each in runs) + "\n]\n")
    draft.replace(path)


def read_runs(path: Path = RUNS) -> list[Run]:
    found: list[Run] = json.loads(path.read_text()) if path.exists() else []
    return found


def kills_of(run: Run) -> int:
    """Processes that were killed with SIGKILL."""
    return sum(run["faults"].get(kind, 0) for kind in _KILLS)


def records_of(run: Run) -> tuple[int, int]:
    """Records that were written by producers, and those received by all consumers and queries."""
    written = sum(each["written"] for each in run["records"].values())
    received = sum(each.get("received", 0) or each.get("rows", 0) for each in run["clients"].values())
    return written, received


def tables(runs: Sequence[Run]) -> str:
    return "\n".join([*_summary(runs), "", *_faults(runs), "", *_kinds(runs), "", *_each(runs)])


def _summary(runs: Sequence[Run]) -> Iterable[str]:
    minutes = sum(run["planned_seconds"] for run in runs) / 60
    written, received = (sum(each) for each in zip(*map(records_of, runs), strict=True)) if runs else (0, 0)
    yield from ("| all runs | |", "|---|---:|")
    yield f"| runs | {len(runs)} |"
    yield f"| minutes of faults | {minutes:,.0f} |"
    yield f"| faults | {sum(sum(run['faults'].values()) for run in runs):,} |"
    yield f"| processes killed | {sum(map(kills_of, runs)):,} |"
    yield f"| records written | {written:,} |"
    yield f"| records received | {received:,} |"
    yield f"| runs with a broken promise | {sum(not run['innocent'] for run in runs)} |"


def _faults(runs: Sequence[Run]) -> Iterable[str]:
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run["faults"])
    yield from ("| fault | count |", "|---|---:|")
    yield from (f"| `{kind}` | {count:,} |" for kind, count in sorted(counts.items()))


def _kinds(runs: Sequence[Run]) -> Iterable[str]:
    processes: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    records: Counter[str] = Counter()
    for run in runs:
        for kind, counts in run["clients"].items():
            processes[kind] += counts["processes"]
            killed[kind] += counts.get("killed", 0)
            records[kind] += _records(counts)
    yield from ("| client | processes | killed | records |", "|---|---:|---:|---:|")
    for kind in sorted(processes):
        yield f"| `{kind}` | {processes[kind]:,} | {killed[kind]:,} | {records[kind]:,} |"


def _records(counts: dict[str, int]) -> int:
    return max(counts.get(name, 0) for name in ("received", "rows", "acknowledged"))


def _each(runs: Sequence[Run]) -> Iterable[str]:
    yield from (
        "| date | seed | minutes | Spark queries | faults | kills | records written | received | verdict |",
        "|---|---:|---:|---|---:|---:|---:|---:|---|",
    )
    for run in runs:
        queries = ", ".join(kind.removeprefix(_SPARK) for kind in run["clients"] if kind.startswith(_SPARK))
        queries = queries.replace(", peer", "")
        verdict = "innocent" if run["innocent"] else ", ".join(run["verdicts"])
        figures = (sum(run["faults"].values()), kills_of(run), *records_of(run))
        minutes = f"{run['planned_seconds'] / 60:g}"
        cells = (run["date"], run["seed"], minutes, queries, *(f"{each:,}" for each in figures), verdict)
        yield f"| {' | '.join(map(str, cells))} |"


def write_tables(page: Path, runs: Sequence[Run]) -> None:
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{tables(runs)}\n{END}{after}")


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]), read_runs())
