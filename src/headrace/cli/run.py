"""`headrace run`: runs a Spark pipeline, including its broker, with one command.

    DIR/spark-pipeline.yml     the project, in the format of Spark Declarative Pipelines
    DIR/sample.py              optional: TOPIC, PARTITIONS and records(first, count), for sample data
    DIR/state/                 the results of runs: tables, checkpoints, the catalog, the broker's data, run.log

The next run processes the new records. To start from the beginning, delete DIR/state. Checkpoints belong to one
cluster, whose id is in `state/cluster`: in another cluster, the same offsets are other records.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import HeadraceError
from .connection_options import Settings, client_options, client_settings, name_and_value
from .formatting import printable, say, table
from .spark_errors import Failures, cause_in
from .ui import check_packages, page_beside, page_options

if TYPE_CHECKING:
    from ..ui.activity import PipelineActivity

SPECS = ("spark-pipeline.yml", "spark-pipeline.yaml")
SAMPLE = "sample.py"
FIRST_SAMPLE, LATER_SAMPLE = 200_000, 20_000
_LOOK_EVERY = 0.1
_ASK_WITHIN = 10.0
_END_WITHIN = 20.0


class PipelineError(HeadraceError):
    """A run failed."""


@dataclasses.dataclass(frozen=True, slots=True)
class PipelineOutcome:
    tables: list[dict[str, Any]]
    seconds: float
    shown: dict[str, Any] | None
    location: str | None
    """The directory of the main table; None if it is not on this machine."""


@click.command(
    epilog="""\b
Examples:
  headrace run pipelines/traffic                        starts its own broker and writes sample data
  headrace run pipelines/traffic -b localhost:9092 --state traffic-tables    reads from a running cluster
  headrace run DIR -b broker:9093 -F client.properties --master spark://host:7077
  headrace run DIR --conf spark.sql.shuffle.partitions=8
  headrace run pipelines/traffic --ui                   shows tables and micro-batches in a browser
