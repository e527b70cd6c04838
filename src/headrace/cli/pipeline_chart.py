"""The picture of a run: the query `headrace.chart` as lines, and how the records arrived. A PNG, and one HTML page
without links. Only this module and `demo_charts` import matplotlib."""

from __future__ import annotations

import html
import io
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ..monitor.batches import BatchView, read_batches

PAGE, PICTURE = "report.html", "report.png"
_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ font: 16px system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }}
svg {{ width: 100%; height: auto }}</style>
<h1>{title}</h1>
<p>{text}</p>
{svg}
</html>
"""


def draw_chart(state: Path, chart: Mapping[str, Any], title: str, text: str, since: float) -> str:
    """Draw the picture. Returns a line that names its files, or what is missing."""
    try:
        import matplotlib
    except ImportError:
        return "for a picture of the run: pip install 'headrace[demo]'"
    matplotlib.use("Agg")
    figure = _figure(chart, arrivals(read_batches(state / "checkpoints", since)))
    figure.savefig(state / PICTURE, dpi=110)
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    # Without the prologue, which names a DTD, and the metadata, which names vocabularies: neither is used in a page.
    drawing = re.sub(r"<metadata>.*?</metadata>", "", svg.getvalue(), flags=re.DOTALL)
    page = _PAGE.format(title=html.escape(title), text=html.escape(text), svg=drawing[drawing.index("<svg") :])
    (state / PAGE).write_text(page)
    return f"picture: {os.path.relpath(state / PAGE)}, {os.path.relpath(state / PICTURE)}"


def series_of(rows: Sequence[Sequence[Any]]) -> dict[str, tuple[list[Any], list[float]]]:
    """Lines by name: rows of a name, a time or number, and a number."""
    found: dict[str, tuple[list[Any], list[float]]] = {}
    for name, at, value in sorted((row for row in rows if None not in row), key=lambda row: (str(row[0]), row[1])):
        times, values = found.setdefault(str(name), ([], []))
        times.append(datetime.fromisoformat(at) if isinstance(at, str) else at)
        values.append(float(value))
    return found


def arrivals(batches: Sequence[BatchView]) -> dict[str, tuple[list[float], list[float]]]:
    """How many records of the run, in percent, were in their table after how many seconds: newest, and backlog."""
    run = [it for it in batches if it.records and it.finished is not None]
    if not run:
        return {}
    begun, backlog = min(it.planned for it in run), run[0].open
    total, read = sum(it.records or 0 for it in run), 0
    newest: tuple[list[float], list[float]] = ([0.0], [0.0])
    older: tuple[list[float], list[float]] = ([0.0], [0.0])
    for batch in run:
        after = (batch.finished or 0.0) - begun
        read += batch.records or 0
        newest[0].append(after)
        newest[1].append(100.0 if backlog else 100.0 * read / total)
        older[0].append(after)
        older[1].append(100.0 * read / total)
    if not backlog:
        return {"records": newest}
    return {"newest record": newest, "all records": older}


def _figure(chart: Mapping[str, Any], arrived: Mapping[str, tuple[list[float], list[float]]]) -> Any:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        2, 1, figsize=(9, 6.5), layout="constrained", gridspec_kw={"height_ratios": (2.2, 1)}
    )
    upper, lower = axes
    columns = chart["columns"]
    for name, (times, values) in series_of(chart["rows"]).items():
        upper.plot(times, values, label=name, linewidth=1.6)
    upper.set(title=f"{columns[2]} by {columns[0]}", ylabel=columns[2])
    upper.legend(loc="upper right", ncols=3)
    for name, (seconds, percent) in arrived.items():
        lower.step(seconds, percent, where="post", label=name, linewidth=1.8)
    lower.set(title="arrival of the new records of this run", xlabel="seconds after the first batch", ylabel="%")
    lower.set_ylim(0, 105)
    if arrived:
        lower.legend(loc="lower right")
    for plot in axes:
        plot.grid(True, alpha=0.3)
    return figure
