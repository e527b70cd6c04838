"""A chart of KIP-983: the rate of a member while partitions are revoked, one of them with slow work in flight.

    python -m benchmarks.revoking --write docs/revoking.svg

The measurement is in `headrace.cli.demo_rebalance`; `headrace demo rebalance` shows the same live.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace import LocalBroker
from headrace.cli.demo_rebalance import AFTER, BEFORE, Measurement, measure

# -- the chart -----------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 720, 180, 60, 40, 60
_INK, _LINE, _SHADE = "#444", "#1f6feb", "#f3d9a4"


def picture(runs: Sequence[Measurement]) -> str:
    """Both runs as SVG, one above the other, with the same scales."""
    low = -BEFORE
    high = max(run.completed for run in runs) + AFTER
    # Records that were not read while the listener waited come at once afterwards. The peak would flatten the rest.
    top = 2 * max(run.before for run in runs)
    height = len(runs) * (_HEIGHT + _GAP) + _TOP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + _LEFT + 20}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, run in enumerate(runs):
        base = _TOP + index * (_HEIGHT + _GAP) + _HEIGHT

        def x(at: float) -> float:
            return _LEFT + (at - low) / (high - low) * _WIDTH

        def y(rate: float, base: float = base) -> float:
            return base - min(rate, top) / top * _HEIGHT

        points = " ".join(f"{x(at):.1f},{y(rate):.1f}" for at, rate in run.series if low <= at <= high)
        wide = x(run.completed) - x(run.requested)
        parts += [
            f'<rect x="{x(run.requested):.1f}" y="{base - _HEIGHT}" width="{wide:.1f}" height="{_HEIGHT}" '
            f'fill="{_SHADE}"/>',
            f'<line x1="{_LEFT}" y1="{base}" x2="{_LEFT + _WIDTH}" y2="{base}" stroke="{_INK}"/>',
            f'<polyline points="{points}" fill="none" stroke="{_LINE}" stroke-width="1.5"/>',
            f'<text x="{_LEFT}" y="{base - _HEIGHT - 8}" font-weight="bold">{run.name}: {run.during / run.before:.0%} '
            f"of the rate before, while partitions are revoked (shaded)</text>",
            *(
                f'<text x="{_LEFT - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate / 1000:.0f} k</text>'
                for rate in (0.0, run.before, top)
            ),
            *(
                f'<text x="{x(at):.1f}" y="{base + 16}" text-anchor="middle">{at} s</text>'
                for at in range(int(low), int(high) + 1)
            ),
        ]
    parts.append(
        f'<text x="{_LEFT}" y="{height - 6}">records/s of the partitions that the member keeps, over seconds since a '
        f"second member joined</text></svg>"
    )
    return "\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.revoking", description=__doc__.split("\n")[0])
    parser.add_argument("--write", metavar="FILE", type=Path, help="write the picture")
    options = parser.parse_args(arguments)
    with LocalBroker(properties={"group.initial.rebalance.delay.ms": 0}) as broker:
        runs = [measure(broker.bootstrap_servers, deferred) for deferred in (True, False)]
    for run in runs:
        print(
            f"{run.name}: {run.before:,.0f} records/s before, {run.during:,.0f} during "
            f"({run.during / run.before:.0%}), {run.completed - run.requested:.1f} s"
        )
    if options.write:
        options.write.write_text(picture(runs))
    else:
        print(json.dumps([dataclasses.asdict(run) for run in runs])[:200])
    return 0


if __name__ == "__main__":
    sys.exit(main())