"""
)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@client_options(default_servers="start a broker", reads_environment=False)
@click.option(
    "--master", default="local[*]", show_default=True, help="Spark's master, or sc://host of a Connect server."
)
@click.option("--conf", "confs", multiple=True, metavar="NAME=VALUE", help="A setting of Spark or of the pipeline.")
@click.option("--sample", type=click.IntRange(0), help="Records to write to its own broker.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for tables and checkpoints.  [default: DIRECTORY/state]",
)
@page_options
def run(
    settings: Settings,
    directory: Path,
    master: str,
    confs: tuple[str, ...],
    sample: int | None,
    state: Path | None,
    shows_page: bool,
    page_port: int,
) -> None:
    """Run the Spark pipeline in DIRECTORY once, until its tables have all records that are in Kafka now.

    Without -b (or bootstrap.servers in -C or -F), it starts its own broker and writes the project's sample, if there is
    one: 200,000 records in the first run, and 20,000 more in each later run. Tables, checkpoints and the log are in
    DIRECTORY/state. They belong to one cluster: for another cluster, choose another directory with --state.
    """
    spec = next((directory / name for name in SPECS if (directory / name).is_file()), None)
    if spec is None:
        raise click.BadParameter(
            f"no {SPECS[0]} in {directory}: `headrace new` creates a project", param_hint="DIRECTORY"
        )
    own_broker = not settings.get("bootstrap.servers")
    if sample is not None and not own_broker:
        raise click.UsageError(
            "--sample cannot be combined with -b: it writes to the broker that `headrace run` starts"
        )
    if sample is not None and not (directory / SAMPLE).is_file():
        raise click.UsageError(f"--sample needs {SAMPLE}, which {directory} does not have")
    _check_packages()
    if shows_page:
        check_packages()
    chosen = dict(name_and_value(text, "--conf") for text in confs)
    state = state or directory / "state"
    state.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with _locked(state), contextlib.ExitStack() as stack:
        if own_broker:
            settings["bootstrap.servers"] = stack.enter_context(_own_broker(directory, state, sample))
        if not master.startswith("sc://"):  # the executors of a server may reach brokers that this machine cannot
            _check_cluster(state, settings)
        before = consumed_offsets(state) or 0
        configuration = {f"headrace.kafka.{name}": str(value) for name, value in settings.items()} | chosen
        activity = stack.enter_context(_page(directory, state, settings, page_port)) if shows_page else None
        outcome = _run_spark(spec, state, master, configuration, begun, activity)
        after = consumed_offsets(state)
        report(state, outcome, None if after is None else after - before, time.monotonic() - begun)
        if after is not None:
            _report_lag(state, settings)


def _check_packages() -> None:
    for module, extra in (("pyspark", "spark"), ("grpc", "spark-connect"), ("yaml", "spark-connect")):
        try:
            __import__(module)
        except ImportError:
            raise PipelineError(f"pipelines need {module}: pip install 'headrace[{extra}]'") from None


@contextlib.contextmanager
def _page(directory: Path, state: Path, settings: Settings, port: int) -> Iterator[PipelineActivity]:
    from ..ui.activity import PipelineActivity

    checkpoints = state / "checkpoints"
    activity = PipelineActivity(directory.absolute().name, checkpoints)
    with page_beside(settings, port, activity, checkpoints=(checkpoints,)):
        try:
            yield activity
        except BaseException as error:
            activity.end(str(error) or "stopped")
            raise
        activity.end()


@contextlib.contextmanager
def _locked(state: Path) -> Iterator[None]:
    from ..local.filelock import FileLock

    lock = FileLock(state / "run.lock")
    if not lock.acquire(0):
        raise PipelineError(f"another run of this pipeline is in progress ({state / 'run.lock'} is locked)")
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _own_broker(directory: Path, state: Path, sample: int | None) -> Iterator[str]:
    from ..local import LocalBroker
    from .broker import download_bar
    from .sample import load_sample, write_sample

    found = load_sample(directory)
    with download_bar() as progress:
        from ..local.kafka_home import DEFAULT_VERSION
        from ..local.prepare import prepare

        prepare(DEFAULT_VERSION, progress)
    say("starting Apache Kafka on this machine ...")
    with LocalBroker(data_dir=str(state / "broker")) as broker:
        if found is not None:
            write_sample(found, broker.bootstrap_servers, sample, FIRST_SAMPLE, LATER_SAMPLE, state)
        yield broker.bootstrap_servers


def _check_cluster(state: Path, settings: Settings) -> None:
    """Check that the cluster is reachable (Spark would retry for minutes) and that the state belongs to it."""
    from .._aio.admin import AsyncAdmin

    async def ask() -> str:
        async with AsyncAdmin(client_settings(settings, _ASK_WITHIN)) as admin:
            return await admin.cluster_id()

    place, found = state / "cluster", asyncio.run(ask())
    if not place.exists():
        place.write_text(f"{found}\n")
    elif (known := place.read_text().strip()) != found:
        raise PipelineError(
            f"the tables and checkpoints in {state} belong to another cluster (id {known}; this cluster is {found}): "
            "choose another directory with --state"
        )


def consumed_offsets(state: Path) -> int | None:
    """The number of consumed offsets, according to the checkpoints. None if there are no checkpoints on this machine:
    the pipeline has no streaming tables, or runs on a remote Connect server."""
    from ..monitor.checkpoints import read_checkpoints, slowest

    try:
        done = slowest(found.done for found in read_checkpoints(state / "checkpoints"))
    except (HeadraceError, OSError):
        return None
    return sum(each.count_done for each in done.values())


def _run_spark(
    spec: Path,
    state: Path,
    master: str,
    configuration: dict[str, str],
    begun: float,
    activity: PipelineActivity | None = None,
) -> PipelineOutcome:
    """Raises PipelineError with the cause in one line."""
    from ..local.process import GuardedProcess
    from .pipeline_process import Task

    log, events = state / "run.log", state / "events.jsonl"
    events.write_text("")
    task = Task(str(spec.absolute()), str(state.absolute()), str(events.absolute()), master, configuration)
    task_file = state / "task.json"
    task_file.unlink(missing_ok=True)
    with open(os.open(task_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(dataclasses.asdict(task), file)
    with log.open("wb") as output:
        command = [sys.executable, "-m", "headrace.cli.pipeline_process", str(task_file.absolute())]
        process = GuardedProcess(command, output=output, grace=_END_WITHIN)
    failures, found = Failures(), None
    try:
        for event in follow(events, process, begun, _nothing if activity is None else activity.refresh):
            if activity is not None:
                activity.on_event(event)
            failures.add(cause_in(event.get("message", "")))
            failures.add(event.get("failed", ""))
            if "warning" in event:
                say(event["warning"])
            if "tables" in event:
                found = PipelineOutcome(**event)
    except (KeyboardInterrupt, SystemExit):  # SystemExit: SIGTERM and SIGHUP, see `handle_signals`
        process.send_signal(signal.SIGTERM)
        process.wait(_END_WITHIN)
        say("stopped; the next run resumes where this one stopped")
        raise
    finally:
        process.close()
    if found is None:
        raise PipelineError(
            f"the pipeline failed: {failures.cause or 'Spark exited without an error message'} (log: {log})"
        )
    return found


def _nothing() -> None:
    pass


def follow(
    events: Path, process: Any, begun: float, on_wait: Callable[[], None] = _nothing
) -> Iterator[dict[str, Any]]:
    """The events of the process, until it ends. Shows the current step, and how many seconds the command has run. Calls
    `on_wait` ten times per second while there are none."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    doing = "starting Spark"

    def shown() -> str:
        return f"{printable(doing)} ({time.monotonic() - begun:.0f} s)"

    with console.status(Text(shown())) as status, events.open() as lines:
        over, line = False, ""
        while True:
            line += (more := lines.readline())
            if line.endswith("\n"):  # otherwise the rest of the line is not written yet
                event, line = json.loads(line), ""
                if said := event.get("stage") or event.get("message"):
                    doing = said.splitlines()[0]
                    if not console.is_terminal and "stage" in event:
                        say(f"{shown()} ...")
                yield event
            elif over and not more:
                return
            else:
                over = process.wait(_LOOK_EVERY)
                on_wait()
            status.update(Text(shown()))  # as Text: messages of Spark are not markup


