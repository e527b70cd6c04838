"""`headrace demo`: what the proposals are for, in a minute each, live in the terminal, with a picture at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

from .connection_options import check_connection
from .formatting import say, table

_BAR = 40  # characters
_FULL = 20.0  # seconds that fill it
_FIND_WITHIN = 5.0  # seconds


@click.group(
    epilog="""\b
Examples:
  headrace demo crash                              with a broker of its own
  headrace demo rebalance -b localhost:9092        with yours
"""
)
def demo() -> None:
    """Demonstrate a Kafka proposal in about a minute, with a broker of its own."""


def _png(default: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--png",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        default=default,
        show_default=True,
        callback=_check_place,
        help="File for the picture.",
    )


def _check_place(context: click.Context, parameter: click.Parameter, picture: Path) -> Path:
    """Before the minute, and not after it."""
    if not picture.parent.is_dir() or not os.access(picture.parent, os.W_OK | os.X_OK):
        raise click.BadParameter(f"{picture.parent} is not a writable directory")
    return picture


_servers = click.option(
    "-b",
    "--bootstrap-servers",
    "servers",
    metavar="HOST:PORT,…",
    help="Use this cluster instead of a broker of its own.",
)


@demo.command(
    short_help="KIP-333: a consumer is killed and comes back to a backlog.",
    epilog="\b\nExamples:\n  headrace demo crash\n  headrace demo crash --backlog 500000 --png crash.png\n",
)
@click.option(
    "--backlog", type=click.IntRange(1000, 5_000_000), default=200_000, show_default=True, help="Records to miss."
)
@_png("headrace-crash.png")
@_servers
def crash(servers: str | None, backlog: int, png: Path) -> None:
    """KIP-333: a consumer is killed and comes back to a backlog. How soon does it read new records?

    Two consumers run side by side: one with enable.parallel.rebalance, and one without.
    """
    from .demo_charts import check_matplotlib, draw_crash
    from .demo_crash import LABELS, tell

    check_matplotlib()
    with _broker(servers) as chosen, _live("bars: how old the newest record is that was read") as show:

        def watch(text: str, behind: Mapping[str, float | None]) -> None:
            show(text, {LABELS[name]: _behind(value) for name, value in behind.items()})

        story = tell(chosen, watch, backlog)
    rows = [(LABELS[name], f"{it.first_live:.2f} s", f"{it.backlog_done:.1f} s") for name, it in story.readers.items()]
    click.echo(f"killed, and back after {story.returned - story.killed:.0f} s with {story.backlog:,} records to read:")
    click.echo(table(("", "first new record after", "backlog done after"), rows))
    draw_crash(story, png)
    click.echo(f"picture: {png}")


@demo.command(
    short_help="KIP-983: work is under way on a partition that is given up.",
    epilog="\b\nExamples:\n  headrace demo rebalance --png rebalance.png\n",
)
@_png("headrace-rebalance.png")
@_servers
def rebalance(servers: str | None, png: Path) -> None:
    """KIP-983: a member gives up six partitions while work on one of them is under way. What happens to the six that it
    keeps?

    The demo runs twice. First the member waits for the work in its listener, the only way that other clients have; then
    it delays the revoke of that partition.
    """
    from .demo_charts import check_matplotlib, draw_rebalance
    from .demo_rebalance import KEPT, PARTITIONS, RATE, Measurement, measure

    check_matplotlib()
    runs: list[Measurement] = []
    with _broker(servers) as chosen, _live("bars: records/s of the six partitions that the member keeps") as show:
        for deferred in (False, True):
            name = "delayed revoke (KIP-983)" if deferred else "blocking listener"
            earlier = {run.name: f"{run.during:,.0f} records/s while six were given up" for run in runs}
            runs.append(measure(chosen, deferred, _rates(show, name, RATE * KEPT / PARTITIONS, earlier)))
    rows = [(run.name, f"{run.before:,.0f}", f"{run.during:,.0f}", f"{run.during / run.before:.0%}") for run in runs]
    click.echo("records/s of the six partitions that the member keeps:")
    click.echo(table(("", "before", "while six others are given up", "of before"), rows))
    draw_rebalance(runs, png)
    click.echo(f"picture: {png}")


@contextlib.contextmanager
def _broker(servers: str | None) -> Iterator[str]:
    if servers is not None:
        check_connection({"bootstrap.servers": servers}, _FIND_WITHIN)
        yield servers
        return
    from ..local import LocalBroker

    say("starting Apache Kafka on this machine ...")
    with LocalBroker(properties={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker.bootstrap_servers


Show = Callable[[str, Mapping[str, str]], None]


@contextlib.contextmanager
def _live(legend: str) -> Iterator[Show]:
    """What goes on, a line for each of those that are watched, and what their bars mean. Without a terminal only what
    goes on is said."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    said = ""
    with Live(console=console, refresh_per_second=10, transient=True) as live:

        def show(text: str, lines: Mapping[str, str]) -> None:
            nonlocal said
            if console.is_terminal:
                bars = (Text(f"{name:<26} {it}") for name, it in lines.items())
                live.update(Group(Text(text, style="bold"), *bars, Text(legend, style="dim")))
            elif text != said:
                say(text)
            said = text

        yield show


def _rates(show: Show, name: str, usual: float, earlier: Mapping[str, str]) -> Callable[[str, float], None]:
    """Shows a rate below what came of earlier runs. The usual one fills half of the bar."""

    def watch(text: str, rate: float) -> None:
        bar = "█" * min(_BAR, round(rate / usual * _BAR / 2))
        show(f"{name}: {text}", {**earlier, name: f"{bar:<{_BAR}} {rate:>8,.0f} records/s"})

    return watch


def _behind(value: float | None) -> str:
    if value is None:
        return "not there"
    return f"{'█' * min(_BAR, round(value / _FULL * _BAR)):<{_BAR}} {value:6.2f} s behind"
