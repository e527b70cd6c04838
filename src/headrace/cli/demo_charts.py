"""Draws the pictures of the demos, as PNG files. Only this module imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import HeadraceError
from .demo_crash import LABELS, CrashResult
from .demo_rebalance import AFTER, BEFORE, Measurement

_COLOURS = {"plain": "#b35900", "lanes": "#1f6feb"}
_SHADE = "#f3d9a4"


def check_matplotlib() -> None:
    """Raises HeadraceError if matplotlib is not installed. The demos call it at the start."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise HeadraceError("the picture needs matplotlib: pip install 'headrace[demo]'") from None


def _figure(rows: int, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, 1, figsize=(9, height), layout="constrained", squeeze=False, sharex=True)


def draw_crash(result: CrashResult, path: Path) -> None:
    figure, (axes,) = _figure(1, 4.5)
    (plot,) = axes
    plot.axvspan(result.killed, result.restarted, color=_SHADE, label="not running")
    for name, reader in result.readers.items():
        before = [(at, behind) for at, behind in reader.series if at <= result.killed]
        after = [(at, behind) for at, behind in reader.series if at > result.killed]
        for part, label in ((before, None), (after, LABELS[name])):
            plot.plot(*zip(*part, strict=True), color=_COLOURS[name], label=label)
    plot.set(
        title=f"Age of the newest record read, after a crash with a backlog of {result.backlog:,} records",
        xlabel="seconds",
        ylabel="seconds behind",
        yscale="log",
    )
    plot.grid(True, alpha=0.3)
    plot.legend()
    figure.savefig(path, dpi=120)


def draw_rebalance(runs: Sequence[Measurement], path: Path) -> None:
    rebalance_figure(runs).savefig(path, dpi=120)


def rebalance_figure(runs: Sequence[Measurement]) -> Any:
    figure, axes = _figure(len(runs), 6.0)
    top = 2 * max(run.before for run in runs)
    for (plot,), run in zip(axes, runs, strict=True):
        plot.axvspan(
            run.requested, run.completed, color=_SHADE, label="six others are revoked, one of them after slow work"
        )
        label = "records/s of the six partitions that the member keeps"
        plot.plot(*zip(*run.series, strict=True), color=_COLOURS["lanes"], label=label)
        plot.set(
            title=f"{run.name}: {run.during / run.before:.0%} of the rate before, while partitions are revoked",
            ylabel="records/s",
            ylim=(0, top),
            xlim=(-BEFORE, max(each.completed for each in runs) + AFTER),
        )
        plot.grid(True, alpha=0.3)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    axes[-1][0].set(xlabel="seconds since a second member joined")
    return figure