def report(state: Path, outcome: PipelineOutcome, new: int | None, seconds: float) -> None:
    rows = [(each["name"], each["rows"], each["rows"] - each["before"]) for each in outcome.tables]
    click.echo(table(("table", "rows", "new"), rows))
    if outcome.shown:
        click.echo("\n" + table(outcome.shown["columns"], outcome.shown["rows"]))
    took = f"{outcome.seconds:.1f} s"
    if new is not None:
        rate = new / outcome.seconds if outcome.seconds else 0.0
        took = f"{new:,} new records in {took} ({rate:,.0f} records/s)"
    click.echo(f"\n{took}, {seconds:.1f} s including startup")
    log = os.path.relpath(state / "run.log")
    if outcome.location is None:
        click.echo(f"log: {log}")
        return
    place = os.path.relpath(outcome.location)
    click.echo(f"tables: {os.path.dirname(place)}, log: {log}")
    click.echo(f"""{_python()} -c "import pandas; print(pandas.read_parquet('{place}'))\"""")


def _python() -> str:
    here = os.path.relpath(sys.executable)
    return "python" if here.startswith("..") else here


def _report_lag(state: Path, kafka: Settings) -> None:
    from .._aio.admin import AsyncAdmin
    from .lag_queries import checkpoint_sample

    async def ask() -> str:
        settings = client_settings(kafka, _ASK_WITHIN)
        async with AsyncAdmin(settings) as admin:
            sample = await checkpoint_sample(admin, settings, state / "checkpoints", ())
            return f"lag: {sample.lag:,} records in {len(sample.rows)} partitions"

    try:
        click.echo(asyncio.run(ask()))
    except (HeadraceError, OSError) as error:
        click.echo(f"lag: unknown ({error})")
