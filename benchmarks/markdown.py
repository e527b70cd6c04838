"""Numbers, verdicts and tables as Markdown that is readable as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .results import Figure, Target

NONE = "–"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with aligned columns. Short rows are padded."""
    cells = [list(head), *([*row, *[NONE] * (len(head) - len(row))] for row in rows)]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(head))]
    drawn = [" | ".join(_padded(cell, widths[i], i) for i, cell in enumerate(row)) for row in cells]
    rule = " | ".join("-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths))
    return "\n".join(f"| {line} |" for line in (drawn[0], rule, *drawn[1:]))


def latency_table(found: Mapping[str, Figure]) -> str:
    """Milliseconds by client, or the reason why there are none."""
    names = ("mean", "p50", "p99")
    rows = [
        [client, *([figure] if isinstance(figure, str) else [number(figure.get(name)) for name in names])]
        for client, figure in found.items()
    ]
    return markdown_table(("client", *names), rows)


def _padded(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)


def verdict(target: Target) -> str:
    mark = {True: "✓", False: "✗", None: "?"}[target.met]
    reached = "not measured" if target.reached is None else f"{target.reached:.3g}"
    bound = f"below {target.wanted:g}" if target.at_most else f"at least {target.wanted:g}"
    return f"{mark} {target.text}: {reached} ({bound})"


def count(rate: float) -> str:
    return f"{rate / 1e6:.2f} M" if rate >= 1e5 else f"{rate:,.0f}"


def number(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
