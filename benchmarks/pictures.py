"""Charts of KIP-41, KIP-62 and KIP-1206, from measurements with a real broker and real members: see `scenes.py`.

    python -m benchmarks.pictures --write docs

Writes polls.svg, heartbeats.svg and share-limit.svg into the directory. On a busy machine it takes a minute.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace import LocalBroker

from . import scenes
from .scenes import Portion, SlowMemberTimeline

_BLUE, _AMBER, _RED, _SHADE, _INK = "#1f6feb", "#f3d9a4", "#d1242f", "#e6e6e6", "#444444"
_PARTITIONS = {"A": "#1f6feb", "B": "#d1242f", "C": "#e0a030"}
_STYLE = {
    "svg.fonttype": "none",  # keep text as text: smaller, and searchable in browsers
    "svg.hashsalt": "headrace",  # the same chart is the same file
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
}


def _saved(path: Path, rows: int, columns: int, height: float, draw: Callable[[Any, Any], None]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]  # these are names of settings
        figure, axes = pyplot.subplots(
            rows, columns, figsize=(9, height), layout="constrained", sharex=True, sharey=True
        )
        draw(figure, axes)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def draw_polls(found: Mapping[str, Sequence[Mapping[str, int]]], path: Path) -> None:
    def draw(figure: Any, axes: Any) -> None:
        for plot, (strategy, polls) in zip(axes, found.items(), strict=True):
            numbers = range(1, len(polls) + 1)
            below = [0] * len(polls)
            for name, colour in _PARTITIONS.items():
                counts = [poll.get(name, 0) for poll in polls]
                label = f"{name}, which has {scenes.WAITING[name]:,}"
                bars = plot.bar(numbers, counts, bottom=below, color=colour, label=label)
                plot.bar_label(bars, [count or "" for count in counts], label_type="center", color="white", fontsize=8)
                below = [base + count for base, count in zip(below, counts, strict=True)]
            plot.set_title(f"{strategy}{' (the default)' if strategy == 'fair' else ''}")
            plot.set_xticks(numbers)
            plot.set_xlabel("poll")
        axes[0].set_ylabel("records")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)

    _saved(path, 1, 2, 3.2, draw)


def draw_heartbeats(life: SlowMemberTimeline, path: Path) -> None:
    rows = {
        "slow member:\npolls and work": 2.0,
        "slow member,\nas its group has it": 1.0,
        "other member,\nas its group has it": 0.0,
    }

    def draw(figure: Any, plot: Any) -> None:
        for start, end in life.work:
            plot.broken_barh([(start, end - start)], (1.7, 0.6), color=_BLUE, alpha=0.35)
            if end - start > scenes.SESSION:
                middle = (start + scenes.SESSION + min(end, start + scenes.INTERVAL)) / 2  # between the dotted lines
                plot.text(middle, 2.0, f"works for {end - start:.0f} s", ha="center", va="center")
                limits = {"session.timeout.ms": scenes.SESSION, "max.poll.interval.ms": scenes.INTERVAL}
                for name, seconds in limits.items():
                    if start + seconds < end:
                        plot.vlines(start + seconds, -0.4, 2.45, color=_RED, linestyle=":", linewidth=1.2)
                        plot.text(start + seconds, 2.5, name, ha="center", color=_RED, fontsize=8)
        plot.vlines([start for start, _ in life.polls], 1.6, 2.4, color=_INK, linewidth=1.5)
        for base, member in ((1.0, scenes.SLOW), (0.0, scenes.OTHER)):
            for start, end, count in scenes.spans(life.looks, member):
                colour = _SHADE if count is None else _AMBER
                plot.broken_barh([(start, end - start)], (base - 0.3, 0.6), facecolor=colour, edgecolor="white")
                if count is not None and end - start > 1.5:
                    plot.text((start + end) / 2, base, f"{count} partitions", ha="center", va="center")
        plot.set_yticks(list(rows.values()), rows.keys())
        plot.tick_params(axis="y", length=0)
        plot.spines["left"].set_visible(False)
        plot.set_ylim(-0.5, 2.8)
        plot.set_xlim(0, life.work[-1][1])
        plot.set_xlabel("seconds; upright strokes are polls, grey is a rebalance")

    _saved(path, 1, 1, 3.0, draw)


def draw_shares(found: Mapping[str, Sequence[Portion]], path: Path) -> None:
    def draw(figure: Any, axes: Any) -> None:
        for plot, (name, portions) in zip(axes, found.items(), strict=True):
            numbers = range(1, len(portions) + 1)
            returned = [portion.returned for portion in portions]
            ahead = [portion.ahead or 0 for portion in portions]
            plot.bar(numbers, returned, color=_BLUE, label="returned by the poll")
            plot.bar(numbers, ahead, bottom=returned, color=_AMBER, label="locked as well, for the next polls")
            plot.axhline(scenes.SHARE_LIMIT, color=_RED, linestyle=":", linewidth=1.2, label="max.poll.records")
            plot.set_title(name)
            plot.set_xticks(numbers)
            plot.set_xlabel("poll")
        axes[0].set_ylabel("records")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)

    _saved(path, 1, 3, 2.8, draw)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=__doc__.split("\n")[0])
    parser.add_argument("--write", metavar="DIRECTORY", type=Path, help="write the pictures")
    options = parser.parse_args(arguments)
    with LocalBroker(properties=scenes.LEAST_SESSION) as broker:
        servers = broker.bootstrap_servers
        polls, life, shares = scenes.polls(servers), scenes.heartbeats(servers), scenes.shares(servers)
    for strategy, found in polls.items():
        print(f"{strategy}: {'; '.join(' '.join(f'{name} {count}' for name, count in poll.items()) for poll in found)}")
    for member in (scenes.SLOW, scenes.OTHER):
        seen = (f"{start:.2f} to {end:.2f} s: {count}" for start, end, count in scenes.spans(life.looks, member))
        print(f"partitions of the {member} member, {'; '.join(seen)}")
    for name, portions in shares.items():
        print(f"{name}: {', '.join(f'{each.returned} + {each.ahead}' for each in portions)}")
    if options.write:
        draw_polls(polls, options.write / "polls.svg")
        draw_heartbeats(life, options.write / "heartbeats.svg")
        draw_shares(shares, options.write / "share-limit.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
