"""`headrace up`, `headrace down`, `headrace status`."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from ..local import DownloadProgress, LocalBrokerError
from ..local.background import ClusterOptions, Status, bring_down, bring_up, default_data, read_status
from ..local.ivy import ProgressCallback
from ..local.kafka_home import DEFAULT_VERSION
from ..local.prepare import prepare
from ..local.registry_home import install_registry
from ..local.supervise import supervise
from .commands import command
from .connection_options import names_and_values
from .formatting import say
from .option_types import WholeNumber

# Options of `up` and their fields in ClusterOptions. A running cluster must match them only if they are given.
_FIELDS = {
    "port": "port",
    "data": "data_dir",
    "ephemeral": "data_dir",
    "kafka_version": "version",
    "registry_port": "registry_port",
}

_OLDEST = 4
STOPPED = 3
CRASHED = 4


def _supported(context: click.Context, parameter: click.Parameter, version: str) -> str:
    """The version, if it is a number such as 4.3.1 and not too old. Only this command has the limit: headrace's own
    tests start older brokers with `LocalBroker`."""
    found = re.match(r"(\d+)\.\d", version)
    if found is None or int(found[1]) < _OLDEST:
        raise click.BadParameter(f"{version!r} is not a release of Kafka, {_OLDEST}.0 or newer")
    return version


@command(
    epilog="""\b
Examples:
  headrace up                                  on port 9092, data kept for the next start
  headrace up --port 0 --ephemeral             on a free port, data deleted when it stops
  headrace up --brokers 3 -c num.partitions=6
  headrace up --registry                       with a schema registry on port 8081
  headrace up --secure                         TLS and users; the other commands use its credentials
"""
)
@click.option("--brokers", type=WholeNumber(1, 32), default=1, show_default=True, help="The number of brokers.")
@click.option(
    "--port",
    type=WholeNumber(0, 65_535),
    default=9092,
    show_default=True,
    help="Port of the first broker; the others follow. 0: free ports.",
)
@click.option("--data", type=click.Path(file_okay=False), help="Directory for the data.  [default: one per user]")
@click.option("--ephemeral", is_flag=True, help="Delete the data when the cluster stops.")
@click.option("--config", "-c", "settings", multiple=True, metavar="NAME=VALUE", help="A broker setting.")
@click.option(
    "--kafka-version",
    default=DEFAULT_VERSION,
    show_default=True,
    callback=_supported,
    help=f"Version of Apache Kafka, {_OLDEST}.0 or newer.",
)
@click.option("--secure", is_flag=True, help="TLS, users and ACLs. Shows the file with the client's settings.")
@click.option("--registry", is_flag=True, help="A schema registry, too (Apicurio, with Confluent's REST API).")
@click.option(
    "--registry-port",
    type=WholeNumber(0, 65_535),
    default=8081,
    show_default=True,
    help="Port of the schema registry. 0: a free port.",
)
@click.option("--foreground", is_flag=True, help="Run until Ctrl-C instead of in the background.")
@click.pass_context
def up(
    context: click.Context,
    brokers: int,
    port: int,
    data: str | None,
    ephemeral: bool,
    settings: tuple[str, ...],
    kafka_version: str,
    secure: bool,
    registry: bool,
    registry_port: int,
    foreground: bool,
) -> None:
    """Start Apache Kafka on this machine and leave it running.

    Needs Java 17 or newer. The first start downloads Kafka. The data is kept for the next start, unless the cluster is
    --ephemeral. A cluster that is already running keeps running; if it differs from these options, stop it first with
    `headrace down`.
    """
    if _is_given(context, "registry_port") and not registry:
        raise click.UsageError("--registry-port needs --registry")
    if data and ephemeral:
        raise click.UsageError("--data and --ephemeral cannot be combined: --ephemeral deletes the data")
    where = None if ephemeral else str(Path(data).absolute() if data else default_data(brokers, secure=secure))
    options = ClusterOptions(
        brokers,
        port,
        where,
        kafka_version,
        names_and_values(settings, "--config"),
        secure,
        registry,
        registry_port,
    )
    with download_bar() as progress:
        ready = prepare(kafka_version, progress)
        if registry:
            install_registry(ready.java, progress)
    if foreground:
        supervise(options, ready=lambda status: _show(status, "running, Ctrl-C stops it"), busy=_busy)
        return
    status, fresh = bring_up(options, {field for option, field in _FIELDS.items() if _is_given(context, option)})
    _show(status, "running" if fresh else "already running")


def _is_given(context: click.Context, option: str) -> bool:
    return context.get_parameter_source(option) is not ParameterSource.DEFAULT


@command(epilog="\b\nExamples:\n  headrace down\n  headrace down && headrace up --port 9093\n")
def down() -> None:
    """Stop the cluster that `headrace up` started. Its data is kept, unless it is --ephemeral."""
    outcome = {"stopped": "nothing is running", "crashed": "it had crashed; cleaned up", "running": "stopped"}
    click.echo(outcome[bring_down().state])


@command(
    epilog="""\b
Examples:
  headrace status
  headrace status --format json | jq -r .bootstrap_servers
"""
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def status(context: click.Context, form: str) -> None:
    """Show whether the local cluster runs, its address and its files.

    Exit code: 0 running (or starting), 3 stopped, 4 crashed.
    """
    found = read_status()
    if form == "json":
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        _show(found, found.state)
    context.exit({"stopped": STOPPED, "crashed": CRASHED}.get(found.state, 0))


def _show(status: Status, headline: str) -> None:
    lines = [("state", headline)]
    if status.bootstrap_servers:
        lines.append(("bootstrap servers", status.bootstrap_servers))
    for broker in status.brokers:
        lines.append((f"broker {broker.id}", f"{broker.address}, {_process(broker.pid, broker.alive)}"))
    if status.registry:
        lines.append(
            ("schema registry", f"{status.registry.url}, {_process(status.registry.pid, status.registry.alive)}")
        )
    if status.client_properties:
        lines.append(("client settings", status.client_properties))
    if status.data_dir:
        lines.append(("data", f"{status.data_dir} ({'kept' if status.kept else 'deleted when it stops'})"))
    if status.log:
        lines.append(("log", status.log))
    if status.registry:
        lines.append(("registry's log", status.registry.log))
    for name, value in lines:
        click.echo(f"{name:<18} {value}")


def _process(pid: int, alive: bool) -> str:
    return f"pid {pid}" if alive else f"dead (was pid {pid})"


def _busy() -> None:
    raise LocalBrokerError("a cluster is already running: `headrace down` stops it")


@contextlib.contextmanager
def download_bar() -> Iterator[ProgressCallback]:
    """Shows a download on stderr: a progress bar on a terminal, elsewhere one line for each product, because a download
    takes minutes on a slow line. Without a download, nothing."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("", total=None)
    started = False
    announced = set()

    def show(progress: DownloadProgress) -> None:
        nonlocal started
        if not console.is_terminal and progress.step in ("resolving", "downloading"):
            if progress.product not in announced:
                announced.add(progress.product)
                say(f"downloading {progress.product} for its first use ...")
            return
        if not started:
            bar.start()
            started = True
        bar.update(
            task,
            description=f"{progress.product}: {progress.step}",
            completed=progress.done,
            total=progress.total,
        )

    try:
        yield show
    finally:
        if started:
            bar.stop()
