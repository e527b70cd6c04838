"""`headrace demo`: demonstrates KIP-333 and KIP-983 live in the terminal, and writes a picture at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .commands import group
from .connection_options import check_connection
from .formatting import say, table
from .option_types import WholeNumber
from .ui import check_packages, page_beside, page_options

if TYPE_CHECKING:
    from ..ui.activity import DemoActivity

_BAR = 40  # the width of a bar, in characters
_FULL = 20.0  # the delay that fills the bar, in seconds
_FIND_WITHIN = 5.0  # seconds


@group(
    epilog="""\b
Examples:
  headrace demo crash                              starts its own broker
  headrace demo rebalance -b localhost:9092        uses a running cluster
"""
)
def demo() -> None:
    """Demonstrate a Kafka proposal in about a minute. Starts its own broker, unless -b is given."""


def _png(default: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--png",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        default=default,
        show_default=True,
        callback=_check_directory,
        help="File for the picture.",
    )


def _check_directory(context: click.Context, parameter: click.Parameter, picture: Path) -> Path:
    """Check at the start that the picture can be written at the end."""
    if not picture.parent.is_dir() or not os.access(picture.parent, os.W_OK | os.X_OK):
        raise click.BadParameter(f"{picture.parent} is not a writable directory")
    return picture


_servers = click.option(
    "-b",
    "--bootstrap-servers",
    "servers",
    metavar="HOST:PORT,…",
    help="Use this cluster instead of starting a broker.",
)


@demo.command(
    short_help="KIP-333: a consumer is killed and restarts with a backlog.",
    epilog="\b\nExamples:\n  headrace demo crash\n  headrace demo crash --backlog 500000 --png crash.png\n"
    "  headrace demo crash --ui\n",
)
@click.option(
    "--backlog",
    type=WholeNumber(1000, 5_000_000),
    default=200_000,
    show_default=True,
    help="Size of the backlog.",
)
@_png("headrace-crash.png")
@_servers
@page_options
def crash(servers: str | None, backlog: int, png: Path, shows_page: bool, page_port: int) -> None:
    """KIP-333: a consumer is killed and restarts with a backlog. How soon does it read new records?

    Two consumers run at the same time, one with enable.parallel.rebalance and one without.
    """
    from .demo_charts import check_matplotlib, draw_crash
    from .demo_crash import LABELS, groups_of, new_topic, run_crash

    check_matplotlib()
    topic = new_topic()
    with contextlib.ExitStack() as stack:
        if shows_page:
            check_packages()
        chosen = stack.enter_context(_broker(servers))
        activity: DemoActivity | None = None
        if shows_page:
            activity = stack.enter_context(_page(chosen, page_port, groups_of(topic), LABELS))
        show = stack.enter_context(_live("bars: the age of the newest consumed record"))

        def watch(text: str, behind: Mapping[str, float | None]) -> None:
            show(text, {LABELS[name]: _behind(value) for name, value in behind.items()})
            if activity is not None:
                activity.on_step(text, behind)

        result = run_crash(chosen, watch, backlog, topic)
    rows = [(LABELS[name], f"{it.first_live:.2f} s", f"{it.backlog_done:.1f} s") for name, it in result.readers.items()]
    down = result.restarted - result.killed
    click.echo(f"killed, and restarted after {down:.0f} s with a backlog of {result.backlog:,} records:")
    click.echo(table(("", "first new record after", "backlog read after"), rows))
    draw_crash(result, png)
    click.echo(f"picture: {png}")


@demo.command(
    short_help="KIP-983: a partition is revoked while its records are processed.",
    epilog="\b\nExamples:\n  headrace demo rebalance --png rebalance.png\n",
)
@_png("headrace-rebalance.png")
@_servers
def rebalance(servers: str | None, png: Path) -> None:
    """KIP-983: six partitions of a member are revoked while it processes records of one of them. How fast does it read
    the six partitions that it keeps?

    The demo runs twice. First, the member waits in its listener until the records are processed, which is the only way
    in other clients. Then it delays the revoke of that partition.
    """
    from .demo_charts import check_matplotlib, draw_rebalance
    from .demo_rebalance import KEPT, PARTITIONS, RATE, Measurement, measure

    check_matplotlib()
    runs: list[Measurement] = []
    with _broker(servers) as chosen, _live("bars: records/s of the six partitions that the member keeps") as show:
        for deferred in (False, True):
            name = "delayed revoke (KIP-983)" if deferred else "blocking listener"
            earlier = {run.name: f"{run.during:,.0f} records/s while six were revoked" for run in runs}
            runs.append(measure(chosen, deferred, _rates(show, name, RATE * KEPT / PARTITIONS, earlier)))
    rows = [(run.name, f"{run.before:,.0f}", f"{run.during:,.0f}", f"{run.during / run.before:.0%}") for run in runs]
    click.echo("records/s of the six partitions that the member keeps:")
    click.echo(table(("", "before", "while six others are revoked", "ratio"), rows))
    draw_rebalance(runs, png)
    click.echo(f"picture: {png}")


@contextlib.contextmanager
def _page(servers: str, port: int, groups: Mapping[str, str], labels: Mapping[str, str]) -> Iterator[DemoActivity]:
    from ..ui.activity import DemoActivity

    activity = DemoActivity("Crash demo", groups, labels)
    with page_beside({"bootstrap.servers": servers}, port, activity, interval=0.5):
        yield activity
        activity.end()


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
    """Show the current step, a bar for each consumer, and the legend of the bars. Without a terminal, print only the
    steps."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    shown = ""
    with Live(console=console, refresh_per_second=10, transient=True) as live:

        def show(text: str, lines: Mapping[str, str]) -> None:
            nonlocal shown
            if console.is_terminal:
                bars = (Text(f"{name:<26} {it}") for name, it in lines.items())
                live.update(Group(Text(text, style="bold"), *bars, Text(legend, style="dim")))
            elif text != shown:
                say(text)
            shown = text

        yield show


def _rates(show: Show, name: str, usual: float, earlier: Mapping[str, str]) -> Callable[[str, float], None]:
    """Show the rate below the results of earlier runs. The usual rate fills half of the bar."""

    def watch(text: str, rate: float) -> None:
        bar = "█" * min(_BAR, round(rate / usual * _BAR / 2))
        show(f"{name}: {text}", {**earlier, name: f"{bar:<{_BAR}} {rate:>8,.0f} records/s"})

    return watch


def _behind(value: float | None) -> str:
    if value is None:
        return "not running"
    return f"{'█' * min(_BAR, round(value / _FULL * _BAR)):<{_BAR}} {value:6.2f} s behind"
