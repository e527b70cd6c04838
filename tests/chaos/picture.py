"""Draws the throughput and the faults of a run over time.

    PYTHONPATH=tests python -m chaos.picture docs/reliability.png [REPORT]

REPORT is the report.json of a run, which is then kept in `pictured.json`. Without it, the kept one is drawn.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent / "pictured.json"
_BLUE, _RED, _INK = "#1f6feb", "#d1242f", "#444444"
_NEEDED = ("seed", "planned_seconds", "throughput", "timeline")
_SECONDS = 10
"""Of a point of the throughput."""


def keep(report: Path) -> None:
    found = json.loads(report.read_text())
    KEPT.write_text(json.dumps({name: found[name] for name in _NEEDED}) + "\n")


def draw(run: dict[str, Any], path: Path) -> None:
    """A PNG: records per second above, and a mark for each fault below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = run["throughput"]
    minutes = [each["at"] / 60 for each in points]
    kinds = sorted({kind for _, kind in run["timeline"]}, reverse=True)
    style = {"font.size": 10, "axes.edgecolor": _INK, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):  # type: ignore[arg-type]  # these are names of settings
        figure, (above, below) = pyplot.subplots(
            2, 1, figsize=(10, 7), sharex=True, layout="constrained", height_ratios=(1, 1)
        )
        for name, colour in (("received", _BLUE), ("acknowledged", _RED)):
            rates = [each[name] / _SECONDS for each in points]
            above.plot(minutes, rates, color=colour, linewidth=1.5, drawstyle="steps-post", label=name)
        above.set_ylim(0)
        above.set_ylabel("records per second")
        above.legend(loc="upper left", frameon=False, ncols=2)
        above.set_title(f"A chaos run, seed {run['seed']}: {len(run['timeline'])} faults", loc="left", weight="bold")
        places = [kinds.index(kind) for _, kind in run["timeline"]]
        below.scatter([at / 60 for at, _ in run["timeline"]], places, marker="|", s=60, color=_INK)
        below.set_yticks(range(len(kinds)), kinds)
        below.set_xlabel("minutes")
        below.set_xlim(0)
        figure.savefig(path, dpi=100)
        pyplot.close(figure)


def main() -> None:
    if len(sys.argv) > 2:
        keep(Path(sys.argv[2]))
    draw(json.loads(KEPT.read_text()), Path(sys.argv[1]))


if __name__ == "__main__":
    main()
