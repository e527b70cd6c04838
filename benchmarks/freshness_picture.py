"""Draws how fresh the records of a consumer are after a crash, with and without two lanes, from recorded runs.

    python -m benchmarks.freshness_picture docs/freshness.png

`freshness_runs.json` has the runs. `python -m benchmarks.freshness --write docs/freshness.png` measures new ones,
records them and draws the picture.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "freshness_runs.json"
_BLUE, _RED, _INK = "#1f6feb", "#d1242f", "#444444"
_STYLES = {
    "headrace-lanes": (_BLUE, "enable.parallel.rebalance=true"),
    "headrace": (_RED, "default: the backlog first"),
}
_MINUTE = 60


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedRun:
    """Seconds to the first live record, and (seconds since the restart, seconds behind) over time."""

    first_live: float
    series: Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """One run with two lanes and one without, of the same backlog."""

    measured: str
    origin: str
    backlog: int
    runs: Mapping[str, RecordedRun]


def read(path: Path = RECORDED) -> Recorded:
    found: dict[str, Any] = json.loads(path.read_text())
    runs = {
        client: RecordedRun(run["first_live"], [(at, behind) for at, behind in run["series"]])
        for client, run in found.pop("runs").items()
    }
    return Recorded(**found, runs=runs)


def write(recorded: Recorded, path: Path = RECORDED) -> None:
    path.write_text(json.dumps(dataclasses.asdict(recorded)) + "\n")


def draw(recorded: Recorded, path: Path) -> None:
    """A PNG with two curves on linear axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    slowest = max(run.first_live for run in recorded.runs.values())
    style = {"font.size": 11, "axes.edgecolor": _INK, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):  # type: ignore[arg-type]  # these are names of settings
        figure, plot = pyplot.subplots(figsize=(9, 4), layout="constrained")
        for client, (colour, name) in _STYLES.items():
            run = recorded.runs[client]
            times, behind = zip(*run.series, strict=True)
            plot.plot(times, [it / _MINUTE for it in behind], color=colour, linewidth=2.5, drawstyle="steps-post")
            # Beside the place where the curve reaches the axis, the later one further up.
            height = 0.2 if run.first_live < slowest else 0.5
            plot.annotate(
                f"{name}\nnew records after {_seconds(run.first_live)}",
                xy=(run.first_live, 0.5),
                xytext=(run.first_live + 0.04 * slowest, recorded.backlog / 1000 / _MINUTE * height),
                color=colour,
                fontweight="bold",
                arrowprops={"arrowstyle": "->", "color": colour},
            )
        plot.set_xlim(0, slowest * 1.33)
        plot.set_ylim(0)
        plot.set_xlabel("seconds since the consumer is back in its group")
        plot.set_ylabel("minutes behind")
        plot.set_title(
            f"A consumer restarts after a crash, {recorded.backlog:,} records behind", loc="left", fontweight="bold"
        )
        figure.savefig(path, dpi=110)
        pyplot.close(figure)


def _seconds(time: float) -> str:
    return f"{time:.1f} s" if time >= 1 else f"{time:.2f} s"


if __name__ == "__main__":
    draw(read(), Path(sys.argv[1]))
